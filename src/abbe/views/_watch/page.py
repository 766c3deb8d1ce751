"""A training run as one offline page: what happened, curves of all heads over steps, the map of heads, alerts.

The page holds all steps of a short run, and a selection of a long one. A step is selected whole, so curves and map show
measured values, never means over steps: the first and the last step, steps with alerts, and others evenly between. To
hide nothing, each carries the least and the largest value of any head over all steps since the previous selected one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from ..._files import write_whole
from ...words.manifest import for_others, model_name
from .._shared.data import packed_json, packed_table, plain_value
from .._shared.page import SIGNS, manifest_parts, render, script
from .answer import about_line, answer_of, checks_rules, grid, key_numbers, reduced, values_table

if TYPE_CHECKING:
    from ...results import Event, Quantity, Training

SCRIPTS = (
    "page.js", "numbers.js", "map_cells.js", "report_data.js", "watch/data.js", "watch/draw.js", "watch/curves.js",
    "watch/map.js", "watch/alerts.js", "watch/address.js", "watch/start.js",
)  # fmt: skip
_LISTED = 400  # alerts in the list of the page
_BUDGET = 1_000_000  # numbers on a page: below 5 MB even if they are random
_FEWEST, _MOST = 12, 600  # steps; more than a page has pixels are invisible
_PARTS = ("value", "limit", "control")
Record = Mapping[str, Any]


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
    measures = list(dict.fromkeys(name for record in records for name in record["heads"]))
    parts = [(name, part) for name in measures for part in _PARTS if any(part in _parts(r, name) for r in records)]
    layouts = {tuple(record["layout"]) for record in records}
    heads = sorted({(i, head) for layout in layouts for i, count in enumerate(layout) for head in range(count)})
    room = _BUDGET // max(1, len(parts) * len(heads))
    at = select_indices([bool(record["alerts"]) for record in records], most or min(_MOST, max(_FEWEST, room)))
    selected = [records[i] for i in at]
    values = {
        name if part == "value" else f"{name} {part}": _column(selected, name, part, heads) for name, part in parts
    }
    steps, model = [record["step"] for record in selected], _model_columns(records, at, measures)
    return Selection(steps, heads, measures, _floats(values), _floats(model), len(records))


def select_indices(alerted: Sequence[bool], most: int) -> list[int]:
    """The first and the last record, those with alerts (a sample if very many), and others evenly between."""
    if len(alerted) <= most:
        return list(range(len(alerted)))
    events = [i for i, alert in enumerate(alerted) if alert]
    chosen = {events[i] for i in _evenly(len(events), most // 2)} | {0, len(alerted) - 1}
    return sorted(chosen | set(_evenly(len(alerted), most - len(chosen))))


def _evenly(count: int, most: int) -> list[int]:
    if count <= most:
        return list(range(count))
    return sorted({round(i * (count - 1) / max(1, most - 1)) for i in range(most)})


def _parts(record: Record, measure: str) -> Mapping[str, Any]:
    parts: Mapping[str, Any] = record["heads"].get(measure) or {}
    return parts


def _column(records: Sequence[Record], name: str, part: str, heads: Sequence[tuple[int, int]]) -> list[float | None]:
    values: list[float | None] = []
    for record in records:
        layers, layout = grid(_parts(record, name).get(part), record["layout"]), record["layout"]
        values += [layers[i][head] if i < len(layout) and head < layout[i] else None for i, head in heads]
    return values


def _model_columns(
    records: Sequence[Record], at: Sequence[int], measures: Sequence[str]
) -> dict[str, list[float | None]]:
    """Values at the selected steps; least and largest over all steps since the previous selected one."""
    plain = ("loss", "loss_mean", "learning_rate")
    columns: dict[str, list[float | None]] = {name: [records[i].get(name) for i in at] for name in plain}
    for name in measures:
        columns[f"{name} mean"] = [records[i]["model"].get(reduced(name, "mean")) for i in at]
    stretches = [range(before + 1, i + 1) for before, i in zip([-1, *at], at, strict=False)]

    def extremes(choose: Any, values: Sequence[float | None]) -> list[float | None]:
        finite = ([x for i in stretch if (x := values[i]) is not None and math.isfinite(x)] for stretch in stretches)
        return [choose(numbers) if numbers else None for numbers in finite]

    for name in measures:
        for how, end, choose in (("low", "min", min), ("high", "max", max)):
            key = reduced(name, end)
            columns[f"{name} {how}"] = extremes(choose, [record["model"].get(key) for record in records])
    losses = [record.get("loss") for record in records]
    columns |= {"loss low": extremes(min, losses), "loss high": extremes(max, losses)}
    return columns


def _floats(columns: Mapping[str, Sequence[float | None]]) -> pl.DataFrame:
    return pl.DataFrame({name: pl.Series(values, dtype=pl.Float64, strict=False) for name, values in columns.items()})


def watch_page(training: Training, reload: int | None = None) -> str:
    manifest, answer = for_others(training.manifest), answer_of(training)
    alerts = [_alert(number, event) for number, event in enumerate(training.events())]
    selection = select_steps(training) if training.records else None
    sign, grade_words = SIGNS[answer.grade]
    measures = [training.quantity(name) for name in selection.measures] if selection else []
    return render(
        "watch.html.jinja",
        scripts=[script(name) for name in SCRIPTS] if selection else [script("page.js")],
        model=model_name(manifest),
        about=about_line(training),
        answer=answer,
        grade_sign=sign,
        grade_words=grade_words,
        numbers=key_numbers(training),
        kept=selection,
        measures=measures,
        rules=training.rules(),
        checked=checks_rules(training),
        values=values_table(training),
        alerts=alerts[-_LISTED:][::-1],
        unlisted=max(0, len(alerts) - _LISTED),
        reload=reload,
        **manifest_parts(manifest),
        **_data(selection, measures, alerts, reload),
    )


def write_watch_page(training: Training, path: Path, reload: int | None = None) -> None:
    """Write the page of a training run; a reader never sees a half-written file.

    Args:
        training: from `abbe.open` of a folder that `abbe.Monitor` writes.
        path: of the file.
        reload: seconds between reloads of an open page, >= 1; None: never.

    Examples:
        >>> from pathlib import Path
        >>> with abbe.Monitor(abbe.load("embedded").network, folder="run"):
        ...     pass
        >>> training = abbe.open("run")
        >>> abbe.views.write_watch_page(training, Path("run.html"), reload=5)
        >>> Path("run.html").read_text("utf-8")[:15]
        '<!doctype html>'
    """
    write_whole(path, watch_page(training, reload), durable=False)


def _alert(number: int, event: Event) -> dict[str, Any]:
    alert, words = event.alert, event.words
    return {
        "place": number, "step": alert["step"], "event": words.event, "measure": words.measure,
        "layer": alert.get("layer"), "head": alert.get("head"), "where": event.where, "numbers": event.numbers,
    }  # fmt: skip


def _data(
    selection: Selection | None, measures: list[Quantity], alerts: list[dict[str, Any]], reload: int | None
) -> dict[str, Any]:
    """What the scripts read, compressed."""
    if selection is None:
        return {"about_data": "", "table_data": "", "model_data": ""}
    about = {
        "steps": selection.steps,
        "places": [{"layer": layer, "head": head} for layer, head in selection.heads],
        "measures": [asdict(quantity) for quantity in measures],
        "alerts": [{name: plain_value(value) for name, value in alert.items()} for alert in alerts],
        "read": selection.read,
        "reload": reload,
    }
    return {
        "about_data": packed_json(about),
        "table_data": packed_table(selection.values),
        "model_data": packed_table(selection.model),
    }
