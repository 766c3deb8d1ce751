"""Words for the quantities that a monitor of a training run measures (from its manifest), and for its alerts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .manifest import Manifest
from .numbers import number


@dataclass(frozen=True)
class Quantity:
    """What a monitor measures.

    Attributes:
        name: in tables.
        label: for people.
        unit: of its values.
        meaning: what high and low mean.
        limit: what bounds it; empty if nothing does.
        control: what it is compared with; empty if nothing is.
    """

    name: str
    label: str
    unit: str
    meaning: str
    limit: str = ""
    control: str = ""


def watched_words(manifest: Manifest, measure: str) -> Quantity:
    """Words of the manifest for a measure, which may carry a set size after "@"; an unknown one is its own label."""
    base, _, size = measure.partition("@")
    entry = next((one for one in listed(manifest, "quantities") if one.get("name") == base), {})
    label = str(entry.get("label") or base.replace("_", " "))
    unit, meaning, limit, control = (str(entry.get(part) or "") for part in ("unit", "meaning", "limit", "control"))
    return Quantity(measure, f"{label}, {size.replace('=', ' = ')}" if size else label, unit, meaning, limit, control)


def listed(manifest: Manifest, name: str) -> list[Mapping[str, Any]]:
    """The quantities or rules that the manifest explains; none in a folder of an older version."""
    entries = manifest.get(name)
    return [one for one in entries if isinstance(one, Mapping)] if isinstance(entries, list) else []


@dataclass(frozen=True)
class AlertWords:
    """What happened, the measure that shows it, and what its number is; `grave` if training rarely recovers."""

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
    "logit_jump": AlertWords("logits jump", "logit_change", "change by one update", grave=True),
    "sink": AlertWords("sink formed", "sink_mass", "weight on the first key"),
    "dead_gradient": AlertWords("dead gradient", "query_gradient", "gradient over the median of all heads"),
    "non_finite": AlertWords("NaN or infinity", "nonfinite", "share of rows that are not finite", grave=True),
}


def alert_words(rule: str) -> AlertWords:
    """Words for the rule of an alert; an unknown one is its own name."""
    return ALERTS.get(rule, AlertWords(rule.replace("_", " "), "", "value"))


def alert_place(alert: Mapping[str, Any]) -> str:
    """ "head 2.1", or "the loss"."""
    return "the loss" if alert.get("layer") is None else f"head {alert['layer']}.{alert['head']}"


def alert_numbers(alert: Mapping[str, Any]) -> str:
    """ "entropy over its ceiling 0.031, threshold 0.05"; empty if there is no number."""
    if alert.get("value") is None:
        return ""
    return f"{alert_words(alert['rule']).number} {number(alert['value'], 3)}, threshold {number(alert['threshold'])}"
