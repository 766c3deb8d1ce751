"""The loss against the number of kept keys, tried at as many sizes as are needed to find the capacities."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ...models import Window
from .intervals import crossings, least_whole, resampled_rises
from .losses import Losses, Truncation
from .search import Sizes, is_monotone, search


@dataclass(frozen=True, eq=False)
class Curve:
    """Losses of the same windows: own (window,), truncated (size, window), at sizes in rising order."""

    length: int
    way: str
    layer: int | None
    untouched: int  # so many keys change nothing
    sizes: tuple[int, ...]
    own: Tensor
    truncated: Tensor

    @cached_property
    def rises(self) -> Tensor:
        """Relative rise of the mean loss at each size."""
        return self.truncated.mean(-1) / self.own.mean() - 1

    def resampled(self, resamples: int, seed: int) -> Tensor | None:
        """(resample, size), the same windows for every curve of this length; None with one window."""
        if len(self.own) < 2:
            return None
        return resampled_rises(self.own, self.truncated, resamples, (seed + self.length) % 2**63)

    def crossing(self, allowed: float, rises: Tensor | None = None) -> Tensor:
        """Where the rise (by default that of all windows) falls to what is allowed, between sizes."""
        return crossings(self.rises if rises is None else rises, self.sizes, self.untouched, allowed)

    def needed(self, allowed: float, rises: Tensor | None = None) -> Tensor:
        """N*: of the whole model a whole number, of a layer read off between the sizes that were tried."""
        found = self.crossing(allowed, rises)
        return least_whole(found) if self.layer is None else found

    def first(self, allowed: float) -> int:
        """The least whole N that holds: N* rounded up if the curve is monotone, else the least one that was tried."""
        if self.monotone(allowed):
            return int(least_whole(self.crossing(allowed)))
        return min(size for size, rise in zip(self.sizes, self.rises.tolist(), strict=True) if rise <= allowed)

    def monotone(self, allowed: float) -> bool:
        return is_monotone(dict(zip(self.sizes, self.rises.tolist(), strict=True)), allowed, self.untouched)


def trace(
    losses: Losses, windows: Sequence[Window], way: str, layer: int | None, allowed: Sequence[float], sizes: Sizes
) -> Curve:
    """Try sizes until the crossing of every allowed rise is known."""
    own = losses.own(windows)
    found: dict[int, Tensor] = {}
    rises: dict[int, float] = {}
    for size in search(rises, allowed, sizes):
        found[size] = losses.truncated(windows, Truncation(way, size, layer))
        rises[size] = float(found[size].mean() / own.mean() - 1)
    tried = tuple(sorted(found))
    return Curve(windows[0].length, way, layer, sizes.untouched, tried, own, torch.stack([found[n] for n in tried]))
