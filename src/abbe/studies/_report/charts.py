"""The charts of a report: sensitivity and alternatives of all heads; curves and the ball of one head.

A chart of one head has empty datasets, which the page fills with the head that a reader chooses; the figures for
papers have a typical one.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import altair as alt
import polars as pl

from ...views import charts, heads
from ...views.charts import HEIGHT, WIDTH, Axes, Legend, Look, Row, Spec, finished, panel, rows_of, source, tip
from ...views.heads import Measured, Shown, of_all_heads, of_heads, rows_for, share, shown_size, some_heads
from ...views.theme import THEMES, Theme, ThemeName
from ...words.finding import Place
from ...words.measures import about_lines, lengths_in
from ...words.names import BASELINE
from .heads import FRAGILE
from .sample import Ball, Sample, SampleRow

KINDS = ("selected, inside", "selected, outside", "unselected, nearer than a selected one", "unselected")
ESTIMATE = "an estimate: the same logits, normalised anew; layers above and training are left out"
PARTS = {"mean": "mean", "p95": "95th percentile", "max": "largest query"}  # p95 decides whether a head is fragile
_DASHES: dict[str, tuple[int, ...]] = {"mean": (1, 0), "p95": (6, 2), "max": (2, 2)}
_PREFIX = "sensitivity_worst_"
_DIVERGENCE = "selected_divergence"
_DECADES = 3.0
_BALL, _EDGE, _CIRCLE = 380, 1.1, 72  # pixels of the square picture; its half side; corners of the circle
_SHOWN_TOKEN = 24  # letters
_SHARE_TOP = 1.04  # as in `share_axis`
_BY_SIZE = (
    Shown("separability", "separability", "share of the selected in the ball", share),
    Shown("top_mass", "weight of the selected", "share of a query's weight", share),
    Shown("distance_per_token", "distance from the rest", "distance per unselected token", charts.log_axis),
    Shown(_DIVERGENCE, "weights within the selected", "divergence from equal (nats)", charts.linear_axis),
)
_BY_LENGTH = (
    Shown("effective_tokens", "dispersion", "effective tokens", charts.log_axis),
    Shown("max_weight", "largest weight", "share of a query's weight", charts.log_axis),
    Shown("entropy", "entropy", "entropy (nats)", charts.linear_axis),
)


@charts.unchecked
def page_charts(run: Measured, floors: pl.DataFrame, alternatives: pl.DataFrame, theme: ThemeName) -> dict[str, Spec]:
    """Every chart of the page, whose datasets wait for the chosen head.

    `rows` of sizes and lengths and `chosen` of growth are rows of the table; `chosen` of gradient holds temperature,
    part, value, low, high, limit; `points` and `circle` of ball are places around the sum of the selected; `chosen` of
    alternatives are rows of that table.
    """
    return {
        "sizes": sizes_chart(run, theme),
        "lengths": lengths_chart(run, theme),
        "ball": ball_chart(run, theme),
        "growth": heads.growth_chart(run, theme, chosen=True),
        "gradient": gradient_chart(run, floors, theme, chosen=True),
        "alternatives": alternatives_chart(run, alternatives, theme, chosen=True),
    }


@charts.unchecked
def figures(
    run: Measured, floors: pl.DataFrame, alternatives: pl.DataFrame, sample: Sample | None, theme: ThemeName
) -> dict[str, Spec]:
    """Charts of all heads, then of the head of median separability."""
    drawn = {
        "map": heads.map_chart(run, theme),
        "growth": heads.growth_chart(run, theme),
        "gradient": gradient_chart(run, floors, theme),
        "alternatives": alternatives_chart(run, alternatives, theme),
    }
    place = typical_head(run)
    if place is None:
        return drawn
    of, length = f"Layer {place[0]}, head {place[1]}", lengths_in(run.table)[-1]
    rows = run.table.filter((pl.col("layer") == place[0]) & (pl.col("head") == place[1]))
    by_size = rows.filter(pl.col("n").is_not_null() & (pl.col("length") == length))
    by_length = rows.filter(pl.col("n").is_null() | (pl.col("n") == shown_size(run)))
    question = f"{of}, L = {length}: up to how many tokens does it select?"
    drawn["sizes"] = _filled(sizes_chart(run, theme), question, {"rows": rows_of(by_size)})
    question = f"{of}: how does it change as the text grows?"
    drawn["lengths"] = _filled(lengths_chart(run, theme), question, {"rows": rows_of(by_length)})
    if sample is not None and (picture := typical_ball(sample, place)) is not None:
        row, ball = picture
        near = f"{ball.intruders} unselected lie no farther than the farthest of them"
        chart = ball_chart(run, theme)
        chart["title"]["subtitle"] += [
            f"query {row.query}: {sum(ball.inside)} of {ball.size} selected tokens lie in the ball; {near}",
            "cross: the sum s of the selected; circle: as far as the nearest unselected token; size: weight",
        ]
        question = f"{of}: which selected tokens are separable?"
        drawn["ball"] = _filled(chart, question, ball_data(sample, row, ball))
    return drawn


def _filled(chart: Spec, question: str, data: Mapping[str, Sequence[Row]]) -> Spec:
    return chart | {"title": chart["title"] | {"text": question}, "datasets": chart["datasets"] | data}


def typical_head(run: Measured) -> Place | None:
    """The head of median separability, at the shown size and the longest length; else of median dispersion."""
    for table in (rows_for(run, "separability", shown_size(run)), rows_for(run, "effective_tokens")):
        measured = of_heads(table).filter(pl.col("value").is_not_null())
        at = measured.filter(pl.col("length") == pl.col("length").max()).sort("value", "layer", "head")
        if at.height:
            middle: Place = at.select("layer", "head").row((at.height - 1) // 2)
            return middle
    return None


def typical_ball(sample: Sample, place: Place) -> tuple[SampleRow, Ball] | None:
    """The largest ball of the last query of that head that has one."""
    rows = [row for row in sample.rows if (row.layer, row.head) == place and row.balls]
    last = max(rows, key=lambda row: row.query, default=None)
    return None if last is None else (last, max(last.balls, key=lambda ball: ball.size))


# -- Curves of one head -----------------------------------------------------------------------------------------------


def sizes_chart(run: Measured, theme: ThemeName) -> Spec:
    """Over N at one length, for the head in the dataset `rows`."""
    looks = charts.look_of(THEMES[theme], heads.interval_words(run))
    legend = Legend.of(looks, ("value", "limit", "control"))
    sizes = heads.numbers_in(run.table.filter(pl.col("n").is_not_null()), "n")
    x = charts.places_axis("n", "selected tokens N", sizes)
    panels = []
    for shown in _BY_SIZE:
        table = run.table.filter((pl.col("measure") == shown.measure) & pl.col("n").is_not_null())
        if values := heads.numbers_in(table):
            if shown.measure == _DIVERGENCE:
                values.append(math.log(max(sizes)))
            axes = Axes(x, shown.scale("value", shown.axis, values), legend, alone=len(set(sizes)) == 1)
            panels.append(panel(_curves(axes, shown), shown.title))
    question = "Up to how many tokens does this head select?"
    return finished(panels, question, about_lines(run.table, run.manifest), theme, filled=["rows"])


def lengths_chart(run: Measured, theme: ThemeName) -> Spec:
    """Over L, for the head in the dataset `rows`."""
    looks, size = charts.look_of(THEMES[theme], heads.interval_words(run)), shown_size(run)
    legend = Legend.of(looks, ("value", "limit", "floor", "control"))
    sized = [replace(shown, size=size, title=f"{shown.title}, N = {size}") for shown in _BY_SIZE[:2]]
    with_axes = [(shown, shown.axes(run, legend)) for shown in (*_BY_LENGTH, *sized)]
    panels = [panel(_curves(axes, shown), shown.title) for shown, axes in with_axes if axes is not None]
    question = "How does this head change as the text grows?"
    return finished(panels, question, about_lines(run.table, run.manifest), theme, filled=["rows"])


def _curves(axes: Axes, shown: Shown) -> list[alt.Chart]:
    limits = rows = shown.of("rows")
    if shown.measure == _DIVERGENCE:  # all weight on one of N tokens: the table lacks this ceiling
        limits = rows.transform_calculate(limit="log(datum.n)")
    layers = [*axes.limit(limits, "limit", "limit"), *axes.limit(rows, "control", "control")]
    if shown.floor:
        layers += axes.limit(source("rows", measure=shown.floor), "floor", "value")
    return [*layers, axes.band(rows, "value"), *axes.line(rows, "value")]


# -- The ball of one head ---------------------------------------------------------------------------------------------


def ball_chart(run: Measured, theme: ThemeName) -> Spec:
    """The datasets `points` and `circle` around the sum of the selected."""
    colours = THEMES[theme]
    scale = alt.Scale(domain=[-_EDGE, _EDGE], nice=False, zero=False)
    at = {name: make(f"{name}:Q", title=None, scale=scale, axis=None) for name, make in (("x", alt.X), ("y", alt.Y))}
    circle = source("circle").mark_line(
        interpolate="linear-closed", fill=colours.selected, fillOpacity=0.08, stroke=colours.ink, strokeWidth=1.2,
        strokeDash=[7, 4], tooltip="the ball: as far as the nearest unselected token",
    )  # fmt: skip
    centre = source([{"x": 0, "y": 0}])
    cross = centre.mark_point(shape="M-1,0H1M0,-1V1", size=130, stroke=colours.ink, strokeWidth=1.6, opacity=1)
    layers = [
        circle.encode(order="order:Q", **at),
        _points_of_ball(colours, at),
        cross.encode(tooltip=alt.value("the sum of the selected"), **at),
        centre.mark_text(text="s", align="left", dx=9, dy=-9, color=colours.ink, fontSize=11).encode(**at),
    ]
    picture = panel(layers, "", width=_BALL, height=_BALL)
    question, about = "Which of the selected tokens are separable?", about_lines(run.table, run.manifest)
    return finished([picture], question, about, theme, filled=["points", "circle"], columns=1)


def _points_of_ball(theme: Theme, at: Mapping[str, Any]) -> alt.Chart:
    hues = [theme.selected, theme.bad, theme.fourth, theme.control]
    legend = alt.Legend(symbolSize=90, columns=2)
    colour = alt.Color("kind:N", title=None, scale=alt.Scale(domain=list(KINDS), range=hues), legend=legend)
    shapes = alt.Scale(domain=list(KINDS), range=["circle", "diamond", "triangle-up", "square"])
    size = alt.Size("drawn_weight:Q", scale=alt.Scale(type="sqrt", domain=[0, 1], range=[40, 1200]), legend=None)
    tips = [tip("token", "token", "N"), tip("kind", "which is", "N"), tip("weight_words", "weight", "N")]
    tips.append(tip("distance", "distance from the centre"))
    shown = source("points").transform_calculate(
        drawn_weight="isValid(datum.weight) ? datum.weight : 0",  # unselected points have no weight
        weight_words="isValid(datum.weight) ? format(datum.weight, '.3~g') : 'less than any selected'",
    )
    marks = shown.mark_point(filled=True, opacity=0.85, stroke=theme.background, strokeWidth=0.6)
    shape = alt.Shape("kind:N", title=None, scale=shapes, legend=legend)
    drawn: alt.Chart = marks.encode(color=colour, shape=shape, size=size, tooltip=tips, **at)
    return drawn


def ball_data(sample: Sample, row: SampleRow, ball: Ball) -> dict[str, list[Row]]:
    """Places around the sum of the selected, in units of the largest distance, and the circle."""
    unit = max([*ball.distances, *ball.other_distances, ball.radius]) or 1.0
    farthest = max(ball.distances, default=0.0)

    def point(key: int, distance: float, angle: float, kind: str, weight: float | None) -> Row:
        turn, away = math.radians(angle), distance / unit
        place = {"x": away * math.cos(turn), "y": away * math.sin(turn), "distance": distance}
        return place | {"token": sample.tokens[key][:_SHOWN_TOKEN], "kind": kind, "weight": weight}

    kinds = [KINDS[not inside] for inside in ball.inside]
    outer = [KINDS[2] if distance <= farthest else KINDS[3] for distance in ball.other_distances]
    selected = zip(row.keys, ball.distances, ball.angles, kinds, row.weights, strict=False)  # a ball may hold fewer
    others = zip(ball.other_keys, ball.other_distances, ball.other_angles, outer, strict=True)
    points = [*(point(*one) for one in selected), *(point(*one, None) for one in others)]
    turns, radius = [2 * math.pi * i / _CIRCLE for i in range(_CIRCLE)], ball.radius / unit
    circle = [{"x": radius * math.cos(turn), "y": radius * math.sin(turn), "order": i} for i, turn in enumerate(turns)]
    return {"points": points, "circle": circle}


# -- Sensitivity of all heads -----------------------------------------------------------------------------------------


def gradient_chart(run: Measured, floors: pl.DataFrame, theme: ThemeName, *, chosen: bool = False) -> Spec:
    """All heads at the longest length; with `chosen`, the head in that dataset on top."""
    table, colours = sensitivities(run), THEMES[theme]
    temperatures = heads.numbers_in(table, "temperature")
    floor = floors["floor"].cast(pl.Float64)
    fragile = floor.filter(floor.is_finite() & (floor > 0)).to_list()
    looks = {
        "heads": Look(f"{some_heads(table)[1]}, {PARTS['p95']}", colours.ramp[0], width=0.8),
        "mean": charts.look_of(colours, heads.interval_words(run))["mean"],
        "max": Look("largest query of all heads", colours.bad, (2, 2)),
        "limit": Look("ceiling that is proved, 1/(2T) for softmax", colours.proved, (7, 4), 1.5),
        "fragile": Look("fragile: the 95th percentile lies above", colours.third, (7, 3, 2, 3), 1.5),
    }
    if len(fragile) < len(floor):
        looks["unreached"] = Look("not fragile at the lowest temperature", colours.control)
    if chosen:
        for part, name in PARTS.items():
            looks[f"chosen {part}"] = Look(f"the chosen head: {name}", colours.fourth, _DASHES[part])
    legend = Legend.of(looks, looks)
    panels: list[Spec] = []
    if temperatures:
        x = charts.places_axis("temperature", "temperature T", temperatures)
        values = [*heads.numbers_in(table, "value", "limit"), FRAGILE]
        y = charts.log_axis("value", "largest change of the weights, per logit", values, _DECADES)
        axes = Axes(x, y, legend, alone=len(set(temperatures)) == 1)
        title = f"sensitivity, worst direction, L = {lengths_in(run.table)[-1]}"
        panels.append(panel(_sensitivity_curves(axes, table), title))
    if len(floor):
        panels.append(_floors(fragile, len(floor) - len(fragile), temperatures, legend))
    question, about = "At which temperature do the weights become fragile?", about_lines(run.table, run.manifest)
    return finished(panels, question, about, theme, filled=["chosen"] if chosen else [])


def sensitivities(run: Measured) -> pl.DataFrame:
    """Worst-direction sensitivities at the longest length, by temperature and part (mean, p95, max)."""
    rows = run.table.filter(
        pl.col("measure").str.starts_with(_PREFIX) & pl.col("value").is_finite()
        & (pl.col("length").max() == pl.col("length"))
    )  # fmt: skip
    name = pl.col("measure").str.strip_prefix(_PREFIX).str.split("@T=")
    warm = name.list.get(1, null_on_oob=True).cast(pl.Float64, strict=False).fill_null(1.0)
    return (
        rows.with_columns(part=name.list.get(0), temperature=warm)
        .filter(pl.col("part").is_in(list(PARTS)))
        .sort("temperature", maintain_order=True)
        .select("layer", "head", "part", "temperature", "value", "low", "high", "limit")
    )


def _sensitivity_curves(axes: Axes, table: pl.DataFrame) -> list[alt.Chart]:
    single, _ = some_heads(table.filter(pl.col("part") == "p95"))
    means = source(rows_of(of_all_heads(table.filter(pl.col("part") == "mean")).drop("layer", "head", "part")))
    largest = table.filter(pl.col("part") == "max").group_by("temperature").agg(pl.col("value").max())
    ceilings = table.group_by("temperature").agg(pl.col("limit").max()).drop_nulls()
    layers = [axes.thin(rows_of(single.select("layer", "head", "temperature", "value")), "heads")]
    layers += axes.limit(source(rows_of(ceilings.sort("temperature"))), "limit", "limit")
    layers += axes.limit(source(rows_of(largest.sort("temperature"))), "max", "value")
    layers += [axes.band(means, "mean"), *axes.line(means, "mean")]
    for part in PARTS:
        if f"chosen {part}" in axes.legend.looks:
            layers += axes.line(source("chosen", part=part), f"chosen {part}")
    threshold = axes.legend.called(source([{"value": FRAGILE}]), "fragile").mark_rule()
    words = alt.value(axes.legend.looks["fragile"].label)
    return [*layers, threshold.encode(y=axes.y, tooltip=words, **axes.legend.style)]


def _floors(fragile: Sequence[float], unreached: int, temperatures: Sequence[float], legend: Legend) -> Spec:
    """How many heads become fragile at which temperature; heads that never did within the range are at the left."""
    edges = heads.log_edges(fragile, temperatures)
    low, high, step = edges[0], edges[-1], edges[1] / edges[0]
    bars = heads.bars(fragile, edges) if fragile else []
    if unreached:
        bars = [{"value": low / step**1.5, "end": low / step**0.5, "heads": unreached, "series": "unreached"}, *bars]
    x = charts.places_axis("value", "temperature T", temperatures or [low, high])
    x["scale"]["domain"] = [low / step**2, high * step**0.5]
    return panel([heads.counted(bars, x, legend, "heads")], "temperature below which a head is fragile")


# -- Alternatives -----------------------------------------------------------------------------------------------------

_TRADED = ("separable", "gain", "gain_low", "gain_high", "output_change")
_VALID_GAIN = "isValid(datum.gain_low) && isValid(datum.gain_high)"
_POINTS = {"heads": ("circle", 12, 0.3), "mean": ("diamond", 90, 1.0), "chosen": ("triangle-up", 60, 1.0)}


def alternatives_chart(run: Measured, alternatives: pl.DataFrame, theme: ThemeName, *, chosen: bool = False) -> Spec:
    """The mean over heads per alternative, with single heads behind it; with `chosen`, one head on top."""
    question, filled = "What would another normalizer do with the same logits?", (["chosen"] if chosen else [])
    about = [*about_lines(run.table, run.manifest), ESTIMATE]
    if alternatives.is_empty():
        return finished([], question, about, theme, filled=filled)
    table = heads.finite(alternatives, *_TRADED)
    single, words = some_heads(table)
    labels = {"heads": words, "mean": "mean over heads, with the mean of their intervals"}
    labels |= {"chosen": "the chosen head"} if chosen else {}
    means = table.group_by("normalizer", maintain_order=True).agg(pl.col(name).mean() for name in _TRADED)
    drawn = _Trade(THEMES[theme], labels, single, means)
    return finished([drawn.against_change(), drawn.gains()], question, about, theme, filled=filled)


class _Trade:
    """What alternatives gain, and what it costs: points of single heads, of their means, and of a chosen head."""

    def __init__(self, theme: Theme, labels: Mapping[str, str], single: pl.DataFrame, means: pl.DataFrame) -> None:
        self.theme, self.labels = theme, labels
        hues = {"heads": theme.ramp[0], "mean": theme.selected, "chosen": theme.fourth}
        domain, legend = list(labels.values()), alt.Legend(symbolSize=70, columns=3)
        colours = alt.Scale(domain=domain, range=[hues[name] for name in labels])
        shapes = alt.Scale(domain=domain, range=[_POINTS[name][0] for name in labels])
        self.colour = alt.Color("shown:N", title=None, scale=colours, legend=legend)
        self.shape = alt.Shape("shown:N", title=None, scale=shapes, legend=legend)
        own = means.filter(pl.col("normalizer") == BASELINE)["separable"].drop_nulls()
        self.baseline = float(own[0]) if len(own) else None
        self.both = pl.concat([single, means], how="diagonal").filter(pl.col("normalizer") != BASELINE)
        self.single, self.means = (rows_of(table.filter(pl.col("normalizer") != BASELINE)) for table in (single, means))
        self.chosen = source("chosen").transform_filter(f"datum.normalizer !== {json.dumps(BASELINE)}")

    def called(self, chart: alt.Chart, name: str) -> alt.Chart:
        return chart.transform_calculate(shown=json.dumps(self.labels[name]))

    def points(self, chart: alt.Chart, name: str, x: alt.X, y: alt.Y) -> alt.Chart:
        _, size, opacity = _POINTS[name]
        tips = [tip("shown", "series", "N"), tip("normalizer", "normalizer", "N"), tip("separable", "separable weight")]
        tips += [tip("gain"), tip("output_change", "change of the output")]
        tips += [tip("layer"), tip("head")] if name == "heads" else []
        marks = self.called(chart, name).mark_point(filled=True, size=size, opacity=opacity)
        drawn: alt.Chart = marks.encode(x=x, y=y, color=self.colour, shape=self.shape, tooltip=tips)
        return drawn

    def against_change(self) -> Spec:
        """How much weight is separable against how much the output changes."""
        edge = 1.12 * max(heads.numbers_in(self.both, "output_change"), default=1.0) or 1.0
        scale = alt.Scale(domain=[0, edge], nice=False)
        x = alt.X("output_change:Q", title="change of the head's output", scale=scale, axis=alt.Axis(tickCount=5))
        y = charts.share_axis("separable", "separable share of the weight")
        layers = [self.points(source(self.single), "heads", x, y)]
        if (own := self.baseline) is not None:
            line = source([{"separable": own}])
            name = line.mark_text(text="baseline", align="right", baseline="bottom", dy=-3, fontSize=10)
            layers.append(line.mark_rule(strokeDash=[7, 4], color=self.theme.proved, strokeWidth=1.3).encode(y=y))
            layers.append(name.encode(y=y, x=alt.value("width"), color=alt.value(self.theme.ink)))
            ends = [
                row | {"low": own + row["gain_low"], "high": own + row["gain_high"]}
                for row in self.means
                if row["gain_low"] is not None and row["gain_high"] is not None
            ]
            bars = self.called(source(ends), "mean").mark_rule(strokeWidth=2)
            layers.append(bars.encode(x=x, y=charts.renamed(y, "low"), y2="high:Q", color=self.colour))
        layers += [self.points(source(self.means), "mean", x, y), *self.names(edge, x, y)]
        if "chosen" in self.labels:
            layers.append(self.points(self.chosen, "chosen", x, y))
        return panel(layers, "separable weight, against what it changes")

    def names(self, edge: float, x: alt.X, y: alt.Y) -> list[alt.Chart]:
        """A name per mean; a thin line leads to a distant one."""
        present = [row for row in self.means if row["separable"] is not None and row["output_change"] is not None]
        points = [(WIDTH * row["output_change"] / edge, _height(row["separable"])) for row in present]
        taken: list[charts.Box] = []
        if self.baseline is not None:  # its line and its name
            at = _height(self.baseline)
            taken = [(WIDTH - 90.0, at - 17, float(WIDTH), at), (0.0, at - 1, float(WIDTH), at + 1)]
        names = charts.place_names(points, [row["normalizer"] for row in present], (WIDTH, HEIGHT), taken)
        layers = []
        for row, (across, down), name in zip(present, points, names, strict=True):
            away = {"output_change": edge * (across + name.dx) / WIDTH}
            away |= {"separable": _SHARE_TOP * (1 - (down + name.dy) / HEIGHT), "normalizer": row["normalizer"]}
            if name.far:
                lead = source([away | {"x2": row["output_change"], "y2": row["separable"]}])
                rule = lead.mark_rule(color=self.theme.soft, strokeWidth=0.7)
                layers.append(rule.encode(x=x, y=y, x2="x2:Q", y2="y2:Q"))
            text = source([away]).mark_text(align=name.side, fontSize=10, color=self.theme.ink)
            layers.append(text.encode(x=x, y=y, text="normalizer:N"))
        return layers

    def gains(self) -> Spec:
        """The gain of every alternative, with its interval."""
        values = [*heads.numbers_in(self.both, "gain", "gain_low", "gain_high"), 0.0]
        around = 0.06 * (max(values) - min(values)) or 0.5
        scale = alt.Scale(domain=[min(values) - around, max(values) + around], nice=False)
        x = alt.X("gain:Q", title="gain in the separable share", scale=scale, axis=alt.Axis(tickCount=5))
        order = [row["normalizer"] for row in sorted(self.means, key=lambda row: -(row["gain"] or 0.0))]
        axis = alt.Axis(grid=False, labelLimit=110, ticks=False, domain=False)
        y = alt.Y("normalizer:N", title=None, scale=alt.Scale(domain=order), axis=axis)
        none = source([{"gain": 0}]).mark_rule(strokeDash=[7, 4], color=self.theme.proved, strokeWidth=1.3)
        layers = [none.encode(x=x), self.points(source(self.single), "heads", x, y)]
        for name, chart, width in (("mean", source(self.means), 2.4), ("chosen", self.chosen, 1.6)):
            if name not in self.labels:
                continue
            bars = self.called(chart.transform_filter(_VALID_GAIN), name).mark_rule(strokeWidth=width)
            ends = {"x": charts.renamed(x, "gain_low"), "x2": "gain_high:Q"}
            layers += [bars.encode(y=y, color=self.colour, **ends), self.points(chart, name, x, y)]
        return panel(layers, "gain", WIDTH - 60)


def _height(share: float) -> float:
    """Pixels from the top of a panel with an axis of shares."""
    return HEIGHT * (1 - share / _SHARE_TOP)
