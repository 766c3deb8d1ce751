"""The rule that decides whether a plan lifts the model: fixed before the judged part is read."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ...measures import enough_windows, interval_ends, resampled_means
from ...words.names import BASELINE
from ...words.numbers import percent
from .._engine.needles.gain import paired_gain
from .records import Estimate
from .settings import LOSS, RETRIEVAL, SPARSE, LiftSettings

CONTROL, PLAN = "softmax, tuned the same way", "plan"
WORTH = 0.05  # of the visible keys: a smaller share of zeros is real, but nobody would notice


@dataclass(frozen=True)
class Judged:
    """Numbers of the judged part by contender: losses and zeros by window, right answers by prompt."""

    losses: Mapping[str, Sequence[float]]
    zeros: Mapping[str, Sequence[float]]
    needles: Mapping[str, Sequence[bool]]
    keys: Mapping[str, Sequence[bool]]  # pass keys; empty unless the goal is retrieval
    kinds: Sequence[str] = ()  # of the needles: lists or sentences
    longer: Mapping[int, Mapping[str, Sequence[float]]] = field(default_factory=dict)  # losses at longer lengths


@dataclass(frozen=True)
class Decision:
    """`lifted`, and the reasons: rise of the loss and gain over the baseline, and over the control if there is one."""

    lifted: bool
    rises: Mapping[str, Estimate]
    gains: Mapping[str, Estimate]
    needles: Estimate
    failed: tuple[str, ...]  # conditions of the rule that the plan does not meet
    longer: Mapping[int, Mapping[str, Estimate]] = field(default_factory=dict)  # rises of the loss at longer lengths
    by_kind: Mapping[str, Estimate] = field(default_factory=dict)  # needle gain of lists and of sentences


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
    return (
        f"Lifted if, on the judged part, which is read once: (1) the upper end of the interval of the relative rise of "
        f"the loss, over the baseline and over softmax {control} (unless the plan is that), is at most "
        f"{percent(max_loss, 2)}{_at(lengths)}; (2) compared with each of the two, {wanted}; (3) compared with the "
        f"baseline, the exact interval of the gain in needles "
        f"found does not lie below 0, neither in lists, nor in sentences with decoys, nor in both together; (4) there "
        f"are at least {enough_windows(level)} windows of each length. Intervals are of nominal {percent(level, 4)}, "
        "over the same windows or prompts in pairs. One plan is judged, chosen on another part of the text."
    )


def _at(lengths: Sequence[int]) -> str:
    each = ", at each of these lengths" if len(lengths) > 1 else ""
    return f", in windows of {' and of '.join(f'{length:,}' for length in lengths)} tokens{each}"


def decide(judged: Judged, settings: LiftSettings) -> Decision:
    """Apply the rule."""
    others = [name for name in (BASELINE, CONTROL) if name in judged.losses]
    rises = {name: relative_rise(judged.losses[PLAN], judged.losses[name], settings) for name in others}
    gains = {name: _gain(judged, name, settings) for name in others}
    longer = {
        n: {name: relative_rise(of[PLAN], of[name], settings) for name in others} for n, of in judged.longer.items()
    }
    needles = gain_in_answers(judged.needles, PLAN, BASELINE, settings.level)
    by_kind = {
        kind: gain_in_answers(of_kind(judged, kind), PLAN, BASELINE, settings.level)
        for kind in dict.fromkeys(judged.kinds)
    }
    least = WORTH if settings.goal == SPARSE else 0.0
    failed: list[str] = []
    needed, counts = enough_windows(settings.level), {n: len(of[PLAN]) for n, of in judged.longer.items()}
    if len(judged.losses[PLAN]) < needed:
        failed.append(f"fewer than {needed} windows")
    failed += [f"fewer than {needed} windows of {n:,} tokens" for n, count in counts.items() if count < needed]
    named = {BASELINE: f"the {BASELINE}", CONTROL: CONTROL}
    too_much = {"": rises} | {f" at {n:,} tokens": of for n, of in longer.items() if counts[n] >= needed}
    failed += [
        f"the loss{at} may rise by more than {percent(settings.max_loss, 2)} over {named[name]}"
        for at, of in too_much.items()
        for name, estimate in of.items()
        if not _at_most(estimate[2], settings.max_loss)
    ]
    failed += [f"no clear gain over {named[name]}" for name, gain in gains.items() if not _above(gain[1], least)]
    worse = [kind for kind, estimate in by_kind.items() if _is_worse(estimate)]
    failed += [f"fewer {kind} are answered" for kind in worse]
    if _is_worse(needles) and not worse:
        failed.append("fewer needles are found")
    return Decision(not failed, rises, gains, needles, tuple(failed), longer, by_kind)


def of_kind(judged: Judged, kind: str) -> dict[str, list[bool]]:
    """Right answers to the prompts of one kind, by contender."""
    return {
        name: [right for right, one in zip(answers, judged.kinds, strict=True) if one == kind]
        for name, answers in judged.needles.items()
    }


def _is_worse(gain: Estimate) -> bool:
    return gain[2] is not None and gain[2] < 0


def _gain(judged: Judged, other: str, settings: LiftSettings) -> Estimate:
    """Gain in what the goal wants more of, over another contender."""
    if settings.goal == RETRIEVAL:
        return gain_in_answers(judged.keys, PLAN, other, settings.level)
    numbers, sign = (judged.losses, -1.0) if settings.goal == LOSS else (judged.zeros, 1.0)
    return paired_mean(sign * (_tensor(numbers[PLAN]) - _tensor(numbers[other])), settings)


def gain_in_answers(right: Mapping[str, Sequence[bool]], name: str, other: str, level: float) -> Estimate:
    """How many more right answers one contender gives than another, as a share; NaN without prompts."""
    return paired_gain(right[other], right[name], level) if right.get(name) else (math.nan, None, None)


def relative_rise(losses: Sequence[float], baseline: Sequence[float], settings: LiftSettings) -> Estimate:
    """Relative rise of the mean loss, with an interval over the same windows in pairs."""
    now, before = _tensor(losses), _tensor(baseline)
    if not len(now):
        return math.nan, None, None
    drawn, drawn_before = (resampled_means(x, settings.resamples, settings.seed) for x in (now, before))
    rises = (drawn - drawn_before) / drawn_before
    return _with_ends((now.mean() - before.mean()) / before.mean(), rises, len(now), settings)


def paired_mean(differences: Tensor, settings: LiftSettings) -> Estimate:
    drawn = resampled_means(differences, settings.resamples, settings.seed)
    return _with_ends(differences.mean(), drawn, len(differences), settings)


def _with_ends(value: Tensor, resampled: Tensor, windows: int, settings: LiftSettings) -> Estimate:
    """A single window, or a value that is not finite, has no interval."""
    if windows < 2 or not math.isfinite(value):
        return float(value), None, None
    low, high = interval_ends(resampled[:, None], settings.level, windows)
    return float(value), float(low), float(high)


def _tensor(values: Sequence[float]) -> Tensor:
    return torch.tensor(list(values), dtype=torch.float64)


def _at_most(value: float | None, limit: float) -> bool:
    return value is not None and value <= limit


def _above(value: float | None, limit: float) -> bool:
    return value is not None and value > limit
