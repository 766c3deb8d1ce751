"""All charts of a report, for its page and as files for papers with one typical head filled in; those of a run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import polars as pl

from ...words.finding import Place
from .._shared.panels import Row, rows_of
from .._shared.series import Spec
from .._shared.theme import ThemeName
from .charts_alternatives import alternatives_chart
from .charts_gradient import gradient_chart
from .charts_growth import growth_chart
from .charts_head import KINDS, ball_chart, lengths_chart, sizes_chart
from .charts_map import map_chart
from .charts_table import lengths_of, of_heads, rows_for, shown_size

if TYPE_CHECKING:
    from ...results import Run
    from ...studies import Ball, Report, Sample, SampleRow

_CIRCLE = 72  # corners of the polygon
_SHOWN_TOKEN = 24  # letters shown


def chart_specifications(report: Report, theme: ThemeName) -> dict[str, Spec]:
    """Every chart of the page; the page fills the empty datasets with the chosen head.

    `rows` of sizes and lengths and `chosen` of growth are rows of `run.table`; `chosen` of gradient holds temperature,
    part, value, low, high, limit; `points` and `circle` of ball are places around the sum of the selected; `chosen` of
    alternatives are rows of `report.alternatives`.
    """
    run = report.run
    return {
        "map": map_chart(run, theme),
        "sizes": sizes_chart(run, theme),
        "lengths": lengths_chart(run, theme),
        "ball": ball_chart(run, theme),
        "growth": growth_chart(run, theme, chosen=True),
        "gradient": gradient_chart(run, report.floors, theme, chosen=True),
        "alternatives": alternatives_chart(run, report.alternatives, theme, chosen=True),
    }


def figures(report: Report, theme: ThemeName) -> dict[str, Spec]:
    """Charts of all heads, then of the head of median separability."""
    run = report.run
    charts = {
        "map": map_chart(run, theme),
        "growth": growth_chart(run, theme),
        "gradient": gradient_chart(run, report.floors, theme),
        "alternatives": alternatives_chart(run, report.alternatives, theme),
    }
    place = telling_head(run)
    return charts if place is None else charts | _of_head(report, place, theme)


def _of_head(report: Report, place: Place, theme: ThemeName) -> dict[str, Spec]:
    layer, head = place
    of = f"layer {layer}, head {head}"
    rows = report.run.table.filter((pl.col("layer") == layer) & (pl.col("head") == head))
    sized, length = rows.filter(pl.col("n").is_not_null()), lengths_of(report.run)[-1]
    charts = {
        "sizes": _filled(
            sizes_chart(report.run, theme),
            f"{of}, L = {length}: up to how many tokens does it select?",
            {"rows": rows_of(sized.filter(pl.col("length") == length))},
        ),
        "lengths": _filled(
            lengths_chart(report.run, theme),
            f"{of}: how does it change as the text grows?",
            {"rows": rows_of(rows.filter(pl.col("n").is_null() | (pl.col("n") == shown_size(report.run))))},
        ),
    }
    if report.sample is not None and (picture := telling_ball(report.sample, place)) is not None:
        charts["ball"] = _ball_figure(ball_chart(report.run, theme), of, report.sample, *picture)
    return charts


def _ball_figure(chart: Spec, of: str, sample: Sample, row: SampleRow, ball: Ball) -> Spec:
    near = f"{ball.intruders} unselected lie no farther than the farthest of them"
    count = f"query {row.query}: {sum(ball.inside)} of {ball.size} selected tokens lie in the ball; {near}"
    marks = "cross: the sum s of the selected; circle: as far as the nearest unselected token; size: weight"
    chart["title"]["subtitle"] += [count, marks]
    return _filled(chart, f"{of}: which selected tokens are separable?", ball_data(sample, row, ball))


def _filled(chart: Spec, question: str, data: Mapping[str, Sequence[Row]]) -> Spec:
    title = chart["title"] | {"text": question[0].upper() + question[1:]}
    return chart | {"title": title, "datasets": chart["datasets"] | data}


def telling_head(run: Run) -> Place | None:
    """The head of median separability, at the shown size and the longest length; else of median dispersion."""
    for table in (rows_for(run, "separability", shown_size(run)), rows_for(run, "effective_tokens")):
        measured = of_heads(table).filter(pl.col("value").is_not_null())
        at = measured.filter(pl.col("length") == pl.col("length").max()).sort("value", "layer", "head")
        if at.height:
            middle: dict[str, Any] = at.row((at.height - 1) // 2, named=True)
            return middle["layer"], middle["head"]
    return None


def telling_ball(sample: Sample, place: Place) -> tuple[SampleRow, Ball] | None:
    """The largest ball of the last query of that head that has one."""
    rows = [row for row in sample.rows if (row.layer, row.head) == place and row.balls]
    if not rows:
        return None
    last = max(rows, key=lambda row: row.query)
    return last, max(last.balls, key=lambda ball: ball.size)


def ball_data(sample: Sample, row: SampleRow, ball: Ball) -> dict[str, list[Row]]:
    """Places around the sum of the selected, in units of the largest distance, and the circle."""
    unit = max([*ball.distances, *ball.other_distances, ball.radius]) or 1.0
    farthest = max(ball.distances, default=0.0)
    outer = [KINDS[2] if distance <= farthest else KINDS[3] for distance in ball.other_distances]
    chosen = zip(row.keys, ball.distances, ball.angles, ball.inside, row.weights, strict=False)  # a ball may hold fewer
    points = [
        _point(sample, key, d, angle, unit) | {"kind": KINDS[not inside], "weight": weight}
        for key, d, angle, inside, weight in chosen
    ]
    others = zip(ball.other_keys, ball.other_distances, ball.other_angles, outer, strict=True)
    points += [_point(sample, key, d, angle, unit) | {"kind": kind, "weight": None} for key, d, angle, kind in others]
    turns = [2 * math.pi * i / _CIRCLE for i in range(_CIRCLE)]
    radius = ball.radius / unit
    circle = [{"x": radius * math.cos(turn), "y": radius * math.sin(turn), "order": i} for i, turn in enumerate(turns)]
    return {"points": points, "circle": circle}


def _point(sample: Sample, key: int, distance: float, angle: float, unit: float) -> Row:
    turn, away = math.radians(angle), distance / unit
    token = sample.tokens[key][:_SHOWN_TOKEN]
    return {"x": away * math.cos(turn), "y": away * math.sin(turn), "distance": distance, "token": token}
