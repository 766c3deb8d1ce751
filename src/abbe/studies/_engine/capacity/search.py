"""Which sizes N to try next, until the smallest that keeps the loss is known. Pure: the caller measures the losses."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ...._arguments import shown
from ...._errors import AbbeError

EXACT, COARSE = GRIDS = ("exact", "coarse")


def checked_grid(grid: str) -> None:
    if grid not in GRIDS:
        raise AbbeError(f"grid is {shown(grid)}, but must be one of {', '.join(GRIDS)}")


@dataclass(frozen=True)
class Sizes:
    """Sizes to try first, and the candidates to search among.

    Keeping `untouched` keys changes nothing. An `exact` search also tries the size above a crossing.
    """

    first: tuple[int, ...]
    among: Sequence[int]
    untouched: int
    exact: bool

    @classmethod
    def of(cls, grid: str, untouched: int) -> Sizes:
        """exact: powers of 2, then every whole number, so that the smallest N is known.

        coarse: powers of 4, then of 2 next to the crossings; N is interpolated between them.
        """
        if grid == EXACT:
            return cls(_powers(2, untouched), range(1, untouched), untouched, exact=True)
        return cls(_powers(4, untouched), _powers(2, untouched), untouched, exact=False)

    def expected(self, levels: int) -> int:
        """Roughly how many sizes will be tried for this many allowed rises."""
        steps = math.ceil(math.log2(len(self.among) + 1) / 2) if len(self.among) > len(self.first) else 0
        return min(len(self.first) + levels * steps, len(self.among))


def _powers(base: int, below: int) -> tuple[int, ...]:
    powers = (base**exponent for exponent in itertools.count())
    return tuple(itertools.takewhile(lambda power: power < below, powers))


def next_size(rises: Mapping[int, float], allowed: Sequence[float], sizes: Sizes) -> int | None:
    """The next size to try; None once every crossing is known.

    For each allowed rise: halve the gap between the largest size that fails and the next tried one. Near the crossing
    the loss is assumed to be monotone; if the size beyond it fails, the search continues above it.
    """
    for size in sizes.first if allowed else ():
        if size not in rises:
            return size
    for level in allowed:
        fails, holds = bracket(rises, level, sizes.untouched)
        between = [size for size in sizes.among if fails < size < holds]
        if between:
            return between[len(between) // 2]
        above = next((size for size in sizes.among if size > holds), None)
        if sizes.exact and above is not None and above not in rises:
            return above
    return None


def bracket(rises: Mapping[int, float], allowed: float, untouched: int) -> tuple[int, int]:
    """The largest tried size that fails (0 if none does), and the next tried one."""
    # `not <=`, so that NaN fails.
    fails = max((size for size, rise in rises.items() if not rise <= allowed), default=0)
    return fails, min((size for size in rises if size > fails), default=untouched)


def search(rises: dict[int, float], allowed: Sequence[float], sizes: Sizes) -> Iterator[int]:
    """Sizes to try, one by one; the caller enters the rise of each before taking the next."""
    while (size := next_size(rises, allowed, sizes)) is not None:
        yield size


def is_monotone(rises: Mapping[int, float], allowed: float, untouched: int) -> bool:
    """Whether every tried size below the crossing fails."""
    fails, _ = bracket(rises, allowed, untouched)
    return not any(rise <= allowed for size, rise in rises.items() if size < fails)
