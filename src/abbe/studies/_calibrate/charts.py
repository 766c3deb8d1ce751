"""Charts of a calibration: the loss stage by stage, and what the swap changed in every layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import altair as alt

from ...views import charts as kit
from ...views.charts import Look, Row, Spec, numbers, panel, source, tip
from ...views.text import plain
from ...views.theme import THEMES, Theme, ThemeName
from ...words.manifest import part_of
from ...words.numbers import percent
from .result import COLUMNS, FINETUNED, FITTED, SWAPPED, Calibration

_ROOM = 0.12  # above and below the losses
_LEAST = 1.0  # percent: zeros of a normalizer that has none come from weights that underflow


@kit.unchecked
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
    low, high = min(numbers(rows, "loss", "low")), max(numbers(rows, "loss", "high"))
    room = _ROOM * (high - low) or 0.1
    scale = alt.Scale(domain=[low - room, high + room], nice=False, zero=False)
    stages = [row["stage"] for row in rows]
    x = alt.X("stage:N", title=None, sort=stages, axis=alt.Axis(labelLimit=90))
    y = alt.Y("loss:Q", title="loss (nats)", scale=scale, axis=alt.Axis(tickCount=6))
    hues = [looks[stage].colour if stage in looks else theme.ink for stage in stages]
    colour = alt.Color("stage:N", scale=alt.Scale(domain=stages, range=hues), legend=None)
    tips = [tip("stage", "stage", "N"), tip("loss"), tip("low", "from"), tip("high", "to")]
    bars = source([row for row in rows if "low" in row]).mark_rule(strokeWidth=3, opacity=0.45)
    names = source(rows).mark_text(align="left", dx=6, dy=-8, fontSize=10, color=theme.ink)
    layers = [
        source(rows[:1]).mark_rule(color=theme.ink, strokeDash=[5, 3]).encode(y=y),
        bars.encode(x=x, y=kit.renamed(y, "low"), y2="high:Q", color=colour),
        source(rows).mark_point(filled=True, size=70, opacity=1).encode(x, y, colour, tooltip=tips),
        names.encode(x, y, text="shown:N"),
    ]
    return panel(layers, "loss on held-out windows")


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
    style = kit.series_style(looks, {row["shown"] for row in rows})
    x = alt.X("layer:O", title="layer", axis=alt.Axis(labelOverlap="parity"))
    y = kit.value_axis("value", axis, values, log=False)
    tips = [tip("shown", "stage", "N"), tip("layer"), tip("value", axis)]
    return panel(kit.lines(rows, x, y, style, tips), title)
