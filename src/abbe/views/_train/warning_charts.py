"""Early warning as a chart: how well each quantity ranks failing runs first, and what each alert would have done."""

from __future__ import annotations

from typing import TYPE_CHECKING

import altair as alt

from .._shared.panels import Row, renamed, rows_of, tip
from .._shared.series import Spec, finished, panel, source
from .._shared.theme import THEMES, Theme, ThemeName
from .looks import looks_of
from .words import signal_name

if TYPE_CHECKING:
    from ...studies import Experiment

_LINE = 19  # pixels per row
_BEST = 3  # quantities whose thresholds are traced
_WARNED, _FALSE = "failing runs warned", "healthy runs alarmed"


def warning_chart(experiment: Experiment, theme: ThemeName) -> Spec | None:
    """None if no run failed, or all did: there is nothing to warn of, or nothing to compare with."""
    rows = [row | {"signal": signal_name(row)} for row in rows_of(experiment.warnings)]
    if not rows:
        return None
    failing, healthy = rows[0]["failing"], rows[0]["healthy"]
    about = [
        f"{failing:,} failing and {healthy:,} healthy runs of single seeds; only what happens before the loss shows "
        "the failure counts",
        "AUC: how often a failing run ranks above a healthy one, 0.5 is chance; bars: intervals over runs",
    ]
    colours = THEMES[theme]
    panels = [
        _auc([row for row in rows if row["auc"] is not None], colours),
        _roc(experiment, rows, colours),
        _alerts([row for row in rows if row["kind"] == "alert"], colours),
    ]
    question = "Which quantity warns before the loss does?"
    return finished(panels, question, about, theme, independent=["color", "shape", "x", "y"])


def _auc(rows: list[Row], theme: Theme) -> Spec | None:
    """The best first, with its interval, against chance."""
    if not rows:
        return None
    order = [row["signal"] for row in sorted(rows, key=lambda row: -row["auc"])]
    axis = alt.Axis(values=[0, 0.25, 0.5, 0.75, 1], format=".2f")
    x = alt.X("auc:Q", title="AUC", scale=alt.Scale(domain=[0, 1]), axis=axis)
    y = alt.Y("signal:N", title=None, sort=order, axis=alt.Axis(labelLimit=200))
    tips = [
        tip("signal", "warns", "N"), tip("auc", "AUC"), tip("auc_low", "from"), tip("auc_high", "to"),
        tip("threshold", "threshold for at most 5 % false alarms"), tip("warned", "warned then"),
        tip("false_alarms", "false alarms then"), tip("lead", "median lead (steps)"),
    ]  # fmt: skip
    known = [row for row in rows if row["auc_low"] is not None]
    bars = source(known).mark_rule(color=theme.selected, strokeWidth=3, opacity=0.45)
    layers = [source([{"auc": 0.5}]).mark_rule(color=theme.control, strokeDash=[4, 3]).encode(x=x)]
    layers += [bars.encode(x=renamed(x, "auc_low"), x2="auc_high:Q", y=y)] if known else []
    dots = source(rows).mark_point(filled=True, size=60, opacity=1, color=theme.selected)
    return panel([*layers, dots.encode(x, y, tooltip=tips)], "quantities of the monitor", height=_LINE * len(rows))


def _roc(experiment: Experiment, warnings: list[Row], theme: Theme) -> Spec | None:
    """Over all thresholds, for the three best quantities and the two that the paper names."""
    ranked = sorted((row for row in warnings if row["auc"] is not None), key=lambda row: -row["auc"])
    named = [row for row in ranked if row["kind"] == "change"]
    shown = list(dict.fromkeys(row["signal"] for row in [*ranked[:_BEST], *named]))
    rows = [row | {"signal": signal_name(row)} for row in rows_of(experiment.roc)]
    points = [row | {"place": place} for place, row in enumerate(rows) if row["signal"] in shown]
    if not points:
        return None
    ends = [{"signal": name, "false_alarms": x, "warned": x, "threshold": None, "place": place}
            for name in shown for x, place in ((0.0, -1), (1.0, len(rows)))]  # fmt: skip
    axis = alt.Axis(format="%", tickCount=5)
    scale = alt.Scale(domain=[0, 1])
    x = alt.X("false_alarms:Q", title=_FALSE, scale=scale, axis=axis)
    y = alt.Y("warned:Q", title=_WARNED, scale=scale, axis=axis)
    hues = alt.Scale(domain=shown, range=[look.colour for look in looks_of(shown, theme).values()])
    colour = alt.Color("signal:N", title=None, scale=hues, legend=alt.Legend(columns=2))
    tips = [tip("signal", "warns", "N"), tip("threshold"), tip("warned", _WARNED), tip("false_alarms", _FALSE)]
    chance = source([{"false_alarms": 0, "warned": 0}, {"false_alarms": 1, "warned": 1}])
    lines = source([*points, *ends]).mark_line(strokeWidth=2, interpolate="step-after")
    layers = [
        chance.mark_line(color=theme.control, strokeDash=[4, 3]).encode(x, y),
        lines.encode(x, y, colour, order="place:Q", tooltip=tips),
    ]
    return panel(layers, "as the threshold is lowered")


def _alerts(rows: list[Row], theme: Theme) -> Spec | None:
    """The alerts at their thresholds: how many failing runs they catch, and how many healthy ones."""
    if not rows:
        return None
    points = [
        {"signal": row["signal"], "share": row[column], "shown": words, "lead": row["lead"]}
        for row in rows
        for column, words in (("warned", _WARNED), ("false_alarms", _FALSE))
    ]
    order = [row["signal"] for row in sorted(rows, key=lambda row: row["false_alarms"] - row["warned"])]
    x = alt.X("share:Q", title="share of runs", scale=alt.Scale(domain=[0, 1]), axis=alt.Axis(format="%", tickCount=5))
    y = alt.Y("signal:N", title=None, sort=order, axis=alt.Axis(labelLimit=200))
    hues = alt.Scale(domain=[_WARNED, _FALSE], range=[theme.third, theme.claim])
    colour = alt.Color("shown:N", title=None, scale=hues)
    shape = alt.Shape("shown:N", title=None, scale=alt.Scale(domain=[_WARNED, _FALSE], range=["circle", "diamond"]))
    tips = [tip("signal", "alert", "N"), tip("shown", "of", "N"), tip("share"), tip("lead", "median lead (steps)")]
    between = source(rows).mark_rule(color=theme.control, opacity=0.6)
    layers = [
        between.encode(x=renamed(x, "warned"), x2="false_alarms:Q", y=y),
        source(points).mark_point(filled=True, size=60, opacity=1).encode(x, y, colour, shape, tooltip=tips),
    ]
    return panel(layers, "alerts of the monitor, as they are", height=_LINE * len(rows))
