"""Small tasks and runs of the lab, and experiments from made-up runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import torch
from torch import nn

from abbe.lab import Experiment, tables
from abbe.lab.network import AttentionSettings, temperature
from abbe.lab.run import QUANTITIES, Configuration, _generator, can_be_compensated
from abbe.lab.tasks import Task, make_task, stacked
from abbe.models import Text
from abbe.results import FORMAT
from abbe.words.finding import Finding

CYCLE = "hello word, as if" * 200  # the next character is no function of the last one, but of the last two
ORDERED = "abcdefgh" * 400  # here it is one

SIZES: dict[str, dict[str, Any]] = {
    "recall": {"pairs": 8, "symbols": 16},
    "mqar": {"pairs": 2, "symbols": 16, "length": 16},
    "maximum": {"longest": 8, "lengths": (8, 32)},
    "text": {"length": 16},
}
WIDTHS = {"recall": 8, "mqar": 16, "maximum": 16, "text": 16}


def small(name: str, **sizes: Any) -> Task:
    return make_task(name, SIZES[name] | sizes, Text("cycle", CYCLE) if name == "text" else None)


def choice(name: str = "recall", **changed: Any) -> Configuration:
    usual = Configuration(
        normalizer="softmax", temperature="1", optimizer="adamw", rate=0.01, seeds=(0,), steps=20, batch=8,
        width=WIDTHS[name], heads=1, readings=6, test_size=32,
    )  # fmt: skip
    return replace(usual, **changed)


def untrained(task: Task, width: int, seeds: int = 1, heads: int = 1, **more: Any) -> nn.Module:
    settings = AttentionSettings(width, heads, **more)
    return task.network([_generator(seed, "weights") for seed in range(seeds)], settings)


@torch.no_grad()
def accuracy(task: Task, network: nn.Module, length: int | None = None, size: int = 64) -> float:
    """Of a network with one seed, on data that is never trained on."""
    batch = stacked([task.sample(torch.Generator().manual_seed(5), size, length, held_out=True)])
    scores = network(*(x.double() if x.is_floating_point() else x for x in batch.inputs))
    return float((scores.argmax(-1) == batch.targets).double().mean())


def put(parameter: torch.Tensor, value: torch.Tensor) -> None:
    """Into the only seed of a parameter, the rest 0."""
    with torch.no_grad():
        parameter.zero_()
        parameter[0, : value.shape[0], : value.shape[1]] = value


# -- Made-up runs: four readings of ten steps -------------------------------------------------------------------------

READ = [1, 5, 9, 10]
GOOD: list[float | None] = [4.0, 2.0, 1.0, 0.5]
SLOW: list[float | None] = [4.0, 3.9, 3.5, 3.0]
NOISY: list[float | None] = [4.0, 4.1, 4.1, 4.1]
RISEN: list[float | None] = [4.0, 9.0, 6.0, 5.0]
BROKEN: list[float | None] = [4.0, None, None, None]


def seed(number: int, losses: list[float | None], **changed: Any) -> dict[str, Any]:
    quantities: dict[str, list[float | None]] = {name: [None] * len(READ) for name in QUANTITIES}
    quantities["max_logit"] = [1.0, 7.0, None, 3.0]
    made = {
        "seed": number, "start": 4.0, "losses": losses, "quantities": quantities, "alerts": {}, "temperature": [1.0],
        "learned": [], "accuracy": 0.5, "loss": 1.0, "lengths": {},
    }  # fmt: skip
    return made | changed


def part(rate: float, *seeds: dict[str, Any], **changed: Any) -> tuple[Configuration, dict[str, Any]]:
    numbers = tuple(one["seed"] for one in seeds)
    return choice(rate=rate, seeds=numbers, steps=10, **changed), {"steps": READ, "seeds": list(seeds)}


def from_parts(*parts: Any) -> Experiment:
    return Experiment(**tables.tables_of(parts), findings=(), manifest={})


def from_rows(**rows: Sequence[Mapping[str, Any]]) -> Experiment:
    """With these rows in its tables; the others are empty."""
    made = {name: frame.of(rows.get(name, ())) for name, frame in Experiment.frames().items()}
    return Experiment(**made, findings=(), manifest={})


# -- A whole experiment -----------------------------------------------------------------------------------------------

STEPS = (1, 2, 5, 10, 20, 30, 40)
LENGTHS = (16, 64, 256, 1024, 4096, 16384)
RATES = {"sgd": (0.1, 1.0, 10.0), "adamw": (0.001, 0.01, 0.1)}
HARD = Finding("T", "Low <b>temperature</b> is hard to train.", "holds if accuracy falls by 10 %", {"T": 0.01})


def made_up(
    experiment: str = "temperature", *, normalizers: Sequence[str] = ("softmax", "sparsemax"),
    temperatures: Sequence[str] = ("1", "0.1", "0.01"), optimizers: Sequence[str] = ("sgd", "adamw"),
    rates: Mapping[str, Sequence[float]] = RATES, seeds: int = 3, qk_norm: bool = True, fails: bool = True,
    text: str = "key-value recall", findings: tuple[Finding, ...] = (HARD,),
) -> Experiment:  # fmt: skip
    """With `fails` the largest rates diverge and low plain temperatures hardly learn."""
    choices = [
        choice(
            normalizer=spec, temperature=words, optimizer=optimizer, rate=rate, seeds=tuple(range(seeds)),
            steps=STEPS[-1], qk_norm=normed, compensated=compensated,
        )
        for spec, normed in [*((one, False) for one in normalizers), *([("softmax", True)] if qk_norm else [])]
        for optimizer in optimizers
        for words in temperatures
        for compensated in (False, True)
        if not compensated or can_be_compensated(temperature(words), normed)
        for rate in rates[optimizer]
    ]  # fmt: skip
    parts = [
        (one, {"steps": list(STEPS), "seeds": [_seed(one, number, experiment, fails) for number in one.seeds]})
        for one in choices
    ]
    manifest = {
        "format": FORMAT, "study": "train", "model": {"name": "small transformers"}, "text": {"name": text},
        "finished": True, "settings": {"experiment": experiment, "steps": STEPS[-1]}, "skipped": [],
        "self_check": {"error": None}, "seconds": {"total": 12.5},
    }  # fmt: skip
    with patch.object(tables, "_RESAMPLES", 20):  # of its intervals, which take seconds
        return Experiment(**tables.tables_of(parts), findings=findings, manifest=manifest)


def _seed(run: Configuration, number: int, experiment: str, fails: bool) -> dict[str, Any]:
    value = temperature(run.temperature).start
    hard = 1.0 if run.compensated or not fails else value
    place = RATES[run.optimizer].index(run.rate)
    diverges = fails and place == 2 and run.optimizer == "sgd"
    speed = (0.02, 0.15, 0.1)[place] * (0.2 + 0.8 * hard) * (1 + 0.1 * number)
    losses: list[float | None] = [4.8 * math.exp(-speed * step) for step in STEPS]
    left: list[float | None] = [None] * (len(STEPS) - 2)
    if diverges:
        losses = [4.8, 9.0, *left]
    reached = 0.01 if diverges else min(1.0, 1.02 - (losses[-1] or 0.0) / 4.8)
    quantities: dict[str, Any] = {name: [0.5 * hard + 0.01 * number] * len(STEPS) for name in QUANTITIES}
    quantities["max_logit"] = [(5 + step) / hard for step in STEPS]
    if diverges:
        quantities = {name: [*values[:2], *left] for name, values in quantities.items()}
    lengths = {
        str(n): [max(0.1, reached - 0.08 * math.log2(n / 16)), 0.5 * math.log(n) + 0.1 * number]
        for n in (LENGTHS if experiment == "length" else ())
    }
    alerts = {"logit_growth_100": 2} if hard < 0.1 else {}
    more = {"accuracy": reached, "lengths": lengths, "alerts": alerts, "temperature": [value]}
    return seed(number, losses, start=4.8, loss=losses[-1], quantities=quantities, **more)
