"""The answer in one sentence, with a grade, by the first rule that holds.

It follows from the report: kinds of heads, growth, and whether attention was learned.
docs/explanation/report-rules.md lists the rules.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ...words.finding import NOT_LEARNED, Place
from ...words.numbers import heads_of, percent
from .result import HeadVerdict, Report
from .verdicts import UNIFORM_HEADS

Grade = Literal["good", "look", "bad"]

HEALTHY = 0.8  # of the heads select: the others are few enough to look at one by one
SINKS = 0.5  # of the heads are sinks: they decide what the model's attention looks like
DISPERSED = 0.25  # of the heads no longer select at the largest length
FADES = 0.5  # of the heads fade: the average head does
SELECTING = ("sharp", "selective")
_SCATTERED = ("uniform", "blurred")
_NAMED = 6  # heads that the sentence names


@dataclass(frozen=True)
class Answer:
    """How selective the model's attention is, in one sentence.

    `words` is the sentence without its heads, `heads` are those to look at; `grade` is good, look or bad.
    """

    grade: Grade
    topic: str
    words: str
    rule: str
    heads: tuple[Place, ...] = ()

    @property
    def named(self) -> tuple[Place, ...]:
        """The heads that the sentence names."""
        return self.heads[:_NAMED]

    @property
    def unnamed(self) -> str:
        """How many more there are, to end the sentence."""
        more = len(self.heads) - len(self.named)
        return f" and {more:,} more" if more else ""

    @property
    def sentence(self) -> str:
        names = ", ".join(f"{layer}.{head}" for layer, head in self.named)
        return f"{self.words}{' ' if names else ''}{names}{self.unnamed}."

    def as_json(self) -> dict[str, Any]:
        return {
            "grade": self.grade, "topic": self.topic, "sentence": self.sentence, "rule": self.rule, "heads": self.heads,
        }  # fmt: skip


def answer(report: Report) -> Answer:
    """The first of: not measured, hardly learned, sinks, dispersing, fading, healthy, mixed."""
    measured = [verdict for verdict in report.heads if verdict.kind != "not measured"]
    if not measured:
        return Answer("look", "not measured", "Not measured: no head gave a number", "No head has a verdict.")
    rules = (_hardly_learned, _sinks, _dispersing, _fading)
    return next((answered for rule in rules if (answered := rule(report, measured)) is not None), _healthy(report))


def _places(verdicts: Sequence[HeadVerdict], kinds: Sequence[str]) -> tuple[Place, ...]:
    return tuple((verdict.layer, verdict.head) for verdict in verdicts if verdict.kind in kinds)


def _hardly_learned(report: Report, measured: Sequence[HeadVerdict]) -> Answer | None:
    verdict = next((finding for finding in report.verdicts if finding.topic == NOT_LEARNED), None)
    if verdict is None:
        return None
    even, words = len(_places(measured, ["uniform"])), "the next token is predicted no better than by guessing"
    if even >= UNIFORM_HEADS * len(measured):
        words = f"{heads_of(even, len(measured), 'weights its', 'weight their')} keys almost evenly"
    return Answer("bad", NOT_LEARNED, f"Hardly learned: {words}", verdict.rule)


def _sinks(_: Report, measured: Sequence[HeadVerdict]) -> Answer | None:
    sinks = len(_places(measured, ["sink"]))
    if sinks < SINKS * len(measured):
        return None
    sentence = (
        f"Sinks: {heads_of(sinks, len(measured), 'gives', 'give')} more than half of the weight to the first token"
    )
    rule = (
        f"At least {percent(SINKS)} of the measured heads are sinks: more than half of their weight is on the first "
        "visible key. This is usual in large models and not wrong by itself. Attention has been learned."
    )
    return Answer("look", "sinks", sentence, rule)


def _dispersing(report: Report, measured: Sequence[HeadVerdict]) -> Answer | None:
    scattered = _places(measured, _SCATTERED)
    if len(scattered) < DISPERSED * len(measured):
        return None
    start, before = _dispersing_from(report, scattered, len(measured))
    beyond = "" if before is None else f" beyond {before:,} tokens"
    at = "" if start is None else f" at {start:,} tokens" if before is None else f" from {start:,} tokens on"
    counted = heads_of(len(scattered), len(measured), "weights its", "weight their")
    return Answer(
        "bad",
        "dispersing",
        f"Dispersing{beyond}: {counted} keys almost evenly or no better than at random{at}",
        f"At least {percent(DISPERSED)} of the measured heads are uniform or blurred at the largest length; the first "
        "length at which that many are near the entropy ceiling or no better than random sets is named. No earlier "
        "rule holds (hardly learned, sinks).",
    )


def _dispersing_from(report: Report, scattered: Sequence[Place], measured: int) -> tuple[int | None, int | None]:
    """The first measured length at which enough of these heads have crossed a limit, and the length before it."""
    lengths = sorted(report.run.table["length"].drop_nulls().unique().to_list())
    if not lengths or not {"uniform_from", "random_from"} <= set(report.growth.columns):
        return None, None
    crossed = dict.fromkeys(scattered, lengths[-1])
    for layer, head, *starts in report.growth.select("layer", "head", "uniform_from", "random_from").iter_rows():
        crossings = [int(start) for start in starts if start is not None]
        if (layer, head) in crossed and crossings:
            crossed[layer, head] = min(crossings)
    for before, length in zip([None, *lengths], lengths, strict=False):
        if sum(start <= length for start in crossed.values()) >= DISPERSED * measured:
            return length, before
    return None, None


def _fading(_: Report, measured: Sequence[HeadVerdict]) -> Answer | None:
    fading = len(_places(measured, ["fading"]))
    if fading < FADES * len(measured):
        return None
    counted = heads_of(fading, len(measured), "fades", "fade")
    rule = (
        f"At least {percent(FADES)} of the measured heads have a decay exponent of 0.5 or more. No earlier rule holds "
        "(hardly learned, sinks, dispersing)."
    )
    return Answer("look", "fading", f"Fading with length: {counted} at least half as fast as a uniform head", rule)


def _healthy(report: Report) -> Answer:
    heads, selecting = report.heads, _places(report.heads, SELECTING)
    others = tuple((head.layer, head.head) for head in heads if head.kind not in SELECTING)
    healthy = len(selecting) >= HEALTHY * len(heads)
    counted = heads_of(len(selecting), len(heads), "selects", "select")
    look = f"; {len(others):,} to look at:" if others else ""
    bound = f"At least {percent(HEALTHY)}" if healthy else f"Fewer than {percent(HEALTHY)}"
    return Answer(
        "good" if healthy else "look",
        "healthy" if healthy else "mixed",
        f"{'Healthy' if healthy else 'Mixed'}: {counted}{look}",
        f"{bound} of the heads are sharp or selective at the largest length; the others are sinks, uniform, blurred, "
        "fading or not measured. No earlier rule holds (hardly learned, sinks, dispersing, fading).",
        others,
    )
