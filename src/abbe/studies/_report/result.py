"""What a report consists of: numbers, sentences with their rule and evidence, and one window to look at."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import polars as pl

from ...results import TABLE, Result, Run, as_parquet, as_text
from ...words.finding import NOT_LEARNED, Fact, Finding, KeyNumber
from .heat import Heat

if TYPE_CHECKING:
    from .answer import Answer
    from .next_steps import Step

ALTERNATIVES, SAMPLE, FINDINGS = "alternatives.parquet", "sample.json", "report.json"


@dataclass(frozen=True)
class HeadPattern:
    """A pattern that a head shows: "previous-token head" or "induction head"."""

    name: str
    sentence: str
    rule: str


@dataclass(frozen=True)
class HeadVerdict:
    """What one head is, in one sentence.

    Attributes:
        layer: from 0.
        head: from 0.
        kind: sink, uniform, blurred, fading, sharp, selective or not measured.
        sentence: the verdict.
        rule: by which it is decided.
        numbers: that the rule looks at.
        patterns: that it shows besides its kind.
    """

    layer: int
    head: int
    kind: str
    sentence: str
    rule: str
    numbers: Mapping[str, Fact]
    patterns: tuple[HeadPattern, ...] = ()


@dataclass(frozen=True)
class Ball:
    """The selected set of one size around its sum s, seen from s: every point at its true distance, in some direction.

    Directions are azimuths around the line from s to the origin, where tokens without weight lie; distances are exact,
    so points drawn inside the circle lie inside the ball.

    Attributes:
        size: N.
        radius: distance of s from the nearest unselected point.
        inside: of the selected, in the order of their weights: distance <= radius.
        distances: of the selected from s.
        angles: of the selected, in degrees.
        other_keys: some of the unselected: the nearest, and some at random.
        other_distances: of these from s.
        other_angles: of these, in degrees.
        intruders: unselected points that lie no farther from s than the farthest selected one.
    """

    size: int
    radius: float
    inside: tuple[bool, ...]
    distances: tuple[float, ...]
    angles: tuple[float, ...]
    other_keys: tuple[int, ...]
    other_distances: tuple[float, ...]
    other_angles: tuple[float, ...]
    intruders: int


@dataclass(frozen=True)
class SampleRow:
    """One query of one head.

    Attributes:
        layer: from 0.
        head: from 0.
        query: its position in the window.
        keys: of largest weight, in order.
        weights: of these keys.
        balls: one for every size below its keys.
    """

    layer: int
    head: int
    query: int
    keys: tuple[int, ...]
    weights: tuple[float, ...]
    balls: tuple[Ball, ...]


@dataclass(frozen=True)
class Sample:
    """One window to look at, and how every head treats some of its queries.

    Attributes:
        length: in tokens.
        index: its number among the windows of its length.
        tokens: as text.
        sizes: N of the balls.
        queries: their positions.
        rows: one per query and head.
        loss: of the next token in the window (of its last ones, if the vocabulary is large), in nats; None where the
            model does not predict the next token.
        guessing: loss of a model that gives all tokens the same probability, ln V, in nats.
        heat: weights of all queries, coarse; None in samples of older versions.
    """

    length: int
    index: int
    tokens: tuple[str, ...]
    sizes: tuple[int, ...]
    queries: tuple[int, ...]
    rows: tuple[SampleRow, ...]
    loss: float | None = None
    guessing: float | None = None
    heat: Heat | None = None

    def as_json(self) -> dict[str, Any]:
        """In columns, as `sample_json` explains: for the run folder and for the page."""
        from .sample_json import sample_as_json

        return sample_as_json(self)


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
    growth: pl.DataFrame = field(repr=False)
    floors: pl.DataFrame = field(repr=False)
    alternatives: pl.DataFrame = field(repr=False)
    advice: tuple[Finding, ...] = ()
    sample: Sample | None = field(default=None, repr=False)

    @property
    def table(self) -> pl.DataFrame:
        """The table of the run: a row per layer, head, length, size and measure."""
        return self.run.table

    @property
    def manifest(self) -> Mapping[str, Any]:
        """Of the run: on what, how, how long, and what was skipped."""
        return self.run.manifest

    def next_steps(self, manifest: Mapping[str, Any] | None = None) -> tuple[Step, ...]:
        """At most three things to do, in order of worth, each with its command.

        Args:
            manifest: whose model and text the commands name; by default that of the report.
        """
        from .next_steps import next_steps

        return next_steps(self, self.answer, manifest)

    @property
    def learned(self) -> bool:
        """False if a verdict says that attention has hardly been learned: then the advice does not apply."""
        return all(finding.topic != NOT_LEARNED for finding in self.verdicts)

    @cached_property
    def answer(self) -> Answer:
        """How selective the attention is, in one sentence with its rule."""
        from .answer import answer  # its rules use the types of this module

        return answer(self)

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
