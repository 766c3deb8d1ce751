"""What a study of capacity was asked for, checked."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from .._errors import AbbeError
from ..models import LoadedModel
from ._capacity_parts import RENORMALISED, WAYS
from ._settings import Settings, settings_for

LENGTHS = (128, 256, 512, 1024)


@dataclass(frozen=True)
class CapacitySettings:
    """Everything that decides the numbers, beside model and text. Lengths are in rising order."""

    lengths: tuple[int, ...]
    taus: tuple[float, ...]
    ways: tuple[str, ...]
    windows: int
    layers: bool
    layer_windows: int
    queries: int
    seed: int
    level: float
    resamples: int

    def __post_init__(self) -> None:
        """Lengths and windows are checked when they are cut; queries, seed and level as for a diagnosis."""
        if not self.taus or any(not (_is_number(tau) and 0 < tau < math.inf) for tau in self.taus):
            raise AbbeError(f"tau must be numbers > 0, such as 0.01,0.05, got {list(self.taus)}")
        unknown = [way for way in self.ways if way not in WAYS]
        if unknown or not self.ways:
            raise AbbeError(f"way is {unknown[0] if unknown else ''!r}, but must be one of {', '.join(WAYS)}, or both")
        for what, given in (("tau", self.taus), ("way", self.ways)):
            if len(set(given)) < len(given):
                raise AbbeError(f"{what} has duplicates: {list(given)}")
        if not isinstance(self.layer_windows, int) or self.layer_windows < 1:
            raise AbbeError(f"layer_windows is {self.layer_windows!r}, but must be a whole number >= 1")

    @property
    def layer_way(self) -> str:
        return RENORMALISED if RENORMALISED in self.ways else self.ways[0]

    def as_json(self) -> dict[str, Any]:
        return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}

    def diagnosis(self, context: int | None, grid: Sequence[int]) -> Settings:
        """The same windows, for separability."""
        return settings_for(
            context, lengths=self.lengths, windows=self.windows, queries=self.queries, grid=grid, vectors="value",
            normalizer=None, temperatures=(), seed=self.seed, level=self.level, resamples=self.resamples,
        )  # fmt: skip


def capacity_settings(
    model: LoadedModel, *, lengths: Sequence[int] | None, tau: float | Sequence[float], way: str | Sequence[str],
    **others: Any,
) -> CapacitySettings:  # fmt: skip
    """Fill in what depends on the model: lengths of 128, 256, 512 and 1024 tokens, as far as its context goes."""
    if lengths is None:
        fitting = [length for length in LENGTHS if model.context is None or length <= model.context]
        lengths = fitting or [model.context or LENGTHS[0]]
    if isinstance(lengths, int):
        lengths = [lengths]
    settings = CapacitySettings(
        lengths=tuple(sorted(lengths)),
        taus=_taus(tau),
        ways=tuple(way.split(",") if isinstance(way, str) else way),
        **others,
    )
    settings.diagnosis(model.context, (1,))
    return settings


def _taus(given: Any) -> tuple[Any, ...]:
    """In rising order, if they can be ordered: what is no number is refused later."""
    found = tuple(given) if isinstance(given, Sequence) and not isinstance(given, str) else (given,)
    return tuple(sorted(found)) if all(_is_number(tau) for tau in found) else found


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
