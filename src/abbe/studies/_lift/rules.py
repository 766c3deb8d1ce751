"""Settings of a search, the rule that decides whether a plan lifts the model, and findings in sentences.

The rule is fixed before the test text is read.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any

import polars as pl

from ..._arguments import is_number, plain, shown
from ..._errors import AbbeError
from ...measures import enough_windows, resampled_means
from ...normalizers import normalizer
from ...results import Estimate
from ...runs.inputs import Settings, plain_settings, window_settings
from ...words.finding import Fact, Finding
from ...words.names import BASELINE
from ...words.numbers import MISSING, percent, sentence, with_interval
from .._shared.estimates import mean_estimate, paired_gain, resampled_estimate, window_numbers
from .._shared.fitting import learnable
from .._shared.prompts import rising_lengths

GOALS = SPARSE, RETRIEVAL, LOSS = "sparse", "retrieval", "loss"
CONTROL, PLAN = "softmax, tuned the same way", "plan"
CONTROL_SPEC = "softmax"
SPARSE_CANDIDATES = ("entmax:alpha=1.5", "sparsemax", "topp:p=0.9", "topk:k=32")
LENGTH = 512
WORTH = 0.05  # of the visible keys: a smaller share of zeros is real, but nobody would notice
_WANTED = {SPARSE: ("zeros_gain", WORTH), LOSS: ("loss_gain", 0.0), RETRIEVAL: ("key_gain", 0.0)}  # and its least size
_NEEDLE_LENGTHS = (128, 256, 512)
_PASS_KEY_LENGTHS = (256, 512, 1024, 2048, 4096)
_LEAST_NEEDLE = 64  # tokens: a shorter prompt has no room for a pass key and its decoys
_BUDGET_RULE = (
    "The size of the search is fixed before it starts, from the best of several timed passes. Time is up when what is "
    "left of the budget is needed for the test, at most a third of it; no further plan is then tried."
)


# -- Settings ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LiftSettings:
    """Everything that determines the numbers, apart from model and text."""

    goal: str
    max_loss: float
    budget: float | None  # seconds
    candidates: tuple[str, ...]
    length: int
    windows: int  # of the validation and of the test text; twice as many for training
    queries: int
    steps: int
    needle_lengths: tuple[int, ...]
    lengths: tuple[int, ...]  # of the pass keys; empty unless the goal is retrieval
    prompts: int  # of each kind, length and depth
    seed: int
    level: float
    resamples: int

    def reading(self) -> Settings:
        """How windows are read."""
        return window_settings(self.length, self.windows, self.queries, self.seed, self.level, self.resamples)

    def as_json(self) -> dict[str, Any]:
        return plain_settings(self)


def share(what: str, given: object) -> float:
    """0.005, or "0.5%"."""
    value, unit = _number_and_unit(given, "%")
    if not 0 < value / (100 if unit else 1) < 1:
        raise AbbeError(f"{what} is {shown(given)}, but must be a share of the loss, such as 0.5% or 0.005")
    return value / 100 if unit else value


def seconds(what: str, given: object) -> float | None:
    """90, "90s", "20m" or "1.5h"; None for no bound."""
    if given is None:
        return None
    value, unit = _number_and_unit(given, "smh")
    if not 0 < value < math.inf:
        raise AbbeError(f"{what} is {shown(given)}, but must be a time such as 90s, 20m or 1.5h")
    return value * {"m": 60.0, "h": 3600.0}.get(unit, 1.0)


def _number_and_unit(given: object, units: str) -> tuple[float, str]:
    """A number, or text of a number and perhaps a unit; NaN if it is neither."""
    value = plain(given)
    if not isinstance(value, str):
        return float(value) if is_number(value) else math.nan, ""
    read = re.fullmatch(rf"\s*((?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e-?[0-9]+)?)\s*([{units}]?)\s*", value)
    return (float(read[1]), read[2]) if read else (math.nan, "")


def candidates_for(goal: str, given: object, lengths: Sequence[int]) -> tuple[str, ...]:
    """The specs to try; their temperatures are fitted, and parameters with learn=true, except for retrieval."""
    specs = _usual(goal, lengths or (LENGTH,)) if given is None else _specs(given)
    if goal == RETRIEVAL:
        return tuple(str(normalizer(spec)) for spec in specs)
    for spec in specs:
        learnable(spec)  # refuses a spec without anything to fit
    return specs


def _usual(goal: str, lengths: Sequence[int]) -> tuple[str, ...]:
    if goal == SPARSE:
        return SPARSE_CANDIDATES
    if goal == LOSS:
        return (CONTROL_SPEC, *SPARSE_CANDIDATES)
    # The temperature falls with the visible keys, from a length at which the model still works; or it is one for all.
    # The first has a learned slope per head: rows up to the second longest length stay as they are.
    *shorter, longest = lengths
    learned = f"logn:trained={max(2, shorter[-1] if shorter else longest // 2)},slope=0,beyond=true,learn=true"
    from_length = [f"logn:trained={max(2, longest // part)},floor=1" for part in (2, 4, 8)]
    return (learned, *from_length, *(f"softmax:temperature={t}" for t in (0.8, 0.9, 1.1)))


def _specs(given: object) -> tuple[str, ...]:
    specs: list[Any] = [given] if isinstance(given, str) or not isinstance(given, Sequence) else list(given)
    if not specs:
        raise AbbeError("there is nothing to try: name a normalizer, such as entmax:alpha=1.5")
    for spec in specs:
        if not isinstance(spec, str):
            raise AbbeError(f"{shown(spec)} is not a spec: write a normalizer as text, such as 'entmax:alpha=1.5'")
        if spec.startswith("file:") or ";" in spec or "=" in spec.partition(":")[0]:
            raise AbbeError(f"{shown(spec)} names layers or a file: lift chooses the layers, give only a spec")
        normalizer(spec)
    if twice := next((spec for spec in specs if specs.count(spec) > 1), None):
        raise AbbeError(f"{twice} is given twice: name each normalizer once")
    return tuple(specs)


def needle_lengths_for(context: int | None) -> tuple[int, ...]:
    return tuple(n for n in _NEEDLE_LENGTHS if context is None or n <= context) or (context or LENGTH,)


def pass_key_lengths(goal: str, given: int | Sequence[int] | None, context: int | None) -> tuple[int, ...]:
    """The given ones, checked; else the three longest of 256 to 4096 that fit into the context."""
    if goal != RETRIEVAL:
        if given is not None:
            raise AbbeError("lengths are those of the pass keys: give goal='retrieval' (--goal retrieval) with them")
        return ()
    if given is None:
        return tuple(n for n in _PASS_KEY_LENGTHS if context is None or n <= context)[-3:] or (context or LENGTH,)
    return rising_lengths("lengths", given, context, least=_LEAST_NEEDLE)


# -- The rule ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Judged:
    """Numbers of the test text by contender: losses and zeros by window, right answers by prompt."""

    losses: Mapping[int, Mapping[str, Sequence[float]]]  # by length: that of the windows, then longer ones
    zeros: Mapping[str, Sequence[float]]
    needles: Mapping[str, Sequence[bool]]
    keys: Mapping[str, Sequence[bool]]  # pass keys; empty unless the goal is retrieval
    kinds: Sequence[str] = ()  # of the needles: lists or sentences

    def of_kind(self, kind: str) -> dict[str, list[bool]]:
        """Right answers to the prompts of one kind, by contender."""
        kinds = [each == kind for each in self.kinds]
        return {name: list(compress(right, kinds)) for name, right in self.needles.items()}


@dataclass(frozen=True)
class Decision:
    """The conditions of the rule that the plan does not meet, and its changes over the baseline and the control."""

    failed: tuple[str, ...]
    changes: Mapping[str, Mapping[str, Estimate]]  # see `changes_over`
    wanted: str  # which of the changes the goal is about

    @property
    def lifted(self) -> bool:
        return not self.failed


def rule_text(goal: str, max_loss: float, level: float, lengths: Sequence[int]) -> str:
    """`lengths` are those at which the loss is judged."""
    wanted = {
        SPARSE: "the share of visible keys with a weight of exactly 0 is larger, by an interval above "
        f"{percent(WORTH)} of the keys",
        LOSS: "the interval of the change of the loss lies below 0",
        RETRIEVAL: "the exact interval of the gain in pass keys found, on the same prompts, lies above 0",
    }[goal]
    control = "whose temperatures were tuned alike in the same layers"
    if goal == RETRIEVAL:
        control = "at one temperature for all layers, chosen on the same prompts"
    at_each = ", at each of these lengths" if len(lengths) > 1 else ""
    at = f", in windows of {' and of '.join(f'{length:,}' for length in lengths)} tokens{at_each}"
    return (
        f"Lifted if, on the test text, which is read once: (1) the upper end of the interval of the relative rise of "
        f"the loss, over the baseline and over softmax {control} (unless the plan is that), is at most "
        f"{percent(max_loss, 2)}{at}; (2) compared with each of the two, {wanted}; (3) compared with the "
        f"baseline, the exact interval of the gain in needles "
        f"found does not lie below 0, neither in lists, nor in sentences with decoys, nor in both together; (4) there "
        f"are at least {enough_windows(level)} windows of each length. Intervals are of nominal {percent(level, 4)}, "
        "over the same windows or prompts in pairs. One plan is tested, chosen on another part of the text."
    )


def decide(judged: Judged, settings: LiftSettings) -> Decision:
    """Apply the rule."""
    named = {BASELINE: f"the {BASELINE}", CONTROL: CONTROL}
    others = [name for name in named if name in judged.losses[settings.length]]
    changes = {name: changes_over(judged, PLAN, name, settings) for name in others}
    needed, counts = enough_windows(settings.level), {n: len(of[PLAN]) for n, of in judged.losses.items()}
    few = {n: "" if n == settings.length else f" of {n:,} tokens" for n, count in counts.items() if count < needed}
    failed = [f"fewer than {needed} windows{of}" for of in few.values()]
    failed += [
        f"the loss{at_length(n, settings)} may rise by more than {percent(settings.max_loss, 2)} over {named[name]}"
        for n in counts
        for name in others
        if (n == settings.length or n not in few) and not _is_allowed(changes[name][_rise(n, settings)], settings)
    ]
    wanted, least = _WANTED[settings.goal]
    failed += [f"no clear gain over {named[name]}" for name in others if not changes[name][wanted].above(least)]
    worse = [kind for kind in dict.fromkeys(judged.kinds) if changes[BASELINE][f"{kind}_gain"].below(0)]
    failed += [f"fewer {kind} are answered" for kind in worse]
    if changes[BASELINE]["needle_gain"].below(0) and not worse:
        failed.append("fewer needles are found")
    return Decision(tuple(failed), changes, wanted)


def _is_allowed(rise: Estimate, settings: LiftSettings) -> bool:
    return rise.high is not None and rise.high <= settings.max_loss


def changes_over(judged: Judged, name: str, other: str, settings: LiftSettings) -> dict[str, Estimate]:
    """What a contender changes over another, on the same windows and prompts, by column of the table.

    Rises at longer lengths are also there by length, and the fall of the loss in nats as "loss_gain".
    """
    changes = {_rise(n, settings): relative_rise(of[name], of[other], settings) for n, of in judged.losses.items()}
    if len(changes) > 1:
        changes["longer_rise"] = list(changes.values())[-1]
    losses = judged.losses[settings.length]
    for column, lower, higher in (
        ("zeros_gain", judged.zeros[other], judged.zeros[name]),
        ("loss_gain", losses[name], losses[other]),
    ):
        change, s = window_numbers(higher) - window_numbers(lower), settings
        changes[column] = mean_estimate(change, s.level, s.resamples, s.seed)
    right = {kind: judged.of_kind(kind) for kind in dict.fromkeys(judged.kinds)}
    for kind, of in (right | {"needle": judged.needles, "key": judged.keys}).items():
        changes[f"{kind}_gain"] = (
            paired_gain(of[other], of[name], settings.level) if of.get(name) else Estimate(math.nan)
        )
    return changes


def _rise(length: int, settings: LiftSettings) -> str:
    return f"rise{at_length(length, settings)}"


def at_length(length: int, settings: LiftSettings) -> str:
    return "" if length == settings.length else f" at {length:,} tokens"


def relative_rise(losses: Sequence[float | None], baseline: Sequence[float | None], settings: LiftSettings) -> Estimate:
    """Relative rise of the mean loss, with an interval over the same windows in pairs."""
    now, before = window_numbers(losses), window_numbers(baseline)
    if not len(now):
        return Estimate(math.nan)
    drawn, drawn_before = (resampled_means(x, settings.resamples, settings.seed) for x in (now, before))
    rises = (drawn - drawn_before) / drawn_before
    return resampled_estimate((now.mean() - before.mean()) / before.mean(), rises, len(now), settings.level)


# -- Findings ---------------------------------------------------------------------------------------------------------


def findings(
    decision: Decision, plan: str, steps: int, table: pl.DataFrame, scan: pl.DataFrame, settings: LiftSettings,
    rule: str, cut: Sequence[str],
) -> tuple[Finding, ...]:  # fmt: skip
    is_tuned = steps > 0 or settings.goal == RETRIEVAL  # else the control is the model itself
    rows = {row["contender"]: row for row in table.to_dicts()}
    effect = f"{_effect(rows, decision, settings)}, {_loss_change(decision, settings, is_tuned)}"
    words = f"Nothing tried here helps this model. Nearest came {plan}, which {effect}: {', '.join(decision.failed)}."
    topic, words = ("lifted", f"Lifted: {plan} {effect}.") if decision.lifted else ("not lifted", words)
    sentences = [Finding(topic, words, rule, _numbers(decision)), _beside(rows, settings, is_tuned), *_scan(scan)]
    if cut:
        more = f"; and {len(cut) - 3} more" if len(cut) > 3 else ""
        words = f"The budget cut the search short: {'; '.join(cut[:3])}{more}."
        sentences.append(Finding("budget", words, _BUDGET_RULE))
    return tuple(sentences)


def _loss_change(decision: Decision, settings: LiftSettings, is_tuned: bool) -> str:
    over = decision.changes[BASELINE]
    words = f"loss {over['rise'].text(signed)}"
    longer = {key: rise for key, rise in over.items() if key.startswith("rise at ") and math.isfinite(rise.value)}
    if longer:
        more = [
            f"{rise.text(signed)} {key.removeprefix('rise ').removesuffix(' tokens')}" for key, rise in longer.items()
        ]
        words += f" at {settings.length:,} tokens and {', '.join(more)}"
    if is_tuned and CONTROL in decision.changes:
        words += f", and {decision.changes[CONTROL]['rise'].text(signed)} over {_control_name(settings)}"
    return words


def _effect(rows: Mapping[str, Mapping[str, Any]], decision: Decision, settings: LiftSettings) -> str:
    mine, baseline = rows[PLAN], rows[BASELINE]
    if settings.goal == SPARSE:
        zeros, before = percent(mine["zeros"]), percent(baseline["zeros"])
        return f"gives {zeros} of the keys a weight of exactly 0 (baseline {before})"
    if settings.goal == LOSS:
        return f"has a loss of {mine['loss']:.3f} nats (baseline {baseline['loss']:.3f})"
    if mine["pass_keys"] is None:
        return "was tested on no pass key, since the test text is too short"
    share, before = percent(mine["pass_keys"]), percent(baseline["pass_keys"])
    gain = decision.changes[BASELINE]["key_gain"].text(signed)
    return f"finds {share} of the pass keys (baseline {before}, {gain})"


def _beside(rows: Mapping[str, Mapping[str, Any]], settings: LiftSettings, is_tuned: bool) -> Finding:
    """The fair control, and what else changed."""
    mine, baseline = rows[PLAN], rows[BASELINE]
    words = ["The plan is softmax at other temperatures, so there is no other softmax to compare with"]
    if CONTROL in rows:
        value, low, high = (rows[CONTROL][f"rise{end}"] for end in ("", "_low", "_high"))
        rise = with_interval(value, low, high, signed)
        changed = sentence(f"{_control_name(settings)} changes the loss by {rise}")
        words = [changed if is_tuned else "The plan was fitted and not tuned, so its control is the model itself"]
    lists, sentences = (_needles(mine, baseline, kind) for kind in ("lists", "sentences"))
    words.append(f"in the needle test the plan answers {lists} and {sentences}")
    if mine["sensitivity_ratio"] is not None:
        words.append(f"its sensitivity at equal selectivity is {mine['sensitivity_ratio']:.2f} of softmax's")
    rule = (
        "Means over windows and prompts of the test text, the same for all. Lists or sentences are worse or better if "
        "the exact interval of the gain, over the same prompts in pairs, lies below or above 0."
    )
    return Finding("beside", "; ".join(words) + ".", rule)


def _control_name(settings: LiftSettings) -> str:
    return "softmax at one temperature" if settings.goal == RETRIEVAL else "softmax tuned the same way"


def _needles(mine: Mapping[str, Any], baseline: Mapping[str, Any], kind: str) -> str:
    """ "28 % of the lists (baseline 16 %, better: +12 %, +6 to +14 %)"."""
    gain, low, high = (mine[f"{kind}_gain{end}"] for end in ("", "_low", "_high"))
    if gain is None:
        return f"{share_text(mine[kind])} of the {kind}"
    how = "the same"
    if low is not None:
        how = "worse" if high < 0 else "better" if low > 0 else "not worse"
        how += f": {with_interval(gain, low, high, lambda share: percent(share, 2, signed=True))}"
    return f"{share_text(mine[kind])} of the {kind} (baseline {share_text(baseline[kind])}, {how})"


def _scan(scan: pl.DataFrame) -> list[Finding]:
    rows = scan.filter(pl.col("harm").is_finite())
    if rows.is_empty():
        return []
    worst, best = (rows.sort("harm", "normalizer", descending=[way, False]).row(0, named=True) for way in (True, False))
    most, least = (
        f"{row['normalizer']} in layer{'' if row['first'] == row['last'] else 's'} {row['layers']}"
        for row in (worst, best)
    )
    words = (
        f"Swapped in one group of layers at a time, {most} costs most ({signed(worst['harm'])} of the loss), {least} "
        f"least ({signed(best['harm'])})."
    )
    return [Finding("scan", words, "Relative rise of the loss on some windows of the validation text.")]


def share_text(value: float | None) -> str:
    return MISSING if value is None else percent(value)


def signed(share: float | None) -> str:
    return MISSING if share is None else f"{100 * share:+z.2f} %"


def _numbers(decision: Decision) -> dict[str, Fact]:
    """The changes that the rule is about, the gain in what the goal wants last."""
    changes, over = decision.changes, decision.changes[BASELINE]
    kinds = [key.removesuffix("_gain") for key in over if key in ("lists_gain", "sentences_gain")]
    named = {
        f"rise of the loss{key.removeprefix('rise')} over {name}": changes[name][key]
        for key in over
        if key.startswith("rise")
        for name in changes
    }
    named |= {"needle gain": over["needle_gain"]} | {f"gain in {kind}": over[f"{kind}_gain"] for kind in kinds}
    named |= {f"gain over {name}": of[decision.wanted] for name, of in changes.items()}
    return {
        key: fact for name, estimate in named.items() for key, fact in estimate.columns(name, ", from", ", to").items()
    }
