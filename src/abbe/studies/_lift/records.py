"""Records of a search: kept as JSON when they are finished, and their numbers as columns of tables."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...results import finite
from .._engine.parts import Parts
from .._engine.watch import Watch

_FOLDER = "parts"
Estimate = tuple[float, float | None, float | None]  # value, low, high; None without an interval


class Records:
    """Finished parts by name; `spent` sums the seconds that they took, in earlier calls too."""

    def __init__(self, parts: Parts, watch: Watch) -> None:
        self.parts, self._watch = parts, watch
        self.spent = 0.0

    def get(self, name: str) -> dict[str, Any] | None:
        return self.parts.json(f"{_FOLDER}/{name}")

    def keep(self, name: str, content: Mapping[str, Any]) -> None:
        self.parts.keep_json(f"{_FOLDER}/{name}", content)

    def get_or_make(
        self, name: str, make: Callable[[], Mapping[str, Any]], step: str = "", steps: int = 0
    ) -> dict[str, Any]:
        """The record of an earlier call, for which the progress bar moves by `steps`, or what `make` returns."""
        content = self.get(name)
        if content is None:
            started = time.perf_counter()
            content = finite(dict(make()) | {"seconds": 0.0})
            content["seconds"] = time.perf_counter() - started
            self.keep(name, content)
        else:
            for _ in range(steps):
                self._watch.step(step)
        self.spent += content["seconds"]
        return content


def with_ends(name: str, estimate: Estimate) -> dict[str, float | None]:
    """Three columns: the value, and its interval as `_low` and `_high`."""
    return dict(zip((name, f"{name}_low", f"{name}_high"), estimate, strict=True))


def with_nan(values: Sequence[float | None]) -> list[float]:
    """JSON stores numbers that are not finite as null: back to NaN."""
    return [math.nan if value is None else value for value in values]


def without_nan(row: Mapping[str, Any]) -> dict[str, Any]:
    """None for numbers that are not finite."""
    return {key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in row.items()}


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan
