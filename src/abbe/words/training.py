"""Words for what a monitor of a training run measures, and for its alerts.

`abbe.training` lies above the pages and cannot be asked there; a test compares its quantities and rules with these.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .numbers import number


@dataclass(frozen=True)
class Watched:
    """How a person reads a quantity of a training run."""

    name: str
    label: str
    unit: str
    meaning: str
    limit: str = ""
    control: str = ""


_WATCHED = (
    Watched("entropy", "entropy", "nats", "high means that the weight is spread over many keys, low that few hold it",
            "ln n, n the visible keys"),
    Watched("effective_tokens", "effective tokens", "tokens",
            "high means that many keys share the weight, low (1) that one has it", "n"),
    Watched("max_logit", "largest logit", "logits",
            "high means that the scores have grown, low that the weights cannot be sharp"),
    Watched("logit_change", "change of the logits by the update", "logits (root mean square)",
            "high means that one step moves attention a lot, low that it hardly does"),
    Watched("logit_change_max", "largest change of a logit by the update", "logits",
            "high means that one step moves some score a lot, low that it moves none"),
    Watched("max_weight", "largest weight", "weight", "high means that one key stands out, low that none does",
            "tight, from the range of the logits", "1/n"),
    Watched("sink_mass", "weight on the first key", "weight",
            "high means that the first visible key serves as a sink, low that it does not",
            "that of the largest weight", "1/n"),
    Watched("separability", "separability N_s/N", "share",
            "high (1) means that a ball up to the nearest other token holds all of the selected, low few", "",
            "random set"),
    Watched("sensitivity_worst_mean", "sensitivity, worst direction: mean", "weight per logit",
            "high means that some small change of the logits moves the weights a lot, low that none does",
            "Lipschitz constant, 1/2"),
    Watched("sensitivity_worst_max", "sensitivity, worst direction: largest row", "weight per logit",
            "high means that a row is easily moved, low that none is", "Lipschitz constant, 1/2"),
    Watched("saturated", "rows with a weight above 0.99", "share",
            "high means that softmax passes hardly any gradient to the logits, low that it does"),
    Watched("query_gradient", "gradient norm of the queries", "loss per query",
            "high means that the loss changes with the queries, low that the head learns nothing by them"),
    Watched("key_gradient", "gradient norm of the keys", "loss per key",
            "high means that the loss changes with the keys, low that the head learns nothing by them"),
    Watched("value_gradient", "gradient norm of the values", "loss per value",
            "high means that the loss changes with the values, low that the head learns nothing by them"),
    Watched("gradient_ratio", "gradient of queries and keys over that of values", "ratio",
            "high means that the head learns where to look, low that it only learns what to copy"),
    Watched("nonfinite", "rows with NaN or infinite logits or values; 1 for a gradient that is not finite", "share",
            "high means that numbers overflowed, low (0) that all are finite"),
)  # fmt: skip
_BY_NAME = {words.name: words for words in _WATCHED}


def watched_words(measure: str) -> Watched:
    """Words for a measure, also with a set size behind "@"; a name that is not known stands for itself."""
    base, _, size = measure.partition("@")
    words = _BY_NAME.get(base, Watched(base, base.replace("_", " "), "", ""))
    label = f"{words.label}, {size.replace('=', ' = ')}" if size else words.label
    return Watched(measure, label, words.unit, words.meaning, words.limit, words.control)


@dataclass(frozen=True)
class AlertWords:
    """What happened, the measure that shows it, and what its number is; `grave` where training rarely recovers."""

    event: str
    measure: str
    number: str
    grave: bool = False


ALERTS = {
    "entropy_collapse": AlertWords("entropy collapse", "entropy", "entropy over its ceiling"),
    "uniform": AlertWords("drift to uniform", "entropy", "entropy over its ceiling"),
    "logit_growth_100": AlertWords("logit above 100", "max_logit", "largest logit"),
    "logit_growth_1000": AlertWords("logit above 1,000", "max_logit", "largest logit"),
    "logit_growth_10000": AlertWords("logit above 10,000", "max_logit", "largest logit", grave=True),
    "sink": AlertWords("sink formed", "sink_mass", "weight on the first key"),
    "dead_gradient": AlertWords("dead gradient", "query_gradient", "gradient over the median of all heads"),
    "non_finite": AlertWords("NaN or infinity", "nonfinite", "share of rows that are not finite", grave=True),
}


def alert_words(rule: str) -> AlertWords:
    """Words for the rule of an alert; one that is not known stands for itself."""
    return ALERTS.get(rule, AlertWords(rule.replace("_", " "), "", "value"))


def alert_place(alert: Mapping[str, Any]) -> str:
    """ "head 2.1", or "the loss"."""
    return "the loss" if alert.get("layer") is None else f"head {alert['layer']}.{alert['head']}"


def alert_numbers(alert: Mapping[str, Any]) -> str:
    """ "entropy over its ceiling 0.031, threshold 0.05"; empty where there is no number."""
    if alert.get("value") is None:
        return ""
    return f"{alert_words(alert['rule']).number} {number(alert['value'], 3)}, threshold {number(alert['threshold'])}"
