"""Curves over steps: what the monitor reads while runs learn, at one rate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import altair as alt
import polars as pl

from .._shared.panels import Look, Row, numbers, renamed, rows_of, series_style, share_axis, tip
from .._shared.series import Spec, finished, panel, source
from .._shared.theme import THEMES, ThemeName
from .looks import BROAD, CONTROL_DASH, looks_of, wide_axis
from .words import QUANTITIES, as_number, optimizer_name, temperature_name, with_names

if TYPE_CHECKING:
    from ...studies import Experiment

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
    return _chart(experiment, series, looks, question, about, theme)


def choice_curves(experiment: Experiment, theme: ThemeName) -> Spec:
    """Every choice at its best rate."""
    named = with_names(experiment)
    series = dict(zip(named["name"], named["best_run"], strict=True))
    about = ["each at its best rate; median over seeds" + (", band: all of them" if len(series) <= 3 else "")]
    looks = looks_of(series, THEMES[theme])
    return _chart(experiment, series, looks, "What happens while they learn?", about, theme, banded=len(series) <= 3)


def _chart(
    experiment: Experiment, series: Series, looks: Mapping[str, Look], question: str, about: list[str],
    theme: ThemeName, banded: bool = True,
) -> Spec:  # fmt: skip
    style = series_style(looks, series)
    panels = [_panel(experiment, series, looks, style, name, banded, theme) for name in _DRAWN]
    return finished(panels, question, about, theme, columns=3, legend_columns=3)


def _panel(
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
