"""Readings of rows, their sums over blocks, and the means: every measure is streamed by these four functions.

A state is a flat dict of tensors, none of which grows with the rows: `update` adds a block to it, `merge` adds two
states, `compute` gives the means. A state starts as an empty dict.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from .._errors import AbbeError

__all__ = ["Reading", "State", "Summary", "compute", "merge", "summarize", "update"]

State = dict[str, Tensor]

_RATIO = 1.01  # from one bin of the histogram to the next: a quantile is right within half a percent
_LEAST, _BINS = 1e-8, 4000  # the first bin holds all smaller values, the last reaches 1e9


@dataclass(frozen=True, eq=False)
class Reading:
    """One measure on a block of rows.

    Attributes:
        value: (head, query) or (head, query, N).
        defined: bool of the same shape: other rows do not count.
        limit: a proved bound; NaN in rows for which none is proved.
        control: the same measure by chance; NaN in rows where it does not exist.
        quantiles: keep the 95th percentile and the maximum as well as the mean.
    """

    value: Tensor
    defined: Tensor
    limit: Tensor | None = None
    control: Tensor | None = None
    quantiles: bool = False

    def sums(self, queries: int = 1) -> dict[str, Tensor]:
        """The block's contribution to a state, by name.

        Args:
            queries: the axis to sum over.
        """
        defined, value = self.defined, self.value
        sums = {
            "value": torch.where(defined, value, 0.0).sum(queries, dtype=torch.float64),
            "rows": defined.sum(queries - value.dim()),
        }
        if self.limit is not None:
            sums["limit"] = torch.where(defined, self.limit, 0.0).sum(queries, dtype=torch.float64)
        if self.control is not None:
            exists = defined & ~torch.isnan(self.control)
            sums["control"] = torch.where(exists, self.control, 0.0).sum(queries, dtype=torch.float64)
            sums["control_rows"] = exists.sum(queries)
        if self.quantiles:
            sums["histogram"] = _histogram(value, defined)
            sums["largest"] = torch.where(defined, value, -torch.inf).double().amax(queries)
            if self.limit is not None:
                sums["largest_limit"] = torch.where(defined, self.limit, -torch.inf).double().amax(queries)
        return sums


class Summable(Protocol):
    """What `update` takes: a block's contribution to a state, tensors that are added (or reduced to their extremes)."""

    def sums(self) -> dict[str, Tensor]: ...


@dataclass(frozen=True, eq=False)
class Summary:
    """Means over the defined rows, (head,) or (head, N); NaN where there are none.

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
        state: so far; {} at the start.
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
    sums = _plain_sums(readings)
    sums |= {name: reading.sums() for name, reading in readings.items() if name not in sums}
    return merge(state, {f"{name}/{part}": x for name in readings for part, x in sums[name].items()})


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
        raise AbbeError(f"states of different measures cannot be merged: {odd!r} is in only one of them")
    for name, x in first.items():
        if x.shape != second[name].shape:
            shapes = f"{tuple(x.shape)} and {tuple(second[name].shape)}"
            raise AbbeError(f"states of different shapes cannot be merged: {name!r} has {shapes}")
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
    means = _means({name: part for name, part in parts.items() if "value" in part})
    summaries: dict[str, Summary] = {}
    for name, mean in means.items():
        part = parts[name]
        summaries |= {name: mean} if "histogram" not in part else _with_quantiles(name, mean, part)
    return summaries


# On so few numbers a torch call costs more than its arithmetic: measures of one shape are stacked, and summed or
# divided together.


def _plain_sums(readings: Mapping[str, Summable]) -> dict[str, dict[str, Tensor]]:
    """The sums of the readings without quantiles."""
    plain = {name: one for name, one in readings.items() if isinstance(one, Reading) and not one.quantiles}
    sums: dict[str, dict[str, Tensor]] = {}
    for names in _grouped({name: (r.value.shape, r.limit is None, r.control is None) for name, r in plain.items()}):
        group = [plain[name] for name in names]
        parts = ([getattr(one, part) for one in group] for part in ("value", "defined", "limit", "control"))
        value, defined, limit, control = (None if xs[0] is None else _stacked(xs) for xs in parts)
        assert value is not None
        assert defined is not None
        joined = Reading(value, defined, limit, control).sums(queries=2)
        of_each = {part: x.expand(len(names), *x.shape[1:]).unbind() for part, x in joined.items()}
        # Copies: safetensors refuses views of one tensor.
        sums |= {name: {part: xs[i].clone() for part, xs in of_each.items()} for i, name in enumerate(names)}
    return sums


def _means(parts: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Summary]:
    """Means in the order of the names."""
    means: dict[str, Summary] = {}
    for names in _grouped({name: (p["value"].shape, "limit" in p, "control" in p) for name, p in parts.items()}):
        group = [parts[name] for name in names]
        value, limit, control = (_divided(group, *which) for which in _MEANS)
        means |= {name: Summary(value[i], limit[i], control[i], group[i]["rows"]) for i, name in enumerate(names)}
    return {name: means[name] for name in parts}


_MEANS = (("value", "rows"), ("limit", "rows"), ("control", "control_rows"))  # sums, and what they are divided by


def _divided(group: Sequence[Mapping[str, Tensor]], sums: str, rows: str) -> Sequence[Any]:
    """A mean of each, or None if they have no such sums."""
    if sums not in group[0]:
        return [None] * len(group)
    means = _stacked([part[sums] for part in group]) / _or_nan(_stacked([part[rows] for part in group]))
    return means.expand(len(group), *means.shape[1:]).unbind()


def _grouped(kinds: Mapping[str, object]) -> list[list[str]]:
    """The names of each kind."""
    names: dict[object, list[str]] = {}
    for name, kind in kinds.items():
        names.setdefault(kind, []).append(name)
    return list(names.values())


def _stacked(parts: Sequence[Tensor]) -> Tensor:
    """Tensors along a new first axis, of length 1 if all are the same tensor."""
    first = parts[0]
    return first.unsqueeze(0) if all(part is first for part in parts) else torch.stack(list(parts))


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
    clamped = torch.where(defined, value, 0.0).double().clamp(min=_LEAST)
    steps = torch.log(clamped / _LEAST) / math.log(_RATIO)
    bins = steps.ceil().clamp(0, _BINS - 1).long()
    counts = torch.zeros(len(value), _BINS, dtype=torch.int32, device=value.device)
    return counts.scatter_add_(1, bins, defined.int())


def _quantile(histogram: Tensor, level: float) -> Tensor:
    """The value at or below which a share `level` of the rows lies, (head,); 0 in the first bin."""
    running = histogram.cumsum(-1)
    rank = (level * running[..., -1:]).ceil().clamp(min=1)
    at = (running < rank).sum(-1).clamp(max=_BINS - 1)
    # The middle of the bin, on a logarithmic scale.
    return torch.where(at > 0, _LEAST * _RATIO ** (at.double() - 0.5), 0.0)
