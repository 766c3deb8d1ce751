"""The result of `report`: numbers, sentences with their rule and evidence, and one window to look at."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, ClassVar

import polars as pl

from ...results import TABLE, Result, Run, as_parquet, as_text
from ...words.finding import NOT_LEARNED, Finding, KeyNumber
from ...words.manifest import model_name, part_of, text_name
from .answer import Answer, Judged, Step, answer, next_steps
from .heads import HeadVerdict
from .sample import Sample

ALTERNATIVES, SAMPLE, FINDINGS = "alternatives.parquet", "sample.json", "report.json"


@dataclass(frozen=True, eq=False)
class Report(Result):
    """What `report` measured, and what follows from it.

    Attributes:
        run: the measurement itself.
        numbers: the five that matter.
        verdicts: what they mean, for the model.
        heads: what every head is.
        growth: a row for every head: decay exponent with interval, and the lengths at which it crosses its limits.
        floors: a row for every head: the temperature below which its weights become fragile.
        alternatives: a row for every head and alternative normalizer, by renormalising the same logits: an estimate.
        advice: what to do about it.
        sample: one window to look at, or None.
    """

    study: ClassVar[str] = "report"
    page: ClassVar[str] = "report.html"

    run: Run
    numbers: tuple[KeyNumber, ...]
    verdicts: tuple[Finding, ...]
    heads: tuple[HeadVerdict, ...]
    growth: pl.DataFrame
    floors: pl.DataFrame
    alternatives: pl.DataFrame
    advice: tuple[Finding, ...] = ()
    sample: Sample | None = None

    def __repr__(self) -> str:
        return f"Report({model_name(self.manifest)} on {text_name(self.manifest)}: {self.answer.sentence})"

    @property
    def table(self) -> pl.DataFrame:
        """The table of the run: a row per layer, head, length, size and measure."""
        return self.run.table

    @property
    def manifest(self) -> Mapping[str, Any]:
        """The manifest of the run: on what, how, how long, and what was skipped."""
        return self.run.manifest

    @property
    def learned(self) -> bool:
        """False if a verdict says that attention has hardly been learned: then the advice does not apply."""
        return all(finding.topic != NOT_LEARNED for finding in self.verdicts)

    @cached_property
    def answer(self) -> Answer:
        """How selective the attention is, in one sentence with its rule."""
        lengths = sorted(self.run.table["length"].drop_nulls().unique().to_list())
        return answer(Judged(self.heads, self.verdicts, self.growth, lengths))

    def next_steps(self, manifest: Mapping[str, Any] | None = None) -> tuple[Step, ...]:
        """At most three things to do, in order of worth, each with its command.

        Args:
            manifest: whose model and text the commands name; by default that of the report.
        """
        if self.sample is None:
            has_loss = part_of(self.manifest, "model").get("kind") == "decoder"
        else:  # whether the model predicts the next token, so that a swap can be judged by its loss
            has_loss = self.sample.loss is not None
        named = self.manifest if manifest is None else manifest
        return next_steps(self.answer, self.run, self.alternatives, has_loss, named)

    def as_json(self) -> dict[str, Any]:
        """All but the table and the sample."""
        return {
            "answer": self.answer.as_json() | {"steps": [asdict(step) for step in self.next_steps()]},
            "learned": self.learned,
            "numbers": [asdict(number) for number in self.numbers],
            "verdicts": [asdict(finding) for finding in self.verdicts],
            "advice": [asdict(finding) for finding in self.advice],
            "heads": [asdict(verdict) for verdict in self.heads],
            "growth": self.growth.to_dicts(),
            "floors": self.floors.to_dicts(),
            "alternatives": self.alternatives.to_dicts(),
            "manifest": dict(self.run.manifest),
        }

    def _files(self) -> dict[str, bytes | str]:
        sample = None if self.sample is None else self.sample.as_json()
        return {
            TABLE: as_parquet(self.run.table),
            ALTERNATIVES: as_parquet(self.alternatives),
            SAMPLE: json.dumps({"sample": sample}, separators=(",", ":")),
            FINDINGS: as_text(self.as_json()),
        }
