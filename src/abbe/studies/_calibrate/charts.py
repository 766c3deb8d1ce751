"""Charts of a calibration: the loss stage by stage, and what the swap changed in every layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...views import charts as kit
from ...views.charts import Look, Plot, Row, Spec, numbers
from ...views.text import plain
from ...views.theme import THEMES, Theme, ThemeName
from ...words.manifest import part_of
from ...words.numbers import percent
from .result import COLUMNS, FINETUNED, FITTED, SWAPPED, Calibration

_LEAST = 1.0  # percent: zeros of a normalizer that has none come from weights that underflow


def charts_of(calibration: Calibration, theme: ThemeName) -> dict[str, Spec]:
    """Up to three panels: the loss of each stage on held-out windows, and per layer the error of its outputs and its
    weights of exactly 0. A stage near the dashed line costs nothing.
    """
    colours = THEMES[theme]
    looks = {
        SWAPPED: Look(SWAPPED, colours.claim, (2, 3)),
        FITTED: Look(FITTED, colours.selected),
        FINETUNED: Look(FINETUNED, colours.third, (6, 3)),
    }
    layers = kit.rows_of(calibration.layers)
    panels = [
        _losses(calibration, looks, colours),
        _by_layer(layers, "error", "error of the outputs (%)", "change of each layer's outputs", looks),
        _by_layer(layers, "zeros", "weights of exactly 0 (%)", "exact zeros in each layer", looks),
    ]
    view, settings = calibration.view(), part_of(calibration.manifest, "settings")
    about = [*map(plain, view.about)]
    if calibration.losses and settings.get("held_out", 1) > 1:
        about.append(f"bars: {percent(settings['level'], 3)} intervals of the paired difference from the baseline")
    scales = ("color", "strokeDash", "strokeWidth", "x", "y")
    question = plain(view.question)
    chart = kit.finished(panels, question, about, theme, columns=3, legend_columns=3, independent=scales)
    return {"calibration": chart}


def _losses(calibration: Calibration, looks: Mapping[str, Look], theme: Theme) -> Spec | None:
    """A point per stage. Its bar is the paired difference, which leaves out what windows have in common."""
    if not calibration.losses:
        return None
    baseline = calibration.losses[0].loss.value
    rows: list[Row] = []
    for stage in calibration.losses:
        rows.append({"stage": stage.stage, "loss": stage.loss.value, "shown": f"{stage.loss.value:.3f}"})
        over = stage.over_baseline
        if over is not None and over.low is not None and over.high is not None:
            rows[-1] |= {"low": baseline + over.low, "high": baseline + over.high}
    stages = [row["stage"] for row in rows]
    hues = {stage: looks[stage].colour if stage in looks else theme.ink for stage in stages}
    x = kit.names_axis("stage", None, stages, labelLimit=90)
    y = kit.near_axis("loss", "loss (nats)", numbers(rows, "loss", "low", "high"))
    tips = {"stage": "", "loss": "", "low": "from", "high": "to"}
    plot = Plot(x, y, tips, color=kit.by_value("stage", hues, legend=None))
    plot.level([baseline], color=theme.ink).ends(rows).dots(rows, size=70)
    return plot.text(rows, "shown", align="left", dx=6, dy=-8, color=theme.ink).panel("loss on held-out windows")


def _by_layer(layers: Sequence[Row], what: str, axis: str, title: str, looks: Mapping[str, Look]) -> Spec | None:
    """A line per stage; None if there is nothing to see."""
    rows = [
        {"layer": row["layer"], "value": 100 * row[f"{what}_{column}"], "shown": stage}
        for stage, column in COLUMNS.items()
        for row in layers
        if row[f"{what}_{column}"] is not None
    ]
    values = numbers(rows, "value")
    if not values or (what == "zeros" and max(values) < _LEAST):
        return None
    present = {row["shown"] for row in rows}
    x, y = kit.names_axis("layer", "layer", labelOverlap="parity"), kit.linear_axis("value", axis, values)
    shown = {name: look for name, look in looks.items() if name in present}
    return Plot(x, y, {"shown": "stage", "layer": "", "value": axis}, shown).curve(rows).panel(title)
