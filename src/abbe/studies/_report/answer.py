"""The answer in one sentence, with a grade, by the first rule that holds; and what to do next, with commands.

Both follow from a report: kinds of heads, growth, alternatives, and whether attention was learned.
docs/explanation/report-rules.md lists the rules.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal

import polars as pl

from ...measures import DEFAULT_GRID
from ...results import Run
from ...runs.lookup import Lookup
from ...runs.settings import REPORT_LENGTHS
from ...words.finding import NOT_LEARNED, Finding, Place
from ...words.manifest import part_of
from ...words.numbers import heads_of, many, percent, sentence
from .alternatives import SPARSE
from .heads import HeadVerdict
from .rules import KEPT, UNIFORM_HEADS, best_served, could_be_sparser, top_masses

Grade = Literal["good", "look", "bad"]

HEALTHY = 0.8  # of the heads select or are sinks: the others are few enough to look at one by one
SINKS = 0.5  # of the heads are sinks: they decide what the model's attention looks like
DISPERSED = 0.25  # of the heads no longer select at the largest length
FADES = 0.5  # of the heads fade: the average head does
_SELECTING, _SCATTERED = ("sharp", "selective"), ("uniform", "blurred")
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
    def named(self) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """The heads that the sentence names: each layer with its heads."""
        by_layer = groupby(self.heads[:_NAMED], key=lambda place: place[0])
        return tuple((layer, tuple(head for _, head in places)) for layer, places in by_layer)

    @property
    def unnamed(self) -> str:
        """How many more there are, to end the sentence."""
        more = len(self.heads) - _NAMED
        return f", and {more:,} more" if more > 0 else ""

    @property
    def sentence(self) -> str:
        names = "; ".join(f"layer {layer}, {_listed('head', heads)}" for layer, heads in self.named)
        return f"{self.words}{' ' if names else ''}{names}{self.unnamed}."

    def as_json(self) -> dict[str, Any]:
        return {
            "grade": self.grade, "topic": self.topic, "sentence": self.sentence, "rule": self.rule, "heads": self.heads,
        }  # fmt: skip


def _listed(noun: str, numbers: Sequence[int]) -> str:
    """ "head 2", "heads 2, 3 and 6"."""
    *first, last = map(str, numbers)
    return f"{noun}s {', '.join(first)} and {last}" if first else f"{noun} {last}"


@dataclass(frozen=True)
class Judged:
    """What the answer follows from: the verdicts, the growth of every head, and the measured lengths."""

    heads: Sequence[HeadVerdict]
    verdicts: Sequence[Finding]
    growth: pl.DataFrame
    lengths: Sequence[int]

    @property
    def measured(self) -> int:
        return len(self.heads) - len(self.of("not measured"))

    def of(self, *kinds: str) -> tuple[Place, ...]:
        """Heads of these kinds."""
        return tuple((verdict.layer, verdict.head) for verdict in self.heads if verdict.kind in kinds)

    def counted(self, kinds: Sequence[str], singular: str, plural: str) -> str:
        return heads_of(len(self.of(*kinds)), self.measured, singular, plural)

    def share(self, *kinds: str) -> float:
        """Of the measured heads."""
        return len(self.of(*kinds)) / max(1, self.measured)

    @property
    def unlearned(self) -> Finding | None:
        return next((finding for finding in self.verdicts if finding.topic == NOT_LEARNED), None)

    @property
    def others(self) -> tuple[Place, ...]:
        """Heads to look at: they neither select nor are sinks."""
        return tuple((head.layer, head.head) for head in self.heads if head.kind not in (*_SELECTING, "sink"))

    @property
    def few_others(self) -> bool:
        return len(self.heads) - len(self.others) >= HEALTHY * len(self.heads)

    @property
    def dispersing_from(self) -> tuple[int | None, int | None]:
        """The first measured length at which enough heads have crossed a limit, and the length before it."""
        if not self.lengths or not {"uniform_from", "random_from"} <= set(self.growth.columns):
            return None, None
        crossed = dict.fromkeys(self.of(*_SCATTERED), self.lengths[-1])
        for layer, head, *starts in self.growth.select("layer", "head", "uniform_from", "random_from").iter_rows():
            crossings = [int(start) for start in starts if start is not None]
            if (layer, head) in crossed and crossings:
                crossed[layer, head] = min(crossings)
        for before, length in zip([None, *self.lengths], self.lengths, strict=False):
            if sum(start <= length for start in crossed.values()) >= DISPERSED * self.measured:
                return length, before
        return None, None


def _hardly_learned(judged: Judged) -> str:
    if judged.share("uniform") >= UNIFORM_HEADS:
        return f"Hardly learned: {judged.counted(['uniform'], 'weights its', 'weight their')} keys almost evenly"
    return "Hardly learned: the next token is predicted no better than by guessing"


def _dispersing(judged: Judged) -> str:
    start, before = judged.dispersing_from
    beyond = "" if before is None else f" beyond {before:,} tokens"
    at = "" if start is None else f" at {start:,} tokens" if before is None else f" from {start:,} tokens on"
    counted = judged.counted(_SCATTERED, "weights its", "weight their")
    return f"Dispersing{beyond}: {counted} keys almost evenly or no better than at random{at}"


def _selecting(judged: Judged) -> str:
    sinks, others = len(judged.of("sink")), len(judged.others)
    words = heads_of(len(judged.of(*_SELECTING)), len(judged.heads), "selects", "select")
    if sinks:
        words += f", {sinks:,} {'is a sink' if sinks == 1 else 'are sinks'}, as is usual"
    return f"{words}; {others:,} to look at:" if others else words


@dataclass(frozen=True)
class _Rule:
    """One possible answer: when it holds, and what it says."""

    topic: str
    grade: Grade
    holds: Callable[[Judged], bool]
    words: Callable[[Judged], str]
    rule: str
    heads: Callable[[Judged], tuple[Place, ...]] = lambda _: ()


_OTHERS = "at the largest length; the others are uniform, blurred, fading or not measured."
_RULES = (
    _Rule(
        "not measured",
        "look",
        lambda judged: not judged.measured,
        lambda _: "Not measured: no head gave a number",
        "No head has a verdict.",
    ),
    _Rule(NOT_LEARNED, "bad", lambda judged: judged.unlearned is not None, _hardly_learned, ""),
    _Rule(
        "sinks",
        "good",
        lambda judged: judged.share("sink") >= SINKS and judged.few_others,
        lambda judged: (
            f"Sinks: {judged.counted(['sink'], 'gives', 'give')} more than half of the weight to the first token, as "
            "is usual"
        ),
        f"At least {percent(SINKS)} of the measured heads are sinks: more than half of their weight is on the first "
        f"visible key. This is usual in large models and not wrong by itself. At least {percent(HEALTHY)} of the heads "
        "are sinks, sharp or selective.",
    ),
    _Rule(
        "dispersing",
        "bad",
        lambda judged: judged.share(*_SCATTERED) >= DISPERSED,
        _dispersing,
        f"At least {percent(DISPERSED)} of the measured heads are uniform or blurred at the largest length; the first "
        "length at which that many are near the entropy ceiling or no better than random sets is named.",
    ),
    _Rule(
        "fading",
        "look",
        lambda judged: judged.share("fading") >= FADES,
        lambda judged: (
            f"Fading with length: {judged.counted(['fading'], 'fades', 'fade')} at least half as fast as a uniform head"
        ),
        f"At least {percent(FADES)} of the measured heads have a decay exponent of 0.5 or more.",
    ),
    _Rule(
        "healthy",
        "good",
        lambda judged: judged.few_others,
        lambda judged: f"Healthy: {_selecting(judged)}",
        f"At least {percent(HEALTHY)} of the heads are sharp, selective or sinks {_OTHERS}",
        lambda judged: judged.others,
    ),
    _Rule(
        "mixed",
        "look",
        lambda _: True,
        lambda judged: f"Mixed: {_selecting(judged)}",
        f"Fewer than {percent(HEALTHY)} of the heads are sharp, selective or sinks {_OTHERS}",
        lambda judged: judged.others,
    ),
)


def answer(judged: Judged) -> Answer:
    """The first of: not measured, hardly learned, sinks, dispersing, fading, healthy, mixed."""
    place, rule = next((place, rule) for place, rule in enumerate(_RULES) if rule.holds(judged))
    text = judged.unlearned.rule if rule.topic == NOT_LEARNED and judged.unlearned else rule.rule
    if earlier := ", ".join(other.topic for other in _RULES[1:place]):
        text += f" No earlier rule holds ({earlier})."
    return Answer(rule.grade, rule.topic, rule.words(judged), text, rule.heads(judged))


MOST = 3
ENOUGH_WINDOWS = 8  # of each length: intervals of 95 % from 8 windows hold 93 % of the time, from 4 only 87 %
_CAN_RAISE = "swapped in without calibration it can raise the loss"
# What `abbe report` does without these options, as a manifest has it.
_USUAL = {"lengths": list(REPORT_LENGTHS), "queries": 64, "sizes": list(DEFAULT_GRID), "vectors": "value"}
_FILE = re.compile(r"[^/\\]+\.\w{1,8}")


@dataclass(frozen=True)
class Step:
    """A possible gain or an open question, and the command that settles it."""

    words: str
    command: str


def _options(name: str, values: Iterable[Any]) -> list[str]:
    return [part for value in values for part in (f"--{name}", str(value))]


class _Commands:
    """Command lines for the model and the text of a run, which run as they are printed."""

    def __init__(self, manifest: Mapping[str, Any], longest: Any) -> None:
        model, self.settings, self.longest = part_of(manifest, "model"), part_of(manifest, "settings"), longest
        self.model = _model_argument(model)
        files = part_of(manifest, "given").get("text")
        if files is None:
            files = _text_files(str(part_of(manifest, "text").get("name") or ""))
        seed = self.settings.get("seed")
        self.shared = [*_options("seed", [seed] if seed else []), *_placed_options(model), *_options("text", files)]

    def compare(self, spec: str) -> str:
        return self._line("compare", "--with", spec, "--calibrate", *self._longest("length"))

    def capacity(self) -> str:
        return self._line("capacity", *self._longest("lengths"), "--no-layers")

    def report(self, windows: int) -> str:
        """The same report from more windows: whatever else was changed is kept."""
        kept: list[str] = []
        for name, usual in _USUAL.items():
            value = self.settings.get(name, usual)
            if value != usual:
                kept += [f"--{name}", ",".join(map(str, value)) if isinstance(value, list) else str(value)]
        return self._line("report", "--windows", str(windows), *kept, "--out", f"abbe-report-{windows}-windows")

    def _longest(self, option: str) -> list[str]:
        return _options(option, [self.longest] if self.longest else [])

    def _line(self, command: str, *options: str) -> str:
        return shlex.join(["abbe", command, self.model, *options, *self.shared])


def _model_argument(model: Mapping[str, Any]) -> str:
    """As `abbe` takes it; a network that was in memory is known by its class alone, so the reader must name it."""
    if model.get("source") == "embedded":
        return "embedded"
    name = str(model.get("name") or "")
    return "MODEL" if not name or name == model.get("class") else name


def _placed_options(model: Mapping[str, Any]) -> list[str]:
    """Device and precision, where they are not the defaults and have an option."""
    device, dtype = str(model.get("device") or "cpu"), str(model.get("dtype") or "float32")
    placed = ["--device-map", "auto"] if "+" in device else ["--device", device] if device != "cpu" else []
    return [*placed, *(["--dtype", dtype] if dtype in ("bfloat16", "float16") else [])]


def _text_files(name: str) -> list[str]:
    """The files that a text is named after; the reader must name a text that was in memory."""
    if name in ("", "embedded sample"):
        return []
    if name == "standard input":
        return ["-"]
    files = name.split(" + ")
    return files if all(_FILE.fullmatch(file) for file in files) else ["TEXT.txt"]


def next_steps(
    judgement: Answer, run: Run, alternatives: pl.DataFrame, has_loss: bool, manifest: Mapping[str, Any]
) -> tuple[Step, ...]:
    """At most three, in order of worth; `manifest` is that of the run, or one without paths."""
    if judgement.topic == NOT_LEARNED:
        words = "Check that the model is trained, and on this kind of text. For comparison, a trained model:"
        return (Step(words, "abbe report embedded"),)
    command = _Commands(manifest, run.table["length"].max())
    steps = [_windows(run, command)]
    if has_loss:
        steps = [_for_topic(judgement, command), _sparse(alternatives, command), _capacity(run, command), *steps]
    return tuple(step for step in steps if step is not None)[:MOST]


def _for_topic(judgement: Answer, command: _Commands) -> Step | None:
    if judgement.topic == "sinks":
        return Step(
            "Keep the first token in every cache or active set. softmax1, which lets a head attend to nothing, might "
            f"do without it; {_CAN_RAISE}. Test it:",
            command.compare("softmax1"),
        )
    if judgement.topic in ("dispersing", "fading"):
        return Step(
            f"Logits scaled by ln n (ssmax) might hold the weights together in long texts; {_CAN_RAISE}. Test it:",
            command.compare("ssmax"),
        )
    return None


def _sparse(alternatives: pl.DataFrame, command: _Commands) -> Step | None:
    best = could_be_sparser(alternatives, SPARSE) if "gain" in alternatives.columns else pl.DataFrame()
    if best.is_empty():
        return None
    heads = alternatives.select("layer", "head").unique().height
    counted = sentence(heads_of(best.height, heads, "could", "could"))
    words = f"{counted} be sparser; a sparse normalizer swapped in without calibration can raise the loss. Test it:"
    return Step(words, command.compare(str(best_served(best)["normalizer"][0])))


def _capacity(run: Run, command: _Commands) -> Step | None:
    masses = top_masses(Lookup(run))
    if not masses:
        return None
    size = next((n for n, cell in masses.items() if cell.value >= KEPT), max(masses))
    held = f"{'holds' if size == 1 else 'hold'} {percent(masses[size].value)} of the weight on average"
    return Step(f"{many(size, 'key')} {held}; how many the loss needs:", command.capacity())


def _windows(run: Run, command: _Commands) -> Step | None:
    windows = part_of(run.manifest, "settings").get("windows")
    if not isinstance(windows, int) or windows >= ENOUGH_WINDOWS:
        return None
    counted = "1 window gives no intervals" if windows == 1 else f"Intervals from {windows} windows are too narrow"
    return Step(f"{counted}; use {ENOUGH_WINDOWS}:", command.report(ENOUGH_WINDOWS))
