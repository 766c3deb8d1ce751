"""Loss against the number of kept keys, at as many sizes as it takes to find the capacities."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from .intervals import Ends, crossings, interval, least_whole, relative_rises, resampled_rises, whole_interval
from .search import Sizes, is_monotone, search


@dataclass(frozen=True, eq=False)
class Curve:
    """Losses of the same windows at the sizes that were tried, in ascending order.

    Attributes:
        length, way, layer: what was truncated; layer None means all layers.
        untouched: keeping this many keys changes nothing.
        exact: N* is a whole number; else it is interpolated between sizes.
        sizes: those that were tried; empty if even all keys are not enough.
        baseline: (window,), of the unchanged model.
        full: (window,), with all keys: the baseline, unless another normalizer is swapped in.
        truncated: (size, window).
    """

    length: int
    way: str
    layer: int | None
    untouched: int
    exact: bool
    sizes: tuple[int, ...]
    baseline: Tensor
    full: Tensor
    truncated: Tensor

    @property
    def _losses(self) -> Tensor:
        """(size, window); the last row keeps all keys."""
        return torch.cat([self.truncated, self.full[None]])

    @cached_property
    def rises(self) -> Tensor:
        """Relative rise of the mean loss over the baseline at each size; the last one keeps all keys."""
        return relative_rises(self.baseline, self._losses)

    def resampled(self, resamples: int, seed: int) -> Tensor | None:
        """(resample, size), the same windows for every curve of this length; None with one window."""
        if len(self.baseline) < 2:
            return None
        # Seeded by length, or windows of all lengths would be drawn in the same way.
        return resampled_rises(self.baseline, self._losses, resamples, (seed + self.length) % 2**63)

    def crossing(self, allowed: float, rises: Tensor | None = None) -> Tensor:
        """Where the rise (by default over all windows) falls to the allowed one, between sizes."""
        return crossings(self.rises if rises is None else rises, [*self.sizes, self.untouched], allowed)

    def needed(self, allowed: float, rises: Tensor | None = None) -> Tensor:
        """N*: a whole number after an exact search; infinite if even all keys are not enough."""
        crossing = self.crossing(allowed, rises)
        return least_whole(crossing) if self.exact else crossing

    def ends(self, allowed: float, drawn: Tensor | None, level: float) -> Ends:
        """The interval of N* from rises of resampled windows; an unresolved end is None."""
        needed = None if drawn is None else self.needed(allowed, drawn)
        return (whole_interval if self.exact else interval)(needed, level, len(self.baseline))

    def first(self, allowed: float) -> int:
        """The smallest whole N that keeps the loss: N* rounded up if the curve is monotone, else the smallest tried."""
        if self.monotone(allowed):
            return int(least_whole(self.crossing(allowed)))
        return min(size for size, rise in self._tried.items() if rise <= allowed)

    def monotone(self, allowed: float) -> bool:
        return is_monotone(self._tried, allowed, self.untouched)

    @property
    def _tried(self) -> dict[int, float]:
        return dict(zip(self.sizes, self.rises[:-1].tolist(), strict=True))


def trace(
    losses_with: Callable[[int], Tensor], baseline: Tensor, full: Tensor, allowed: Sequence[float], sizes: Sizes, *,
    length: int, way: str, layer: int | None = None,
) -> Curve:  # fmt: skip
    """Try sizes until the crossing of every allowed rise is known; none if even all keys are not enough.

    Rises are always over the baseline's loss: a normalizer that is worse with all keys must not earn a smaller N.
    """
    tried: dict[int, Tensor] = {}
    rises: dict[int, float] = {}
    least = float(relative_rises(baseline, full))
    for size in search(rises, [rise for rise in allowed if least <= rise], sizes):
        tried[size] = losses_with(size)
        rises[size] = float(relative_rises(baseline, tried[size]))
    order = tuple(sorted(tried))
    truncated = torch.stack([tried[size] for size in order]) if order else full.new_empty(0, len(full))
    return Curve(length, way, layer, sizes.untouched, sizes.exact, order, baseline, full, truncated)
