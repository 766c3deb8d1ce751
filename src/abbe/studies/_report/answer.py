"""The answer in one sentence, with a grade, by the first rule that holds; and what to do next, with commands.

Both follow from a report: kinds of heads, growth, alternatives, and whether attention was learned.
docs/explanation/report-rules.md lists the rules.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import polars as pl

from ...measures import DEFAULT_GRID
from ...runs.inputs import REPORT_LENGTHS
from ...words import finding as words
from ...words.finding import NOT_LEARNED, Finding, Place, Step
from ...words.manifest import in_place, part_of
from ...words.measures import lengths_in
from ...words.numbers import heads_of, many, percent, sentence
from .alternatives import SPARSE
from .heads import HeadVerdict
from .rules import KEPT, UNIFORM_HEADS, best_served, could_be_sparser

HEALTHY = 0.8  # of the heads select or are sinks: the others are few enough to look at one by one
SINKS = 0.5  # of the heads are sinks: they decide what the model's attention looks like
DISPERSED = 0.25  # of the heads no longer select at the largest length
FADES = 0.5  # of the heads fade: the average head does
_SELECTING, _SCATTERED = ("sharp", "selective"), ("uniform", "blurred")
_NAMED = 6  # heads that the sentence names


@dataclass(frozen=True)
class Answer(words.Answer):
    """How selective the model's attention is, in one sentence: `opening`, then the heads to look at."""

    topic: str
    opening: str
    heads: tuple[Place, ...] = ()

    @property
    def named(self) -> list[tuple[int, list[int]]]:
        """The heads that the sentence names: each layer with its heads."""
        by_layer = groupby(self.heads[:_NAMED], key=lambda place: place[0])
        return [(layer, [head for _, head in places]) for layer, places in by_layer]

    @property
    def unnamed(self) -> str:
        """How many more there are, to end the sentence."""
        more = len(self.heads) - _NAMED
        return f", and {more:,} more" if more > 0 else ""


def _listed(noun: str, numbers: Sequence[int]) -> str:
    """ "head 2", "heads 2, 3 and 6"."""
    *first, last = map(str, numbers)
    return f"{noun}s {', '.join(first)} and {last}" if first else f"{noun} {last}"


_REST = "at the largest length; the others are uniform, blurred, fading or not measured."
_RULES = {  # the grade of each answer and its rule; an answer is the first that holds
    "not measured": ("look", "No head has a verdict."),
    NOT_LEARNED: ("bad", ""),  # the verdict has it
    "sinks": (
        "good",
        f"At least {percent(SINKS)} of the measured heads are sinks: more than half of their weight is on the first "
        "visible key. This is usual in large models and not wrong by itself. At least "
        f"{percent(HEALTHY)} of the heads are sinks, sharp or selective.",
    ),
    "dispersing": (
        "bad",
        f"At least {percent(DISPERSED)} of the measured heads are uniform or blurred at the largest length; the "
        "first length at which that many are near the entropy ceiling or no better than random sets is named.",
    ),
    "fading": ("look", f"At least {percent(FADES)} of the measured heads have a decay exponent of 0.5 or more."),
    "healthy": ("good", f"At least {percent(HEALTHY)} of the heads are sharp, selective or sinks {_REST}"),
    "mixed": ("look", f"Fewer than {percent(HEALTHY)} of the heads are sharp, selective or sinks {_REST}"),
}


def answer(
    heads: Sequence[HeadVerdict], verdicts: Sequence[Finding], growth: pl.DataFrame, lengths: Sequence[int]
) -> Answer:
    """The first of: not measured, hardly learned, sinks, dispersing, fading, healthy, mixed."""
    count = Counter(head.kind for head in heads)
    measured, scattered = len(heads) - count["not measured"], count["uniform"] + count["blurred"]
    others = tuple((head.layer, head.head) for head in heads if head.kind not in (*_SELECTING, "sink"))
    few_others = len(heads) - len(others) >= HEALTHY * len(heads)
    unlearned = [finding.rule for finding in verdicts if finding.topic == NOT_LEARNED]

    def most(kind_count: int, least: float) -> bool:
        return kind_count >= least * max(1, measured)

    def counted(kind_count: int, singular: str, plural: str) -> str:
        return heads_of(kind_count, measured, singular, plural)

    guessing = "the next token is predicted no better than by guessing"
    if most(count["uniform"], UNIFORM_HEADS):
        guessing = f"{counted(count['uniform'], 'weights its', 'weight their')} keys almost evenly"
    evenly = f"{counted(scattered, 'weights its', 'weight their')} keys almost evenly or no better than at random"
    start, before = _dispersing_from(heads, growth, lengths, DISPERSED * measured)
    beyond = "" if before is None else f" beyond {before:,} tokens"
    at = "" if start is None else f" at {start:,} tokens" if before is None else f" from {start:,} tokens on"
    to_sinks = f"{counted(count['sink'], 'gives', 'give')} more than half of the weight to the first token"
    fades = f"{counted(count['fading'], 'fades', 'fade')} at least half as fast as a uniform head"
    select = heads_of(count["sharp"] + count["selective"], len(heads), "selects", "select")
    if count["sink"]:
        select += f", {count['sink']:,} {'is a sink' if count['sink'] == 1 else 'are sinks'}, as is usual"
    select += f"; {len(others):,} to look at:" if others else ""
    openings = {  # whether it holds, and what it says
        "not measured": (not measured, "Not measured: no head gave a number"),
        NOT_LEARNED: (bool(unlearned), f"Hardly learned: {guessing}"),
        "sinks": (most(count["sink"], SINKS) and few_others, f"Sinks: {to_sinks}, as is usual"),
        "dispersing": (most(scattered, DISPERSED), f"Dispersing{beyond}: {evenly}{at}"),
        "fading": (most(count["fading"], FADES), f"Fading with length: {fades}"),
        "healthy": (few_others, f"Healthy: {select}"),
        "mixed": (True, f"Mixed: {select}"),
    }
    topic, opening = next((topic, opening) for topic, (holds, opening) in openings.items() if holds)
    grade, rule = _RULES[topic]
    rule = unlearned[0] if topic == NOT_LEARNED else rule
    if earlier := ", ".join(list(_RULES)[1 : list(_RULES).index(topic)]):
        rule += f" None of the answers before it applies ({earlier})."
    made = Answer(grade, "", rule, topic, opening, others if topic in ("healthy", "mixed") else ())
    named = "; ".join(f"layer {layer}, {_listed('head', of_layer)}" for layer, of_layer in made.named)
    return replace(made, sentence=f"{opening}{' ' if named else ''}{named}{made.unnamed}.")


def _dispersing_from(
    heads: Sequence[HeadVerdict], growth: pl.DataFrame, lengths: Sequence[int], least: float
) -> tuple[int | None, int | None]:
    """The first measured length at which enough heads have crossed a limit, and the length before it."""
    starts = pl.min_horizontal("uniform_from", "random_from").fill_null(max(lengths, default=0))
    of_heads = {(layer, head): start for layer, head, start in growth.select("layer", "head", starts).iter_rows()}
    last = max(lengths, default=0)
    crossed = [of_heads.get((head.layer, head.head), last) for head in heads if head.kind in _SCATTERED]
    for before, length in zip([None, *lengths], lengths, strict=False):
        if sum(start <= length for start in crossed) >= least:
            return length, before
    return None, None


# -- What to do next --------------------------------------------------------------------------------------------------

MOST = 3
ENOUGH_WINDOWS = 8  # of each length: intervals of 95 % from 8 windows hold 93 % of the time, from 4 only 87 %
_CAN_RAISE = "swapped in without calibration it can raise the loss"
# What `abbe report` does without these options, as a manifest has it.
_USUAL = {"lengths": list(REPORT_LENGTHS), "queries": 64, "sizes": list(DEFAULT_GRID), "vectors": "value"}
_MEMORY = "memory"  # source of a network that is not from transformers
_KEYWORDS = {"with": "normalizers", "out": "folder"}  # of options that have another name in Python
_FILE = re.compile(r"[^/\\]+\.\w{1,8}")


def _command(manifest: Mapping[str, Any], command: str, *options: str) -> str:
    """A command line for the model and the text of a run, which runs as it is printed."""
    model, seed = part_of(manifest, "model"), part_of(manifest, "settings").get("seed")
    text = part_of(manifest, "text")
    if model.get("source") == _MEMORY:
        return _in_python(command, [*options, *_options("seed", [seed] if seed else [])], "tokens" in text)
    files, name = part_of(manifest, "given").get("text"), str(text.get("name") or "")
    if files is None:
        files = _text_files(name)
    read = _options("text", files)
    if "tokens" in text:
        read = ["--tokens", name if _FILE.fullmatch(name) else "TOKENS.npy"]
    shared = [*_options("seed", [seed] if seed else []), *_placed_options(model), *read]
    return shlex.join(["abbe", command, _model_argument(model), *options, *shared])


def _in_python(command: str, options: Sequence[str], by_ids: bool) -> str:
    """The same for a network that no command can name: options as keywords."""
    rest, given = list(options), ["network", "tokens=tokens" if by_ids else "text, tokenizer=tokenizer"]
    while rest:
        name = rest.pop(0).removeprefix("--")
        if not rest or rest[0].startswith("--"):
            given.append(f"{name.removeprefix('no-')}={not name.startswith('no-')}")
            continue
        value = rest.pop(0)
        numbers = re.fullmatch(r"[\d.]+(,[\d.]+)*", value)
        shown = f"[{value.replace(',', ', ')}]" if numbers and "," in value else value if numbers else repr(value)
        given.append(f"{_KEYWORDS.get(name, name)}={shown}")
    return f"abbe.{command}({', '.join(given)})"


def _options(name: str, values: Iterable[Any]) -> list[str]:
    return [part for value in values for part in (f"--{name}", str(value))]


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
    topic: str, table: pl.DataFrame, alternatives: pl.DataFrame, has_loss: bool, manifest: Mapping[str, Any]
) -> tuple[Step, ...]:
    """At most three, in order of worth."""
    if part_of(manifest, "model").get("swapped"):
        return ()  # a command would load the model without the swap
    if topic == NOT_LEARNED:
        check = "Check that the model is trained, and on this kind of text. For comparison, a trained model:"
        return (Step(check, "abbe report embedded"),)
    steps = _with_loss(topic, table, alternatives, manifest) if has_loss else []
    settings = part_of(manifest, "settings")
    windows = settings.get("windows")
    if isinstance(windows, int) and windows < ENOUGH_WINDOWS:
        counted = "1 window gives no intervals" if windows == 1 else f"Intervals from {windows} windows are too narrow"
        kept: list[str] = []  # the same report from more windows: whatever else was changed is kept
        for name, usual in _USUAL.items():
            value = settings.get(name, usual)
            if value != usual:
                kept += [f"--{name}", ",".join(map(str, value)) if isinstance(value, list) else str(value)]
        options = ["--windows", str(ENOUGH_WINDOWS), *kept, "--out", f"abbe-report-{ENOUGH_WINDOWS}-windows"]
        steps.append(Step(f"{counted}; use {ENOUGH_WINDOWS}:", _command(manifest, "report", *options)))
    return tuple(steps[:MOST])


def _with_loss(topic: str, table: pl.DataFrame, alternatives: pl.DataFrame, manifest: Mapping[str, Any]) -> list[Step]:
    """What a model that predicts the next token can be tested for: another normalizer, and its capacity."""
    longest = lengths_in(table)[-1:]

    def test(promise: str, spec: str) -> Step:
        options = ("--with", spec, "--calibrate", *_options("length", longest))
        return Step(f"{promise} Test it:", _command(manifest, "compare", *options))

    steps, standing = [], bool(in_place(manifest))
    if topic == "sinks" and not standing:
        kept = "Keep the first token in every cache or active set. softmax1, which lets a head attend to nothing, might"
        steps.append(test(f"{kept} do without it; {_CAN_RAISE}.", "softmax1"))
    if topic in ("dispersing", "fading") and not standing:
        scaled = "Logits scaled by ln n (ssmax) might hold the weights together in long texts"
        steps.append(test(f"{scaled}; {_CAN_RAISE}.", "ssmax"))
    best = could_be_sparser(alternatives, SPARSE)
    if best.height:
        heads = alternatives.select("layer", "head").n_unique()
        could = f"{sentence(heads_of(best.height, heads, 'could', 'could'))} be sparser; a sparse normalizer"
        spec = str(best_served(best)["normalizer"][0])
        steps.append(test(f"{could} swapped in without calibration can raise the loss.", spec))
    masses = table.filter(
        pl.col("layer").is_null() & (pl.col("length") == pl.col("length").max()) & pl.col("value").is_finite(),
        measure="top_mass",
    ).sort("n")
    if masses.height:
        enough = masses.filter(pl.col("value") >= KEPT)
        size, mass = (enough if enough.height else masses.tail(1)).select("n", "value").row(0)
        held = f"{'holds' if size == 1 else 'hold'} {percent(mass)} of the weight on average"
        options = (*_options("lengths", longest), "--no-layers")
        command = _command(manifest, "capacity", *options)
        steps.append(Step(f"{many(size, 'key')} {held}; how many the loss needs:", command))
    return steps
