"""Made-up parts of an experiment: curves of four readings, ten steps."""

from __future__ import annotations

from typing import Any

from lab_cases import choice

from abbe.lab.early_warning import roc_table, warning_table
from abbe.lab.reading import ALL_QUANTITIES
from abbe.lab.result import Part, Tables, alert_table, curve_table, length_table, run_table, summary_table
from abbe.lab.run import Configuration

STEPS = [1, 5, 9, 10]


def seed(number: int, losses: list[float | None], **changed: Any) -> dict[str, Any]:
    quantities: dict[str, list[float | None]] = {name: [None] * len(STEPS) for name in ALL_QUANTITIES}
    quantities["max_logit"] = [1.0, 7.0, None, 3.0]
    made = {
        "seed": number, "start": 4.0, "losses": losses, "quantities": quantities, "alerts": {}, "temperature": [1.0],
        "learned": [], "accuracy": 0.5, "loss": 1.0, "lengths": {},
    }  # fmt: skip
    return made | changed


def part(rate: float, *seeds: dict[str, Any], **changed: Any) -> tuple[Configuration, dict[str, Any]]:
    numbers = tuple(one["seed"] for one in seeds)
    return choice(rate=rate, seeds=numbers, steps=10, **changed), {"steps": STEPS, "seeds": list(seeds)}


GOOD: list[float | None] = [4.0, 2.0, 1.0, 0.5]
SLOW: list[float | None] = [4.0, 3.9, 3.5, 3.0]
NOISY: list[float | None] = [4.0, 4.1, 4.1, 4.1]
RISEN: list[float | None] = [4.0, 9.0, 6.0, 5.0]
BROKEN: list[float | None] = [4.0, None, None, None]


def tables(*parts: Part) -> Tables:
    table, curves, alerts = run_table(parts), curve_table(parts), alert_table(parts)
    summary, warnings = summary_table(table, 0.95), warning_table(table, curves, alerts, 10)
    return Tables(table, curves, length_table(parts), alerts, summary, warnings, roc_table(table, curves, 10))
