"""Readings of rows, their sums over blocks, and the means: every measure is streamed by these four functions.

A state is a flat dict of tensors, none of which grows with the rows: `update` adds a block to it, `merge` adds two
states, `compute` gives the means. An empty dict is the state of nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from .._errors import AbbeError

State = dict[str, Tensor]

_RATIO = 1.01  # from one bin of the histogram to the next: a quantile is right within half a percent
_LEAST, _BINS = 1e-8, 4000  # the first bin holds all that is smaller, the last reaches 1e9


@dataclass(frozen=True, eq=False)
class Reading:
    """One measure on a block of rows.

    Attributes:
        value: (head, query) or (head, query, N).
        defined: bool of the same shape: rows that are not count nowhere.
        limit: a proved bound; NaN in rows for which none is proved.
        control: the same measure by chance; NaN in rows where it does not exist.
        quantiles: keep the 95th percentile and the maximum beside the mean.
    """

    value: Tensor
    defined: Tensor
    limit: Tensor | None = None
    control: Tensor | None = None
    quantiles: bool = False

    def sums(self) -> dict[str, Tensor]:
        """What the block adds to a state, by name; the queries are summed over."""
        defined, value = self.defined, self.value
        sums = {"value": torch.where(defined, value, 0.0).sum(1, dtype=torch.float64), "rows": defined.sum(1)}
        if self.limit is not None:
            sums["limit"] = torch.where(defined, self.limit, 0.0).sum(1, dtype=torch.float64)
        if self.control is not None:
            shown = defined & ~torch.isnan(self.control)
            sums["control"] = torch.where(shown, self.control, 0.0).sum(1, dtype=torch.float64)
            sums["control_rows"] = shown.sum(1)
        if self.quantiles:
            sums["histogram"] = _histogram(value, defined)
            sums["largest"] = torch.where(defined, value, -torch.inf).double().amax(1)
            if self.limit is not None:
                sums["largest_limit"] = torch.where(defined, self.limit, -torch.inf).double().amax(1)
        return sums


class Summable(Protocol):
    """What `update` takes: a block's share of a state, tensors that are added (or joined by their extremes)."""

    def sums(self) -> dict[str, Tensor]: ...


@dataclass(frozen=True, eq=False)
class Summary:
    """Means over the defined rows, (head,) or (head, N); NaN where there was no such row.

    Attributes:
        value: mean of the measure.
        limit: mean of the limit; NaN as soon as one defined row has none.
        control: mean of the control.
        rows: how many rows were defined.
    """

    value: Tensor
    limit: Tensor | None
    control: Tensor | None
    rows: Tensor


def update(state: State, readings: Mapping[str, Summable]) -> State:
    """The state after one more block of rows; `compute` gives the means.

    Args:
        state: so far; {} is that of nothing.
        readings: of the block, by name.

    Returns:
        A flat dict of tensors that does not grow with the rows.

    Examples:
        >>> logits = torch.randn(2, 5, 8)
        >>> rows = abbe.measures.Rows(logits, logits.softmax(-1), torch.randn(1, 8, 4), softmax=True)
        >>> state = {}
        >>> for _ in range(3):
        ...     state = abbe.measures.update(state, abbe.measures.dispersion(rows))
        >>> abbe.measures.compute(state)["entropy"].rows.tolist()
        [15, 15]
    """
    return merge(state, {f"{name}/{part}": x for name, r in readings.items() for part, x in r.sums().items()})


def merge(first: State, second: State) -> State:
    """The state of both together, as if their blocks had been added to one.

    Args:
        first: a state.
        second: a state of the same measures.

    Returns:
        A state.

    Raises:
        AbbeError: the states are of different measures or shapes.

    Examples:
        >>> logits = torch.randn(2, 5, 8)
        >>> rows = abbe.measures.Rows(logits, logits.softmax(-1), torch.randn(1, 8, 4), softmax=True)
        >>> state = abbe.measures.update({}, abbe.measures.dispersion(rows))
        >>> abbe.measures.compute(abbe.measures.merge(state, state))["entropy"].rows.tolist()
        [10, 10]
    """
    if not first or not second:
        return dict(first or second)
    if first.keys() != second.keys():
        odd = sorted(first.keys() ^ second.keys())[0]
        raise AbbeError(f"two states of different measures cannot be merged: {odd!r} is in one of them only")
    for name, x in first.items():
        if x.shape != second[name].shape:
            shapes = f"{tuple(x.shape)} and {tuple(second[name].shape)}"
            raise AbbeError(f"two states of different shape cannot be merged: {name!r} has {shapes}")
    return {name: _joined(name, x, second[name]) for name, x in first.items()}


def summarize(readings: Mapping[str, Summable]) -> dict[str, Summary]:
    """The means of one block, all at once.

    Args:
        readings: by name.

    Returns:
        Summaries by name, as `compute` gives them.

    Examples:
        >>> logits = torch.zeros(2, 5, 8)
        >>> rows = abbe.measures.Rows(logits, logits.softmax(-1), torch.randn(1, 8, 4), softmax=True)
        >>> summary = abbe.measures.summarize(abbe.measures.dispersion(rows))["max_weight"]
        >>> summary.value.tolist(), summary.control.tolist()
        ([0.125, 0.125], [0.125, 0.125])
    """
    return compute(update({}, readings))


def compute(state: State) -> dict[str, Summary]:
    """The means over all rows of a state.

    Args:
        state: from `update` or `merge`.

    Returns:
        Summaries by name; for readings with quantiles three, named _mean, _p95 and _max (before an "@", if any).

    Examples:
        >>> logits = torch.zeros(2, 5, 8)
        >>> rows = abbe.measures.Rows(logits, logits.softmax(-1), torch.randn(1, 8, 4), softmax=True)
        >>> state = abbe.measures.update({}, abbe.measures.dispersion(rows))
        >>> [round(x, 3) for x in abbe.measures.compute(state)["effective_tokens"].value.tolist()]
        [8.0, 8.0]
    """
    parts: dict[str, dict[str, Tensor]] = {}
    for key, x in state.items():
        name, _, what = key.rpartition("/")
        parts.setdefault(name, {})[what] = x
    summaries: dict[str, Summary] = {}
    for name, part in parts.items():
        if "value" not in part:
            continue
        mean = Summary(
            part["value"] / _or_nan(part["rows"]),
            part["limit"] / _or_nan(part["rows"]) if "limit" in part else None,
            part["control"] / _or_nan(part["control_rows"]) if "control" in part else None,
            part["rows"],
        )
        summaries |= {name: mean} if "histogram" not in part else _with_quantiles(name, mean, part)
    return summaries


def _with_quantiles(name: str, mean: Summary, part: Mapping[str, Tensor]) -> dict[str, Summary]:
    stem, at, suffix = name.partition("@")
    none = part["rows"] == 0
    ceiling = torch.where(none, torch.nan, part["largest_limit"]) if "largest_limit" in part else None
    p95 = torch.where(none, torch.nan, torch.minimum(_quantile(part["histogram"], 0.95), part["largest"]))
    largest = torch.where(none, torch.nan, part["largest"])
    return {
        f"{stem}_mean{at}{suffix}": mean,
        f"{stem}_p95{at}{suffix}": Summary(p95, ceiling, None, part["rows"]),
        f"{stem}_max{at}{suffix}": Summary(largest, ceiling, None, part["rows"]),
    }


def _joined(name: str, a: Tensor, b: Tensor) -> Tensor:
    part = name.rpartition("/")[2]
    if part.startswith("largest"):
        return torch.maximum(a, b)
    return torch.minimum(a, b) if part.startswith("smallest") else a + b


def _or_nan(rows: Tensor) -> Tensor:
    return torch.where(rows > 0, rows.double(), torch.nan)


def _histogram(value: Tensor, defined: Tensor) -> Tensor:
    """Counts of (head, query) values in bins of equal ratio: (head, bins)."""
    shown = torch.where(defined, value, 0.0).double().clamp(min=_LEAST)
    steps = torch.log(shown / _LEAST) / math.log(_RATIO)
    bins = steps.ceil().clamp(0, _BINS - 1).long()
    counts = torch.zeros(len(value), _BINS, dtype=torch.int32, device=value.device)
    return counts.scatter_add_(1, bins, defined.int())


def _quantile(histogram: Tensor, level: float) -> Tensor:
    """The value below or at which a part `level` of the rows lies, (head,); 0 in the first bin."""
    running = histogram.cumsum(-1)
    rank = (level * running[..., -1:]).ceil().clamp(min=1)
    at = (running < rank).sum(-1).clamp(max=_BINS - 1)
    # The middle of the bin, on the scale of logarithms.
    return torch.where(at > 0, _LEAST * _RATIO ** (at.double() - 0.5), 0.0)
