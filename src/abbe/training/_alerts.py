"""Alerts: fixed rules on the measured values, each raised once per event and re-armed only after recovery.

Sources of the thresholds: entropy collapse arXiv 2303.06296 (no number is given there: ours); logits 2507.20534
(clipped at 100) and 2309.14322 (1e3 hurts, every run above 1e4 diverged); jumps `abbe train temperature` (idea:
2511.21377); sink 2410.10781 (0.3 of the weight on the first key). docs/results/lab.md says which warn early.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from ..words.numbers import listed, number
from ._quantities import Grid, Values, finite_values

SELECTIVE = 0.90  # entropy as a share of its ceiling ln n; `uniform` counts only for a head that was below it
SINK_CHANCE = 0.1  # `sink` counts only where a uniform head has less weight on the first key


@dataclass(frozen=True)
class Rule:
    """A rule of the alerts: when it fires, and its words for documents and pages.

    Attributes:
        name: the `rule` of its alerts.
        fires: when it fires.
        again: when it is re-armed.
        source: of its threshold.
        event: what happened then.
        measure: the quantity that shows it; empty if the rule is unknown.
        number: what the value of an alert is.
        level: fires beyond it, away from `back`.
        back: recovered beyond it; the same as `level` if anything else is recovery.
        grave: whether training rarely recovers.
    """

    name: str
    fires: str
    again: str
    source: str
    event: str
    measure: str
    number: str
    level: float = math.nan
    back: float = math.nan
    grave: bool = False

    def passed(self, x: float) -> bool:
        """Whether a value is beyond the level.

        Args:
            x: the value, as the rule compares it.
        """
        return x < self.level if self.level < self.back else x > self.level

    def recovered(self, x: float) -> bool:
        """Whether a value re-arms the rule.

        Args:
            x: the value, as the rule compares it.
        """
        if self.level == self.back:
            return not self.passed(x)
        return x > self.back if self.level < self.back else x < self.back


def _growth(level: float, source: str, grave: bool = False) -> Rule:
    fires, again, event = f"a logit above {level:g}", f"below {level / 2:g}", f"logit above {level:,.0f}"
    name, number = f"logit_growth_{level:g}", "largest logit"
    return Rule(name, fires, again, source, event, "max_logit", number, level, level / 2, grave)


_SHARE = "entropy over its ceiling"
RULES = (
    Rule("entropy_collapse", "entropy below 0.05 of its ceiling ln n", "above 0.1",
         "arXiv 2303.06296 describes it; the number is ours", "entropy collapse", "entropy", _SHARE, 0.05, 0.10),
    Rule("uniform", f"entropy above 0.98 of its ceiling, in a head that was below {SELECTIVE:g} before", "below 0.95",
         "ours", "drift to uniform", "entropy", _SHARE, 0.98, 0.95),
    _growth(1e2, "2507.20534"),
    _growth(1e3, "2309.14322"),
    _growth(1e4, "2309.14322", grave=True),
    # 80: 5 % false alarms in the lab
    Rule("logit_jump", "one update changes the logits of a head by more than 80 (root mean square)", "below 40",
         "`abbe train temperature`", "logits jump", "logit_change", "change by one update", 80.0, 40.0, grave=True),
    Rule("sink", f"mean weight on the first key above 0.3, where a uniform head has less than {SINK_CHANCE:g}",
         "below 0.2", "2410.10781", "sink formed", "sink_mass", "weight on the first key", 0.3, 0.2),
    Rule("dead_gradient", "gradient of queries and keys below 0.001 of the median over all heads, or 0",
         "above 0.01 of it", "ours", "dead gradient", "query_gradient", "gradient over the median of all heads",
         1e-3, 1e-2),
    Rule("non_finite", "NaN or infinity in the loss, in a logit or in a gradient", "all are finite", "",
         "NaN or infinity", "nonfinite", "share of rows that are not finite", 0.0, 0.0, grave=True),
)  # fmt: skip
_BY_NAME = {rule.name: rule for rule in RULES}


def list_rules() -> tuple[Rule, ...]:
    """The rules of the alerts: when each fires, and when it is re-armed.

    Returns:
        One entry each.

    Examples:
        >>> rule = abbe.training.list_rules()[0]
        >>> rule.name, rule.fires
        ('entropy_collapse', 'entropy below 0.05 of its ceiling ln n')
    """
    return RULES


def rule_named(name: str) -> Rule:
    """A rule by its name; an unknown one has its name as its words.

    Args:
        name: as in `list_rules`, or of another version.

    Returns:
        The rule.

    Examples:
        >>> abbe.training.rule_named("uniform").event
        'drift to uniform'
    """
    return _BY_NAME.get(name) or Rule(name, "", "", "", name.replace("_", " "), "", "value")


@dataclass(frozen=True)
class Alert:
    """One event: what happened at which step; layer and head are None for the loss.

    Attributes:
        step: of the optimizer.
        rule: that fired.
        layer: where, from 0.
        head: where, from 0.
        value: that was measured.
        threshold: that it passed.
    """

    step: int
    rule: str
    layer: int | None
    head: int | None
    value: float | None
    threshold: float | None

    @property
    def kind(self) -> Rule:
        """The rule that fired, with its words."""
        return rule_named(self.rule)

    @property
    def where(self) -> str:
        """ "layer 2, head 1", or "the loss"."""
        return "the loss" if self.layer is None else f"layer {self.layer}, head {self.head}"

    @property
    def numbers(self) -> str:
        """ "entropy over its ceiling 0.031, threshold 0.05"; empty if there is no number."""
        if self.value is None:
            return ""
        return f"{self.kind.number} {number(self.value, 3)}, threshold {number(self.threshold)}"

    def __str__(self) -> str:
        value = "" if self.value is None else f" ({self.value:.3g}, threshold {self.threshold:g})"
        return f"step {self.step}: {self.rule} in {self.where}{value}"


class Alerts:
    """The state of all rules over a run: each fires once per event, and is re-armed only after recovery.

    Examples:
        >>> values = {"max_logit": abbe.training.Measured([[500.0, 3.0]])}
        >>> alerts = abbe.training.Alerts()
        >>> [str(alert) for alert in alerts.check(10, values, loss=2.5)]
        ['step 10: logit_growth_100 in layer 0, head 0 (500, threshold 100)']
        >>> alerts.check(20, values, loss=2.5)
        []
    """

    def __init__(self) -> None:
        self._raised: set[tuple[str, int | None, int | None]] = set()
        self._selective: set[tuple[int, int]] = set()

    def check(self, step: int, values: Values, loss: float | None) -> list[Alert]:
        """The events of a step.

        Args:
            step: of the optimizer.
            values: what was measured, by name.
            loss: of the step, None if unknown.

        Returns:
            New alerts.
        """
        alerts = []
        for measure, heads in _compared(values).items():
            for layer, head, x in heads:
                if measure == "entropy" and x < SELECTIVE:
                    self._selective.add((layer, head))
                for rule in RULES:
                    if rule.measure == measure:
                        fires = rule.passed(x) and self._counts(rule, layer, head, values)
                        if self._is_new((rule.name, layer, head), fires, rule.recovered(x)):
                            alerts.append(Alert(step, rule.name, layer, head, x, rule.level))
        lost = loss is not None and not math.isfinite(loss)
        if self._is_new(("non_finite", None, None), lost, not lost):
            alerts.append(Alert(step, "non_finite", None, None, None, None))
        return alerts

    def _counts(self, rule: Rule, layer: int, head: int, values: Values) -> bool:
        """Whether a rule applies to a head at all."""
        if rule.name == "sink":
            chances = values["sink_mass"].control
            return chances is not None and chances[layer][head] < SINK_CHANCE
        return rule.name != "uniform" or (layer, head) in self._selective

    def _is_new(self, event: tuple[str, int | None, int | None], fires: bool, recovered: bool) -> bool:
        if recovered:
            self._raised.discard(event)
        if not fires or event in self._raised:
            return False
        self._raised.add(event)
        return True


def _compared(values: Values) -> dict[str, list[tuple[int, int, float]]]:
    """Layer, head and number of every finite value, as the rules compare it: entropies are shares of their ceiling,
    gradients of queries and keys are shares of the median over all heads."""

    def heads(grid: Grid) -> list[tuple[int, int, float]]:
        return [(i, j, x) for i, layer in enumerate(grid) for j, x in enumerate(layer) if math.isfinite(x)]

    compared = {rule.measure: heads(values[rule.measure].value) for rule in RULES if rule.measure in values}
    if "entropy" in values:
        compared["entropy"] = heads(values["entropy"].shares())
    norms = []
    if "query_gradient" in values and "key_gradient" in values:
        keys = values["key_gradient"].value
        norms = [(i, j, math.hypot(x, keys[i][j])) for i, j, x in compared["query_gradient"]]
    finite = [norm for _, _, norm in norms if math.isfinite(norm)]
    median = statistics.median(finite) if finite else math.nan
    compared["query_gradient"] = [(i, j, norm / median if median > 0 else 0.0) for i, j, norm in norms if finite]
    return compared


def first_heads(alerts: Sequence[Alert], most: int = 4) -> str:
    """ "layer 0, heads 2 and 3; layer 1, head 5; …": the first heads of alerts."""
    heads = list(dict.fromkeys((alert.layer, alert.head) for alert in alerts if alert.layer is not None))
    by_layer: dict[int, list[int | None]] = {}
    for layer, head in heads[:most]:
        by_layer.setdefault(layer, []).append(head)
    named = [f"layer {layer}, {listed('head', of_layer)}" for layer, of_layer in by_layer.items()]
    return "; ".join([*named, "…"] if len(heads) > most else named)


def summary(alerts: list[Alert]) -> list[str]:
    """One line per rule: which heads, and the range of values."""
    lines = []
    for rule in dict.fromkeys(alert.rule for alert in alerts):
        first, *others = same = [alert for alert in alerts if alert.rule == rule]
        values = finite_values([[alert.value for alert in same if alert.value is not None]])
        extreme = f", from {min(values):.3g} to {max(values):.3g} (threshold {first.threshold:g})" if values else ""
        line = f"step {first.step}: {rule} in {len(same)} heads ({first_heads(same)}){extreme}"
        lines.append(line if others else str(first))
    return lines
