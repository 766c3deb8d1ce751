"""Capacity by truncation: the fewest keys N that every query needs, found by keeping only its N largest weights.

Resampling is paired: baseline and truncated losses come from the same windows.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ..._arguments import shown
from ..._errors import AbbeError
from ...measures import interval_ends, resampled_counts
from ...models import LoadedModel, Plan, Swap
from ...normalizers import Normalizer, Truncated, normalizer
from ...results import Estimate
from ...runs.loss import next_token_losses
from ...words.names import RENORMALISED

EXACT, COARSE = GRIDS = ("exact", "coarse")
_SLACK = 1e-9  # a crossing at a whole number is that number, whatever its last digit


def checked_grid(grid: str) -> str:
    if grid not in GRIDS:
        raise AbbeError(f"grid is {shown(grid)}, but must be one of {', '.join(GRIDS)}")
    return grid


@dataclass(frozen=True)
class Sizes:
    """Sizes to try first, and the candidates to search among.

    Keeping `untouched` keys changes nothing. An exact search also tries the size above a crossing.
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
        counts = resampled_counts(len(self.baseline), resamples, (seed + self.length) % 2**63)
        return counts @ self._losses.T / (counts @ self.baseline).unsqueeze(-1) - 1

    def crossing(self, allowed: float, rises: Tensor | None = None) -> Tensor:
        """Where the rise (by default over all windows) falls to the allowed one, between sizes."""
        return crossings(self.rises if rises is None else rises, [*self.sizes, self.untouched], allowed)

    def needed(self, allowed: float, rises: Tensor | None = None) -> Tensor:
        """N*: a whole number after an exact search; infinite if even all keys are not enough."""
        crossing = self.crossing(allowed, rises)
        return least_whole(crossing) if self.exact else crossing

    def capacity(self, allowed: float, drawn: Tensor | None, level: float) -> Estimate:
        """N* with its interval from rises of resampled windows; an unresolved end is None."""
        needed = None if drawn is None else self.needed(allowed, drawn)
        return Estimate(float(self.needed(allowed)), *interval(needed, level, len(self.baseline), whole=self.exact))

    def first(self, allowed: float) -> int:
        """The smallest whole N that keeps the loss: N* rounded up if the curve is monotone, else the smallest tried."""
        if self.monotone(allowed):
            return int(least_whole(self.crossing(allowed)))
        return min(size for size, rise in self._tried.items() if rise <= allowed)

    def monotone(self, allowed: float) -> bool:
        """Whether every tried size below the crossing fails."""
        fails, _ = bracket(self._tried, allowed, self.untouched)
        return not any(rise <= allowed for size, rise in self._tried.items() if size < fails)

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
    reachable = [rise for rise in allowed if least <= rise]
    while (size := next_size(rises, reachable, sizes)) is not None:
        tried[size] = losses_with(size)
        rises[size] = float(relative_rises(baseline, tried[size]))
    order = tuple(sorted(tried))
    truncated = torch.stack([tried[size] for size in order]) if order else full.new_empty(0, len(full))
    return Curve(length, way, layer, sizes.untouched, sizes.exact, order, baseline, full, truncated)


def relative_rises(baseline: Tensor, losses: Tensor) -> Tensor:
    """Relative rises of the mean loss: baseline (window,), losses (..., window) -> (...)."""
    return losses.mean(-1) / baseline.mean() - 1


def crossings(rises: Tensor, sizes: Sequence[int], allowed: float) -> Tensor:
    """Where the rise falls to the allowed one: rises (..., size), at ascending sizes -> (...).

    Linear in ln N between the largest size that fails (NaN fails) and the next one. The smallest size if none fails;
    infinite if the last one, all keys, fails.
    """
    places = torch.tensor(sizes, dtype=torch.float64)
    last = len(sizes) - 1
    after = torch.where(rises <= allowed, 0, torch.arange(1, len(sizes) + 1)).amax(-1)  # index after the last failure
    before, next_one = (after - 1).clamp(min=0), after.clamp(max=last)
    upper, lower = (rises.gather(-1, place.unsqueeze(-1)).squeeze(-1) for place in (before, next_one))
    # A NaN loss has no line to its neighbour: take the whole step to the next size.
    part = ((upper - allowed) / (upper - lower)).nan_to_num(1.0, 1.0, 1.0)
    between = torch.exp(torch.lerp(places[before].log(), places[next_one].log(), part))
    return torch.where(after == 0, places[0], torch.where(after > last, torch.inf, between))


def least_whole(crossing: Tensor) -> Tensor:
    return torch.ceil(crossing - _SLACK)


def interval(
    resampled: Tensor | None, level: float, windows: int, whole: bool = False
) -> tuple[float | None, float | None]:
    """Percentiles over resamples of this many windows; None without resamples, or for an end that is not finite.

    `whole` rounds outwards: there are no half keys.
    """
    if resampled is None:
        return None, None
    low, high = (end.double() for end in interval_ends(resampled.unsqueeze(-1), level, windows))
    if whole:
        low, high = torch.floor(low + _SLACK), least_whole(high)
    return float(low) if low.isfinite() else None, float(high) if high.isfinite() else None


def top_keys(keep: int, way: str = RENORMALISED) -> str:
    """The spec for softmax. A sink counts as a key: it is kept if its logit is large enough."""
    return f"topk:k={keep},renormalize={'true' if way == RENORMALISED else 'false'}"


def truncated_rules(
    model: LoadedModel, what: str | Mapping[str, str] | None, keep: int, way: str = RENORMALISED,
    layer: int | None = None,
) -> dict[str, Normalizer]:  # fmt: skip
    """Every head of `what` keeps its `keep` largest weights; other heads stay as they are, softmax if nothing else.

    Without `what`, the heads of the model as it stands; with a layer, those of it alone.
    """
    rules: dict[str, Normalizer] = {}
    for number, (path, groups) in enumerate(Plan(model.network, what).items()):
        for group in groups if layer in (None, number) else ():
            inner, heads = group.normalizer, ",".join(map(str, group.heads))
            # Top-k for softmax: the same weights, but with a kernel, and the earlier of equal keys.
            rules[f"{path}.heads.{heads}"] = (
                normalizer(top_keys(keep, way))
                if inner is None or str(inner) == "softmax"
                else Truncated(inner, keep, way == RENORMALISED)
            )
    return rules


def has_sinks(model: LoadedModel, swapped: Swap, tokens: Tensor) -> bool:
    """Whether any layer has a learned sink, which is one more key."""
    sinks: list[bool] = []
    swapped.listen(lambda call, _: sinks.append(call.sink is not None))
    next_token_losses(model, tokens)
    return any(sinks)
