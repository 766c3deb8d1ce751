"""The figures of the paper as charts: measured curves beside random sets and what the paper states."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import cycle
from typing import Any

import polars as pl

from ...views import charts as kit
from ...views.charts import INTERVAL, SERIES, SHAPES, Channel, Look, Plot, Row, Spec, by_value, numbers, point_looks
from ...views.theme import THEMES, Theme, ThemeName
from ...words.names import PAPER_CRITICAL_SHARE
from .claims import DRIFT, PAPER_SEPARABILITY, Figure

_AXES = {"length": "length L (tokens)", "n": "selected tokens N"}
_VECTORS = {"embedding": "token embeddings", "value": "value vectors", "hidden": "hidden states"}


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
        positive = all(value > 0 for value in numbers(rows, "value"))
        scale = kit.log_axis if positive else kit.linear_axis
        panels.append(_series(rows, axis, scale, "distance to the selected", area, theme).panel(title))
    return panels


def _drift(figure: Figure, theme: Theme) -> list[Spec]:
    titles = {"by_size": "by size, L = {length}", "by_length": "by length, N = {size}"}
    panels = []
    for name, axis in (("by_size", "n"), ("by_length", "length")):
        rows = kit.rows_of(figure.tables[name])
        ceilings = {row[axis]: row["value"] / row["share"] for row in rows if row["value"] and row["share"]}
        limits = [{axis: x, "series": "ceiling", "value": round(y, 5)} for x, y in sorted(ceilings.items())]
        title = titles[name].format(**{"length": "?", "size": 5} | dict(figure.about))
        plot = _series(rows, axis, kit.linear_axis, "divergence from uniform (nats)", limits, theme)
        panels.append(plot.panel(title))
    return panels


def _series(
    rows: Sequence[Row], axis: str, scale: Callable[..., Channel], title: str, behind: Sequence[Row], theme: Theme
) -> Plot:
    """Series with their intervals, in front of what is `behind`: an area up to `top`, or a line."""
    looks = _looks(theme)
    curves, back = (
        [row | {"shown": looks[row["series"]].label} for row in several if row["series"] in looks]
        for several in (rows, behind)
    )
    present = {row["series"] for row in (*curves, *back)}
    x = kit.places_axis(axis, _AXES[axis], numbers(rows, axis))
    y = scale("value", title, numbers(rows, "value") + numbers([*curves, *back], "value", "high"))
    tips = SERIES | {axis: _AXES[axis], "value": title, "top": "to", "share": "share of ln N", **INTERVAL}
    plot = Plot(x, y, tips, {name: look for name, look in looks.items() if name in present})
    if back and "top" in back[0]:
        alone = {"width": 14} if len(back) == 1 else {}
        plot.draw("bar" if alone else "area", back, {"y2": "top"}, **alone)
    else:
        plot.line(back)
    return plot.band(curves).curve(curves)


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
    y = kit.log_axis("critical_n", "critical N", values)
    labels = {level: f"test at level {level:g}" for level in levels}
    tips = {"test": "", "length": _AXES["length"], "critical_n": "critical N", **INTERVAL}
    looks = point_looks("test", labels.values(), (theme.selected, theme.fourth))
    plot = Plot(x, y, tips | {"largest_n": "largest N tried"}, **looks)
    plot.line(paper, color=theme.claim, strokeDash=[7, 4], strokeWidth=2)
    name = [row | {"label": f"paper: N = {PAPER_CRITICAL_SHARE:g} L"} for row in paper[1:2]]
    plot.text(name, "label", color=theme.claim, align="left", baseline="top", dx=2, dy=8, fontSize=11)
    for i, (level, label) in enumerate(labels.items()):
        shift = 7 * (i - (len(labels) - 1) / 2)
        at, above = ([row | {"test": label} for row in several if row["level"] == level] for several in (known, beyond))
        plot.ends(at, strokeWidth=1.5, opacity=0.7, xOffset=shift).dots(at, size=52, xOffset=shift)
        plot.dots(above, {"y": "largest_n"}, shape="arrow", size=260, xOffset=shift, yOffset=-8)
    tried = {row["length"]: row["largest_n"] for row in beyond}
    named = [{"length": x, "largest_n": n, "label": f"> {n:g}"} for x, n in tried.items()]
    plot.text(named, "label", {"y": "largest_n"}, baseline="bottom", dx=4, dy=-20, fontSize=11, color=theme.ink)
    return plot.panel(title)


def _tests(rows: Sequence[Row], title: str, theme: Theme) -> Spec:
    lengths = sorted(set(numbers(rows, "length")))
    x, y = kit.places_axis("n", _AXES["n"], numbers(rows, "n")), kit.share_axis("statistic", "Kolmogorov–Smirnov D")
    legend = {"columns": 6, "title": "L", "titleOrient": "left", "titleColor": theme.ink}
    looks = point_looks("length", lengths, theme.shades(len(lengths)), cycle(SHAPES), title="L", legend=legend)
    plot = Plot(x, y, {"length": "L", "n": "N", "statistic": "D", "p_value": "p"}, **looks)
    return plot.line(rows, strokeWidth=1.6).dots(rows, size=44).panel(title)


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
    colours = dict(zip((*labels, band), (theme.selected, theme.control, theme.claim_pale), strict=True))
    plot = Plot(
        kit.names_axis("n", _AXES["n"], sizes, labelSeparation=3),
        kit.share_axis("value", "separability, N_s / N"),
        {"shown": "mean over heads", "n": "N", "value": "separability", **INTERVAL},
        color=by_value("shown", colours, legend={"symbolType": "square", "symbolSize": 120}),
    )
    strip = [{"low": PAPER_SEPARABILITY[0], "high": PAPER_SEPARABILITY[1], "shown": band}]
    plot.draw("rect", strip, {"x": None, "y": "low", "y2": "high", "tooltip": None})
    beside = {"field": "shown", "type": "nominal", "scale": {"domain": labels}}
    plot.draw(
        "boxplot", rows, {"xOffset": beside, "tooltip": None}, extent=1.5, size=max(3, min(9, 80 // len(sizes))),
        rule={"color": theme.soft}, median={"color": theme.background}, outliers={"size": 8, "opacity": 0.6},
    )  # fmt: skip
    shown = [row | {"shown": series[row["series"]]} for row in means if row["series"] in series]
    diamond: Row = {"shape": "diamond", "size": 26, "fill": theme.background, "stroke": theme.ink, "strokeWidth": 1}
    return plot.dots(shown, {"xOffset": beside, "color": None}, **diamond).panel(title)


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
    y = kit.log_axis("value", "change per unit of step", values, decades=12)
    legend = {"orient": "top", "columns": 3, "offset": 10}
    shape = by_value("reading", dict(zip(statistics.values(), SHAPES, strict=False)), legend=legend)
    tips = SERIES | {"reading": "statistic", "temperature": "T", "value": "change"}
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
        plot = Plot(x, y, tips, looks, shape=shape).line(limits)
        plot.line(curves, "reading", strokeWidth=1.3).dots(curves, size=32)
        panels.append(plot.panel("derivative" if step is None else f"step {step:g}", height=190))
    return panels


_PANELS: dict[str, Callable[[Figure, Theme], list[Any]]] = {
    "2a": _distances, "2b": _distances, "2c": _critical, "3": _separability, "4": _sensitivity, DRIFT: _drift,
}  # fmt: skip
