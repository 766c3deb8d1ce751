"""The compact form of a sample, for the run folder and for the page.

Columns instead of rows, so that no name is written twice:

    {"length", "index", "tokens", "sizes", "queries", "loss", "guessing",
     "rows": {"layer", "head", "query", "keys", "weights"},             one entry per row
     "heat": {"queries", "edges", "layer", "head", "weights"},          heat maps (heat.py); null in older samples
     "balls": {"5": {"radius", "inside", "distances", "angles", "scale", "intruders",
                     "other_keys", "other_distances", "other_angles"}}}  one entry per row; null without such a ball

A distance (and the radius) is a whole number of thousandths of the largest distance in its ball, which `scale` holds;
angles are whole degrees, `inside` is a string of 0 and 1, weights have 4 significant digits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .heat import heat_as_json, heat_from_json
from .result import Ball, Sample, SampleRow

_UNITS = 1000  # of the scale of a ball: finer than a pixel of its picture
_PLACES = ("layer", "head", "query")
_OTHERS = ("other_keys", "other_distances", "other_angles")
_BALL = ("radius", "inside", "distances", "angles", *_OTHERS, "intruders", "scale")
_NO_BALL: dict[str, Any] = dict.fromkeys(_BALL)


def sample_as_json(sample: Sample) -> dict[str, Any]:
    """Lists, strings and numbers only; a round trip through `sample_from_json` gives the same again."""
    columns: dict[str, list[Any]] = {name: [getattr(row, name) for row in sample.rows] for name in _PLACES}
    columns["keys"] = [list(row.keys) for row in sample.rows]
    columns["weights"] = [[_digits(weight, 4) for weight in row.weights] for row in sample.rows]
    return {
        "length": sample.length, "index": sample.index, "tokens": list(sample.tokens), "sizes": list(sample.sizes),
        "queries": list(sample.queries), "loss": sample.loss, "guessing": sample.guessing,
        "heat": None if sample.heat is None else heat_as_json(sample.heat),
        "rows": columns,
        "balls": {str(size): _ball_columns(sample.rows, size) for size in sample.sizes},
    }  # fmt: skip


def _ball_columns(rows: Sequence[SampleRow], size: int) -> dict[str, list[Any]]:
    balls = [next((_ball_as_json(ball) for ball in row.balls if ball.size == size), _NO_BALL) for row in rows]
    return {name: [ball[name] for ball in balls] for name in _BALL}


def _ball_as_json(ball: Ball) -> dict[str, Any]:
    scale = _digits(max(*ball.distances, *ball.other_distances), 6)
    return {
        "radius": _in_units([ball.radius], scale)[0],
        "inside": "".join("01"[one] for one in ball.inside),
        "distances": _in_units(ball.distances, scale),
        "angles": [round(angle) % 360 for angle in ball.angles],
        "other_keys": list(ball.other_keys),
        "other_distances": _in_units(ball.other_distances, scale),
        "other_angles": [round(angle) % 360 for angle in ball.other_angles],
        "intruders": ball.intruders,
        "scale": scale,
    }


def _in_units(distances: Sequence[float], scale: float) -> list[int]:
    return [round(_UNITS * distance / scale) if scale else 0 for distance in distances]


def _digits(number: float, digits: int) -> float:
    return float(f"{number:.{digits}g}")


def sample_from_json(stored: Mapping[str, Any]) -> Sample:
    """The inverse of `sample_as_json`."""
    sizes, columns = stored["sizes"], (stored["rows"][name] for name in (*_PLACES, "keys", "weights"))
    rows = tuple(
        SampleRow(layer, head, query, tuple(keys), tuple(weights), _balls_of_row(stored["balls"], sizes, number))
        for number, (layer, head, query, keys, weights) in enumerate(zip(*columns, strict=True))
    )
    heat = None if stored.get("heat") is None else heat_from_json(stored["heat"])
    start = stored["length"], stored["index"], tuple(stored["tokens"]), tuple(sizes), tuple(stored["queries"])
    return Sample(*start, rows, stored["loss"], stored["guessing"], heat)


def _balls_of_row(balls: Mapping[str, Any], sizes: Sequence[int], row: int) -> tuple[Ball, ...]:
    of_row = {size: {name: balls[str(size)][name][row] for name in _BALL} for size in sizes}
    return tuple(_ball_from_json(size, ball) for size, ball in of_row.items() if ball["scale"] is not None)


def _ball_from_json(size: int, ball: Mapping[str, Any]) -> Ball:
    unit = ball["scale"] / _UNITS
    return Ball(
        size=size,
        radius=ball["radius"] * unit,
        inside=tuple(one == "1" for one in ball["inside"]),
        distances=tuple(distance * unit for distance in ball["distances"]),
        angles=tuple(map(float, ball["angles"])),
        other_keys=tuple(ball["other_keys"]),
        other_distances=tuple(distance * unit for distance in ball["other_distances"]),
        other_angles=tuple(map(float, ball["other_angles"])),
        intruders=ball["intruders"],
    )
