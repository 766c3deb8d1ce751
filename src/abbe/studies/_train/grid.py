"""What the studies of one temperature train: every normalizer with every optimizer and rate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..._arguments import positive, whole, yes_or_no
from .configuration import Configuration
from .experiment import checked_normalizers, seeds_from
from .tasks import Task
from .temperature import temperature as read_temperature
from .temperature_study import checked_optimizers


@dataclass(frozen=True)
class Asked:
    """What a user can ask of every study; None for what is usual."""

    normalizers: str | Sequence[str] | None = None
    optimizers: str | Sequence[str] = "adamw"
    rates: float | Sequence[float] | None = None
    seeds: int | None = None
    steps: int | None = None
    temperature: float | str = 1.0
    qk_norm: bool = False
    seed: int = 0


@dataclass(frozen=True)
class Usual:
    """What a study trains unless something else is asked for.

    `for_inference` names, for a normalizer that is made for trained networks, the one that these are trained with.
    """

    normalizers: tuple[str, ...]
    rates: Mapping[str, tuple[float, ...]]
    steps: int
    seeds: int = 3
    decay: float = 0.0
    cooldown: float = 0.0
    readings: int = 40
    test_size: int = 512
    for_inference: Mapping[str, str] = field(default_factory=dict)

    def quick(self, **fewer: Any) -> Usual:
        return replace(self, **fewer)


def grid(task: Task, asked: Asked, usual: Usual) -> tuple[list[Configuration], dict[str, Any]]:
    """The runs, and the settings that the manifest shows."""
    specs = checked_normalizers(usual.normalizers if asked.normalizers is None else asked.normalizers, task)
    names = checked_optimizers(asked.optimizers)
    words = str(read_temperature(asked.temperature))
    rates = {name: _rates(name, asked, usual) for name in names}
    shared: dict[str, Any] = {
        "steps": whole("steps", usual.steps if asked.steps is None else asked.steps, least=10), "batch": task.batch,
        "width": task.width, "heads": task.heads, "decay": usual.decay, "cooldown": usual.cooldown,
        "seeds": seeds_from(usual.seeds if asked.seeds is None else asked.seeds, asked.seed),
        "qk_norm": yes_or_no("qk_norm", asked.qk_norm), "temperature": words, "readings": usual.readings,
        "test_size": usual.test_size,
    }  # fmt: skip
    choices = [
        Configuration(
            normalizer=spec, optimizer=name, rate=rate, trained_with=usual.for_inference.get(spec, ""), **shared
        )
        for spec in specs
        for name in names
        for rate in rates[name]
    ]
    settings = shared | {
        "normalizers": list(specs), "optimizers": list(names), "seeds": list(shared["seeds"]),
        "rates": {name: list(some) for name, some in rates.items()},
    }  # fmt: skip
    return choices, settings


def _rates(optimizer: str, asked: Asked, usual: Usual) -> tuple[float, ...]:
    return usual.rates[optimizer] if asked.rates is None else positive("rates", asked.rates, ", such as 0.001,0.01")
