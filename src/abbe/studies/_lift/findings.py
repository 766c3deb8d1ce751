"""What a search means, in sentences: lifted or not, what came nearest, and what the budget cut."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from ...words.finding import Fact, Finding
from ...words.names import BASELINE
from ...words.numbers import percent, sentence, with_interval
from .recipes import Tried
from .rule import CONTROL, PLAN, Decision
from .settings import LOSS, RETRIEVAL, SPARSE, LiftSettings

_BUDGET_RULE = (
    "The size of the search is fixed before it starts, from the best of several timed passes. Time is up when what is "
    "left of the budget is needed for judging, at most a third of it; no further plan is then tried."
)


def findings(
    decision: Decision, winner: Tried, table: pl.DataFrame, scan: pl.DataFrame, settings: LiftSettings, rule: str,
    cut: Sequence[str],
) -> tuple[Finding, ...]:  # fmt: skip
    is_tuned = winner.steps > 0 or settings.goal == RETRIEVAL  # else the control is the model itself
    rows = {row["contender"]: row for row in table.to_dicts()}
    verdict = _verdict(decision, winner.name, rows, settings, rule, is_tuned)
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
    rise = f"loss {with_interval(*decision.rises[BASELINE], _signed)}"
    longer = {n: rises[BASELINE] for n, rises in decision.longer.items() if math.isfinite(rises[BASELINE][0])}
    more = [f"{with_interval(*one, _signed)} at {n:,}" for n, one in longer.items()]
    if more:
        rise += f" at {settings.length:,} tokens and {', '.join(more)}"
    if is_tuned and CONTROL in decision.rises:
        rise += f", and {with_interval(*decision.rises[CONTROL], _signed)} over {_control_name(settings)}"
    effect = f"{_effect(rows, decision, settings)}, {rise}"
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
        return "was tested on no pass key, since the judged part is too short"
    share, before = percent(mine["pass_keys"]), percent(baseline["pass_keys"])
    return f"finds {share} of the pass keys (baseline {before}, {with_interval(*decision.gains[BASELINE], _signed)})"


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
        "Means over the judged windows and prompts, the same for all. Lists or sentences are worse or better if the "
        "exact interval of the gain, over the same prompts in pairs, lies below or above 0."
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
        f"Alone, {worst['normalizer']} in {_where(worst)} costs most ({_signed(worst['harm'])} of the loss), "
        f"{best['normalizer']} in {_where(best)} least ({_signed(best['harm'])})."
    )
    return [Finding("scan", words, "Relative rise of the loss on some windows of the part to choose on.")]


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
        facts |= dict(zip((name, f"{name}, from", f"{name}, to"), estimate, strict=True))
    return facts
