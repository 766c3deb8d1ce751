"""Alerts: fixed rules on the measured values, each raised once per event and re-armed only after recovery.

Sources of the thresholds: entropy collapse arXiv 2303.06296 (no number is given there: ours); logits 2507.20534
(clipped at 100) and 2309.14322 (1e3 hurts, every run above 1e4 diverged); jumps `abbe train temperature` (idea:
2511.21377); sink 2410.10781 (0.3 of the weight on the first key). docs/explanation/lab.md says which warn early.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from ._quantities import Values, finite_values

COLLAPSED, RECOVERED = 0.05, 0.10  # entropy as a share of its ceiling ln n
UNIFORM, NOT_UNIFORM, SELECTIVE = 0.98, 0.95, 0.90  # the same; uniform counts only for a head that was selective
JUMP, NO_JUMP = 80.0, 40.0  # change of the logits by one update, root mean square: 5 % false alarms in the lab
LOGITS, LOGITS_BACK = (1e2, 1e3, 1e4), 0.5  # largest logit; re-armed below this share of the level
SINK, NO_SINK, SINK_CHANCE = 0.3, 0.2, 0.1  # weight on the first key; counts only where a uniform head has less
DEAD, ALIVE = 1e-3, 1e-2  # gradient of queries and keys, as a share of the median over all heads
# Rules that fire above a level of one measure: name, level, and the value below which they are re-armed.
_LEVELS = {
    "max_logit": [(f"logit_growth_{level:g}", level, LOGITS_BACK * level) for level in LOGITS],
    "logit_change": [("logit_jump", JUMP, NO_JUMP)],
}


@dataclass(frozen=True)
class Rule:
    """A rule of the alerts in words, for documents and pages.

    Attributes:
        name: the `rule` of its alerts.
        fires: when it fires.
        again: when it is re-armed.
        source: of its threshold.
    """

    name: str
    fires: str
    again: str
    source: str


RULES = (
    Rule("entropy_collapse", f"entropy below {COLLAPSED:g} of its ceiling ln n", f"above {RECOVERED:g}",
         "arXiv 2303.06296 describes it; the number is ours"),
    Rule("uniform", f"entropy above {UNIFORM:g} of its ceiling, in a head that was below {SELECTIVE:g} before",
         f"below {NOT_UNIFORM:g}", "ours"),
    *(Rule(f"logit_growth_{level:g}", f"a logit above {level:g}", f"below {LOGITS_BACK * level:g}", source)
      for level, source in zip(LOGITS, ("2507.20534", "2309.14322", "2309.14322"), strict=True)),
    Rule("logit_jump", f"one update changes the logits of a head by more than {JUMP:g} (root mean square)",
         f"below {NO_JUMP:g}", "`abbe train temperature`"),
    Rule("sink", f"mean weight on the first key above {SINK:g}, where a uniform head has less than {SINK_CHANCE:g}",
         f"below {NO_SINK:g}", "2410.10781"),
    Rule("dead_gradient", f"gradient of queries and keys below {DEAD:g} of the median over all heads, or 0",
         f"above {ALIVE:g} of it", "ours"),
    Rule("non_finite", "NaN or infinity in the loss, in a logit or in a gradient", "all are finite", ""),
)  # fmt: skip


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

    def as_json(self) -> dict[str, Any]:
        """Its fields by name."""
        return asdict(self)

    def __str__(self) -> str:
        where = "loss" if self.layer is None else f"layer {self.layer}, head {self.head}"
        value = "" if self.value is None else f" ({self.value:.3g}, threshold {self.threshold:g})"
        return f"step {self.step}: {self.rule} in {where}{value}"


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
        lost = loss is not None and not math.isfinite(loss)
        events = [
            *(event for rule in (_entropy, _levels, _sink, _dead, _non_finite) for event in rule(self, values)),
            _Event("non_finite", None, None, None, None, lost, not lost),
        ]
        return [Alert(step, *event[:5]) for event in events if self._is_new(event)]

    def _is_new(self, event: _Event) -> bool:
        raised = event[:3]  # rule, layer and head
        if event.recovered:
            self._raised.discard(raised)
        if not event.fires or raised in self._raised:
            return False
        self._raised.add(raised)
        return True

    def was_selective(self, head: tuple[int, int], share: float) -> bool:
        """Whether a head was ever selective, which `uniform` needs; remembers it.

        Args:
            head: layer and head.
            share: its entropy as a share of the ceiling ln n.
        """
        if share < SELECTIVE:
            self._selective.add(head)
        return head in self._selective


class _Event(NamedTuple):
    """A rule applied to one head: whether it fires now, and whether the head has recovered."""

    rule: str
    layer: int | None
    head: int | None
    value: float | None
    threshold: float | None
    fires: bool
    recovered: bool


def _heads(values: Values, name: str) -> Iterable[tuple[int, int, float]]:
    """Layer, head and value, where it is finite."""
    grid = values[name].value if name in values else []
    return [(i, j, x) for i, heads in enumerate(grid) for j, x in enumerate(heads) if math.isfinite(x)]


def _entropy(alerts: Alerts, values: Values) -> Iterable[_Event]:
    ceilings = values["entropy"].limit if "entropy" in values else None
    for layer, head, entropy in _heads(values, "entropy"):
        ceiling = ceilings[layer][head] if ceilings is not None else math.nan
        if not ceiling > 0:
            continue
        share = entropy / ceiling
        was_selective = alerts.was_selective((layer, head), share)
        yield _Event("entropy_collapse", layer, head, share, COLLAPSED, share < COLLAPSED, share > RECOVERED)
        fires = share > UNIFORM and was_selective
        yield _Event("uniform", layer, head, share, UNIFORM, fires, share < NOT_UNIFORM)


def _levels(alerts: Alerts, values: Values) -> Iterable[_Event]:
    for measure, levels in _LEVELS.items():
        for layer, head, value in _heads(values, measure):
            for rule, level, back in levels:
                yield _Event(rule, layer, head, value, level, value > level, value < back)


def _sink(alerts: Alerts, values: Values) -> Iterable[_Event]:
    chances = values["sink_mass"].control if "sink_mass" in values else None
    for layer, head, mass in _heads(values, "sink_mass"):
        rare = chances is not None and chances[layer][head] < SINK_CHANCE
        yield _Event("sink", layer, head, mass, SINK, mass > SINK and rare, mass < NO_SINK)


def _dead(alerts: Alerts, values: Values) -> Iterable[_Event]:
    if "query_gradient" not in values or "key_gradient" not in values:
        return
    keys = values["key_gradient"].value
    norms = [(i, j, math.hypot(x, keys[i][j])) for i, j, x in _heads(values, "query_gradient")]
    finite = [norm for _, _, norm in norms if math.isfinite(norm)]
    if not finite:
        return
    median = statistics.median(finite)
    for layer, head, norm in norms:
        share = norm / median if median > 0 else 0.0
        yield _Event("dead_gradient", layer, head, share, DEAD, norm == 0 or share < DEAD, share > ALIVE)


def _non_finite(alerts: Alerts, values: Values) -> Iterable[_Event]:
    for layer, head, share in _heads(values, "nonfinite"):
        yield _Event("non_finite", layer, head, share, 0.0, share > 0, share == 0)


def summary(alerts: list[Alert]) -> list[str]:
    """One line per rule: which heads, and the range of values."""
    rules = dict.fromkeys(alert.rule for alert in alerts)
    return [_line(rule, [alert for alert in alerts if alert.rule == rule]) for rule in rules]


def _line(rule: str, same: list[Alert]) -> str:
    if len(same) == 1:
        return str(same[0])
    heads = ", ".join(f"{alert.layer}.{alert.head}" for alert in same[:5] if alert.layer is not None)
    more = f" and {len(same) - 5} more" if len(same) > 5 else ""
    values = finite_values([[alert.value for alert in same if alert.value is not None]])
    extreme = f", from {min(values):.3g} to {max(values):.3g} (threshold {same[0].threshold:g})" if values else ""
    return f"step {same[0].step}: {rule} in {len(same)} heads ({heads}{more}){extreme}"
