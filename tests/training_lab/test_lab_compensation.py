"""A temperature is a re-parametrisation: with the control, training at T is training at 1, step by step."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from lab_cases import choice, small

from abbe.lab.run import train

STEPS, CLOSE = 200, 1e-5
RATES = {"sgd": 0.5, "adamw": 0.02, "muon": 0.02}


@cache
def curves(**changed: Any) -> tuple[list[float], list[float], float]:
    run = choice(steps=STEPS, precision="float64", readings=8, **changed)
    seed = train(small("recall"), run)["seeds"][0]
    return seed["losses"], seed["quantities"]["max_logit"], seed["accuracy"]


@pytest.mark.quick(4)
@pytest.mark.parametrize(
    ("optimizer", "decay", "low"),
    [
        *(("sgd", 0.0, "0.1"), ("sgd", 0.0, "0.01"), ("adamw", 0.1, "0.1"), ("muon", 0.1, "0.1")),
        *(("adamw", 0.1, "0.01"), ("muon", 0.1, "0.01"), ("sgd", 0.002, "0.01")),
    ],
)
def test_control_is_the_run_at_temperature_one(optimizer: str, decay: float, low: str) -> None:
    """Losses are means over all steps since the last reading, so that every step counts."""
    same = {"optimizer": optimizer, "rate": RATES[optimizer], "decay": decay}
    losses, logits, accuracy = curves(**same)
    control = curves(**same, temperature=low, compensated=True)
    assert losses[-1] < 0.7 * losses[0]  # it has learned something
    assert control[0] == pytest.approx(losses, rel=CLOSE)
    assert control[1] == pytest.approx(logits, rel=CLOSE)
    assert control[2] == accuracy


def test_without_the_control_low_temperature_is_another_run() -> None:
    losses, _, _ = curves(optimizer="sgd", rate=0.5, decay=0.0)
    low, _, _ = curves(optimizer="sgd", rate=0.5, decay=0.0, temperature="0.1")
    assert abs(low[-1] / losses[-1] - 1) > 100 * CLOSE
