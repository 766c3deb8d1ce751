"""A training run as one figure for papers: loss, learning rate and a few measures of all heads over steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import altair as alt
import polars as pl

from ...words.manifest import model_name
from .._shared.panels import Row, numbers, renamed, rows_of, tip
from .._shared.series import Spec, finished, linear_axis, log_axis, panel, source, unchecked
from .._shared.theme import THEMES, Theme, ThemeName
from .answer import about_line, answer_of, shared_by
from .page import Selection, select_steps

if TYPE_CHECKING:
    from ...results import Quantity, Training

_SHOWN = ("entropy", "max_logit", "logit_change", "separability", "saturated", "gradient_ratio")
_LINES = (("loss", "loss"), ("learning_rate", "learning rate"))
_LOGARITHMIC = ("max_logit", "logit_change", "gradient_ratio")
_STEPS = 120  # in a figure; more are invisible in print


@unchecked
def watch_chart(training: Training, theme: ThemeName = "light") -> Spec:
    """Thin lines are heads, the bold one their mean, the dashed one the limit, vertical ones alerts."""
    colours = THEMES[theme]
    question = f"What happened to the attention of {model_name(training.manifest)} in training?"
    about = [answer_of(training).sentence, ", ".join(about_line(training))]
    if not training.records:
        return finished([], question, about, theme)
    selection = select_steps(training, _STEPS)
    events = [{"step": step} for step in sorted({event.alert["step"] for event in training.events()})]
    model = rows_of(selection.model.with_columns(step=pl.Series(selection.steps)))
    x = _step_axis(selection.steps)
    panels = [_line(model, name, title, x, events, colours) for name, title in _LINES]
    named = [name for wanted in _SHOWN for name in selection.measures if name.partition("@")[0] == wanted]
    panels += [_measure(selection, training.quantity(name), model, x, events, colours) for name in named]
    return finished(panels, question, about, theme)


def _step_axis(steps: Sequence[int]) -> alt.X:
    ends = [steps[0], max(steps[-1], steps[0] + 1)]
    return alt.X("step:Q", title="step", scale=alt.Scale(domain=ends, nice=False), axis=alt.Axis(tickCount=5))


def _alerts(events: Sequence[Row], x: alt.X, theme: Theme) -> list[alt.Chart]:
    rule = source(events).mark_rule(color=theme.alarm, opacity=0.5, strokeWidth=1)
    return [rule.encode(x=x)] if events else []


def _line(rows: Sequence[Row], name: str, title: str, x: alt.X, events: Sequence[Row], theme: Theme) -> Spec | None:
    present = [row for row in rows if row[name] is not None]
    if not present:
        return None
    y = linear_axis(name, title, numbers(present, name))
    drawn = source([{"step": row["step"], name: row[name]} for row in present])
    tips = [tip("step"), tip(name, title)]
    return panel([*_alerts(events, x, theme), drawn.mark_line(color=theme.selected).encode(x, y, tooltip=tips)], title)


def _measure(
    selection: Selection, quantity: Quantity, model: Sequence[Row], x: alt.X, events: Sequence[Row], theme: Theme
) -> Spec:
    name, limit, heads = quantity.name, f"{quantity.name} limit", [f"{i}.{head}" for i, head in selection.heads]
    per_step = len(heads)
    values = selection.values[name].to_list()
    limits = selection.values[limit].to_list() if limit in selection.values.columns else []
    rows = [
        {"step": selection.steps[i // per_step], "head": heads[i % per_step], "value": value}
        for i, value in enumerate(values)
        if value is not None
    ]
    means = [{"step": row["step"], "value": row[f"{name} mean"]} for row in model if row[f"{name} mean"] is not None]
    by_step = [shared_by(limits[i : i + per_step]) for i in range(0, len(limits), per_step)]
    known = [(step, end) for step, end in zip(selection.steps, by_step, strict=False) if end is not None]
    ends = [{"step": step, "limit": end} for step, end in known]
    axis = log_axis if name.partition("@")[0] in _LOGARITHMIC else linear_axis
    y = axis("value", quantity.unit, numbers([*rows, *ends], "value", "limit"))
    tips = [tip("step"), tip("head", "head", "N"), tip("value")]
    lines = source(means).mark_line(color=theme.selected, strokeWidth=2.6)
    layers = [
        *_alerts(events, x, theme),
        source(rows).mark_line(color=theme.selected, strokeWidth=0.7, opacity=0.4).encode(
            x, y, detail="head:N", tooltip=tips
        ),
        lines.encode(x, y, tooltip=[tip("step"), tip("value", "mean over heads")]),
    ]  # fmt: skip
    if ends:
        layers.append(source(ends).mark_line(color=theme.proved, strokeDash=[7, 4]).encode(x, renamed(y, "limit")))
    return panel(layers, quantity.label)
