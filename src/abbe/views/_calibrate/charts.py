"""A calibration as charts and page: the loss stage by stage, and what the swap changed in every layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import altair as alt

from ...words.manifest import model_name, part_of, text_name
from ...words.names import BASELINE, FINETUNED, FITTED, SWAPPED
from ...words.numbers import percent
from .._shared.panels import Look, Row, numbers, renamed, rows_of, series_style, tip, value_axis
from .._shared.series import Spec, finished, lines, panel, source, unchecked
from .._shared.terminal import plain
from .._shared.theme import THEMES, Theme, ThemeName
from .._study_page import study_page
from .table import calibration_question, calibration_tables

if TYPE_CHECKING:
    from ...studies import Calibration

_COLUMNS = {SWAPPED: "before", FITTED: "after", FINETUNED: "tuned"}  # of the table of layers
_ROOM = 0.12  # above and below the losses
_LEAST = 1.0  # percent: zeros of a normalizer that has none come from weights that underflow


@unchecked
def calibration_chart(calibration: Calibration, theme: ThemeName = "light") -> Spec:
    """What did the swap cost, and what did calibration regain?

    Up to three panels: the loss of each stage on held-out windows, and per layer the error of its outputs and its
    weights of exactly 0. A stage near the dashed line costs nothing; a large error marks a layer that the swap changed
    a lot.

    Args:
        calibration: from `abbe.calibrate`.
        theme: "light" or "dark".

    Returns:
        The Vega-Lite specification; `altair.Chart.from_dict` takes it.

    Examples:
        >>> small = {"length": 32, "windows": 2, "held_out": 2, "steps": 2, "progress": False}
        >>> calibration = abbe.calibrate(normalizer="topk:k=8", **small)
        >>> [panel["title"] for panel in abbe.views.calibration_chart(calibration)["concat"]]
        ['loss on held-out windows', "change of each layer's outputs", 'exact zeros in each layer']
    """
    looks, layers = _looks(THEMES[theme]), rows_of(calibration.layers)
    panels = [
        _losses(calibration, looks, THEMES[theme]),
        _by_layer(layers, "error", "error of the outputs (%)", "change of each layer's outputs", looks),
        _by_layer(layers, "zeros", "weights of exactly 0 (%)", "exact zeros in each layer", looks),
    ]
    question = "What did the swap cost, and what did calibration regain?"
    return finished(
        panels, question, _about(calibration), theme, columns=len(panels), legend_columns=len(looks),
        independent=("color", "strokeDash", "strokeWidth", "x", "y"),
    )  # fmt: skip


def _about(calibration: Calibration) -> list[str]:
    manifest, settings = calibration.manifest, part_of(calibration.manifest, "settings")
    spec = calibration.spec
    rules = spec if isinstance(spec, str) else "; ".join(f"{pattern}={rule}" for pattern, rule in spec.items())
    lines = [plain(f"{model_name(manifest)} with {rules}, on {text_name(manifest)}")]
    if settings:
        level = f"; bars: {percent(settings['level'], 3)} intervals of the paired difference from the baseline"
        several = settings["held_out"] > 1 and calibration.losses
        lines.append(
            f"fitted on {settings['windows']}, loss on {settings['held_out']} windows of {settings['length']:,} tokens"
            + (level if several else "")
        )
    return lines


def _looks(theme: Theme) -> dict[str, Look]:
    return {
        SWAPPED: Look(SWAPPED, theme.claim, (2, 3)),
        FITTED: Look(FITTED, theme.selected),
        FINETUNED: Look(FINETUNED, theme.third, (6, 3)),
    }


def _losses(calibration: Calibration, looks: dict[str, Look], theme: Theme) -> Spec | None:
    """A point per stage. Its bar is the paired difference, which leaves out what windows have in common."""
    if not calibration.losses:
        return None
    baseline = calibration.losses[0].loss.value
    rows: list[Row] = []
    for stage in calibration.losses:
        row: Row = {"stage": stage.stage, "loss": stage.loss.value}
        if stage.stage != BASELINE and stage.over_baseline is not None and stage.over_baseline.low is not None:
            row |= {"low": baseline + stage.over_baseline.low, "high": baseline + (stage.over_baseline.high or 0.0)}
        rows.append(row)
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
    layers = [
        source(rows[:1]).mark_rule(color=theme.ink, strokeDash=[5, 3]).encode(y=y),
        bars.encode(x=x, y=renamed(y, "low"), y2="high:Q", color=colour),
        source(rows).mark_point(filled=True, size=70, opacity=1).encode(x, y, colour, tooltip=tips),
        source([row | {"shown": f"{row['loss']:.3f}"} for row in rows])
        .mark_text(align="left", dx=6, dy=-8, fontSize=10, color=theme.ink)
        .encode(x, y, text="shown:N"),
    ]
    return panel(layers, "loss on held-out windows")


def _by_layer(layers: Sequence[Row], what: str, axis: str, title: str, looks: dict[str, Look]) -> Spec | None:
    """A line per stage; None if there is nothing to see."""
    rows = [
        {"layer": row["layer"], "value": 100 * row[f"{what}_{column}"], "shown": stage}
        for stage, column in _COLUMNS.items()
        for row in layers
        if row[f"{what}_{column}"] is not None
    ]
    values = numbers(rows, "value")
    if not values or (what == "zeros" and max(values) < _LEAST):
        return None
    style = series_style(looks, {row["shown"] for row in rows})
    x = alt.X("layer:O", title="layer", axis=alt.Axis(labelOverlap="parity"))
    y = value_axis("value", axis, values, log=False)
    tips = [tip("shown", "stage", "N"), tip("layer"), tip("value", axis)]
    return panel(lines(rows, x, y, style, tips), title)


def calibration_page(calibration: Calibration) -> str:
    windows, held_out = (len(calibration.manifest.get(name) or ()) for name in ("windows", "held_out"))
    length = part_of(calibration.manifest, "settings").get("length")
    about = f"on {text_name(calibration.manifest)}: fitted on {windows} windows of {length} tokens, {held_out} held out"
    charts = {theme: {"calibration": calibration_chart(calibration, theme)} for theme in THEMES}
    question, tables = calibration_question(calibration), calibration_tables(calibration)
    return study_page(calibration, question, [about], calibration.findings, tables, charts)
