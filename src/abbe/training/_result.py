"""A training run that a monitor watched: its tables, what happened in it, and its view."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import polars as pl

from ..results import MANIFEST, Result
from ..views import Page, TextTable, View
from ..views.theme import ThemeName
from ..words.finding import Answer
from ..words.frames import EACH_HEAD, Frame, column
from ..words.manifest import model_name, part_of
from ..words.numbers import many, number
from ._alerts import Alert, first_heads, rule_named
from ._quantities import Quantity, tracker_name, unpacked
from ._record import STEPS, STUDY, StepsFile, encoded_step

if TYPE_CHECKING:
    from ..views.charts import Spec

_SCRIPTS = ("page.js", "data.js", "watch.js")
_NAMED = 3  # kinds of alerts that a sentence names
_IN_TERMINAL, _ON_CARD = 12, 60  # alerts
_PARTS = ("value", "limit", "control")  # of a measure
_STEP = column("step", pl.Int64, "of the training, from 1")
_FRAMES = {
    "table": Frame(
        "a step that was read, layer, head and quantity",
        (
            *(_STEP, *EACH_HEAD, column("measure", str, "name of the quantity")),
            column("value", float, "mean over the rows that were read"),
            column("limit", float, "that is proved for it; null if there is none"),
            column("control", float, "the same for random sets or equal weights; null if there is none"),
        ),
    ),
    "steps": Frame(
        "a step that was read; least, mean and largest of every quantity follow",
        (
            *(_STEP, column("loss", float, "of this step")),
            column("loss_mean", float, "mean of the losses since the last step that was read"),
            column("learning_rate", float, "as passed to the monitor"),
            column("seconds", float, "since the start"),
            column("read_seconds", float, "of the reading"),
        ),
    ),
    "alerts": Frame(
        "an alert",
        (
            *(column("step", pl.Int64, "at which it was raised"), column("rule", str, "its name")),
            *(column("layer", int, "null for the loss"), column("head", int, "null for the loss")),
            *(column("value", float, "that raised it"), column("threshold", float, "that it passed")),
        ),
    ),
}


@dataclass(frozen=True, eq=False)
class Training(Result, study=STUDY):
    """What `abbe.Monitor` measured of a training run.

    Attributes:
        records: one per step that was read; the tables are built from them.
        manifest: model, settings, versions, self-check, layers, what was skipped and why.
    """

    files: ClassVar[Mapping[str, str]] = {
        STEPS: "one line per step that was read, each with a checksum; appended and flushed at once, so a killed run "
        "keeps its measurements"
    }

    records: Sequence[Mapping[str, Any]] = field(repr=False)
    manifest: Mapping[str, Any] = field(repr=False)

    def __repr__(self) -> str:
        last = f", the last {self.records[-1]['step']:,}" if self.records else ""
        return f"Training({self.manifest['model']['name']}, {len(self.records):,} steps read{last})"

    @classmethod
    def frames(cls) -> dict[str, Frame]:
        """Its tables, which are built from the records when they are asked for."""
        return dict(_FRAMES)

    @classmethod
    def list_files(cls) -> dict[str, str]:
        """What its folder holds, and what is in each file: the steps hold all tables."""
        about = "model, settings, versions, self-check, layers, what was skipped and why"
        return {MANIFEST: about, **cls.files, cls.page: "the page that `abbe watch` writes"}

    @cached_property
    def table(self) -> pl.DataFrame:
        """A row for each step that was read, layer, head and measure, with the value, its limit and its control."""
        rows = [
            (record["step"], layer, head, measure, *values)
            for record in self.records
            for measure, parts in record["heads"].items()
            for layer, heads in enumerate(zip(*(unpacked(parts.get(x), record["layout"]) for x in _PARTS), strict=True))
            for head, values in enumerate(zip(*heads, strict=True))
        ]
        table = pl.DataFrame(rows, schema=_FRAMES["table"].schema, orient="row", strict=False)
        return table.filter(pl.col("value").is_not_null() & pl.col("value").is_not_nan())

    @cached_property
    def steps(self) -> pl.DataFrame:
        """A row for each step that was read: loss, mean loss since the last one, learning rate, and reduced measures.

        Seconds count from the start; `read_seconds` is the time of the reading. Measures are least, mean and largest
        over all heads.
        """
        declared = _FRAMES["steps"].schema
        names = dict.fromkeys((name for record in self.records for name in record["model"]), pl.Float64)
        rows = [{name: record.get(name) for name in declared} | dict(record["model"]) for record in self.records]
        return pl.DataFrame(rows, schema=declared | names)

    @cached_property
    def layers(self) -> pl.DataFrame:
        """Least, mean and largest of every measure over the heads of each layer."""
        value, by_layer = pl.col("value"), self.table.group_by("step", "layer", "measure", maintain_order=True)
        return by_layer.agg(min=value.min(), mean=value.mean(), max=value.max())

    @cached_property
    def alerts(self) -> pl.DataFrame:
        """A row for each alert: step, rule, layer, head, value and threshold."""
        return _FRAMES["alerts"].of(map(asdict, self.events()))

    def events(self, since: int = 0) -> list[Alert]:
        """The alerts, in the order of their steps.

        Args:
            since: how many of the first to leave out.
        """
        alerts = [alert for record in self.records for alert in record["alerts"]]
        return [Alert(**alert) for alert in alerts[since:]]

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
            (rule_named(str(rule.get("name"))).event, *(str(rule.get(x) or "") for x in ("fires", "again", "source")))
            for rule in self._explained("rules")
        ]

    def _explained(self, name: str) -> list[Mapping[str, Any]]:
        """The quantities or rules that the manifest explains; none if it explains none."""
        entries = self.manifest.get(name)
        return [entry for entry in entries if isinstance(entry, Mapping)] if isinstance(entries, list) else []

    @property
    def checked(self) -> bool:
        """Whether the monitor looked for alerts."""
        return part_of(self.manifest, "settings").get("alerts") is not False

    def answer(self) -> Answer:
        """Healthy so far, or which alerts came first; neither if no rule was checked."""
        rule = "good without alerts; bad if one is of a kind from which training rarely recovers"
        if not self.records:
            return Answer("look", "No step was read yet.", rule)
        events, steps = self.events(), many(self.records[-1]["step"], "step")
        if not events and not self.checked:
            return Answer("look", f"No rule was checked in {steps}: the monitor ran with alerts=False.", rule)
        if not events:
            return Answer("good", f"Healthy so far: no alert in {steps}.", rule)
        by_rule: dict[str, list[Alert]] = {}
        for event in events:
            by_rule.setdefault(event.rule, []).append(event)
        kinds = [_kind(same) for same in by_rule.values()]
        more = f", and {many(len(kinds) - _NAMED, 'more kind')}" if len(kinds) > _NAMED else ""
        grade = "bad" if any(event.kind.grave for event in events) else "look"
        return Answer(grade, f"{many(len(events), 'alert')}: {'; '.join(kinds[:_NAMED])}{more}.", rule)

    def last_values(self) -> list[dict[str, Any]]:
        """Every measure over all heads at the last step that was read, with its label, unit and limit."""
        rows = []
        for record in self.records[-1:]:
            for measure, parts in record["heads"].items():
                of, name = self.quantity(measure), tracker_name(measure)
                ends = {"least": "min", "mean": "mean", "largest": "max"}
                values = {word: record["model"].get(f"{name}_{how}") for word, how in ends.items()}
                limit = shared_by([x for heads in unpacked(parts.get("limit"), record["layout"]) for x in heads])
                rows.append({"measure": measure, "label": of.label, "unit": of.unit, **values, "limit": limit})
        return rows

    def about(self) -> list[str]:
        """Heads, layers and steps that were read."""
        if not self.records:
            return []
        layout, steps = self.records[-1]["layout"], [self.records[i]["step"] for i in (0, -1)]
        heads = f"{many(sum(layout), 'head')} in {many(len(layout), 'layer')}"
        rows = part_of(self.manifest, "settings").get("rows")
        read = f"steps read: {len(self.records):,} ({steps[0]:,} to {steps[1]:,})"
        return [heads, read, *([f"{number(rows)} query rows of every sequence"] if rows else [])]

    def as_json(self) -> dict[str, Any]:
        """What `abbe watch --json` prints: without the table of all heads, which `table` has."""
        answer, names = self.answer(), ("step", "loss", "loss_mean", "learning_rate", "seconds")
        return {
            "sentence": answer.sentence,
            "grade": answer.grade,
            "steps_read": len(self.records),
            "last_step": self.records[-1]["step"] if self.records else None,
            "last_values": self.last_values(),
            "alerts": [asdict(event) for event in self.events()],
            "steps": [{name: record.get(name) for name in names} for record in self.records],
            "manifest": dict(self.manifest),
        }

    def view(self, reload: int | None = None) -> View:
        """What people see of it.

        Args:
            reload: seconds between reloads of an open page, >= 1; None: never.
        """

        def charts(theme: ThemeName) -> Mapping[str, Spec]:
            from ._page import watch_chart  # altair belongs to the extra `report`

            return {"watch": watch_chart(self, theme)}

        def values() -> Mapping[str, Any]:
            from ._page import page_values  # as above

            return page_values(self, reload)

        alerts = [_alert_table(self, most, medium) for most, medium in ((_IN_TERMINAL, "terminal"), (_ON_CARD, "card"))]
        return View(
            study=self.study,
            question=f"What happened to the attention of {model_name(self.manifest)} in training?",
            about=[", ".join(self.about())] if self.records else [],
            answer=self.answer(),
            tables=[*alerts, _values_table(self)],
            charts=charts,
            manifest=self.manifest,
            page=Page("watch.html.jinja", _SCRIPTS if self.records else _SCRIPTS[:1], values, vega=False),
        )

    @classmethod
    def _read(cls, folder: Path, manifest: Mapping[str, Any], stored: Mapping[str, Any]) -> Training:
        """Every line of the steps has its own checksum."""
        return cls(StepsFile(folder / STEPS).read(), manifest)

    def _files(self) -> dict[str, bytes | str]:
        return {STEPS: "".join(map(encoded_step, self.records))}


def _kind(same: Sequence[Alert]) -> str:
    """Where and when the alerts of one rule were raised."""
    name, step = same[0].kind.event, f"{same[0].step:,}"
    heads = list(dict.fromkeys(event.where for event in same))
    if len(heads) == 1:
        again = f" (and {len(same) - 1} times again)" if len(same) > 1 else ""
        return f"{name} in {heads[0]} at step {step}{again}"
    return f"{name} in {len(heads)} heads from step {step} on ({first_heads(same)})"


def shared_by(limits: Sequence[float | None]) -> float | None:
    """The limit of all heads; None if they differ, since one limit says nothing about another head."""
    known = [x for x in limits if x is not None]
    # In a distributed run, layers read the same rows of different batches: limits within 1 % are equal.
    same = known and max(known) - min(known) <= 0.01 * max(known)
    return sum(known) / len(known) if same else None


def _alert_table(training: Training, most: int, medium: str) -> TextTable:
    """The latest alerts, the newest first."""
    events = training.events()[::-1]
    rows = [
        [
            *(event.kind.event, f"{event.step:,}", event.where),
            *(number(event.value, 3), number(event.threshold)),
        ]
        for event in events[:most]
    ]
    left = len(events) - len(rows)
    note = f"{left:,} earlier alerts: --json, or abbe.open(folder).alerts" if left else ""
    return TextTable("Alerts", ("alert", "step", "head", "value", "threshold"), rows, note, on=(medium,))


def _values_table(training: Training) -> TextTable:
    rows = [
        [
            f"{row['label']} ({row['unit']})" if row["unit"] and row["unit"] not in row["label"] else row["label"],
            *(number(row[name], 3) for name in ("least", "mean", "largest", "limit")),
        ]
        for row in training.last_values()
    ]
    step = training.records[-1]["step"] if training.records else 0
    return TextTable(f"Over all heads, step {step:,}", ("measure", "least", "mean", "largest", "limit"), rows)
