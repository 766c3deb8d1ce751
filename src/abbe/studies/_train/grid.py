"""The runs of studies with one temperature: every normalizer with every optimizer and rate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ... import normalizers as _normalizers
from ..._arguments import whole, yes_or_no
from .configuration import Configuration
from .experiment import checked_normalizers, seeds_from
from .tasks import Task
from .temperature import temperature as parse_temperature
from .temperature_study import checked_optimizers, rates_for


@dataclass(frozen=True)
class Defaults:
    """What a study trains by default.

    `for_inference` maps normalizers that are made for trained networks to the ones that these are trained with.
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


def grid(
    task: Task, defaults: Defaults, normalizers: str | Sequence[str] | None, optimizers: str | Sequence[str],
    rates: float | Sequence[float] | None, seeds: int | None, steps: int | None, seed: int,
    temperature: float | str = 1.0, qk_norm: bool = False,
) -> tuple[list[Configuration], dict[str, Any]]:  # fmt: skip
    """The runs, and the settings for the manifest; None stands for a default."""
    specs = checked_normalizers(defaults.normalizers if normalizers is None else normalizers, task)
    known = {spec: str(_normalizers.normalizer(spec)) for spec in specs}  # another spelling is the same map
    specs = checked_normalizers([known[x] if known[x] in defaults.for_inference else x for x in specs], task)
    names = checked_optimizers(optimizers)
    by_optimizer = {name: rates_for(name, rates, defaults.rates) for name in names}
    shared: dict[str, Any] = {
        "steps": whole("steps", defaults.steps if steps is None else steps, least=10), "batch": task.batch,
        "width": task.width, "heads": task.heads, "decay": defaults.decay, "cooldown": defaults.cooldown,
        "seeds": seeds_from(defaults.seeds if seeds is None else seeds, seed),
        "qk_norm": yes_or_no("qk_norm", qk_norm), "temperature": str(parse_temperature(temperature)),
        "readings": defaults.readings, "test_size": defaults.test_size,
    }  # fmt: skip
    choices = [
        Configuration(
            normalizer=spec, optimizer=name, rate=rate, trained_with=defaults.for_inference.get(spec, ""), **shared
        )
        for spec in specs
        for name in names
        for rate in by_optimizer[name]
    ]
    settings = shared | {
        "normalizers": list(specs), "optimizers": list(names), "seeds": list(shared["seeds"]),
        "rates": {name: list(some) for name, some in by_optimizer.items()},
    }  # fmt: skip
    return choices, settings
