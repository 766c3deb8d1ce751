"""The figures of the paper as charts: measured curves beside random sets and what the paper states."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import altair as alt
import polars as pl

from ...views import charts as kit
from ...views.charts import Look, Row, Spec, numbers, panel, renamed, source, tip
from ...views.theme import THEMES, Theme, ThemeName
from ...words.names import PAPER_CRITICAL_SHARE
from .result import DRIFT, PAPER_SEPARABILITY, Figure

_AXES = {"length": "length L (tokens)", "n": "selected tokens N"}
_VECTORS = {"embedding": "token embeddings", "value": "value vectors", "hidden": "hidden states"}
_SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down")
_SHOWN = tip("shown", "series", "N")


@kit.unchecked
def chart(figure: Figure, theme: ThemeName) -> Spec:
    """A figure as this model gives it; its title asks the question, its subtitle holds the settings."""
    panels = _PANELS[figure.name](figure, THEMES[theme])
    independent = ("color", "shape") if figure.name == "2c" else ()  # levels in the first row, lengths in the second
    return kit.finished(panels, figure.question, [figure.settings], theme, independent=independent)


def _by_vectors(table: pl.DataFrame) -> dict[str, list[Row]]:
    """Rows by kind of vectors, named as in titles, in the order of the table."""
    return {
        _VECTORS.get(kind, f"{kind} vectors"): kit.rows_of(table.filter(pl.col("vectors") == kind))
        for kind in table["vectors"].unique(maintain_order=True)
    }


# -- Series with intervals: figures 2a and 2b, and the drift to uniform -----------------------------------------------


def _looks(theme: Theme) -> dict[str, Look]:
    return {
        "selected": Look("selected: N largest weights", theme.selected),
        "bound": Look("bound of Theorem 1 for the selected", theme.claim, (7, 4)),
        "random": Look("random sets of N", theme.control, (2, 3)),
        "range": Look("proved range of the mean over random sets", theme.control_pale, width=9),
        "ceiling": Look("all weight on one token, ln N", theme.proved, (7, 4)),
    }


def _distances(figure: Figure, theme: Theme) -> list[Spec]:
    axis, panels = "length" if figure.name == "2a" else "n", []
    for title, rows in _by_vectors(figure.tables["distance"]).items():
        low, high = (
            {row[axis]: row["value"] for row in rows if row["series"] == f"expected {end}" and row["value"] is not None}
            for end in ("low", "high")
        )
        area = [{axis: x, "series": "range", "value": low[x], "top": high[x]} for x in low if x in high]
        panels.append(_series(rows, axis, "distance to the selected", title, _looks(theme), area))
    return panels


def _drift(figure: Figure, theme: Theme) -> list[Spec]:
    titles = {"by_size": "by size, L = {length}", "by_length": "by length, N = {size}"}
    panels = []
    for name, axis in (("by_size", "n"), ("by_length", "length")):
        rows = kit.rows_of(figure.tables[name])
        ceilings = {row[axis]: row["value"] / row["share"] for row in rows if row["value"] and row["share"]}
        limits = [{axis: x, "series": "ceiling", "value": round(y, 5)} for x, y in sorted(ceilings.items())]
        title = titles[name].format(**{"length": "?", "size": 5} | dict(figure.about))
        more = (tip("share", "share of ln N"),)
        panels.append(
            _series(rows, axis, "divergence from uniform (nats)", title, _looks(theme), limits, more, log=False)
        )
    return panels


def _series(
    rows: Sequence[Row], axis: str, y_title: str, title: str, looks: Mapping[str, Look], behind: Sequence[Row],
    more: Sequence[alt.Tooltip] = (), *, log: bool = True,
) -> Spec:  # fmt: skip
    """Series with their intervals, in front of what is `behind`: areas up to `top`, or lines."""
    curves, back = (
        [row | {"shown": looks[row["series"]].label} for row in several if row["series"] in looks]
        for several in (rows, behind)
    )
    values = numbers(rows, "value")
    if log and kit.is_log(values):  # an interval that reaches below 0 ends at the edge
        curves = [row if row["low"] is None else row | {"low": max(row["low"], min(values))} for row in curves]
    x = kit.places_axis(axis, _AXES[axis], numbers(rows, axis))
    y = kit.value_axis("value", y_title, values + numbers([*curves, *back], "value", "low", "high"), log=log)
    style = kit.series_style(looks, {row["series"] for row in (*curves, *back)})
    tips = [_SHOWN, tip(axis, _AXES[axis]), tip("value", y_title)]
    layers = []
    if back and "top" in back[0]:
        marks = source(back).mark_bar(width=14) if len(back) == 1 else source(back).mark_area()
        ends = [*tips[:2], tip("value", "from"), tip("top", "to")]
        layers.append(marks.encode(x=x, y=y, y2=alt.Y2("top:Q"), color=style["color"], tooltip=ends))
    elif back:
        layers.append(source(back).mark_line().encode(x=x, y=y, tooltip=tips, **style))
    whole = [row for row in curves if row["low"] is not None and row["high"] is not None]
    if whole:  # a band over a single place would have no width
        alone = len({row[axis] for row in whole}) == 1
        bands = source(whole)
        bands = bands.mark_rule(strokeWidth=4, opacity=0.35) if alone else bands.mark_area(opacity=0.2)
        layers.append(bands.encode(x=x, y=renamed(y, "low"), y2=alt.Y2("high:Q"), color=style["color"]))
    return panel([*layers, *kit.lines(curves, x, y, style, [*tips, *more, *kit.INTERVAL_TIPS])], title)


# -- Critical N: figure 2c --------------------------------------------------------------------------------------------


def _critical(figure: Figure, theme: Theme) -> list[Spec]:
    """The critical N against L; in the second row its test statistic against N."""
    critical, tests = _by_vectors(figure.tables["critical"]), _by_vectors(figure.tables["tests"])
    above = [_critical_sizes(rows, f"critical N, {name}", theme) for name, rows in critical.items()]
    return above + [_tests(tests.get(name, []), f"test by heads, {name}", theme) for name in critical]


def _critical_sizes(rows: Sequence[Row], title: str, theme: Theme) -> Spec:
    """Points with their intervals, the paper's line, and arrows where every test rejects up to the largest N tried."""
    lengths, levels = (sorted(set(numbers(rows, name))) for name in ("length", "level"))
    ends = [lengths[0], lengths[-1]] if len(lengths) > 1 else [lengths[0] / 1.5, lengths[0] * 1.5]
    ends.insert(1, math.sqrt(ends[0] * ends[1]))
    paper = [{"length": length, "critical_n": PAPER_CRITICAL_SHARE * length} for length in ends]
    known, beyond = ([row for row in rows if (row["critical_n"] is None) == absent] for absent in (False, True))
    arrows = [2.4 * n for n in numbers(beyond, "largest_n")]
    values = numbers(rows, "critical_n", "low", "high") + numbers(paper, "critical_n") + arrows
    x = kit.places_axis("length", _AXES["length"], lengths)
    y = kit.value_axis("critical_n", "critical N", [value for value in values if value > 0])
    labels = {level: f"test at level {level:g}" for level in levels}
    scale = partial(alt.Scale, domain=list(labels.values()))
    colour = alt.Color("test:N", title=None, scale=scale(range=[theme.selected, theme.fourth][: len(labels)]))
    shape = alt.Shape("test:N", title=None, scale=scale(range=list(_SHAPES[: len(labels)])))
    tips = [
        tip("test", "test", "N"), tip("length", _AXES["length"]), tip("critical_n", "critical N"), *kit.INTERVAL_TIPS,
        tip("largest_n", "largest N tried"),
    ]  # fmt: skip
    name = source(paper[1:2]).mark_text(
        text=f"paper: N = {PAPER_CRITICAL_SHARE:g} L", color=theme.claim, align="left", baseline="top", dx=2, dy=8
    )
    line = source(paper).mark_line(color=theme.claim, strokeDash=[7, 4], strokeWidth=2)
    layers = [line.encode(x=x, y=y), name.encode(x=x, y=y)]
    for i, (level, label) in enumerate(labels.items()):
        shift = 7 * (i - (len(labels) - 1) / 2)
        at, above = ([row | {"test": label} for row in several if row["level"] == level] for several in (known, beyond))
        if bars := [row for row in at if (row["low"] or 0) > 0 and row["high"] is not None]:
            rule = source(bars).mark_rule(strokeWidth=1.5, opacity=0.7, xOffset=shift)
            layers.append(rule.encode(x=x, y=renamed(y, "low"), y2=alt.Y2("high:Q"), color=colour))
        if at:
            dots = source(at).mark_point(filled=True, size=52, opacity=1, xOffset=shift)
            layers.append(dots.encode(x=x, y=y, tooltip=tips, color=colour, shape=shape))
        if above:
            arrow = source(above).mark_point(shape="arrow", size=260, filled=True, opacity=1, xOffset=shift, yOffset=-8)
            layers.append(arrow.encode(x=x, y=renamed(y, "largest_n"), color=colour, tooltip=tips))
    if beyond:
        tried = {row["length"]: row["largest_n"] for row in beyond}
        named = source([{"length": x, "largest_n": n, "label": f"> {n:g}"} for x, n in tried.items()])
        text = named.mark_text(baseline="bottom", dx=4, dy=-20, fontSize=11, color=theme.ink)
        layers.append(text.encode(x=x, y=renamed(y, "largest_n"), text=alt.Text("label:N")))
    return panel(layers, title)


def _tests(rows: Sequence[Row], title: str, theme: Theme) -> Spec:
    lengths = sorted(set(numbers(rows, "length")))
    x, y = kit.places_axis("n", _AXES["n"], numbers(rows, "n")), kit.share_axis("statistic", "Kolmogorov–Smirnov D")
    shapes = alt.Scale(domain=lengths, range=[_SHAPES[i % len(_SHAPES)] for i in range(len(lengths))])
    shades = alt.Scale(domain=lengths, range=theme.shades(len(lengths)))
    legend = alt.Legend(columns=6, title="L", titleOrient="left", titleColor=theme.ink)
    colour = alt.Color("length:N", title="L", scale=shades, legend=legend)
    shape = alt.Shape("length:N", title="L", scale=shapes, legend=legend)
    tips = [tip("length", "L"), tip("n", "N"), tip("statistic", "D"), tip("p_value", "p")]
    points = source(rows).mark_point(filled=True, size=44, opacity=1)
    curves = source(rows).mark_line(strokeWidth=1.6).encode(x=x, y=y, color=colour)
    return panel([curves, points.encode(x=x, y=y, color=colour, shape=shape, tooltip=tips)], title)


# -- Separability: figure 3 -------------------------------------------------------------------------------------------


def _separability(figure: Figure, theme: Theme) -> list[Spec]:
    """Box plots over heads per kind of vectors, next to the random control."""
    means = _by_vectors(figure.tables["mean"])
    heads = _by_vectors(figure.tables["heads"])
    return [_boxes(rows, means.get(name, []), name, theme) for name, rows in heads.items()]


def _boxes(heads: Sequence[Row], means: Sequence[Row], title: str, theme: Theme) -> Spec:
    sizes = sorted({row["n"] for row in heads})
    series = {"selected": "selected: one value per head", "random": "random sets of N"}
    labels, band = list(series.values()), "the paper, beyond N ≈ 16: .70 to .85"
    rows = [
        {"layer": row["layer"], "head": row["head"], "n": row["n"], "shown": series[name], "value": row[column]}
        for row in heads
        for name, column in (("selected", "value"), ("random", "control"))
    ]
    x = alt.X("n:O", title=_AXES["n"], scale=alt.Scale(domain=sizes), axis=alt.Axis(labelSeparation=3))
    y = kit.share_axis("value", "separability, N_s / N")
    offset = alt.XOffset("shown:N", scale=alt.Scale(domain=labels))
    colours = alt.Scale(domain=[*labels, band], range=[theme.selected, theme.control, theme.claim_pale])
    colour = alt.Color("shown:N", title=None, scale=colours, legend=alt.Legend(symbolType="square", symbolSize=120))
    strip = source([{"low": PAPER_SEPARABILITY[0], "high": PAPER_SEPARABILITY[1], "shown": band}]).mark_rect()
    boxes = source(rows).mark_boxplot(
        extent=1.5, size=max(3, min(9, 80 // len(sizes))), rule={"color": theme.soft},
        median={"color": theme.background}, outliers={"size": 8, "opacity": 0.6},
    )  # fmt: skip
    layers = [
        strip.encode(y=renamed(y, "low"), y2=alt.Y2("high:Q"), color=colour),
        boxes.encode(x=x, y=y, xOffset=offset, color=colour),
    ]
    if shown := [row | {"shown": series[row["series"]]} for row in means if row["series"] in series]:
        tips = [tip("shown", "mean over heads", "N"), tip("n", "N"), tip("value", "separability"), *kit.INTERVAL_TIPS]
        dots = source(shown).mark_point(
            shape="diamond", filled=True, size=26, fill=theme.background, stroke=theme.ink, strokeWidth=1, opacity=1
        )
        layers.append(dots.encode(x=x, y=y, xOffset=offset, tooltip=tips))
    return panel(layers, title)


# -- Sensitivity: figure 4 --------------------------------------------------------------------------------------------


def _sensitivity(figure: Figure, theme: Theme) -> list[Spec]:
    """A panel per step, the derivative last, all on the same axes."""
    looks = {
        "random": Look("random direction", theme.third),
        "true": Look("true ceiling, at most min(1/(2T), √2/step)", theme.proved),
        "pair": Look("second key past the first", theme.selected),
        "paper": Look("the paper's ceiling, min(1/(4T), √2)", theme.claim, (7, 4)),
        "worst": Look("worst direction", theme.fourth),
    }
    statistics = {"paper": "mean over queries, largest head (paper)", "mean": "mean over queries and heads"}
    statistics["max"] = "largest row"
    measured, ceilings = kit.rows_of(figure.tables["sensitivity"]), kit.rows_of(figure.tables["ceilings"])
    values = numbers(measured, "value") + numbers(ceilings, "true", "paper")
    x = kit.places_axis("temperature", "temperature T", numbers(measured, "temperature"), every=False)
    y = kit.value_axis("value", "change per unit of step", [value for value in values if value > 0])
    style = kit.series_style(looks, looks)
    shapes = alt.Scale(domain=list(statistics.values()), range=list(_SHAPES[:3]))
    shape = alt.Shape("reading:N", title=None, scale=shapes, legend=alt.Legend(orient="top", columns=3, offset=10))
    tips = [_SHOWN, tip("reading", "statistic", "N"), tip("temperature", "T"), tip("value", "change")]
    panels = []
    for step in sorted({row["step"] for row in measured}, key=lambda step: math.inf if step is None else step):
        curves = [
            row | {"shown": looks[row["direction"]].label, "reading": statistics.get(row["statistic"])}
            for row in measured
            if row["step"] == step
        ]
        limits = [
            {"temperature": row["temperature"], "shown": looks[name].label, "value": row[name]}
            for row in ceilings
            for name in ("true", "paper")
            if row["step"] == step
        ]
        layers = [source(limits).mark_line().encode(x=x, y=y, tooltip=[_SHOWN, *tips[2:]], **style)] if limits else []
        points = source(curves).mark_point(filled=True, size=32, opacity=1)
        thin = source(curves).mark_line(strokeWidth=1.3)
        layers += [
            thin.encode(x=x, y=y, detail=alt.Detail("reading:N"), color=style["color"]),
            points.encode(x=x, y=y, color=style["color"], shape=shape, tooltip=tips),
        ]
        panels.append(panel(layers, "derivative" if step is None else f"step {step:g}", height=190))
    return panels


_PANELS: dict[str, Callable[[Figure, Theme], list[Any]]] = {
    "2a": _distances, "2b": _distances, "2c": _critical, "3": _separability, "4": _sensitivity, DRIFT: _drift,
}  # fmt: skip
