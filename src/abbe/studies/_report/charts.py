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

import polars as pl

from ...views import charts, heads
from ...views.charts import WIDTH, Channel, Data, Look, Plot, Row, Rows, Spec, finished, rows_of, tip
from ...views.heads import HeadPlot, Measured, Shown, of_all_heads, of_heads, rows_for, shown_size, some_heads
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
_BY_SIZE = (
    Shown("separability", "separability", "share of the selected in the ball", charts.share_axis),
    Shown("top_mass", "weight of the selected", "share of a query's weight", charts.share_axis),
    Shown("distance_per_token", "distance from the rest", "distance per unselected token", charts.log_axis),
    Shown(_DIVERGENCE, "weights within the selected", "divergence from equal (nats)", charts.linear_axis),
)
_BY_LENGTH = (
    Shown("effective_tokens", "dispersion", "effective tokens", charts.log_axis),
    Shown("max_weight", "largest weight", "share of a query's weight", charts.log_axis),
    Shown("entropy", "entropy", "entropy (nats)", charts.linear_axis),
)


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
    looks = heads.look_of(THEMES[theme], heads.interval_words(run))
    looks = {name: looks[name] for name in ("value", "limit", "control")}
    sizes = heads.numbers_in(run.table.filter(pl.col("n").is_not_null()), "n")
    x = charts.places_axis("n", "selected tokens N", sizes)
    panels = []
    for shown in _BY_SIZE:
        table = run.table.filter((pl.col("measure") == shown.measure) & pl.col("n").is_not_null())
        if values := heads.numbers_in(table):
            if shown.measure == _DIVERGENCE:
                values.append(math.log(max(sizes)))
            y = shown.scale("value", shown.axis, values)
            panels.append(_curves(HeadPlot(x, y, looks=looks, alone=len(set(sizes)) == 1), shown))
    question = "Up to how many tokens does this head select?"
    return finished(panels, question, about_lines(run.table, run.manifest), theme, filled=["rows"])


def lengths_chart(run: Measured, theme: ThemeName) -> Spec:
    """Over L, for the head in the dataset `rows`."""
    looks, size = heads.look_of(THEMES[theme], heads.interval_words(run)), shown_size(run)
    looks = {name: looks[name] for name in ("value", "limit", "floor", "control")}
    sized = [replace(shown, size=size, title=f"{shown.title}, N = {size}") for shown in _BY_SIZE[:2]]
    panels = [_curves(shown.plot(run, looks), shown) for shown in (*_BY_LENGTH, *sized)]
    question = "How does this head change as the text grows?"
    return finished(panels, question, about_lines(run.table, run.manifest), theme, filled=["rows"])


def _curves(plot: HeadPlot | None, shown: Shown) -> Spec | None:
    if plot is None:
        return None
    limits = rows = shown.of("rows")
    if shown.measure == _DIVERGENCE:  # all weight on one of N tokens: the table lacks this ceiling
        limits = rows.adding(limit="log(datum.n)")
    plot.limit(limits, "limit", "limit").limit(rows, "control", "control")
    if shown.floor:
        plot.limit(Data("rows").where(measure=shown.floor), "floor", "value")
    return plot.measured(rows, "value").panel(shown.title)


# -- The ball of one head ---------------------------------------------------------------------------------------------


def ball_chart(run: Measured, theme: ThemeName) -> Spec:
    """The datasets `points` and `circle` around the sum of the selected."""
    colours = THEMES[theme]
    hues = (colours.selected, colours.bad, colours.fourth, colours.control)
    shapes = ("circle", "diamond", "triangle-up", "square")
    looks = charts.point_looks("kind", KINDS, hues, shapes, legend={"symbolSize": 90, "columns": 2})
    x, y = (charts.axis(name, None, (-_EDGE, _EDGE)) | {"axis": None} for name in ("x", "y"))
    plot = Plot(x, y, **looks)
    plot.draw(
        "line", Data("circle"), {"order": {"field": "order", "type": "quantitative"}, "color": None},
        interpolate="linear-closed", fill=colours.selected, fillOpacity=0.08, stroke=colours.ink, strokeWidth=1.2,
        strokeDash=[7, 4], tooltip="the ball: as far as the nearest unselected token",
    )  # fmt: skip
    points = Data("points").adding(
        drawn_weight="isValid(datum.weight) ? datum.weight : 0",  # unselected points have no weight
        weight_words="isValid(datum.weight) ? format(datum.weight, '.3~g') : 'less than any selected'",
    )
    words = {"token": "token", "kind": "which is", "weight_words": "weight"}
    tips = [
        *(tip(name, title, words=True) for name, title in words.items()),
        tip("distance", "distance from the centre"),
    ]
    size = {"type": "sqrt", "domain": [0, 1], "range": [40, 1200]}
    by = {"size": {"field": "drawn_weight", "type": "quantitative", "scale": size, "legend": None}, "tooltip": tips}
    plot.dots(points, by, opacity=0.85, stroke=colours.background, strokeWidth=0.6)
    centre, cross = [{"x": 0, "y": 0}], {"shape": "M-1,0H1M0,-1V1", "size": 130, "strokeWidth": 1.6, "opacity": 1}
    said = {"tooltip": {"value": "the sum of the selected"}, "shape": None, "color": None}
    plot.draw("point", centre, said, stroke=colours.ink, **cross)
    plot.draw("text", centre, text="s", align="left", dx=9, dy=-9, color=colours.ink, fontSize=11)
    question, about = "Which of the selected tokens are separable?", about_lines(run.table, run.manifest)
    picture = plot.panel("", width=_BALL, height=_BALL)
    return finished([picture], question, about, theme, filled=["points", "circle"], columns=1)


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
        "mean": heads.look_of(colours, heads.interval_words(run))["mean"],
        "max": Look("largest query of all heads", colours.bad, (2, 2)),
        "limit": Look("ceiling that is proved, 1/(2T) for softmax", colours.proved, (7, 4), 1.5),
        "fragile": Look("fragile: the 95th percentile lies above", colours.third, (7, 3, 2, 3), 1.5),
    }
    if len(fragile) < len(floor):
        looks["unreached"] = Look("not fragile at the lowest temperature", colours.control)
    if chosen:
        for part, name in PARTS.items():
            looks[f"chosen {part}"] = Look(f"the chosen head: {name}", colours.fourth, _DASHES[part])
    panels: list[Spec] = []
    if temperatures:
        x = charts.places_axis("temperature", "temperature T", temperatures)
        values = [*heads.numbers_in(table, "value", "limit"), FRAGILE]
        y = charts.log_axis("value", "largest change of the weights, per logit", values, _DECADES)
        plot = _sensitivity_curves(HeadPlot(x, y, looks=looks, alone=len(set(temperatures)) == 1), table)
        panels.append(plot.panel(f"sensitivity, worst direction, L = {lengths_in(run.table)[-1]}"))
    if len(floor):
        panels.append(_floors(fragile, len(floor) - len(fragile), temperatures, looks))
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


def _sensitivity_curves(plot: HeadPlot, table: pl.DataFrame) -> HeadPlot:
    single, _ = some_heads(table.filter(pl.col("part") == "p95"))
    means = of_all_heads(table.filter(pl.col("part") == "mean")).drop("layer", "head", "part")
    largest = table.filter(pl.col("part") == "max").group_by("temperature").agg(pl.col("value").max())
    ceilings = table.group_by("temperature").agg(pl.col("limit").max()).drop_nulls()
    plot.thin(rows_of(single.select("layer", "head", "temperature", "value")), "heads")
    plot.limit(rows_of(ceilings.sort("temperature")), "limit", "limit")
    plot.limit(rows_of(largest.sort("temperature")), "max", "value").measured(rows_of(means), "mean")
    for part in PARTS:
        if f"chosen {part}" in plot.looks:
            plot.measured(Data("chosen").where(part=part), f"chosen {part}", band=False)
    words = {"x": None, "tooltip": {"value": plot.looks["fragile"].label}}
    return plot.draw("rule", plot.named([{"value": FRAGILE}], "fragile"), words)


def _floors(fragile: Sequence[float], unreached: int, temperatures: Sequence[float], looks: Mapping[str, Look]) -> Spec:
    """How many heads become fragile at which temperature; heads that never did within the range are at the left."""
    edges = heads.log_edges(fragile, temperatures)
    low, high, step = edges[0], edges[-1], edges[1] / edges[0]
    bars = heads.bars(fragile, edges) if fragile else []
    if unreached:
        bars = [{"value": low / step**1.5, "end": low / step**0.5, "heads": unreached, "series": "unreached"}, *bars]
    x = charts.places_axis("value", "temperature T", temperatures or [low, high])
    x["scale"]["domain"] = [low / step**2, high * step**0.5]
    return heads.counted(bars, x, looks, "heads").panel("temperature below which a head is fragile")


# -- Alternatives -----------------------------------------------------------------------------------------------------

_TRADED = ("separable", "gain", "gain_low", "gain_high", "output_change")
_POINTS = {"heads": ("circle", 12, 0.3), "mean": ("diamond", 90, 1.0), "chosen": ("triangle-up", 60, 1.0)}


def alternatives_chart(run: Measured, alternatives: pl.DataFrame, theme: ThemeName, *, chosen: bool = False) -> Spec:
    """The mean over heads per alternative, with single heads behind it; with `chosen`, one head on top."""
    question, filled = "What would another normalizer do with the same logits?", (["chosen"] if chosen else [])
    about, colours = [*about_lines(run.table, run.manifest), ESTIMATE], THEMES[theme]
    if alternatives.is_empty():
        return finished([], question, about, theme, filled=filled)
    table = heads.finite(alternatives, *_TRADED)
    single, words = some_heads(table)
    means = table.group_by("normalizer", maintain_order=True).agg(pl.col(name).mean() for name in _TRADED)
    looks = {
        "heads": Look(words, colours.ramp[0]),
        "mean": Look("mean over heads, with the mean of their intervals", colours.selected),
        **({"chosen": Look("the chosen head", colours.fourth)} if chosen else {}),
    }
    own = means.filter(pl.col("normalizer") == BASELINE)["separable"].drop_nulls().to_list()
    drawn: dict[str, Rows] = {
        name: rows_of(each.filter(pl.col("normalizer") != BASELINE))
        for name, each in (("heads", single), ("mean", means))
    }
    if chosen:
        drawn["chosen"] = Data("chosen", ({"filter": f"datum.normalizer !== {json.dumps(BASELINE)}"},))
    panels = [_against_change(drawn, looks, own[0] if own else None, colours), _gains(drawn, looks, colours)]
    return finished(panels, question, about, theme, filled=filled)


def _traded(x: Channel, y: Channel, looks: Mapping[str, Look]) -> Plot:
    """Points of single heads, of their means, and of a chosen head, by colour and shape."""
    labels, hues = zip(*((look.label, look.colour) for look in looks.values()), strict=True)
    shapes = [_POINTS[name][0] for name in looks]
    legend = {"symbolSize": 70, "columns": 3}
    return Plot(x, y, looks=looks, **charts.point_looks("shown", labels, hues, shapes, legend=legend))


def _points(plot: Plot, rows: Rows, name: str) -> None:
    tips = [tip("shown", "series", words=True), tip("normalizer", words=True), tip("separable", "separable weight")]
    tips += [tip("gain"), tip("output_change", "change of the output")]
    tips += [tip("layer"), tip("head")] if name == "heads" else []
    _, size, opacity = _POINTS[name]
    plot.dots(plot.named(rows, name), {"tooltip": tips}, size=size, opacity=opacity)


def _against_change(drawn: Mapping[str, Any], looks: Mapping[str, Look], own: float | None, theme: Theme) -> Spec:
    """How much weight is separable against how much the output changes."""
    edge = 1.12 * max(charts.numbers([*drawn["heads"], *drawn["mean"]], "output_change"), default=1.0) or 1.0
    x = charts.axis("output_change", "change of the head's output", (0, edge), tickCount=5)
    plot = _traded(x, charts.share_axis("separable", "separable share of the weight"), looks)
    _points(plot, drawn["heads"], "heads")
    clear = []
    if own is not None:
        plot.level([own], ["baseline"], strokeDash=[7, 4], color=theme.proved)
        clear = [((0.0, own), (edge, own)), ((0.7 * edge, own + 0.03), (edge, own + 0.05))]  # its line and its name
        ends = [row for row in drawn["mean"] if None not in (row["gain_low"], row["gain_high"])]
        ends = [row | {"low": own + row["gain_low"], "high": own + row["gain_high"]} for row in ends]
        plot.ends(plot.named(ends, "mean"), strokeWidth=2, opacity=1)
    _points(plot, drawn["mean"], "mean")
    named = [row for row in drawn["mean"] if None not in (row["separable"], row["output_change"])]
    plot.names(named, "normalizer", theme, clear)
    if "chosen" in drawn:
        _points(plot, drawn["chosen"], "chosen")
    return plot.panel("separable weight, against what it changes")


def _gains(drawn: Mapping[str, Any], looks: Mapping[str, Look], theme: Theme) -> Spec:
    """The gain of every alternative, with its interval."""
    values = charts.numbers([*drawn["heads"], *drawn["mean"]], "gain", "gain_low", "gain_high")
    x = charts.near_axis("gain", "gain in the separable share", [*values, 0.0])
    order = [row["normalizer"] for row in sorted(drawn["mean"], key=lambda row: -(row["gain"] or 0.0))]
    y = charts.names_axis("normalizer", None, order, grid=False, labelLimit=110, ticks=False, domain=False)
    plot = _traded(x, y, looks).level([0], along="x", strokeDash=[7, 4], color=theme.proved)
    _points(plot, drawn["heads"], "heads")
    for name, width in (("mean", 2.4), ("chosen", 1.6)):
        if name in drawn:
            ends = plot.named(drawn[name], name)
            plot.ends(ends, "gain_low", "gain_high", "x", strokeWidth=width, opacity=1)
            _points(plot, drawn[name], name)
    return plot.panel("gain", WIDTH - 60)
