"""A training run as one offline page (what happened, curves of all heads over steps, the map of heads, alerts), and as
one figure for papers.

The page holds all steps of a short run, and a selection of a long one. A step is selected whole, so curves and map show
measured values, never means over steps: the first and the last step, steps with alerts, and others evenly between. To
hide nothing, each carries the least and the largest value of any head over all steps since the previous selected one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import polars as pl

from ..views import charts as kit
from ..views.charts import Channel, Plot, Spec
from ..views.html import packed_json, packed_table, plain_value
from ..views.theme import THEMES, ThemeName
from ..words.manifest import for_others, model_name, part_of
from ..words.numbers import number, percent
from ._alerts import Alert
from ._quantities import tracker_name, unpacked
from ._result import Training, shared_by

_LISTED = 400  # alerts in the list of the page
_BUDGET = 1_000_000  # numbers on a page: below 5 MB even if they are random
_FEWEST, _MOST = 12, 600  # steps; more than a page has pixels are invisible
_IN_PRINT = 120  # steps of a figure; more are invisible in print


@dataclass(frozen=True)
class Selection:
    """The steps of a run that a page or a figure draws.

    Attributes:
        steps: the selected steps.
        heads: layer and number of every head.
        measures: names.
        values: a row per selected step and head, in this order; a column per measure, limit and control.
        model: a row per selected step: losses, learning rate, and mean, least and largest of every measure.
        read: how many steps were read.
    """

    steps: list[int]
    heads: list[tuple[int, int]]
    measures: list[str]
    values: pl.DataFrame
    model: pl.DataFrame
    read: int


def select_steps(training: Training, most: int | None = None) -> Selection:
    """At most `most` steps; by default as many as the page has room for."""
    records = training.records
    present = dict.fromkeys((name, part) for record in records for name, of in record["heads"].items() for part in of)
    measures = list(dict.fromkeys(name for name, _ in present))
    parts = [(name, part) for name in measures for part in ("value", "limit", "control") if (name, part) in present]
    layouts = {tuple(record["layout"]) for record in records}
    heads = sorted({(i, head) for layout in layouts for i, count in enumerate(layout) for head in range(count)})
    room = _BUDGET // max(1, len(parts) * len(heads))
    at = _selected([bool(record["alerts"]) for record in records], most or min(_MOST, max(_FEWEST, room)))
    selected = [records[i] for i in at]
    values = {
        name if part == "value" else f"{name} {part}": _column(selected, name, part, heads) for name, part in parts
    }
    steps, model = [record["step"] for record in selected], _model_columns(records, at, measures)
    return Selection(steps, heads, measures, _floats(values), _floats(model), len(records))


def _selected(alerted: Sequence[bool], most: int) -> list[int]:
    """The first and the last record, those with alerts (a sample if very many), and others evenly between."""
    if len(alerted) <= most:
        return list(range(len(alerted)))
    events = [i for i, alert in enumerate(alerted) if alert]
    chosen = {events[i] for i in _evenly(len(events), most // 2)} | {0, len(alerted) - 1}
    return sorted(chosen | set(_evenly(len(alerted), most - len(chosen))))


def _evenly(count: int, most: int) -> Iterable[int]:
    return range(count) if count <= most else {round(i * (count - 1) / max(1, most - 1)) for i in range(most)}


def _column(
    records: Sequence[Mapping[str, Any]], name: str, part: str, heads: Sequence[tuple[int, int]]
) -> list[float | None]:
    values: list[float | None] = []
    for record in records:
        layout = record["layout"]
        layers = unpacked((record["heads"].get(name) or {}).get(part), layout)
        values += [layers[i][head] if i < len(layout) and head < layout[i] else None for i, head in heads]
    return values


def _model_columns(
    records: Sequence[Mapping[str, Any]], at: Sequence[int], measures: Sequence[str]
) -> dict[str, list[float | None]]:
    """Values at the selected steps; least and largest over all steps since the previous selected one."""
    stretches = [range(before + 1, i + 1) for before, i in zip([-1, *at], at, strict=False)]

    def extremes(choose: Callable[[list[float]], float], values: Sequence[float | None]) -> list[float | None]:
        finite = ([x for i in stretch if (x := values[i]) is not None and math.isfinite(x)] for stretch in stretches)
        return [choose(numbers) if numbers else None for numbers in finite]

    columns = {name: [records[i].get(name) for i in at] for name in ("loss", "loss_mean", "learning_rate")}
    losses = [record.get("loss") for record in records]
    columns |= {"loss low": extremes(min, losses), "loss high": extremes(max, losses)}
    for name in measures:
        means, least, largest = (
            [record["model"].get(f"{tracker_name(name)}_{how}") for record in records] for how in ("mean", "min", "max")
        )
        columns[f"{name} mean"] = [means[i] for i in at]
        columns |= {f"{name} low": extremes(min, least), f"{name} high": extremes(max, largest)}
    return columns


def _floats(columns: Mapping[str, Sequence[float | None]]) -> pl.DataFrame:
    return pl.DataFrame({name: pl.Series(values, dtype=pl.Float64, strict=False) for name, values in columns.items()})


# -- Page -------------------------------------------------------------------------------------------------------------


def page_values(training: Training, reload: int | None) -> dict[str, Any]:
    """What the template shows; an open browser loads the page again after these seconds."""
    alerts = [_alert(i, alert) for i, alert in enumerate(training.events())]
    shown: dict[str, Any] = {
        "model": model_name(for_others(training.manifest)),
        "about": training.about(),
        "numbers": _key_numbers(training),
        "rules": training.rules(),
        "checked": training.checked,
        "alerts": alerts[-_LISTED:][::-1],
        "unlisted": max(0, len(alerts) - _LISTED),
        "reload": reload,
        "kept": None,
    }
    if not training.records:
        return shown
    kept = select_steps(training)
    measures = [training.quantity(name) for name in kept.measures]
    about = {
        "steps": kept.steps,
        "places": [{"layer": layer, "head": head} for layer, head in kept.heads],
        "measures": [asdict(quantity) for quantity in measures],
        "alerts": [{name: plain_value(value) for name, value in alert.items()} for alert in alerts],
        "read": kept.read,
        "reload": reload,
    }
    packed = {"table_data": packed_table(kept.values), "model_data": packed_table(kept.model)}
    return shown | packed | {"kept": kept, "measures": measures, "about_data": packed_json(about)}


def _alert(place: int, alert: Alert) -> dict[str, Any]:
    words = {"event": alert.kind.event, "measure": alert.kind.measure, "where": alert.where, "numbers": alert.numbers}
    return {"place": place, **{name: getattr(alert, name) for name in ("step", "layer", "head")}, **words}


def _key_numbers(training: Training) -> list[tuple[str, str, str]]:
    """Name, value and remark."""
    if not training.records:
        return []
    record, last = training.records[-1], {row["measure"]: row for row in training.last_values()}
    every = part_of(training.manifest, "settings").get("every")
    cards = [("step", number(record["step"]), f"read every {number(every)}" if every else "")]
    if (loss := record.get("loss")) is not None:
        first = training.records[0].get("loss")
        cards.append(("loss", number(loss), "" if first is None else f"at first {number(first)}"))
    if (rate := record.get("learning_rate")) is not None:
        cards.append(("learning rate", number(rate, 3), ""))
    entropy, logit = last.get("entropy", {}), last.get("max_logit", {})
    if entropy.get("mean") is not None and entropy["limit"]:
        beside = f"mean over heads; lowest head {percent((entropy['least'] or 0) / entropy['limit'])}"
        cards.append(("entropy, share of its ceiling", percent(entropy["mean"] / entropy["limit"]), beside))
    if logit.get("largest") is not None:
        cards.append(("largest logit", number(logit["largest"], 3), "of any head"))
    return cards


# -- Figure -----------------------------------------------------------------------------------------------------------

_LINES = (("loss", "loss"), ("learning_rate", "learning rate"))
_SHOWN = ("entropy", "max_logit", "logit_change", "separability", "saturated", "gradient_ratio", "learned")
_LOGARITHMIC = ("max_logit", "logit_change", "gradient_ratio")


def watch_chart(training: Training, theme: ThemeName) -> Spec:
    """Loss, learning rate and a few measures over steps: thin lines are heads, the bold one their mean, the dashed one
    the limit, vertical ones alerts."""
    colours = THEMES[theme]
    question = f"What happened to the attention of {model_name(training.manifest)} in training?"
    about = [training.answer().sentence, ", ".join(training.about())]
    if not training.records:
        return kit.finished([], question, about, theme)
    kept = select_steps(training, _IN_PRINT)
    x = kit.axis("step", "step", (kept.steps[0], max(kept.steps[-1], kept.steps[0] + 1)), tickCount=5)
    events = sorted({alert.step for alert in training.events()})
    model = kept.model.with_columns(step=pl.Series(kept.steps))
    heads = pl.DataFrame([(f"{i}.{head}",) for i, head in kept.heads], ["head"], orient="row")
    values = pl.concat([model.select("step").join(heads, how="cross"), kept.values], how="horizontal")

    def plot(y: Channel, title: str) -> Plot:
        tips = {"step": "", "head": "", y["field"]: title}
        return Plot(x, y, tips).level(
            events, along="x", color=colours.alarm, opacity=0.5, strokeDash=[1, 0], strokeWidth=1
        )

    panels = []
    for name, title in _LINES:
        if rows := kit.rows_of(model.select("step", name).drop_nulls()):
            y = kit.linear_axis(name, title, kit.numbers(rows, name))
            panels.append(plot(y, title).line(rows, color=colours.selected).panel(title))
    for name in (name for wanted in _SHOWN for name in kept.measures if name.partition("@")[0] == wanted):
        quantity, limit = training.quantity(name), f"{name} limit"
        means = kit.rows_of(model.select("step", value=f"{name} mean").drop_nulls())
        rows = kit.rows_of(values.select("step", "head", value=name).drop_nulls())
        by_step = values.group_by("step", maintain_order=True) if limit in values.columns else ()
        limits = [{"step": step, "limit": shared_by(of_heads[limit].to_list())} for (step,), of_heads in by_step]
        scale = kit.log_axis if name.partition("@")[0] in _LOGARITHMIC else kit.linear_axis
        measured = plot(scale("value", quantity.unit, kit.numbers([*rows, *limits], "value", "limit")), quantity.label)
        measured.line(rows, "head", color=colours.selected, strokeWidth=0.7, opacity=0.4)
        measured.line(means, color=colours.selected, strokeWidth=2.6)
        dashed = kit.Data(limits).having("limit")
        measured.draw("line", dashed, {"y": "limit"}, color=colours.proved, strokeDash=[7, 4])
        panels.append(measured.panel(quantity.label))
    return kit.finished(panels, question, about, theme)
