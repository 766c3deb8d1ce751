"""One run of an experiment: all seeds of one choice of normalizer, temperature, optimizer and rate."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Any

from .temperature import Temperature


@dataclass(frozen=True)
class Configuration:
    """One choice, trained with every seed.

    Attributes:
        temperature: in front of the normalizer, as text ("0.1", "learned", "geometric:1:0.1").
        compensated: the control: initial values and rate of the query map undo the temperature.
        cooldown: share of the run, at its end, over which the rate falls linearly to 0.
        trained_with: the normalizer during training, if `normalizer` is for inference only; "" for the same.
        readings: how many steps of the run are read, about evenly spread.
        precision: "float32" or "float64".
    """

    normalizer: str
    temperature: str
    optimizer: str
    rate: float
    seeds: tuple[int, ...]
    steps: int
    batch: int
    width: int
    heads: int
    qk_norm: bool = False
    compensated: bool = False
    decay: float = 0.0
    cooldown: float = 0.0
    trained_with: str = ""
    readings: int = 40
    test_size: int = 512
    precision: str = "float32"

    def rate_at(self, step: int) -> float:
        """The learning rate at this step, counted from 1."""
        left = (self.steps - step + 1) / (self.cooldown * self.steps + 1) if self.cooldown else 1.0
        return self.rate * min(1.0, left)

    @property
    def key(self) -> str:
        """The unique name of its part in the folder."""
        content = json.dumps(self.as_json(), sort_keys=True)
        return f"runs/{hashlib.sha256(content.encode()).hexdigest()[:16]}"

    @property
    def label(self) -> str:
        """For a progress bar."""
        more = ", compensated" if self.compensated else ""
        return f"{self.normalizer}, T {self.temperature}, {self.optimizer} {self.rate:g}{more}"

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"seeds": list(self.seeds)}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Configuration:
        return cls(**(content | {"seeds": tuple(content["seeds"])}))


def can_be_compensated(temperature: Temperature, qk_norm: bool) -> bool:
    """Whether the query map can absorb the temperature: it must be fixed. T = 1 needs no control; a norm undoes it."""
    return temperature.fixed and temperature.start != 1 and not qk_norm
