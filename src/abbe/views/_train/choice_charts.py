"""Charts of experiments that compare normalizers: what each reaches at its best rate, over rates, over lengths."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import altair as alt
import polars as pl

from ...words.lab import PUBLISHED, PUBLISHED_PAPER
from .._shared.panels import Look, Row, numbers, places_axis, renamed, rows_of, series_style, share_axis, tip
from .._shared.series import Spec, finished, panel, source
from .._shared.theme import THEMES, Theme, ThemeName
from .looks import MEANS, SEEDS, accuracy_axis, looks_of, near_axis, over_seeds, wide_axis
from .words import ENDED, length_rows, named_table, with_names

if TYPE_CHECKING:
    from ...studies import Experiment

_LINE, _LEAST = 24, 110  # pixels per row, and at least in total
_VALUES = {"accuracy": "accuracy on new data", "loss": "loss on new data"}
_DECADES = 5.0
_PUBLISHED_DASH = (4, 3)


def best_chart(experiment: Experiment, theme: ThemeName) -> Spec:
    """Accuracy and loss at the best rate: a point per seed, the mean and its interval."""
    rows = rows_of(
        named_table(experiment).filter("best").select(pl.col("name").alias("shown"), "seed", "rate", *_VALUES)
    )
    intervals = {row["name"]: (row["low"], row["high"]) for row in rows_of(with_names(experiment))}
    looks = looks_of((row["shown"] for row in rows), THEMES[theme])
    panels = [_dots(rows, value, looks, intervals if value == "accuracy" else {}) for value in _VALUES]
    about = ["on data that was never trained on; small points: single seeds, large ones: their mean"
             "; bars: intervals over seeds"]  # fmt: skip
    return finished(panels, "What does each reach at its best rate?", about, theme)


def _dots(
    rows: list[Row], value: str, looks: Mapping[str, Look], intervals: Mapping[str, tuple[float | None, float | None]]
) -> Spec | None:
    present = [row for row in rows if row[value] is not None]
    if not present:
        return None
    names = list(looks)
    drawn = [*numbers(present, value), *(end for ends in intervals.values() for end in ends if end is not None)]
    like = near_axis(value, "", drawn, (0.0, 1.01)) if value == "accuracy" else wide_axis(value, "", drawn, _DECADES)
    title = "loss (nats)" if value == "loss" else value
    x = alt.X(f"{value}:Q", title=title, scale=like["scale"], axis=like["axis"])
    y = alt.Y("shown:N", title=None, sort=names, scale=alt.Scale(domain=names), axis=alt.Axis(labelLimit=270))
    scale = alt.Scale(domain=names, range=[look.colour for look in looks.values()])
    colour = alt.Color("shown:N", legend=None, scale=scale)
    schema: dict[str, Any] = {"shown": pl.String, value: pl.Float64}
    means = over_seeds(pl.DataFrame(present, schema=schema, strict=False), ["shown"], value)
    ends = [{"shown": name, "low": low, "high": high} for name, (low, high) in intervals.items()
            if low is not None and high is not None]  # fmt: skip
    bars = source(ends).mark_rule(strokeWidth=3, opacity=0.35)
    layers = [bars.encode(x=renamed(x, "low"), x2="high:Q", y=y, color=colour)] if ends else []
    tips = [tip("shown", "run", "N"), tip(value)]
    layers += [
        source(present).mark_point(**SEEDS).encode(x, y, colour, tooltip=[*tips, tip("seed"), tip("rate")]),
        source(means).mark_point(**MEANS).encode(x, y, colour, tooltip=tips),
    ]
    return panel(layers, _VALUES[value], height=max(_LEAST, _LINE * len(names)))


def rate_chart(experiment: Experiment, theme: ThemeName) -> Spec:
    """Accuracy and training loss over the rate, a line per choice."""
    rows = rows_of(named_table(experiment).select(pl.col("name").alias("shown"), "seed", "rate", "accuracy", *ENDED))
    for row in rows:
        ended = row["train_loss"]
        row["ended"] = row["start_loss"] if ended is None else min(ended, row["start_loss"])
    looks = looks_of((row["shown"] for row in rows), THEMES[theme])
    style = series_style(looks, looks)
    losses = wide_axis("ended", "training loss at the end (nats)", numbers(rows, "ended"), _DECADES)
    panels = [
        _over_rates(rows, "accuracy", accuracy_axis(numbers(rows, "accuracy")), style, "accuracy on new data"),
        _over_rates(rows, "ended", losses, style, "training loss"),
    ]
    about = ["small points: single seeds, lines: their mean; a cross: a seed that diverged"]
    return finished(panels, "How much does the learning rate matter?", about, theme, legend_columns=3)


def _over_rates(rows: list[Row], value: str, y: alt.Y, style: Mapping[str, Any], title: str) -> Spec | None:
    present = [row for row in rows if row[value] is not None]
    if not present:
        return None
    x = places_axis("rate", "learning rate", {row["rate"] for row in present})
    schema: dict[str, Any] = {"shown": pl.String, "rate": pl.Float64, value: pl.Float64}
    means = over_seeds(pl.DataFrame(present, schema=schema, strict=False), ["shown", "rate"], value)
    tips = [tip("shown", "run", "N"), tip("rate"), tip(value, title)]
    each = [*tips, tip("seed")]
    layers = [
        source(means).mark_line().encode(x, y, tooltip=tips, **style),
        source(means).mark_point(**MEANS).encode(x, y, style["color"], tooltip=tips),
    ]
    for broken in (False, True):
        some = [row for row in present if bool(row["diverged"]) is broken]
        mark: dict[str, Any] = {"shape": "cross", "angle": 45, "filled": True, "size": 34} if broken else SEEDS
        layers += [source(some).mark_point(**mark).encode(x, y, style["color"], tooltip=each)] if some else []
    return panel(layers, title)


def length_chart(experiment: Experiment, theme: ThemeName) -> Spec:
    """Means of accuracy, next to published ones, and of entropy; then a panel per choice with all seeds."""
    colours, table = THEMES[theme], length_rows(experiment)
    rows = [row | {"shown": row["name"]} for row in rows_of(table)]
    published: list[Row] = [
        {"shown": _published(name), "length": length, "accuracy": accuracy}
        for name, values in PUBLISHED.items()
        for length, accuracy in values.items()
    ]
    looks = looks_of((row["shown"] for row in rows), colours)
    dashed = {
        _published(name): Look(_published(name), colour, _PUBLISHED_DASH, 1.6)
        for name, colour in zip(PUBLISHED, (colours.ink, colours.control), strict=True)
    }
    places = sorted({row["length"] for row in rows} | {row["length"] for row in published})
    x, y = places_axis("length", "items in the list", places), share_axis("accuracy", "accuracy")
    style = series_style(looks | dashed, looks | dashed)
    means = over_seeds(table.rename({"name": "shown"}), ["shown", "length"], "accuracy", "entropy")
    which = [tip("shown", "run", "N"), tip("length", "items")]
    tips, more = [*which, tip("accuracy")], [*which, tip("entropy", "entropy (nats)")]
    lines = source([*means, *published])
    overview = panel(
        [lines.mark_line().encode(x, y, tooltip=tips, **style),
         source(means).mark_point(**MEANS).encode(x, y, style["color"], tooltip=tips)],
        "all, means over seeds",
    )  # fmt: skip
    nats = near_axis("entropy", "entropy of the weights (nats)", [0.0, math.log(max(places))])
    # Of equal weights, the most there can be.
    most = source([{"length": length, "entropy": math.log(length)} for length in places])
    entropies = panel(
        [most.mark_line(strokeDash=list(_PUBLISHED_DASH), color=colours.soft).encode(x, nats),
         source(means).mark_line().encode(x, nats, tooltip=more, **style),
         source(means).mark_point(**MEANS).encode(x, nats, style["color"], tooltip=more)],
        "entropy; dashed: equal weights",
    )  # fmt: skip
    panels = [_one(name, rows, means, _reference(name, published), x, y, style, colours) for name in looks]
    about = [
        "each at its best rate; small points: single seeds, lines: their mean",
        f"dashed: {PUBLISHED_PAPER}, trained on up to 16 items as here",
    ]
    question = "How far does accuracy hold beyond the lengths of training?"
    return finished([overview, entropies, *panels], question, about, theme, columns=3, legend_columns=3)


def _published(name: str) -> str:
    return f"{name}, published"


def _reference(name: str, published: list[Row]) -> list[Row]:
    """Published values for this normalizer, else for softmax."""
    known = _published(name if name in PUBLISHED else "softmax")
    return [row for row in published if row["shown"] == known]


def _one(
    name: str, rows: list[Row], means: list[Row], reference: list[Row], x: alt.X, y: alt.Y, style: Mapping[str, Any],
    theme: Theme,
) -> Spec:  # fmt: skip
    """One choice with all its seeds, in front of published values."""
    seeds, mean = ([row for row in some if row["shown"] == name] for some in (rows, means))
    tips = [tip("length", "items"), tip("accuracy")]
    layers = [
        source(reference).mark_line(strokeDash=list(_PUBLISHED_DASH), color=theme.soft, strokeWidth=1.4).encode(x, y),
        source(mean).mark_line().encode(x, y, tooltip=tips, **style),
        source(mean).mark_point(**MEANS).encode(x, y, style["color"], tooltip=tips),
        source(seeds).mark_point(**SEEDS).encode(x, y, style["color"], tooltip=[*tips, tip("seed")]),
    ]
    return panel(layers, name)
