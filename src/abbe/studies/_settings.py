"""What a diagnosis was asked for, checked."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from .._errors import AbbeError
from ..measures import DEFAULT_GRID, checked_grid
from ..normalizers import normalizer

Vectors = Literal["embedding", "hidden", "value", "output"]
_LENGTHS = (64, 256, 1024)


@dataclass(frozen=True)
class Settings:
    """Everything that decides the numbers, beside model and text."""

    lengths: tuple[int, ...]
    windows: int
    queries: int | None  # None: all
    grid: tuple[int, ...]
    vectors: Vectors
    normalizer: str | None  # None: the model's own
    temperatures: tuple[float, ...]
    seed: int
    level: float
    resamples: int
    steps: tuple[float, ...] = ()  # of finite differences, at every temperature
    expected: bool = False  # the proved bounds on the mean distance of random sets, too
    more_than: int = 0  # leave out queries that see no more keys than this
    readings: bool = False  # critical N under every reading of "expected" and of the test

    def __post_init__(self) -> None:
        """The lengths are checked by the windows."""
        checked_grid(self.grid)
        if self.vectors not in get_args(Vectors):
            raise AbbeError(f"vectors is {self.vectors!r}, but must be one of {', '.join(get_args(Vectors))}")
        if self.queries is not None and (not isinstance(self.queries, int) or self.queries < 1):
            raise AbbeError(f"queries is {self.queries!r}, but must be a whole number >= 1, or 'all'")
        for what, numbers in (("temperatures", self.temperatures), ("steps", self.steps)):
            if any(not (isinstance(x, (int, float)) and 0 < x < math.inf) for x in numbers):
                raise AbbeError(f"{what} must be numbers > 0, got {list(numbers)}")
            if len(set(numbers)) < len(numbers):
                raise AbbeError(f"{what} has duplicates: {list(numbers)}")
        if not 0 < self.level < 1:
            raise AbbeError(f"level is {self.level!r}, but must lie between 0 and 1, such as 0.95")
        if self.resamples < 1:
            raise AbbeError(f"resamples is {self.resamples!r}, but must be at least 1")
        if not isinstance(self.seed, int) or not 0 <= self.seed < 2**63:
            raise AbbeError(f"seed is {self.seed!r}, but must be a whole number from 0 to 2**63 - 1")
        if self.normalizer is not None:
            normalizer(self.normalizer)

    def as_json(self) -> dict[str, Any]:
        found = {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}
        return found | {"queries": self.queries or "all"}


def settings_for(
    context: int | None,
    *,
    lengths: Sequence[int] | None,
    windows: int,
    queries: int | str,
    grid: Sequence[int] | None,
    vectors: str,
    normalizer: Any,
    temperatures: Sequence[float],
    seed: int,
    level: float,
    resamples: int,
) -> Settings:
    """Fill in what depends on the model: windows of 64, 256 and 1024 tokens, as far as its context goes."""
    if lengths is None:
        lengths = [length for length in _LENGTHS if context is None or length <= context] or [context or _LENGTHS[0]]
    if isinstance(queries, str) and queries != "all":
        raise AbbeError(f"queries is {queries!r}, but must be a whole number >= 1, or 'all'")
    return Settings(
        lengths=tuple(lengths) if not isinstance(lengths, int) else (lengths,),
        windows=windows,
        queries=None if isinstance(queries, str) else queries,
        grid=tuple(grid if grid is not None else DEFAULT_GRID),
        vectors=vectors,  # type: ignore[arg-type]
        normalizer=None if normalizer is None else str(normalizer),
        temperatures=tuple(temperatures),
        seed=seed,
        level=level,
        resamples=resamples,
    )
