"""The temperature experiment as charts: what the best rate reaches at each T, and where the best rate lies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import altair as alt
import polars as pl

from ...words.lab import CHOICE
from .._shared.panels import Look, Row, numbers, places_axis, renamed, rows_of, series_style, tip
from .._shared.series import Spec, finished, linear_axis, panel, source
from .._shared.theme import THEMES, ThemeName
from .looks import BROAD, CONTROL_DASH, MEANS, SEEDS, accuracy_axis, hues, looks_of, over_seeds, wide_axis
from .words import CONTROL, ENDED, in_order, normalizer_name, optimizer_name, temperature_name

if TYPE_CHECKING:
    from ...studies import Experiment

_SIDES = ("plain", CONTROL)
_DECADES = 5.0  # of losses: smaller ones lie at the lower edge


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
