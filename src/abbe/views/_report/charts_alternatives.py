"""What another normalizer would do with the same logits: how much weight is separable, and how much changes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import altair as alt
import polars as pl

from ...words.names import BASELINE
from .._shared.labels import Box, place_names
from .._shared.panels import HEIGHT, WIDTH, Row, renamed, rows_of, share_axis, tip
from .._shared.series import Spec, finished, panel, source, unchecked
from .._shared.theme import THEMES, Theme, ThemeName
from .charts_table import about_lines, finite, numbers_in, of_all_heads, of_heads, some_heads

if TYPE_CHECKING:
    from ...results import Run

ESTIMATE = "an estimate: the same logits, normalised anew; layers above and training are left out"
QUESTION = "What would another normalizer do with the same logits?"
_NUMBERS = ("separable", "gain", "gain_low", "gain_high", "output_change")
_SHARE_TOP = 1.04  # as in `share_axis`
_VALID_GAIN = "isValid(datum.gain_low) && isValid(datum.gain_high)"


@dataclass(frozen=True)
class _Legend:
    """Labels of the three kinds of points, and their colours and shapes."""

    theme: Theme
    labels: Mapping[str, str]

    @property
    def colour(self) -> alt.Color:
        hues = {"heads": self.theme.ramp[0], "mean": self.theme.selected, "chosen": self.theme.fourth}
        scale = alt.Scale(domain=list(self.labels.values()), range=[hues[name] for name in self.labels])
        return alt.Color("shown:N", title=None, scale=scale, legend=alt.Legend(symbolSize=70, columns=3))

    @property
    def shape(self) -> alt.Shape:
        shapes = {"heads": "circle", "mean": "diamond", "chosen": "triangle-up"}
        scale = alt.Scale(domain=list(self.labels.values()), range=[shapes[name] for name in self.labels])
        return alt.Shape("shown:N", title=None, scale=scale, legend=alt.Legend(symbolSize=70, columns=3))

    def called(self, chart: alt.Chart, name: str) -> alt.Chart:
        return chart.transform_calculate(shown=json.dumps(self.labels[name]))


@unchecked
def alternatives_chart(run: Run, alternatives: pl.DataFrame, theme: ThemeName, *, chosen: bool = False) -> Spec:
    """The mean over heads per alternative, with single heads behind it; with `chosen`, one head on top."""
    filled, about = (["chosen"] if chosen else []), [*about_lines(run), ESTIMATE]
    if not {"layer", "head", "normalizer", *_NUMBERS} <= set(alternatives.columns) or alternatives.is_empty():
        return finished([], QUESTION, about, theme, filled=filled)
    table = finite(alternatives, *_NUMBERS)
    single, words = some_heads(table)
    names = {"heads": words, "mean": "mean over heads, with the mean of their intervals"}
    legend = _Legend(THEMES[theme], names | ({"chosen": "the chosen head"} if chosen else {}))
    means = mean_over_heads(table)
    panels: list[Spec] = [_trade(single, means, legend, chosen), _gains(single, means, legend, chosen)]
    return finished(panels, QUESTION, about, theme, filled=filled)


def mean_over_heads(table: pl.DataFrame) -> pl.DataFrame:
    """A row per normalizer: the one for all heads if the table has it, else the mean over heads."""
    overall = of_all_heads(table).select("normalizer", *_NUMBERS)
    means = of_heads(table).group_by("normalizer", maintain_order=True).agg(pl.col(name).mean() for name in _NUMBERS)
    missing = means.join(overall, on="normalizer", how="anti", maintain_order="left")
    return pl.concat([overall, missing])


def _baseline_share(means: pl.DataFrame) -> float | None:
    shares = means.filter(pl.col("normalizer") == BASELINE)["separable"].drop_nulls()
    return float(shares[0]) if len(shares) else None


def _others(table: pl.DataFrame) -> list[Row]:
    return rows_of(table.filter(pl.col("normalizer") != BASELINE))


def _trade(single: pl.DataFrame, means: pl.DataFrame, legend: _Legend, chosen: bool) -> Spec:
    """How much weight is separable against how much the output changes."""
    baseline = _baseline_share(means)
    edge = 1.12 * max(numbers_in(pl.concat([single, means], how="diagonal"), "output_change"), default=1.0) or 1.0
    scale = alt.Scale(domain=[0, edge], nice=False)
    x = alt.X("output_change:Q", title="change of the head's output", scale=scale, axis=alt.Axis(tickCount=5))
    y = share_axis("separable", "separable share of the weight")
    rows = _others(means)
    layers = [_points(source(_others(single)), "heads", legend, x, y), *_reference(baseline, y, legend.theme)]
    if baseline is not None:
        ends = [
            row | {"low": baseline + row["gain_low"], "high": baseline + row["gain_high"]}
            for row in rows
            if row["gain_low"] is not None and row["gain_high"] is not None
        ]
        bars = legend.called(source(ends), "mean").mark_rule(strokeWidth=2)
        layers += [bars.encode(x=x, y=renamed(y, "low"), y2="high:Q", color=legend.colour)]
    layers += [_points(source(rows), "mean", legend, x, y), *_labels(rows, edge, baseline, x, y, legend.theme)]
    if chosen:
        layers.append(_points(_alternatives_of("chosen"), "chosen", legend, x, y))
    return panel(layers, "separable weight, against what it changes")


def _reference(baseline: float | None, y: alt.Y, theme: Theme) -> list[alt.Chart]:
    """The baseline: a line across."""
    if baseline is None:
        return []
    chart = source([{"separable": baseline}])
    words = chart.mark_text(text="baseline", align="right", baseline="bottom", dy=-3, fontSize=10, color=theme.ink)
    rule = chart.mark_rule(strokeDash=[7, 4], color=theme.proved, strokeWidth=1.3)
    return [rule.encode(y=y), words.encode(y=y, x=alt.value("width"))]


def _gains(single: pl.DataFrame, means: pl.DataFrame, legend: _Legend, chosen: bool) -> Spec:
    """The gain of every alternative, with its interval."""
    rows, heads = _others(means), _others(single)
    values = [*numbers_in(pl.concat([single, means], how="diagonal"), "gain", "gain_low", "gain_high"), 0.0]
    around = 0.06 * (max(values) - min(values)) or 0.5
    scale = alt.Scale(domain=[min(values) - around, max(values) + around], nice=False)
    x = alt.X("gain:Q", title="gain in the separable share", scale=scale, axis=alt.Axis(tickCount=5))
    order = [row["normalizer"] for row in sorted(rows, key=lambda row: -(row["gain"] or 0.0))]
    axis = alt.Axis(grid=False, labelLimit=110, ticks=False, domain=False)
    y = alt.Y("normalizer:N", title=None, scale=alt.Scale(domain=order), axis=axis)
    none = source([{"gain": 0}]).mark_rule(strokeDash=[7, 4], color=legend.theme.proved, strokeWidth=1.3)
    layers = [none.encode(x=x), _points(source(heads), "heads", legend, x, y)]
    drawn = [(source(rows), "mean", 2.4)] + ([(_alternatives_of("chosen"), "chosen", 1.6)] if chosen else [])
    for chart, name, width in drawn:
        bars = legend.called(chart.transform_filter(_VALID_GAIN), name).mark_rule(strokeWidth=width)
        layers.append(bars.encode(x=renamed(x, "gain_low"), x2="gain_high:Q", y=y, color=legend.colour))
        layers.append(_points(chart, name, legend, x, y))
    return panel(layers, "gain", WIDTH - 60)


def _alternatives_of(name: str) -> alt.Chart:
    return source(name).transform_filter(f"datum.normalizer !== {json.dumps(BASELINE)}")


_LOOKS = {"heads": (12, 0.3), "mean": (90, 1.0), "chosen": (60, 1.0)}


def _points(chart: alt.Chart, name: str, legend: _Legend, x: alt.X, y: alt.Y) -> alt.Chart:
    size, opacity = _LOOKS[name]
    tips = [tip("shown", "series", "N"), tip("normalizer", "normalizer", "N"), tip("separable", "separable weight")]
    tips += [tip("gain"), tip("output_change", "change of the output")]
    tips += [tip("layer"), tip("head")] if name == "heads" else []
    marks = legend.called(chart, name).mark_point(filled=True, size=size, opacity=opacity)
    drawn: alt.Chart = marks.encode(x=x, y=y, color=legend.colour, shape=legend.shape, tooltip=tips)
    return drawn


def _labels(
    rows: Sequence[Row], edge: float, baseline: float | None, x: alt.X, y: alt.Y, theme: Theme
) -> list[alt.Chart]:
    """A name per mean; a thin line leads to a distant one."""
    present = [row for row in rows if row["separable"] is not None and row["output_change"] is not None]
    points = [(WIDTH * row["output_change"] / edge, _height(row["separable"])) for row in present]
    names = place_names(points, [row["normalizer"] for row in present], (WIDTH, HEIGHT), _taken(baseline))
    layers = []
    for row, at, name in zip(present, points, names, strict=True):
        place = {"output_change": edge * (at[0] + name.dx) / WIDTH, "separable": _share(at[1] + name.dy)}
        if name.far:
            lead = source([place | {"x2": row["output_change"], "y2": row["separable"]}])
            rule = lead.mark_rule(color=theme.soft, strokeWidth=0.7)
            layers.append(rule.encode(x=x, y=y, x2="x2:Q", y2="y2:Q"))
        words = source([place | {"normalizer": row["normalizer"]}])
        text = words.mark_text(align=name.side, fontSize=10, color=theme.ink)
        layers.append(text.encode(x=x, y=y, text="normalizer:N"))
    return layers


def _taken(baseline: float | None) -> list[Box]:
    """Boxes of the baseline's line and its name."""
    if baseline is None:
        return []
    at = _height(baseline)
    return [(WIDTH - 90.0, at - 17, float(WIDTH), at), (0.0, at - 1, float(WIDTH), at + 1)]


def _height(share: float) -> float:
    """Pixels from the top of the panel; `_share` is the inverse."""
    return HEIGHT * (1 - share / _SHARE_TOP)


def _share(height: float) -> float:
    return _SHARE_TOP * (1 - height / HEIGHT)
