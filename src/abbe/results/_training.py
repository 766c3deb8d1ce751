"""A training run that a monitor watched: its tables, its words, and one line per step that was read.

A line is appended while the run continues. Each carries its own checksum, and an incomplete last line (of a run that
was killed, or is still writing) is ignored. So the folder of a run can be opened at any time.
"""

from __future__ import annotations

import json
import math
import os
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

import polars as pl

from .._errors import AbbeError
from .._files import finite
from ..words.numbers import number
from ._result import Result
from ._tables import as_rows

STEPS = "steps.jsonl"
TRAINING_SCHEMA: dict[str, Any] = {
    "step": pl.Int64, "layer": pl.Int32, "head": pl.Int32, "measure": pl.String, "value": pl.Float64,
    "limit": pl.Float64, "control": pl.Float64,
}  # fmt: skip
_STEP_SCHEMA = dict.fromkeys(("loss", "loss_mean", "learning_rate", "seconds", "read_seconds"), pl.Float64)
_ALERT_SCHEMA = {
    "step": pl.Int64, "rule": pl.String, "layer": pl.Int32, "head": pl.Int32, "value": pl.Float64,
    "threshold": pl.Float64,
}  # fmt: skip
_DIGITS = 6  # of every number in a line
_CHECK = "crc32"


@dataclass(frozen=True)
class Quantity:
    """What a monitor measures.

    Attributes:
        name: in tables.
        label: for people.
        unit: of its values.
        meaning: what high and low mean.
        limit: what bounds it; empty if nothing does.
        control: what it is compared with; empty if nothing is.
    """

    name: str
    label: str
    unit: str
    meaning: str
    limit: str = ""
    control: str = ""


@dataclass(frozen=True)
class AlertWords:
    """Words for the alerts of one rule.

    Attributes:
        event: what happened.
        measure: the quantity that shows it; empty if the rule is unknown.
        number: what the value of the alert is.
        grave: whether training rarely recovers.
    """

    event: str
    measure: str
    number: str
    grave: bool = False


_ALERTS = {
    "entropy_collapse": AlertWords("entropy collapse", "entropy", "entropy over its ceiling"),
    "uniform": AlertWords("drift to uniform", "entropy", "entropy over its ceiling"),
    "logit_growth_100": AlertWords("logit above 100", "max_logit", "largest logit"),
    "logit_growth_1000": AlertWords("logit above 1,000", "max_logit", "largest logit"),
    "logit_growth_10000": AlertWords("logit above 10,000", "max_logit", "largest logit", grave=True),
    "logit_jump": AlertWords("logits jump", "logit_change", "change by one update", grave=True),
    "sink": AlertWords("sink formed", "sink_mass", "weight on the first key"),
    "dead_gradient": AlertWords("dead gradient", "query_gradient", "gradient over the median of all heads"),
    "non_finite": AlertWords("NaN or infinity", "nonfinite", "share of rows that are not finite", grave=True),
}


def alert_words(rule: str) -> AlertWords:
    """Words for the alerts of a rule; an unknown rule is its own name.

    Args:
        rule: name, as in `abbe.training.list_rules()`.

    Returns:
        What happened, and what the number of the alert is.

    Examples:
        >>> abbe.results.alert_words("uniform").event
        'drift to uniform'
    """
    return _ALERTS.get(rule, AlertWords(rule.replace("_", " "), "", "value"))


@dataclass(frozen=True)
class Event:
    """An alert with its words.

    Attributes:
        alert: step, rule, layer, head, value and threshold.
        words: for its rule.
        where: "head 2.1", or "the loss".
        numbers: "entropy over its ceiling 0.031, threshold 0.05"; empty if there is no number.
    """

    alert: Mapping[str, Any]
    words: AlertWords
    where: str
    numbers: str


def _event(alert: Mapping[str, Any]) -> Event:
    words = alert_words(alert["rule"])
    where = "the loss" if alert.get("layer") is None else f"head {alert['layer']}.{alert['head']}"
    numbers = ""
    if alert.get("value") is not None:
        numbers = f"{words.number} {number(alert['value'], 3)}, threshold {number(alert['threshold'])}"
    return Event(alert, words, where, numbers)


@dataclass(frozen=True, eq=False)
class Training(Result):
    """What `abbe.Monitor` measured of a training run.

    Attributes:
        records: one per step that was read; the tables are built from them.
        manifest: model, settings, versions, self-check, layers, what was skipped and why.
    """

    study: ClassVar[str] = "watch"
    page: ClassVar[str] = "watch.html"

    records: Sequence[Mapping[str, Any]] = field(repr=False)
    manifest: Mapping[str, Any] = field(repr=False)

    def __repr__(self) -> str:
        last = f", the last {self.records[-1]['step']:,}" if self.records else ""
        return f"Training({self.manifest['model']['name']}, {len(self.records):,} steps read{last})"

    @cached_property
    def table(self) -> pl.DataFrame:
        """A row for each step that was read, layer, head and measure, with the value, its limit and its control."""
        columns: dict[str, list[Any]] = {name: [] for name in TRAINING_SCHEMA}
        for record in self.records:
            for measure, parts in record["heads"].items():
                _add_rows(columns, record, measure, parts)
        rows = pl.DataFrame(columns, schema=TRAINING_SCHEMA, strict=False)
        return rows.filter(pl.col("value").is_not_null() & pl.col("value").is_not_nan())

    @cached_property
    def steps(self) -> pl.DataFrame:
        """A row for each step that was read: loss, mean loss since the last one, learning rate, and reduced measures.

        Seconds count from the start; `read_seconds` is the time of the reading. Measures are least, mean and largest
        over all heads.
        """
        names = list(dict.fromkeys(name for record in self.records for name in record["model"]))
        schema = {"step": pl.Int64, **_STEP_SCHEMA, **dict.fromkeys(names, pl.Float64)}
        rows = [
            {"step": record["step"]} | {name: record.get(name) for name in _STEP_SCHEMA} | dict(record["model"])
            for record in self.records
        ]
        return pl.DataFrame(rows, schema=schema)

    @cached_property
    def layers(self) -> pl.DataFrame:
        """Least, mean and largest of every measure over the heads of each layer."""
        value, by_layer = pl.col("value"), self.table.group_by("step", "layer", "measure", maintain_order=True)
        return by_layer.agg(min=value.min(), mean=value.mean(), max=value.max())

    @cached_property
    def alerts(self) -> pl.DataFrame:
        """A row for each alert: step, rule, layer, head, value and threshold."""
        return pl.DataFrame([alert for record in self.records for alert in record["alerts"]], schema=_ALERT_SCHEMA)

    def events(self, since: int = 0) -> list[Event]:
        """The alerts with their words, in the order of their steps.

        Args:
            since: how many of the first to leave out.
        """
        alerts = [alert for record in self.records for alert in record["alerts"]]
        return [_event(alert) for alert in alerts[since:]]

    def quantity(self, measure: str) -> Quantity:
        """What the manifest says of a measure; an unknown one is its own label.

        Args:
            measure: name in the table, which may carry a set size after "@".
        """
        base, _, size = measure.partition("@")
        entry = next((entry for entry in self._explained("quantities") if entry.get("name") == base), {})
        label = str(entry.get("label") or base.replace("_", " "))
        label += f", {size.replace('=', ' = ')}" if size else ""
        return Quantity(measure, label, *(str(entry.get(x) or "") for x in ("unit", "meaning", "limit", "control")))

    def rules(self) -> list[tuple[str, ...]]:
        """What happened if the rule of an alert fires, when it fires, what re-arms it, and the source of its number."""
        return [
            (alert_words(str(rule.get("name"))).event, *(str(rule.get(x) or "") for x in ("fires", "again", "source")))
            for rule in self._explained("rules")
        ]

    def _explained(self, name: str) -> list[Mapping[str, Any]]:
        """The quantities or rules that the manifest explains; none if it explains none."""
        entries = self.manifest.get(name)
        return [entry for entry in entries if isinstance(entry, Mapping)] if isinstance(entries, list) else []

    @classmethod
    def opened(cls, folder: Path, manifest: Mapping[str, Any], stored: Mapping[str, Any]) -> Training:
        """From a folder whose manifest was read.

        Args:
            folder: of the run.
            manifest: of the run.
            stored: the same with its checksums.
        """
        return opened_training(folder, manifest, stored)

    def as_json(self) -> dict[str, Any]:
        tables = {"table": self.table, "steps": self.steps, "alerts": self.alerts}
        return as_rows(tables) | {"manifest": dict(self.manifest)}

    def _files(self) -> dict[str, bytes | str]:
        return {STEPS: "".join(encoded_step(record) for record in self.records)}


def _add_rows(columns: dict[str, list[Any]], record: Mapping[str, Any], measure: str, parts: Mapping[str, Any]) -> None:
    value, limit, control = (unpacked(parts.get(name), record["layout"]) for name in ("value", "limit", "control"))
    for layer, heads in enumerate(value):
        count = len(heads)
        columns["step"] += [record["step"]] * count
        columns["layer"] += [layer] * count
        columns["head"] += range(count)
        columns["measure"] += [measure] * count
        columns["value"] += heads
        columns["limit"] += limit[layer]
        columns["control"] += control[layer]


def packed(grid: Sequence[Sequence[float]] | None) -> Any:
    """Numbers by layer and head, shortened: a single number if all are the same.

    Args:
        grid: by layer and head, or None.

    Returns:
        What a line of `steps.jsonl` holds; NaN and infinity become None.

    Examples:
        >>> abbe.results.packed([[1.0, 1.0], [0.25, 0.5]])
        [1.0, [0.25, 0.5]]
    """
    if grid is None:
        return None
    layers = [[float(f"{x:.{_DIGITS}g}") if math.isfinite(x) else None for x in heads] for heads in grid]
    first = layers[0][0] if layers and layers[0] else None
    if all(x == first for heads in layers for x in heads):
        return first
    return [heads[0] if heads and all(x == heads[0] for x in heads) else heads for heads in layers]


def unpacked(content: Any, layout: Sequence[int]) -> list[list[float | None]]:
    """Numbers by layer and head, from their packed form: the inverse of `packed`.

    Args:
        content: a number for all, or a list by layer.
        layout: heads of every layer.

    Returns:
        By layer and head; None where nothing was measured.

    Examples:
        >>> abbe.results.unpacked([1.0, [0.25, 0.5]], [2, 2])
        [[1.0, 1.0], [0.25, 0.5]]
    """
    if not isinstance(content, list):
        return [[content] * heads for heads in layout]
    return [x if isinstance(x, list) else [x] * heads for x, heads in zip(content, layout, strict=True)]


def encoded_step(record: Mapping[str, Any]) -> str:
    r"""A record as one line, with its checksum; NaN and infinity become null.

    Args:
        record: of a step that was read.

    Returns:
        The line, with its newline.

    Examples:
        >>> abbe.results.encoded_step({"step": 1, "loss": 2.5})
        '{"crc32":339451216,"step":1,"loss":2.5}\n'
    """
    plain = finite({key: value for key, value in record.items() if key != _CHECK})
    text = json.dumps(plain, separators=(",", ":"), allow_nan=False)
    return f'{{"{_CHECK}":{zlib.crc32(text.encode())},{text[1:]}\n'


def decoded_steps(path: Path) -> list[dict[str, Any]]:
    """The records of a file; an incomplete last line is ignored.

    Args:
        path: of the file.

    Returns:
        The records; none if there is no file.

    Raises:
        AbbeError: a line is damaged.

    Examples:
        >>> from pathlib import Path
        >>> path = Path("steps.jsonl")
        >>> _ = path.write_text(abbe.results.encoded_step({"step": 1}) + '{"crc32":')
        >>> abbe.results.decoded_steps(path)
        [{'step': 1}]
    """
    return StepsFile(path).read()


class StepsFile:
    """The records of a growing file: each read decodes only what was appended since the last one.

    A run that resumes from a checkpoint replaces its file, which is then read from the start: it has another inode, is
    shorter, or has another line where the last one ended.

    Args:
        path: of the file.

    Examples:
        >>> from pathlib import Path
        >>> steps = abbe.results.StepsFile(Path("steps.jsonl"))
        >>> before = steps.read()
        >>> _ = Path("steps.jsonl").write_text(abbe.results.encoded_step({"step": 1}))
        >>> before, steps.read()
        ([], [{'step': 1}])
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._forget()

    def _forget(self) -> None:
        self._records: list[dict[str, Any]] = []
        self._identity: tuple[int, int] | None = None
        self._end, self._last = 0, b""

    def read(self) -> list[dict[str, Any]]:
        """All records so far; none if there is no file."""
        if not self.path.exists():
            self._forget()
            return []
        try:
            with open(self.path, "rb") as file:
                appended = self._appended(file)
        except OSError as error:
            raise AbbeError(f"{self.path} cannot be read: {error.strerror}") from None
        whole, newline, _ = appended.rpartition(b"\n")  # a line without a newline is still being written
        if newline:
            lines, first = whole.split(b"\n"), len(self._records) + 1
            self._records += [_decoded(self.path, number, line) for number, line in enumerate(lines, first)]
            self._end, self._last = self._end + len(whole) + 1, lines[-1]
        return list(self._records)

    def _appended(self, file: BinaryIO) -> bytes:
        about = os.fstat(file.fileno())
        identity = about.st_dev, about.st_ino
        file.seek(max(0, self._end - len(self._last) - 1))
        continues = not self._end or file.read(len(self._last) + 1) == self._last + b"\n"
        if identity != self._identity or about.st_size < self._end or not continues:
            self._forget()
            self._identity = identity
            file.seek(0)
        return file.read()


def _decoded(path: Path, number: int, line: bytes) -> dict[str, Any]:
    head, _, rest = line.partition(b",")
    try:
        if json.loads(head + b"}")[_CHECK] != zlib.crc32(b"{" + rest):
            raise ValueError
        record: dict[str, Any] = json.loads(b"{" + rest)
    except (ValueError, KeyError, TypeError, RecursionError):
        raise AbbeError(f"{path} is damaged: line {number} is not what was written") from None
    return record


def kept_until(records: Iterable[Mapping[str, Any]], step: int) -> list[dict[str, Any]]:
    """The records up to the step of a checkpoint.

    Args:
        records: of a run.
        step: of the checkpoint.

    Returns:
        Copies of those up to and including this step.

    Examples:
        >>> abbe.results.kept_until([{"step": 1}, {"step": 50}, {"step": 100}], 50)
        [{'step': 1}, {'step': 50}]
    """
    return [dict(record) for record in records if record["step"] <= step]


def opened_training(folder: Path, manifest: Mapping[str, Any], stored: Mapping[str, Any]) -> Training:
    """A training run in a folder whose manifest was read; every line of the steps has its own checksum.

    Args:
        folder: of the run.
        manifest: of the run.
        stored: the same with its checksums, which the steps do not need.

    Returns:
        What was measured so far.

    Examples:
        >>> monitor = abbe.Monitor(abbe.load("embedded").network, folder="run")
        >>> monitor.close()
        >>> folder = abbe.open("run").save("copy")
        >>> abbe.results.opened_training(folder, *abbe.results.read_manifest(folder)).steps.height
        0
    """
    return Training(decoded_steps(folder / STEPS), manifest)
