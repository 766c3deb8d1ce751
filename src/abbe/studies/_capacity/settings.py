"""The settings of a study of capacity, checked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..._arguments import positive, several, shown, whole, window_lengths, yes_or_no
from ..._errors import AbbeError
from ...models import LoadedModel
from ...runs.loss import ALL, check_targets, last_targets
from ...runs.settings import Settings, plain_settings, settings_for
from .._shared.truncation import EXACT, checked_grid
from .result import WAYS

LENGTHS = (128, 256, 512, 1024)


@dataclass(frozen=True)
class CapacitySettings:
    """Everything besides model and text that decides the numbers. Lengths and taus are in rising order."""

    lengths: tuple[int, ...]
    taus: tuple[float, ...]
    ways: tuple[str, ...]
    windows: int
    layers: bool
    layer_lengths: tuple[int, ...]  # none without layers
    layer_windows: int
    queries: int
    seed: int
    level: float
    resamples: int
    targets: str = ALL
    grid: str = EXACT  # for the whole model; layers use the coarse one

    def __post_init__(self) -> None:
        """Lengths and windows are checked when they are cut; queries, seed and level as for a diagnosis."""
        if not self.taus:
            raise AbbeError("tau must be numbers > 0, such as 0.01,0.05, got none")
        unknown = [way for way in self.ways if way not in WAYS]
        if unknown or not self.ways:
            raise AbbeError(f"way is {unknown[0] if unknown else ''!r}, but must be one of {', '.join(WAYS)}, or both")
        self._check_layer_lengths()
        for what, values in (("way", self.ways), ("layer_lengths", self.layer_lengths)):
            if len(set(values)) < len(values):
                raise AbbeError(f"{what} has duplicates: {list(values)}")
        check_targets(self.targets, min(self.lengths, default=2))
        checked_grid(self.grid)

    def _check_layer_lengths(self) -> None:
        there = ", ".join(str(length) for length in self.lengths)
        unknown = [length for length in self.layer_lengths if length not in self.lengths]
        if self.layer_lengths and not self.layers:
            raise AbbeError(
                f"layer_lengths is {list(self.layer_lengths)}, but layers are left out: give only one of the two"
            )
        if unknown:
            raise AbbeError(f"layer_lengths has {unknown[0]!r}, but must be among the lengths: {there}")
        if self.layers and not self.layer_lengths:
            raise AbbeError(f"layer_lengths is empty: name some of the lengths {there}, or leave the layers out")

    def as_json(self) -> dict[str, Any]:
        return plain_settings(self)

    def diagnosis(self, context: int | None, grid: Sequence[int]) -> Settings:
        """The same windows, for separability."""
        return settings_for(
            context, lengths=self.lengths, windows=self.windows, queries=self.queries, sizes=grid, vectors="value",
            normalizer=None, temperatures=(), seed=self.seed, level=self.level, resamples=self.resamples,
        )  # fmt: skip


def capacity_settings(
    model: LoadedModel, *, lengths: int | Sequence[int] | None, tau: float | Sequence[float], way: str | Sequence[str],
    layers: bool, layer_lengths: int | Sequence[int] | None, windows: int, layer_windows: int, queries: int,
    targets: str = ALL, grid: str = EXACT, **others: Any,
) -> CapacitySettings:  # fmt: skip
    """Fill in the defaults that depend on the model: lengths of 128 to 1024 tokens, as far as its context goes.

    Lengths with fewer targets than are scored are left out. Layers are truncated at all of them, unless
    `layer_lengths` names some.
    """
    if lengths is None:
        scored = last_targets(targets) or 0
        fitting = [length for length in LENGTHS if model.context is None or length <= model.context]
        lengths = [length for length in fitting if length > scored] or [model.context or LENGTHS[-1]]
    rising = tuple(sorted(window_lengths(lengths)))
    settings = CapacitySettings(
        lengths=rising,
        taus=tuple(sorted(positive("tau", tau, ", such as 0.01,0.05"))),
        ways=_ways(way),
        windows=whole("windows", windows),
        layers=yes_or_no("layers", layers),
        layer_lengths=_layer_lengths(layer_lengths, rising if layers else ()),
        layer_windows=whole("layer_windows", layer_windows, least=1),
        queries=whole("queries", queries, least=1),
        targets=targets,
        grid=grid,
        **others,
    )
    settings.diagnosis(model.context, (1,))
    return settings


def _layer_lengths(chosen: int | Sequence[int] | None, lengths: tuple[int, ...]) -> tuple[int, ...]:
    """In the order of the lengths; any others are refused later."""
    if chosen is None:
        return lengths
    named = several("layer_lengths", chosen)
    return tuple(sorted(named, key=lambda length: lengths.index(length) if length in lengths else -1))


def _ways(ways: str | Sequence[str]) -> tuple[str, ...]:
    """One with commas, or several; unknown ones are refused later."""
    parts: Any = ways.split(",") if isinstance(ways, str) else ways
    several_words = isinstance(parts, Iterable) and not isinstance(parts, bytes | Mapping)
    if not several_words or not all(isinstance(part, str) for part in parts):
        raise AbbeError(f"way is {shown(ways)}, but must be one of {', '.join(WAYS)}, or both")
    return tuple(parts)
