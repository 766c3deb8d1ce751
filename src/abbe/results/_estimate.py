"""A number with its interval."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from ..words.numbers import with_interval


@dataclass(frozen=True)
class Estimate:
    """A number that was measured on a sample, with its interval.

    Attributes:
        value: the number; NaN if it could not be measured.
        low: lower end of the interval; None where there is none, as from a single window.
        high: upper end of the interval; None where there is none.

    Examples:
        >>> gain = abbe.results.Estimate(0.12, 0.06, 0.14)
        >>> gain.above(0), gain.below(0)
        (True, False)
    """

    value: float
    low: float | None = None
    high: float | None = None

    def above(self, limit: float) -> bool:
        """Whether the whole interval lies above a limit; never without an interval.

        Args:
            limit: to compare with.
        """
        return self.low is not None and self.low > limit

    def below(self, limit: float) -> bool:
        """Whether the whole interval lies below a limit; never without an interval.

        Args:
            limit: to compare with.
        """
        return self.high is not None and self.high < limit

    def columns(self, name: str, low: str = "_low", high: str = "_high") -> dict[str, float | None]:
        """Three entries of a table's row; None for numbers that are not finite.

        Args:
            name: of the value.
            low: appended to the name for the lower end.
            high: appended to the name for the upper end.
        """
        numbers = {name: self.value, f"{name}{low}": self.low, f"{name}{high}": self.high}
        return {key: None if value is None or not math.isfinite(value) else value for key, value in numbers.items()}

    def text(self, show: Callable[[float], str]) -> str:
        """The value and its interval, such as "1.2 (0.9 to 1.4)".

        Args:
            show: how to write one number.
        """
        return with_interval(self.value, self.low, self.high, show)
