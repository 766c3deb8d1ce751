"""Looks of series, curves over the steps of a run, and early warning as a chart."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import altair as alt
import polars as pl

from .._shared.panels import Look, Row, numbers, renamed, rows_of, series_style, share_axis, tip
from .._shared.series import Spec, finished, linear_axis, log_axis, panel, source
from .._shared.theme import THEMES, Theme, ThemeName
from .table import QUANTITIES, as_number, optimizer_name, signal_name, temperature_name, with_names

if TYPE_CHECKING:
    from ...lab import Experiment


_WIDE = 10.0  # from this ratio on, a logarithmic axis has enough ticks
_LOW = 0.6  # accuracies below it would lie at the bottom of an axis up to 1
_DASHES = ((1, 0), (6, 3), (2, 3))
CONTROL_DASH = (7, 4)
BROAD = 4.5  # pixels: wide enough to stay visible below the controls that lie on it
SEEDS: dict[str, Any] = {"filled": True, "size": 22, "opacity": 0.6}  # points of single seeds
MEANS: dict[str, Any] = {"filled": True, "size": 46, "opacity": 1}


def hues(theme: Theme) -> tuple[str, ...]:
    return theme.selected, theme.claim, theme.third, theme.fourth, theme.ink, theme.control


def looks_of(names: Iterable[str], theme: Theme) -> dict[str, Look]:
    colours = hues(theme)
    return {
        name: Look(name, colours[place % len(colours)], _DASHES[place // len(colours) % len(_DASHES)])
        for place, name in enumerate(dict.fromkeys(names))
    }


def over_seeds(rows: pl.DataFrame, by: Sequence[str], *values: str) -> list[Row]:
    """The mean over seeds; null if no seed has a value."""
    return rows_of(rows.group_by(by, maintain_order=True).agg(pl.col(name).mean() for name in values))


def wide_axis(field: str, title: str, values: Sequence[float], decades: float) -> alt.Y:
    """Logarithmic over a wide range, else linear around the values."""
    positive = [value for value in values if value > 0]
    if positive and max(positive) >= _WIDE * min(positive):
        return log_axis(field, title, values, decades)
    return near_axis(field, title, values)


def near_axis(
    field: str, title: str, values: Sequence[float], within: tuple[float, float] = (-math.inf, math.inf)
) -> alt.Y:
    """Linear around the values, not from 0: for points and lines, which have no length to compare."""
    low, high = min(values, default=0.0), max(values, default=1.0)
    room = 0.08 * (high - low) or 0.1 * abs(high) or 0.1
    domain = [max(within[0], low - room), min(within[1], high + room)]
    scale = alt.Scale(domain=domain, nice=False, zero=False, clamp=True)
    return alt.Y(f"{field}:Q", title=title, scale=scale, axis=alt.Axis(tickCount=5))


def accuracy_axis(values: Sequence[float]) -> alt.Y:
    """From 0 to 1, or less if all are low."""
    if max(values, default=1.0) < _LOW:
        return linear_axis("accuracy", "accuracy", values)
    return share_axis("accuracy", "accuracy")


_DRAWN = ("loss", "entropy_share", "max_logit", "separability", "gradient_ratio", "sensitivity")
_SHARES = ("entropy_share", "separability")
_DECADES = {"loss": 4.0, "max_logit": 9.0, "gradient_ratio": 6.0, "sensitivity": 6.0}
_HIGHEST = 1e8  # larger values are left out: logits of a diverging run would flatten all others
_RANDOM = "separability_control"
Series = Mapping[str, int]  # a name, and the run drawn under it


def temperature_curves(experiment: Experiment, optimizer: str, theme: ThemeName) -> Spec | None:
    """T = 1, the lowest T and its control at one rate, the best at T = 1; None if this was not trained."""
    summary = experiment.summary.filter((pl.col("optimizer") == optimizer) & ~pl.col("qk_norm"))
    baseline = summary.filter(pl.col("temperature") == "1").head(1).to_dicts()
    if not baseline:
        return None
    first = baseline[0]
    runs = experiment.table.filter(
        (pl.col("optimizer") == optimizer) & ~pl.col("qk_norm") & (pl.col("normalizer") == first["normalizer"])
        & (pl.col("rate") == first["best_rate"])
    ).unique("run", maintain_order=True)  # fmt: skip
    lowest = min((value for one in runs["temperature"] if (value := as_number(one)) is not None), default=1.0)
    colours, series, looks = THEMES[theme], {}, {}
    for row in runs.sort("compensated", maintain_order=True).to_dicts():
        value, name = as_number(row["temperature"]), temperature_name(row["temperature"])
        if value is None or value not in (1.0, lowest):
            continue
        name += ", compensated" if row["compensated"] else ""
        series[name] = row["run"]
        hue = colours.selected if value == 1.0 else colours.ink if row["compensated"] else colours.claim
        looks[name] = Look(name, hue, CONTROL_DASH if row["compensated"] else (1, 0), BROAD if value == 1.0 else 2)
    about = [
        f"{first['normalizer']}, learning rate {first['best_rate']:g}, the best at T = 1, for all; "
        "line: median over seeds, band: all of them",
        "dotted beside N_s/N: the same for random sets; a seed that diverged is missing from there on",
    ]
    question = f"{optimizer_name(optimizer)}: what happens while it learns?"
    return _curve_chart(experiment, series, looks, question, about, theme)


def choice_curves(experiment: Experiment, theme: ThemeName) -> Spec:
    """Every choice at its best rate."""
    named = with_names(experiment)
    series = dict(zip(named["name"], named["best_run"], strict=True))
    about = ["each at its best rate; median over seeds" + (", band: all of them" if len(series) <= 3 else "")]
    looks = looks_of(series, THEMES[theme])
    return _curve_chart(
        experiment, series, looks, "What happens while they learn?", about, theme, banded=len(series) <= 3
    )


def _curve_chart(
    experiment: Experiment, series: Series, looks: Mapping[str, Look], question: str, about: list[str],
    theme: ThemeName, banded: bool = True,
) -> Spec:  # fmt: skip
    style = series_style(looks, series)
    panels = [_curve_panel(experiment, series, looks, style, name, banded, theme) for name in _DRAWN]
    return finished(panels, question, about, theme, columns=3, legend_columns=3)


def _curve_panel(
    experiment: Experiment, series: Series, looks: Mapping[str, Look], style: Mapping[str, Any], quantity: str,
    banded: bool, theme: ThemeName,
) -> Spec | None:  # fmt: skip
    rows = [row for name, run in series.items() for row in _median(experiment, run, quantity, name)]
    if not rows:
        return None
    steps = [row["step"] for row in rows]
    scale = alt.Scale(domain=[0, max(steps)], nice=False)
    x = alt.X("step:Q", title="step", scale=scale, axis=alt.Axis(tickCount=5, format="~s"))
    y = _axis(quantity, numbers(rows, "value", *(("low", "high") if banded else ())))
    tips = [tip("shown", "run", "N"), tip("step"), tip("value", QUANTITIES[quantity]), tip("low", "least"),
            tip("high", "largest")]  # fmt: skip
    # Bands have the hues of their lines, but no legend.
    bands = [
        source([row for row in rows if row["shown"] == name])
        .mark_area(color=looks[name].colour, opacity=0.16)
        .encode(x, renamed(y, "low"), y2="high:Q")
        for name in series
        if banded and any(row["shown"] == name for row in rows)
    ]
    lines = [source(rows).mark_line().encode(x, y, tooltip=tips, **style)]
    if len(set(steps)) == 1:
        lines.append(source(rows).mark_point(filled=True, size=40).encode(x, y, style["color"], tooltip=tips))
    if quantity == "separability":
        control = [row for name, run in series.items() for row in _median(experiment, run, _RANDOM, name)]
        dots = source(control).mark_line(strokeDash=[1.5, 3], strokeWidth=1.5, opacity=0.9)
        lines += [dots.encode(x, y, color=style["color"], detail="shown:N")] if control else []
    return panel([*bands, *lines], QUANTITIES[quantity])


def _axis(quantity: str, values: list[float]) -> alt.Y:
    if quantity in _SHARES:
        return share_axis("value", "share")
    axis = wide_axis("value", "", [value for value in values if value <= _HIGHEST], _DECADES[quantity])
    axis["title"] = {"loss": "nats", "max_logit": "logits", "gradient_ratio": "ratio"}.get(quantity, "weight per logit")
    return axis


def _median(experiment: Experiment, run: int, quantity: str, name: str) -> list[Row]:
    """Over the seeds that have a number at a step."""
    value = pl.col(quantity).filter(pl.col(quantity).is_finite())
    parts = [value.median().alias("value"), value.min().alias("low"), value.max().alias("high")]
    rows = experiment.curves.filter(pl.col("run") == run).group_by("step", maintain_order=True).agg(parts)
    return [row | {"shown": name} for row in rows_of(rows.drop_nulls("value"))]


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
