"""Experiments of the lab from made-up runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any
from unittest.mock import patch

from abbe.lab import early_warning
from abbe.lab.network import temperature
from abbe.lab.reading import ALL_QUANTITIES
from abbe.lab.result import alert_table, curve_table, length_table, run_table, summary_table
from abbe.lab.run import Configuration, can_be_compensated
from abbe.results import FORMAT
from abbe.studies import Experiment, Finding

STEPS = (1, 2, 5, 10, 20, 30, 40)
LENGTHS = (16, 64, 256, 1024, 4096, 16384)
RATES = {"sgd": (0.1, 1.0, 10.0), "adamw": (0.001, 0.01, 0.1)}
FINDINGS = (
    Finding("temperature", "Low <b>temperature</b> is hard to train.", "holds if accuracy falls by 10 %", {"T": 0.01}),
)


def made_up(
    experiment: str = "temperature", *, normalizers: Sequence[str] = ("softmax", "sparsemax"),
    temperatures: Sequence[str] = ("1", "0.1", "0.01"), optimizers: Sequence[str] = ("sgd", "adamw"),
    rates: Mapping[str, Sequence[float]] = RATES, seeds: int = 3, qk_norm: bool = True, fails: bool = True,
    text: str = "key-value recall", findings: tuple[Finding, ...] = FINDINGS,
) -> Experiment:  # fmt: skip
    """With `fails` the largest rates diverge and low plain temperatures hardly learn."""
    choices = [
        Configuration(
            normalizer=spec, temperature=words, optimizer=optimizer, rate=rate, seeds=tuple(range(seeds)),
            steps=STEPS[-1], batch=8, width=8, heads=1, qk_norm=normed, compensated=compensated,
        )
        for spec, normed in [*((one, False) for one in normalizers), *([("softmax", True)] if qk_norm else [])]
        for optimizer in optimizers
        for words in temperatures
        for compensated in (False, True)
        if not compensated or can_be_compensated(temperature(words), normed)
        for rate in rates[optimizer]
    ]  # fmt: skip
    parts = [(choice, _content(choice, experiment, fails)) for choice in choices]
    table, curves, alerts = run_table(parts), curve_table(parts), alert_table(parts)
    settings = {
        "experiment": experiment, "normalizers": list(normalizers), "temperatures": list(temperatures),
        "optimizers": list(optimizers), "seeds": list(range(seeds)), "steps": STEPS[-1], "level": 0.95,
    }  # fmt: skip
    manifest = {
        "format": FORMAT, "study": "train", "model": {"name": "small transformers"}, "text": {"name": text},
        "finished": True, "settings": settings, "skipped": [], "self_check": {"error": None},
        "seconds": {"total": 12.5},
    }  # fmt: skip
    with patch.object(early_warning, "_RESAMPLES", 20):  # of its intervals, which take seconds
        warnings = early_warning.warning_table(table, curves, alerts, STEPS[-1])
    lengths, roc = length_table(parts), early_warning.roc_table(table, curves, STEPS[-1])
    return Experiment(
        table=table, curves=curves, lengths=lengths, alerts=alerts, summary=summary_table(table, 0.95),
        warnings=warnings, roc=roc, findings=findings, manifest=manifest,
    )  # fmt: skip


def _content(choice: Configuration, experiment: str, fails: bool) -> dict[str, Any]:
    seeds = [_seed(choice, seed, experiment, fails) for seed in choice.seeds]
    return {"steps": list(STEPS), "seeds": seeds, "seconds": 1.0}


def _seed(choice: Configuration, seed: int, experiment: str, fails: bool) -> dict[str, Any]:
    value = temperature(choice.temperature).start
    hard = 1.0 if choice.compensated or not fails else value
    place = RATES[choice.optimizer].index(choice.rate)
    diverges = fails and place == 2 and choice.optimizer == "sgd"
    speed = (0.02, 0.15, 0.1)[place] * (0.2 + 0.8 * hard) * (1 + 0.1 * seed)
    losses: list[float | None] = [4.8 * math.exp(-speed * step) for step in STEPS]
    if diverges:
        losses = [4.8, 9.0, *([None] * (len(STEPS) - 2))]
    accuracy = 0.01 if diverges else min(1.0, 1.02 - (losses[-1] or 0.0) / 4.8)
    quantities = {name: [0.5 * hard + 0.01 * seed] * len(STEPS) for name in ALL_QUANTITIES}
    quantities["max_logit"] = [(5 + step) / hard for step in STEPS]
    if diverges:
        quantities = {name: [*values[:2], *([None] * (len(STEPS) - 2))] for name, values in quantities.items()}  # type: ignore[list-item]
    lengths = {
        str(n): [max(0.1, accuracy - 0.08 * math.log2(n / 16)), 0.5 * math.log(n) + 0.1 * seed]
        for n in (LENGTHS if experiment == "length" else ())
    }
    return {
        "seed": seed, "start": 4.8, "losses": losses, "loss": losses[-1], "accuracy": accuracy,
        "quantities": quantities, "alerts": {"logit_growth_100": 2} if hard < 0.1 else {}, "lengths": lengths,
        "temperature": [value], "learned": [],
    }  # fmt: skip
