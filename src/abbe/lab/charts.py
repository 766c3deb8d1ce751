"""The charts of an experiment: what each choice reaches, over rates, temperatures, lengths and steps, and what warns.

Small points are single seeds, lines and large points their means; a cross is a seed that diverged.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import polars as pl

from ..views import charts as kit
from ..views.charts import Channel, Look, Plot, Row, Spec, rows_of
from ..views.theme import THEMES, Theme, ThemeName
from .result import CHOICE, PUBLISHED, PUBLISHED_PAPER, Experiment, in_order, length_rows, signal_name, with_names

_WIDE = 10.0  # from this ratio on, a logarithmic axis has enough ticks
_LOW = 0.6  # accuracies below it would lie at the bottom of an axis up to 1
_LOSS_DECADES = 5.0  # smaller losses lie at the lower edge
_DASHES = ((1, 0), (6, 3), (2, 3))
_CONTROL_DASH, _PUBLISHED_DASH = (7, 4), (4, 3)
_DOTS = 420  # pixels: wide panels, since long names stand beside them
_BROAD = 4.5  # pixels: wide enough to stay visible below the controls that lie on it
_SEEDS: dict[str, Any] = {"size": 22, "opacity": 0.6}
_CROSSES: dict[str, Any] = {"shape": "cross", "angle": 45, "opacity": 0.8}
_MEANS = 46  # pixels


def train_charts(experiment: Experiment, theme: ThemeName) -> dict[str, Spec]:
    """All charts by name, in the order of the page; a chart without data is left out."""
    charts: dict[str, Spec | None]
    if experiment.experiment == "temperature":
        optimizers = dict(with_names(experiment).select("optimizer", "by").iter_rows())
        charts = {
            "accuracy": _accuracy_over_temperature(experiment, theme),
            "rates": _rates_by_temperature(experiment, theme),
            **{f"curves-{name}": _temperature_curves(experiment, name, by, theme) for name, by in optimizers.items()},
            "sensitivity": _sensitivity_over_temperature(experiment, theme),
        }
    else:
        charts = {
            "lengths": _lengths(experiment, theme) if experiment.lengths.height else None,
            "best": _best(experiment, theme),
            "rates": _rates(experiment, theme),
            "curves": _choice_curves(experiment, theme),
        }
    charts["warning"] = _warning(experiment, theme)
    return {name: chart for name, chart in charts.items() if chart is not None}


# -- Looks, axes and series -------------------------------------------------------------------------------------------


def _hues(theme: Theme) -> tuple[str, ...]:
    return theme.selected, theme.claim, theme.third, theme.fourth, theme.ink, theme.control


def _looks(names: Iterable[str], theme: ThemeName) -> dict[str, Look]:
    colours = _hues(THEMES[theme])
    return {
        name: Look(name, colours[i % len(colours)], _DASHES[i // len(colours) % len(_DASHES)])
        for i, name in enumerate(dict.fromkeys(names))
    }


def _wide_axis(field: str, title: str, values: Sequence[float], decades: float = _LOSS_DECADES) -> Channel:
    """Logarithmic over a wide range, else linear around the values."""
    positive = [value for value in values if value > 0]
    if positive and max(positive) >= _WIDE * min(positive):
        return kit.log_axis(field, title, values, decades)
    return kit.near_axis(field, title, values)


def _accuracy_axis(table: pl.DataFrame) -> Channel:
    """An axis from 0 to 1, or less if all are low."""
    values = table["accuracy"].drop_nulls().to_list()
    axis = kit.linear_axis("accuracy", "accuracy", values)
    return axis if max(values, default=1.0) < _LOW else kit.share_axis("accuracy", "accuracy")


def _series(plot: Plot, table: pl.DataFrame) -> Plot:
    """Means over seeds as lines and points; with a column `seed` also every seed, crossed out if it diverged."""
    x, y = (plot.axes[name]["field"] for name in ("x", "y"))
    means = rows_of(table.group_by("shown", x, maintain_order=True).agg(pl.col(y).mean()))
    plot.line(means)
    if "low" in table.columns:
        plot.ends(rows_of(table), strokeWidth=2.5, opacity=0.4)
    if "seed" in table.columns:
        broken = pl.col("diverged").fill_null(False) if "diverged" in table.columns else pl.lit(False)
        for mark, chosen in ((_SEEDS, ~broken), (_CROSSES, broken)):
            plot.dots(rows_of(table.filter(chosen).drop_nulls(y)), **mark)
    return plot.dots(means, size=_MEANS)


def _named(experiment: Experiment) -> pl.DataFrame:
    """Every run of every seed, with the names of its choice, whether its rate is the best, and the loss at its end."""
    named = with_names(experiment).select(*CHOICE, "of", "at", "by", "best_run", shown="name")
    table = experiment.table.join(named, on=list(CHOICE), how="left", maintain_order="left")
    ended = pl.min_horizontal("train_loss", "start_loss")  # a run that diverged counts with its first loss
    return table.with_columns(best=pl.col("run") == pl.col("best_run"), ended=ended)


# -- Choices at their best rates, over rates and over lengths ---------------------------------------------------------


def _best(experiment: Experiment, theme: ThemeName) -> Spec:
    """Accuracy and loss at the best rate: a point per seed, the mean and its interval."""
    table = _named(experiment).filter("best")
    ends = rows_of(with_names(experiment).drop_nulls("low").select("low", "high", shown="name"))
    looks, losses = _looks(table["shown"], theme), table["loss"].drop_nulls().to_list()
    drawn = [*table["accuracy"].drop_nulls(), *kit.numbers(ends, "low", "high")]
    panels = [_dots(table, kit.near_axis("accuracy", "accuracy", drawn, 1.01), looks, ends)]
    panels += [_dots(table, _wide_axis("loss", "loss (nats)", losses), looks, [])] if losses else []
    about = (
        "on data that was never trained on; small points: single seeds, large ones: their mean; bars: intervals over "
        "seeds"
    )
    return kit.finished(panels, "What does each reach at its best rate?", [about], theme, columns=1)


def _dots(table: pl.DataFrame, x: Channel, looks: Mapping[str, Look], ends: Sequence[Row]) -> Spec:
    value, y = x["field"], kit.names_axis("shown", None, looks, labelLimit=270)
    colour = kit.by_value("shown", {name: look.colour for name, look in looks.items()}, legend=None)
    plot = Plot(x, y, {"shown": "run", value: "", "seed": "", "rate": ""}, color=colour)
    plot.ends(ends, along="x", opacity=0.35)
    plot.dots(rows_of(table.drop_nulls(value).select("shown", "seed", "rate", value)), **_SEEDS)
    plot.dots(rows_of(table.group_by("shown", maintain_order=True).agg(pl.col(value).mean())), size=_MEANS)
    return plot.panel(f"{value} on new data", width=_DOTS, height=max(110, 24 * len(looks)))


def _rates(experiment: Experiment, theme: ThemeName) -> Spec:
    """Accuracy and training loss over the rate, a line per choice."""
    table = _named(experiment)
    looks, x = _looks(table["shown"], theme), kit.places_axis("rate", "learning rate", table["rate"])
    losses = _wide_axis("ended", "training loss at the end (nats)", table["ended"].to_list())
    panels = []
    for title, y in (("accuracy on new data", _accuracy_axis(table)), ("training loss", losses)):
        plot = Plot(x, y, {"shown": "run", "rate": "", y["field"]: title, "seed": ""}, looks)
        panels.append(_series(plot, table.select("shown", "rate", "seed", "diverged", y["field"])).panel(title))
    about = ["small points: single seeds, lines: their mean; a cross: a seed that diverged"]
    return kit.finished(panels, "How much does the learning rate matter?", about, theme, legend_columns=3)


def _lengths(experiment: Experiment, theme: ThemeName) -> Spec:
    """Means of accuracy, next to published ones, and of entropy; then a panel per choice with all seeds."""
    colours, table = THEMES[theme], length_rows(experiment).rename({"name": "shown"}).drop("run")
    looks = _looks(table["shown"], theme)
    published = {
        name: [{"shown": f"{name}, published", "length": n, "accuracy": x} for n, x in values.items()]
        for name, values in PUBLISHED.items()
    }
    for name, colour in zip(PUBLISHED, (colours.ink, colours.control), strict=True):
        looks[f"{name}, published"] = Look(f"{name}, published", colour, _PUBLISHED_DASH, 1.6)
    every = [row for rows in published.values() for row in rows]
    places = sorted({*table["length"], *(row["length"] for row in every)})
    x, accuracy = kit.places_axis("length", "items in the list", places), kit.share_axis("accuracy", "accuracy")
    nats = kit.near_axis("entropy", "entropy of the weights (nats)", [0.0, math.log(max(places))])
    tips = {"shown": "run", "length": "items", "accuracy": "", "entropy": "entropy (nats)", "seed": ""}
    dashed: Row = {"strokeDash": list(_PUBLISHED_DASH), "color": colours.soft}
    means = table.drop("seed")
    # Equal weights have the largest entropy there can be.
    most = [{"length": length, "entropy": math.log(length)} for length in places]
    panels = [
        _series(Plot(x, accuracy, tips, looks).line(every), means).panel("all, means over seeds"),
        _series(Plot(x, nats, tips, looks).line(most, **dashed), means).panel("entropy; dashed: equal weights"),
    ]
    for (name,), rows in table.group_by("shown", maintain_order=True):
        known = published[name if name in PUBLISHED else "softmax"]
        plot = Plot(x, accuracy, tips, looks).line(known, **dashed, strokeWidth=1.4)
        panels.append(_series(plot, rows).panel(str(name)))
    about = [
        "each at its best rate; small points: single seeds, lines: their mean",
        f"dashed: {PUBLISHED_PAPER}, trained on up to 16 items as here",
    ]
    question = "How far does accuracy hold beyond the lengths of training?"
    return kit.finished(panels, question, about, theme, columns=3, legend_columns=3)


# -- Temperatures -----------------------------------------------------------------------------------------------------


def _accuracy_over_temperature(experiment: Experiment, theme: ThemeName) -> Spec:
    """Accuracy at the best rate over T: a row of panels per optimizer, plain beside its control."""
    best = (
        _named(experiment).filter("best").select("temperature", "compensated", "of", "by", "rate", "seed", "accuracy")
    )
    about = ["accuracy on new data at the best rate of each choice; small points: single seeds, large ones: their mean"]
    if best["compensated"].any():
        about += ["control: first values and rate of the query map undo the temperature; T = 1 has nothing to undo"]
    question = "What does each temperature reach at its best rate?"
    return _over_temperature(best, _accuracy_axis(best), question, about, theme)


def _sensitivity_over_temperature(experiment: Experiment, theme: ThemeName) -> Spec:
    """How much a wrong rate costs, over T; with intervals over seeds."""
    value, ends = "rate_sensitivity", {"low": "rate_sensitivity_low", "high": "rate_sensitivity_high"}
    summary = with_names(experiment).select("temperature", "compensated", "of", "by", value, **ends)
    highest = [x for name in (value, "high") for x in summary[name].drop_nulls()]
    about = (
        "mean over rates of the training loss above that of the best rate, losses cut off at the first one "
        "(arXiv 2309.14322); bars: intervals over seeds"
    )
    y = kit.linear_axis(value, "loss above the best (nats)", highest)
    return _over_temperature(summary, y, "How much does a wrong learning rate cost?", [about], theme)


def _over_temperature(table: pl.DataFrame, y: Channel, question: str, about: Sequence[str], theme: ThemeName) -> Spec:
    """A value over T as an ordinal axis: words such as "learned" come after the numbers."""
    table = table.rename({"of": "shown"})
    looks = _looks(table["shown"], theme)
    x = kit.names_axis("temperature", "temperature T", in_order(table["temperature"]))
    x["scale"] |= {"paddingInner": 0.5, "paddingOuter": 0.3}
    beside = {"field": "shown", "type": "nominal", "scale": {"domain": list(looks), "padding": 0.5}}
    tips = {"shown": "normalizer", "temperature": "T", y["field"]: y["field"].replace("_", " "), "seed": "", "rate": ""}
    compensated = pl.col("compensated")
    controlled = table.filter(compensated)["shown"].unique().to_list()
    sides = {"": ~compensated}
    if controlled:  # T = 1 is its own control where a normalizer has controls
        own = (pl.col("temperature") == "1") & pl.col("shown").is_in(controlled)
        sides = {", plain": ~compensated, ", compensated control": compensated | own}
    panels = [
        _series(Plot(x, y, tips, looks, xOffset=beside), some.filter(chosen)).panel(f"{optimizer}{side}")
        for (optimizer,), some in table.group_by("by", maintain_order=True)
        for side, chosen in sides.items()
    ]
    columns = 2 if controlled else min(3, len(panels))
    return kit.finished(panels, question, about, theme, columns=columns, legend_columns=3)


def _rates_by_temperature(experiment: Experiment, theme: ThemeName) -> Spec:
    """Training loss over the rate, a line per T and per control; a panel per normalizer and optimizer."""
    table = _named(experiment).with_columns(shown="at")
    names = dict(table.filter(~pl.col("compensated")).select("temperature", "at").iter_rows())
    looks = _temperature_looks([names[word] for word in in_order(table["temperature"])], theme)
    looks = {name: look for name, look in looks.items() if name in set(table["shown"])}
    y = _wide_axis("ended", "training loss at the end", table["ended"].to_list())
    tips = {"shown": "run", "rate": "learning rate", "ended": "training loss", "seed": ""}
    panels = []
    for (name, optimizer), some in table.group_by("of", "by", maintain_order=True):
        plot = Plot(kit.places_axis("rate", "learning rate", some["rate"]), y, tips, looks)
        _series(plot, some.select("shown", "rate", "seed", "diverged", "ended"))
        best = some.filter(pl.col("best") & ~pl.col("compensated")).group_by("shown", "rate", maintain_order=True)
        plot.dots(rows_of(best.agg(pl.col("ended").mean())), filled=False, size=110, strokeWidth=2)
        panels.append(plot.panel(f"{name}, {optimizer}"))
    about = [
        "mean over the last fifth of the steps; a ring marks the best rate, a cross a seed that diverged",
        "compensated rates are those of the other maps: that of the query map is smaller",
    ]
    question, columns = "Does the best learning rate move with T?", min(3, max(2, table["optimizer"].n_unique()))
    return kit.finished(panels, question, about, theme, columns=columns, legend_columns=3)


def _temperature_looks(names: Sequence[str], theme: ThemeName) -> dict[str, Look]:
    """A hue per T; its control is dashed."""
    first, warm, middle, *others = _hues(THEMES[theme])
    colours = (first, middle, warm, *others) if len(names) > 2 else (first, warm)
    looks = {}
    for i, name in enumerate(names):
        colour = colours[i % len(colours)]
        looks[name] = Look(name, colour, width=_BROAD if name == "T = 1" else 2)
        looks[f"{name}, compensated"] = Look(f"{name}, compensated", colour, _CONTROL_DASH, 1.6)
    return looks


# -- Steps ------------------------------------------------------------------------------------------------------------

# Quantities that are drawn: title of the panel, title of the axis, decades of a logarithmic one (0: a share).
_DRAWN = {
    "loss": ("training loss", "nats", 4.0),
    "entropy_share": ("entropy, share of its ceiling", "share", 0.0),
    "max_logit": ("largest logit", "logits", 9.0),
    "separability": ("separability N_s/N", "share", 0.0),
    "gradient_ratio": ("gradient, queries and keys over values", "ratio", 6.0),
    "sensitivity": ("sensitivity, worst direction", "weight per logit", 6.0),
}
_HIGHEST = 1e8  # larger values are left out: logits of a diverging run would flatten all others


def _temperature_curves(experiment: Experiment, optimizer: str, by: str, theme: ThemeName) -> Spec | None:
    """T = 1, the lowest T and its control at one rate, the best at T = 1; None if this was not trained."""
    chosen = (pl.col("optimizer") == optimizer) & ~pl.col("qk_norm")
    baseline = experiment.summary.filter(chosen, temperature="1").head(1).to_dicts()
    if not baseline:
        return None
    spec, rate = baseline[0]["normalizer"], baseline[0]["best_rate"]
    runs = _named(experiment).filter(chosen, normalizer=spec, rate=rate).unique("run", maintain_order=True)
    value = pl.col("temperature").cast(pl.Float64, strict=False)
    runs = runs.filter((value == 1) | (value == value.min())).sort("compensated", maintain_order=True)
    colours, series, looks = THEMES[theme], dict(runs.select("at", "run").iter_rows()), {}
    for name, temperature, compensated in runs.select("at", "temperature", "compensated").iter_rows():
        hue = colours.selected if temperature == "1" else colours.ink if compensated else colours.claim
        dash = _CONTROL_DASH if compensated else (1, 0)
        looks[name] = Look(name, hue, dash, _BROAD if temperature == "1" else 2)
    about = [
        f"{spec}, learning rate {rate:g}, the best at T = 1, for all; line: median over seeds, band: all of them",
        "dotted beside N_s/N: the same for random sets; a seed that diverged is missing from there on",
    ]
    return _curves(experiment, series, looks, f"{by}: what happens while it learns?", about, theme)


def _choice_curves(experiment: Experiment, theme: ThemeName) -> Spec:
    """Every choice at its best rate."""
    series = dict(with_names(experiment).select("name", "best_run").iter_rows())
    banded = len(series) <= 3
    about = ["each at its best rate; median over seeds" + (", band: all of them" if banded else "")]
    return _curves(experiment, series, _looks(series, theme), "What happens while they learn?", about, theme, banded)


def _curves(
    experiment: Experiment, series: Mapping[str, int], looks: Mapping[str, Look], question: str, about: Sequence[str],
    theme: ThemeName, banded: bool = True,
) -> Spec:  # fmt: skip
    """A panel per quantity; `series` has the run drawn under each name."""
    panels = []
    for quantity, (title, unit, decades) in _DRAWN.items():
        if not (rows := _medians(experiment, series, quantity)):
            continue
        steps = {row["step"] for row in rows}
        drawn = kit.numbers(rows, "value", *(("low", "high") if banded else ()))
        values = [value for value in drawn if value <= _HIGHEST]
        x = kit.axis("step", "step", (0, max(steps)), tickCount=5, format="~s")
        y = _wide_axis("value", unit, values, decades) if decades else kit.share_axis("value", unit)
        tips = {"shown": "run", "step": "", "value": title, "low": "least", "high": "largest"}
        plot = Plot(x, y, tips, looks).band(rows if banded else [], opacity=0.16).line(rows)
        plot.dots(rows if len(steps) == 1 else [], size=40)
        if quantity == "separability":
            control = _medians(experiment, series, "separability_control")
            plot.line(control, strokeDash=[1.5, 3], strokeWidth=1.5, opacity=0.9)
        panels.append(plot.panel(title))
    return kit.finished(panels, question, about, theme, columns=3, legend_columns=3)


def _medians(experiment: Experiment, series: Mapping[str, int], quantity: str) -> list[Row]:
    """Over the seeds that have a number at a step; least and largest beside them."""
    value = pl.col(quantity).filter(pl.col(quantity).is_finite())
    named = pl.DataFrame({"shown": list(series), "run": list(series.values())}, schema_overrides={"run": pl.Int32})
    rows = named.join(experiment.curves, on="run", maintain_order="left_right").group_by(
        "shown", "step", maintain_order=True
    )
    return rows_of(rows.agg(value=value.median(), low=value.min(), high=value.max()).drop_nulls("value"))


# -- Early warning ----------------------------------------------------------------------------------------------------

_LINE = 19  # pixels per row
_TRACED = 3  # quantities whose thresholds are traced
_WARNED, _FALSE = "failing runs warned", "healthy runs alarmed"
_TIPS = {
    "auc": "AUC",
    "auc_low": "from",
    "auc_high": "to",
    "threshold": "threshold for at most 5 % false alarms",
    "warned": "warned then",
    "false_alarms": "false alarms then",
    "lead": "median lead (steps)",
}


def _warning(experiment: Experiment, theme: ThemeName) -> Spec | None:
    """None if no run failed, or all did: there is nothing to warn of, or nothing to compare with."""
    rows = [row | {"signal": signal_name(row)} for row in rows_of(experiment.warnings)]
    if not rows:
        return None
    signals = sorted((row for row in rows if row["auc"] is not None), key=lambda row: -row["auc"])
    alerts = [row for row in rows if row["kind"] == "alert"]
    about = [
        f"{rows[0]['failing']:,} failing and {rows[0]['healthy']:,} healthy runs of single seeds; only what happens "
        "before the loss shows the failure counts",
        "AUC: how often a failing run ranks above a healthy one, 0.5 is chance; bars: intervals over runs",
    ]
    panels = [_auc(signals, theme), _roc(experiment, signals, theme), _alerts(alerts, theme)]
    question = "Which quantity warns before the loss does?"
    return kit.finished(panels, question, about, theme, independent=["color", "shape", "x", "y"])


def _auc(rows: list[Row], theme: ThemeName) -> Spec:
    """The best first, with its interval, against chance."""
    colours, y = THEMES[theme], kit.names_axis("signal", None, [row["signal"] for row in rows], labelLimit=200)
    x = kit.axis("auc", "AUC", (0, 1), values=[0, 0.25, 0.5, 0.75, 1], format=".2f")
    plot = Plot(x, y, {"signal": "warns", **_TIPS}).level([0.5], along="x", color=colours.control)
    plot.ends(rows, "auc_low", "auc_high", "x", color=colours.selected).dots(rows, size=60, color=colours.selected)
    return plot.panel("quantities of the monitor", height=_LINE * len(rows))


def _roc(experiment: Experiment, signals: list[Row], theme: ThemeName) -> Spec | None:
    """Over all thresholds, for the three best quantities and the two that the paper names."""
    named = [row for row in signals if row["kind"] == "change"]
    shown = list(dict.fromkeys(row["signal"] for row in [*signals[:_TRACED], *named]))
    rows = [row | {"signal": signal_name(row)} for row in rows_of(experiment.roc)]
    points = [row | {"place": i} for i, row in enumerate(rows) if row["signal"] in shown]
    if not points:
        return None
    ends = [
        {"signal": name, "false_alarms": share, "warned": share, "threshold": None, "place": place}
        for name in shown
        for share, place in ((0.0, -1), (1.0, len(rows)))
    ]
    x, y = (
        kit.axis(name, title, (0, 1), format="%", tickCount=5)
        for name, title in (("false_alarms", _FALSE), ("warned", _WARNED))
    )
    hues = {name: look.colour for name, look in _looks(shown, theme).items()}
    tips = {"signal": "warns", "threshold": "", "warned": _WARNED, "false_alarms": _FALSE}
    plot = Plot(x, y, tips, color=kit.by_value("signal", hues, legend={"columns": 2}))
    chance = [{"false_alarms": share, "warned": share} for share in (0, 1)]
    plot.line(chance, color=THEMES[theme].control, strokeDash=[4, 3])
    order = {"order": {"field": "place", "type": "quantitative"}}
    plot.draw("line", [*points, *ends], order, strokeWidth=2, interpolate="step-after")
    return plot.panel("as the threshold is lowered")


def _alerts(rows: list[Row], theme: ThemeName) -> Spec | None:
    """The alerts at their thresholds: how many failing runs they catch, and how many healthy ones."""
    if not rows:
        return None
    colours, shares = THEMES[theme], {"warned": _WARNED, "false_alarms": _FALSE}
    points = [
        {"signal": row["signal"], "share": row[column], "shown": words, "lead": row["lead"]}
        for row in rows
        for column, words in shares.items()
    ]
    order = [row["signal"] for row in sorted(rows, key=lambda row: row["false_alarms"] - row["warned"])]
    x = kit.axis("share", "share of runs", (0, 1), format="%", tickCount=5)
    y = kit.names_axis("signal", None, order, labelLimit=200)
    looks = kit.point_looks("shown", shares.values(), (colours.third, colours.claim), ("circle", "diamond"))
    plot = Plot(x, y, {"signal": "alert", "shown": "of", "share": "", "lead": "median lead (steps)"}, **looks)
    plot.ends(rows, "warned", "false_alarms", "x", color=colours.control, strokeWidth=1, opacity=0.6)
    return plot.dots(points, size=60).panel("alerts of the monitor, as they are", height=_LINE * len(rows))
