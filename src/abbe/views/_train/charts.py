"""All charts of an experiment by name, in the order of its page, and that page."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import altair as alt
import polars as pl

from ...words.lab import CHOICE, PUBLISHED, PUBLISHED_PAPER
from .._shared.panels import Look, Row, numbers, places_axis, renamed, rows_of, series_style, share_axis, tip
from .._shared.series import Spec, finished, linear_axis, panel, source, unchecked
from .._shared.theme import THEMES, Theme, ThemeName
from .._study_page import study_page
from .curves import (
    BROAD,
    CONTROL_DASH,
    MEANS,
    SEEDS,
    accuracy_axis,
    choice_curves,
    hues,
    looks_of,
    near_axis,
    over_seeds,
    temperature_curves,
    warning_chart,
    wide_axis,
)
from .table import (
    CONTROL,
    ENDED,
    about_lines,
    in_order,
    length_rows,
    named_table,
    normalizer_name,
    optimizer_name,
    question_of,
    temperature_name,
    train_tables,
    with_names,
)

if TYPE_CHECKING:
    from ...lab import Experiment


_LINE, _LEAST = 24, 110  # pixels per row, and at least in total
_VALUES = {"accuracy": "accuracy on new data", "loss": "loss on new data"}
_DECADES = 5.0  # of losses: smaller ones lie at the lower edge
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


_SIDES = ("plain", CONTROL)


def accuracy_chart(experiment: Experiment, theme: ThemeName) -> Spec:
    """Accuracy at the best rate over T: a row of panels per optimizer, plain beside its control."""
    table = experiment.table.select(*CHOICE, "run", "rate", "seed", "accuracy")
    best = table.filter(pl.col("run").is_in(experiment.summary["best_run"].to_list()))
    about = ["accuracy on new data at the best rate of each choice; small points: single seeds, large ones: their mean"]
    if best["compensated"].any():
        about += ["control: first values and rate of the query map undo the temperature; T = 1 has nothing to undo"]
    return _over_temperature(
        best, "accuracy", lambda rows: accuracy_axis(numbers(rows, "accuracy")),
        "What does each temperature reach at its best rate?", about, theme,
    )  # fmt: skip


def sensitivity_chart(experiment: Experiment, theme: ThemeName) -> Spec:
    """How much a wrong rate costs, over T; with intervals over seeds."""
    ends = {end: pl.col(f"rate_sensitivity_{end}") for end in ("low", "high")}
    summary = experiment.summary.select(*CHOICE, "rate_sensitivity", **ends, seed=pl.lit(None, pl.Int64))
    about = [
        "mean over rates of the training loss above that of the best rate, losses cut off at the first one "
        "(arXiv 2309.14322); bars: intervals over seeds"
    ]
    return _over_temperature(
        summary, "rate_sensitivity",
        lambda rows: linear_axis("rate_sensitivity", "loss above the best (nats)",
                                 numbers(rows, "rate_sensitivity", "high")),
        "How much does a wrong learning rate cost?", about, theme,
    )  # fmt: skip


def _over_temperature(
    table: pl.DataFrame, value: str, axis: Callable[[list[Row]], alt.Y], question: str,
    about: Sequence[str], theme: ThemeName,
) -> Spec:  # fmt: skip
    """A value over T as an ordinal axis: words such as "learned" come after the numbers."""
    rows = [row | {"shown": normalizer_name(row)} for row in rows_of(table)]
    temperatures = in_order(row["temperature"] for row in rows)
    looks = looks_of((row["shown"] for row in rows), THEMES[theme])
    controlled = {row["shown"] for row in rows if row["compensated"]}
    y, style = axis(rows), series_style(looks, looks)
    panels = []
    for optimizer in dict.fromkeys(row["optimizer"] for row in rows):
        for side in _SIDES[: 2 if controlled else 1]:
            chosen = [row for row in rows if row["optimizer"] == optimizer and _is_on(side, row, controlled)]
            title = f"{optimizer_name(optimizer)}, {side}" if controlled else optimizer_name(optimizer)
            panels.append(_by_temperature(chosen, value, temperatures, list(looks), y, style, title))
    columns = 2 if controlled else min(3, len(panels))
    return finished(panels, question, about, theme, columns=columns, legend_columns=3)


def _is_on(side: str, row: Row, controlled: set[str]) -> bool:
    """T = 1 is its own control if a normalizer has controls."""
    if side == CONTROL:
        return bool(row["compensated"]) or (row["temperature"] == "1" and row["shown"] in controlled)
    return not row["compensated"]


def _by_temperature(
    rows: list[Row], value: str, temperatures: list[str], names: list[str], y: alt.Y, style: Mapping[str, Any],
    title: str,
) -> Spec:  # fmt: skip
    scale = alt.Scale(domain=temperatures, paddingInner=0.5, paddingOuter=0.3)
    x = alt.X("temperature:N", title="temperature T", sort=temperatures, scale=scale)
    beside = alt.XOffset("shown:N", sort=names, scale=alt.Scale(domain=names, padding=0.5))
    table = pl.DataFrame(rows, schema={"shown": pl.String, "temperature": pl.String, value: pl.Float64}, strict=False)
    means = over_seeds(table, ["shown", "temperature"], value)
    tips = [tip("shown", "normalizer", "N"), tip("temperature", "T", "N"), tip(value, value.replace("_", " "))]
    spread = [row for row in rows if row.get("low") is not None]
    bars = source(spread).mark_rule(strokeWidth=2.5, opacity=0.4)
    layers = [source(means).mark_line().encode(x, y, beside, **style)]
    layers += [bars.encode(x, renamed(y, "low"), beside, y2="high:Q", color=style["color"])] if spread else []
    single = [row for row in rows if row["seed"] is not None]
    points = source(single).mark_point(**SEEDS)
    seed = [tip("seed"), tip("rate", "learning rate")]
    layers += [points.encode(x, y, beside, style["color"], tooltip=[*tips, *seed])] if single else []
    layers.append(source(means).mark_point(**MEANS).encode(x, y, beside, style["color"], tooltip=tips))
    return panel(layers, title)


def rates_chart(experiment: Experiment, theme: ThemeName) -> Spec:
    """Training loss over the rate, a line per T and per control; a row of panels per normalizer."""
    rows = rows_of(experiment.table.select(*CHOICE, "rate", "seed", "accuracy", *ENDED))
    for row in rows:
        ended = row["train_loss"]
        row["value"] = row["start_loss"] if ended is None else min(ended, row["start_loss"])
        row["shown"] = _series(row)
    temperatures = in_order(row["temperature"] for row in rows)
    looks, present = _temperature_looks(temperatures, theme), {row["shown"] for row in rows}
    style = series_style(looks, present)
    y = wide_axis("value", "training loss at the end", numbers(rows, "value"), _DECADES)
    best = {(_series(row), normalizer_name(row), row["optimizer"]): row["best_rate"]
            for row in rows_of(experiment.summary) if not row["compensated"]}  # fmt: skip
    optimizers = list(dict.fromkeys(row["optimizer"] for row in rows))
    panels = []
    for name in dict.fromkeys(normalizer_name(row) for row in rows):
        for optimizer in optimizers:
            chosen = [row for row in rows if row["optimizer"] == optimizer and normalizer_name(row) == name]
            marks = {series: rate for (series, one, by), rate in best.items() if (one, by) == (name, optimizer)}
            panels.append(_by_rate(chosen, marks, y, style, f"{name}, {optimizer_name(optimizer)}"))
    about = [
        "mean over the last fifth of the steps; a ring marks the best rate, a cross a seed that diverged",
        "compensated rates are those of the other maps: that of the query map is smaller",
    ]
    question, columns = "Does the best learning rate move with T?", min(3, max(2, len(optimizers)))
    return finished(panels, question, about, theme, columns=columns, legend_columns=3)


def _series(row: Row) -> str:
    return temperature_name(row["temperature"]) + (", compensated" if row["compensated"] else "")


def _temperature_looks(temperatures: Sequence[str], theme: ThemeName) -> dict[str, Look]:
    """A hue per T; its control is dashed."""
    first, warm, middle, *others = hues(THEMES[theme])
    colours = (first, middle, warm, *others) if len(temperatures) > 2 else (first, warm)
    looks = {}
    for place, temperature in enumerate(temperatures):
        name, colour = temperature_name(temperature), colours[place % len(colours)]
        looks[name] = Look(name, colour, width=BROAD if temperature == "1" else 2)
        looks[f"{name}, compensated"] = Look(f"{name}, compensated", colour, CONTROL_DASH, 1.6)
    return looks


def _by_rate(rows: list[Row], best: Mapping[str, float], y: alt.Y, style: Mapping[str, Any], title: str) -> Spec | None:
    if not rows:
        return None
    x = places_axis("rate", "learning rate", {row["rate"] for row in rows})
    table = pl.DataFrame(rows, schema={"shown": pl.String, "rate": pl.Float64, "value": pl.Float64}, strict=False)
    means = over_seeds(table, ["shown", "rate"], "value")
    rings = [row for row in means if best.get(row["shown"]) == row["rate"]]
    tips = [tip("shown", "run", "N"), tip("rate", "learning rate"), tip("value", "training loss")]
    each = [*tips, tip("accuracy"), tip("seed")]
    ended, broken = ([row for row in rows if bool(row["diverged"]) is bad] for bad in (False, True))
    layers = [
        source(means).mark_line().encode(x, y, tooltip=tips, **style),
        source(ended).mark_point(**SEEDS).encode(x, y, style["color"], tooltip=each),
        source(broken).mark_point(shape="cross", filled=True, size=34, angle=45, opacity=0.8).encode(
            x, y, style["color"], tooltip=each
        ),
        source(rings).mark_point(filled=False, size=110, strokeWidth=2, opacity=1).encode(
            x, y, style["color"], tooltip=tips
        ),
    ]  # fmt: skip
    return panel([layer for layer, some in zip(layers, (means, ended, broken, rings), strict=True) if some], title)


@unchecked
def train_charts(experiment: Experiment, theme: ThemeName = "light") -> dict[str, Spec]:
    """All charts of an experiment of the training lab.

    What each choice reaches at its best rate, how much the rate matters, curves over the steps, and what warned before
    a failure. High accuracy and low loss are good; a signal with a high AUC warns reliably.

    Args:
        experiment: from `abbe.train_temperature`, `train_length`, `train_recall` or `train_text`.
        theme: "light" or "dark".

    Returns:
        Vega-Lite specifications by name; a chart without data is left out.

    Examples:
        >>> small = {"rates": 0.01, "seeds": 1, "steps": 20, "workers": 1, "progress": False}
        >>> experiment = abbe.train_recall(normalizers="softmax", **small)
        >>> list(abbe.views.train_charts(experiment))
        ['best', 'rates', 'curves']
    """
    charts: dict[str, Spec | None]
    if experiment.experiment == "temperature":
        charts = {"accuracy": accuracy_chart(experiment, theme), "rates": rates_chart(experiment, theme)}
        for optimizer in experiment.summary["optimizer"].unique(maintain_order=True):
            charts[f"curves-{optimizer}"] = temperature_curves(experiment, optimizer, theme)
        charts["sensitivity"] = sensitivity_chart(experiment, theme)
    else:
        lengths = {"lengths": length_chart(experiment, theme)} if experiment.lengths.height else {}
        charts = {
            **lengths, "best": best_chart(experiment, theme), "rates": rate_chart(experiment, theme),
            "curves": choice_curves(experiment, theme),
        }  # fmt: skip
    charts["warning"] = warning_chart(experiment, theme)
    return {name: chart for name, chart in charts.items() if chart is not None}


def train_page(experiment: Experiment) -> str:
    charts = {theme: train_charts(experiment, theme) for theme in THEMES}
    question, about = question_of(experiment), about_lines(experiment)
    return study_page(experiment, question, about, experiment.findings, train_tables(experiment), charts)
