"""The rule that decides whether a plan lifts the model, fixed before the test text is read; findings, in sentences."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from ...measures import enough_windows, resampled_means
from ...results import Estimate
from ...words.finding import Fact, Finding
from ...words.names import BASELINE
from ...words.numbers import percent, sentence, with_interval
from .._shared.estimates import mean_estimate, paired_gain, resampled_estimate, window_numbers
from .settings import LOSS, RETRIEVAL, SPARSE, LiftSettings

CONTROL, PLAN = "softmax, tuned the same way", "plan"
WORTH = 0.05  # of the visible keys: a smaller share of zeros is real, but nobody would notice
_BUDGET_RULE = (
    "The size of the search is fixed before it starts, from the best of several timed passes. Time is up when what is "
    "left of the budget is needed for judging, at most a third of it; no further plan is then tried."
)


@dataclass(frozen=True)
class Judged:
    """Numbers of the test text by contender: losses and zeros by window, right answers by prompt."""

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
        f"Lifted if, on the test text, which is read once: (1) the upper end of the interval of the relative rise of "
        f"the loss, over the baseline and over softmax {control} (unless the plan is that), is at most "
        f"{percent(max_loss, 2)}{_at(lengths)}; (2) compared with each of the two, {wanted}; (3) compared with the "
        f"baseline, the exact interval of the gain in needles "
        f"found does not lie below 0, neither in lists, nor in sentences with decoys, nor in both together; (4) there "
        f"are at least {enough_windows(level)} windows of each length. Intervals are of nominal {percent(level, 4)}, "
        "over the same windows or prompts in pairs. One plan is tested, chosen on another part of the text."
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
        if estimate.high is None or not estimate.high <= settings.max_loss
    ]
    failed += [f"no clear gain over {named[name]}" for name, gain in gains.items() if not gain.above(least)]
    worse = [kind for kind, estimate in by_kind.items() if estimate.below(0)]
    failed += [f"fewer {kind} are answered" for kind in worse]
    if needles.below(0) and not worse:
        failed.append("fewer needles are found")
    return Decision(not failed, rises, gains, needles, tuple(failed), longer, by_kind)


def of_kind(judged: Judged, kind: str) -> dict[str, list[bool]]:
    """Right answers to the prompts of one kind, by contender."""
    return {
        name: [right for right, one in zip(answers, judged.kinds, strict=True) if one == kind]
        for name, answers in judged.needles.items()
    }


def _gain(judged: Judged, other: str, settings: LiftSettings) -> Estimate:
    """Gain in what the goal wants more of, over another contender."""
    if settings.goal == RETRIEVAL:
        return gain_in_answers(judged.keys, PLAN, other, settings.level)
    numbers, sign = (judged.losses, -1.0) if settings.goal == LOSS else (judged.zeros, 1.0)
    return mean_estimate(sign * (window_numbers(numbers[PLAN]) - window_numbers(numbers[other])), settings)


def gain_in_answers(right: Mapping[str, Sequence[bool]], name: str, other: str, level: float) -> Estimate:
    """How many more right answers one contender gives than another, as a share; NaN without prompts."""
    return paired_gain(right[other], right[name], level) if right.get(name) else Estimate(math.nan)


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
    verdict = _verdict(decision, plan, rows, settings, rule, is_tuned)
    sentences = [verdict, _beside(rows, settings, is_tuned), *_scan(scan)]
    if cut:
        more = f"; and {len(cut) - 3} more" if len(cut) > 3 else ""
        words = f"The budget cut the search short: {'; '.join(cut[:3])}{more}."
        sentences.append(Finding("budget", words, _BUDGET_RULE))
    return tuple(sentences)


def _verdict(
    decision: Decision, plan: str, rows: Mapping[str, Mapping[str, Any]], settings: LiftSettings, rule: str,
    is_tuned: bool,
) -> Finding:  # fmt: skip
    change = f"loss {decision.rises[BASELINE].text(_signed)}"
    longer = {n: rises[BASELINE] for n, rises in decision.longer.items() if math.isfinite(rises[BASELINE].value)}
    more = [f"{rise.text(_signed)} at {n:,}" for n, rise in longer.items()]
    if more:
        change += f" at {settings.length:,} tokens and {', '.join(more)}"
    if is_tuned and CONTROL in decision.rises:
        change += f", and {decision.rises[CONTROL].text(_signed)} over {_control_name(settings)}"
    effect = f"{_effect(rows, decision, settings)}, {change}"
    if decision.lifted:
        return Finding("lifted", f"Lifted: {plan} {effect}.", rule, _numbers(decision))
    words = f"Nothing tried here helps this model. Nearest came {plan}, which {effect}: {', '.join(decision.failed)}."
    return Finding("not lifted", words, rule, _numbers(decision))


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
    return f"finds {share} of the pass keys (baseline {before}, {decision.gains[BASELINE].text(_signed)})"


def _beside(rows: Mapping[str, Mapping[str, Any]], settings: LiftSettings, is_tuned: bool) -> Finding:
    """The fair control, and what else changed."""
    mine, baseline = rows[PLAN], rows[BASELINE]
    words = []
    if CONTROL in rows and not is_tuned:
        words.append("The plan was fitted and not tuned, so its control is the model itself")
    elif CONTROL in rows:
        control = rows[CONTROL]
        rise = with_interval(control["rise"], control["rise_low"], control["rise_high"], _signed)
        words.append(sentence(f"{_control_name(settings)} changes the loss by {rise}"))
    else:
        words.append("The plan is softmax at other temperatures, so there is no other softmax to compare with")
    words.append(
        f"in the needle test the plan answers {_needles(mine, baseline, 'lists')} and "
        f"{_needles(mine, baseline, 'sentences')}"
    )
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
        return f"{_share(mine[kind])} of the {kind}"
    if low is None:
        how = "the same"
    else:
        how = "worse" if high < 0 else "better" if low > 0 else "not worse"
        how += f": {with_interval(gain, low, high, lambda share: percent(share, 2, signed=True))}"
    return f"{_share(mine[kind])} of the {kind} (baseline {_share(baseline[kind])}, {how})"


def _scan(scan: pl.DataFrame) -> list[Finding]:
    rows = scan.filter(pl.col("harm").is_finite())
    if rows.is_empty():
        return []
    worst, best = (rows.sort("harm", "normalizer", descending=[way, False]).row(0, named=True) for way in (True, False))
    words = (
        f"Swapped in one group of layers at a time, {worst['normalizer']} in {_where(worst)} costs most "
        f"({_signed(worst['harm'])} of the loss), {best['normalizer']} in {_where(best)} least "
        f"({_signed(best['harm'])})."
    )
    return [Finding("scan", words, "Relative rise of the loss on some windows of the validation text.")]


def _where(row: Mapping[str, Any]) -> str:
    return f"layer{'' if row['first'] == row['last'] else 's'} {row['layers']}"


def _share(value: float | None) -> str:
    return "–" if value is None else percent(value)


def _signed(share: float) -> str:
    return f"{100 * share:+z.2f} %"


def _numbers(decision: Decision) -> dict[str, Fact]:
    facts: dict[str, Fact] = {}
    named = {f"rise of the loss over {name}": rise for name, rise in decision.rises.items()}
    for length, rises in decision.longer.items():
        named |= {f"rise of the loss at {length:,} tokens over {name}": rise for name, rise in rises.items()}
    named["needle gain"] = decision.needles
    named |= {f"gain in {kind}": gain for kind, gain in decision.by_kind.items()}
    named |= {f"gain over {name}": gain for name, gain in decision.gains.items()}
    for name, estimate in named.items():
        facts |= estimate.columns(name, ", from", ", to")
    return facts
