"""How weight is spread over keys, which patterns it follows (sink, previous token, induction), and how fast it fades.

The decay exponent is gamma in (largest weight) ~ n^-gamma, over rows of all lengths.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from .. import bounds
from .._errors import AbbeError
from .._kernels.calls import KernelsBrokenError, over_rows
from ._rows import Rows, RowSummary, Sets, flat, row_kernel
from ._state import Reading
from ._statistics import interval_ends, resampled_counts

__all__ = [
    "DecayReading",
    "decay",
    "decay_exponent",
    "dispersion",
    "last_occurrence",
    "mean_decay_exponent",
    "pattern_keys",
    "patterns",
    "selection",
    "weighted_decay_exponents",
]


def dispersion(rows: Rows) -> dict[str, Reading]:
    """Over how many keys a row spreads its weight, and how many its length and its logits allow.

    entropy, effective_tokens, max_weight, logit_range, sink_mass; with softmax the two floors, with a sink its mass.
    `list_measures` says what high and low mean. Entropy and effective number are those of the weights divided by their
    sum, and are defined for weights >= 0.

    Args:
        rows: a block of attention rows.

    Returns:
        Readings by name, each (head, query).

    Examples:
        >>> logits = torch.zeros(1, 1, 8)
        >>> rows = abbe.measures.Rows(logits, logits.softmax(-1), torch.randn(1, 8, 4), softmax=True)
        >>> round(float(abbe.measures.dispersion(rows)["effective_tokens"].value), 4)
        8.0
    """
    return dispersion_readings(rows.summary)


def dispersion_readings(rows: RowSummary) -> dict[str, Reading]:
    facts = rows.facts
    n, total = facts.keys.double().clamp(min=1), facts.total.double()
    alive, some = rows.alive & (facts.smallest >= 0) & (total > 0), facts.keys > 0
    safe = torch.where(alive, total, 1.0)
    entropy = torch.log(safe) - facts.log_moment.double() / safe
    effective = safe**2 / torch.where(alive, facts.squares.double(), 1.0)
    ceiling = weight_ceiling(rows, n)
    readings = {
        "entropy": Reading(entropy, alive, torch.log(n)),
        "effective_tokens": Reading(effective, alive, n),
        "max_weight": Reading(facts.largest, some, ceiling, 1 / n),
        "logit_range": Reading(facts.spread, some, rows.range_limit),
        "sink_mass": Reading(facts.at_first, some, ceiling, 1 / n),
    }
    if rows.softmax:
        readings |= _floors(rows, n, alive)
    if rows.sink:
        readings["learned_sink_mass"] = Reading(1 - total, some)
    return readings


def weight_ceiling(rows: RowSummary, n: Tensor) -> Tensor | None:
    """The largest weight that softmax can give to one of n keys at this spread of the logits."""
    return bounds.weight_range(rows.facts.spread.double(), n)[1] if rows.softmax else None


def _floors(rows: RowSummary, n: Tensor, alive: Tensor) -> dict[str, Reading]:
    """Least entropy and effective number that softmax can have at this spread of the logits."""
    spread = rows.facts.spread.double()
    least = (torch.log(n) - bounds.entropy_deficit_bound(spread)).clamp(min=0)
    fewest = bounds.effective_number_bound(spread, n).clamp(min=1)
    return {"entropy_floor": Reading(least, alive), "effective_tokens_floor": Reading(fewest, alive)}


def selection(rows: Rows, sets: Sets) -> dict[str, Reading]:
    """How much of the row the selected sets hold (top_mass), and how unevenly they share it (selected_divergence).

    `list_measures` says what high and low mean.

    Args:
        rows: a block of attention rows.
        sets: of these rows, from `choose_sets`.

    Returns:
        Readings by name, each (head, query, N).

    Examples:
        >>> logits = torch.zeros(1, 1, 8)
        >>> rows = abbe.measures.Rows(logits, logits.softmax(-1), torch.randn(1, 8, 4), softmax=True)
        >>> sets = abbe.measures.choose_sets(rows, (1, 2), torch.Generator().manual_seed(0))
        >>> abbe.measures.selection(rows, sets)["top_mass"].value.tolist()
        [[[0.125, 0.25]]]
    """
    return selection_readings(rows.summary, sets.grid, set_masses(rows, sets))


class SetMasses(NamedTuple):
    """Sums over the sets, (selected or random, head, query, N), in float64."""

    mass: Tensor  # of w
    moment: Tensor  # of w ln w; NaN from a negative weight on


def selection_readings(rows: RowSummary, grid: Sequence[int], sums: SetMasses) -> dict[str, Reading]:
    mass, (divergence, by_chance) = sums.mass[0], _divergence(sums, grid)
    defined, n = rows.defined(grid), rows.count.unsqueeze(-1).double()
    sizes = torch.tensor(tuple(grid), device=mass.device)
    return {
        "top_mass": Reading(mass, defined, _mass_ceiling(rows, sizes, defined), sizes / n.clamp(min=1)),
        "selected_divergence": Reading(divergence, defined & ~torch.isnan(divergence), None, by_chance),
    }


def _mass_ceiling(rows: RowSummary, sizes: Tensor, defined: Tensor) -> Tensor | None:
    if not rows.softmax:
        return None
    n = torch.where(defined, rows.count.unsqueeze(-1), sizes + 1)
    return bounds.top_mass_bounds(rows.facts.spread.double().unsqueeze(-1), n, sizes)[1]


def _divergence(sums: SetMasses, grid: Sequence[int]) -> Tensor:
    """ln N - H of the weights of the sets, divided by the mass, from equal shares.

    NaN where a set has no mass or a negative weight.
    """
    safe = torch.where(sums.mass > 0, sums.mass, torch.nan)
    sizes = torch.tensor(tuple(grid), device=safe.device).double()
    return (torch.log(sizes) + sums.moment / safe - torch.log(safe)).clamp(min=0)


def set_masses(rows: Rows, sets: Sets) -> SetMasses:
    if rows.fused:
        with suppress(KernelsBrokenError):
            return _fused_masses(rows, sets)
    w = torch.stack([rows.weights.gather(-1, order) for order in (sets.selected, sets.random)])
    return SetMasses(*(sets.at_grid(x.cumsum(-1, dtype=torch.float64)) for x in (w, torch.xlogy(w, w))))


def _fused_masses(rows: Rows, sets: Sets) -> SetMasses:
    weights, sizes = flat(rows.weights), torch.tensor(sets.grid)
    mass, moment = torch.empty(2, 2, len(weights), len(sizes), dtype=torch.float64)
    for order, *sums in zip((sets.selected, sets.random), mass, moment, strict=True):
        over_rows(row_kernel("set_masses"), len(weights), weights, flat(order), sizes, *sums)
    shape = 2, rows.heads, rows.queries, -1
    return SetMasses(mass.view(shape), moment.view(shape))


def patterns(rows: Rows, positions: Tensor, tokens: Tensor) -> dict[str, Reading]:
    """How much weight queries give to the token before them, and to the one that followed the last copy of their token.

    previous_token is the weight on the key just before the query; induction that on the key after the last earlier
    occurrence of the query's token. Both look back only, even where later keys are visible, so that causal and
    bidirectional heads can be compared. A query counts if it sees the key that the pattern expects, and that key is not
    its own. The limit is that of any single weight, the control a uniform head: 1/n. High means that the head follows
    the pattern, low that it does not.

    Args:
        rows: of self-attention.
        positions: of the queries in the window, (query,).
        tokens: of the keys, (key,).

    Returns:
        Readings previous_token and induction, each (head, query).

    Examples:
        >>> logits = torch.zeros(1, 4, 4)
        >>> rows = abbe.measures.Rows(logits, logits.softmax(-1), torch.randn(1, 4, 2), softmax=True)
        >>> readings = abbe.measures.patterns(rows, torch.arange(4), torch.tensor([5, 6, 7, 5]))
        >>> readings["induction"].defined.tolist(), readings["induction"].value[0, 3].item()
        ([[False, False, False, True]], 0.25)
    """
    if tokens.shape != (rows.keys,) or positions.shape != (rows.queries,):
        shapes = f"{tuple(positions.shape)} and {tuple(tokens.shape)}"
        raise AbbeError(f"positions and tokens must be ({rows.queries} queries,) and ({rows.keys} keys,), got {shapes}")
    return pattern_readings(rows.summary, pattern_weights(rows, positions, pattern_keys(tokens)))


class PatternWeight(NamedTuple):
    """Weight of the key that a pattern expects, (head, query)."""

    weight: Tensor
    seen: Tensor  # bool: the pattern expects a key, and the query sees it


def pattern_weights(rows: Rows, positions: Tensor, expected: Mapping[str, Tensor]) -> dict[str, PatternWeight]:
    """Weights by pattern; `expected` comes from `pattern_keys`."""
    device = rows.logits.device
    weights = {}
    for name, keys in expected.items():
        key = keys.to(device)[positions.to(device)]
        at = key.clamp(min=0).expand(rows.heads, -1).unsqueeze(-1)
        seen = rows.logits.gather(-1, at).squeeze(-1) != -torch.inf
        weights[name] = PatternWeight(rows.weights.gather(-1, at).squeeze(-1), seen & (key >= 0))
    return weights


def pattern_readings(rows: RowSummary, weights: Mapping[str, PatternWeight]) -> dict[str, Reading]:
    n = rows.count.double().clamp(min=1)
    ceiling, uniform = weight_ceiling(rows, n), 1 / n
    return {name: Reading(one.weight, one.seen, ceiling, uniform) for name, one in weights.items()}


def pattern_keys(tokens: Tensor) -> dict[str, Tensor]:
    """The key that each pattern expects the query at every position to attend to, -1 for none.

    Args:
        tokens: (key,).

    Returns:
        Keys by pattern, each (key,).

    Examples:
        >>> {name: keys.tolist() for name, keys in abbe.measures.pattern_keys(torch.tensor([5, 6, 7, 5])).items()}
        {'previous_token': [-1, 0, 1, 2], 'induction': [-1, -1, -1, 1]}
    """
    places = torch.arange(len(tokens), device=tokens.device)
    after = last_occurrence(tokens) + 1
    # The second of two equal neighbours would expect itself, which says nothing about the head.
    return {"previous_token": places - 1, "induction": torch.where((after > 0) & (after < places), after, -1)}


def last_occurrence(tokens: Tensor) -> Tensor:
    """The position of the last earlier occurrence of the token at each position, -1 if there is none.

    Args:
        tokens: (key,).

    Returns:
        Positions, (key,).

    Examples:
        >>> abbe.measures.last_occurrence(torch.tensor([5, 6, 5, 5])).tolist()
        [-1, -1, 0, 2]
    """
    order = tokens.argsort(stable=True)  # equal tokens become neighbours, in their order
    again = tokens[order[1:]] == tokens[order[:-1]]
    earlier = torch.full_like(order, -1)
    earlier[order[1:]] = torch.where(again, order[:-1], -1)
    return earlier


_ADDED = ("rows", "x", "y", "xx", "xy")


@dataclass(frozen=True, eq=False)
class DecayReading:
    """What a block of rows adds to the regression of `decay_exponent`.

    Attributes:
        x: ln n, (head, query).
        y: ln of the largest weight, (head, query).
        defined: bool (head, query), the rows that count.
    """

    x: Tensor
    y: Tensor
    defined: Tensor

    def sums(self) -> dict[str, Tensor]:
        """Sums for a regression, and the extremes of x, by name: all (head,)."""
        x, y = (torch.where(self.defined, part, 0.0).double() for part in (self.x, self.y))
        return {
            "rows": self.defined.double().sum(1),
            "x": x.sum(1),
            "y": y.sum(1),
            "xx": (x * x).sum(1),
            "xy": (x * y).sum(1),
            "smallest": torch.where(self.defined, x, torch.inf).amin(1),
            "largest": torch.where(self.defined, x, -torch.inf).amax(1),
        }


def decay(rows: Rows) -> dict[str, DecayReading]:
    """The reading of a block for `update` and `decay_exponent`. Rows of one key or without weight do not count.

    Args:
        rows: a block of attention rows.

    Returns:
        One reading, "decay".

    Examples:
        >>> logits = torch.randn(2, 5, 8)
        >>> rows = abbe.measures.Rows(logits, logits.softmax(-1), torch.randn(1, 8, 4), softmax=True)
        >>> abbe.measures.decay(rows)["decay"].sums()["rows"].tolist()
        [5.0, 5.0]
    """
    return decay_readings(rows.summary)


def decay_readings(rows: RowSummary) -> dict[str, DecayReading]:
    facts = rows.facts
    defined = (facts.keys >= 2) & (facts.largest > 0)
    largest = torch.where(defined, facts.largest.double(), 1.0)
    return {"decay": DecayReading(facts.keys.double().clamp(min=1).log(), largest.log(), defined)}


def decay_exponent(
    sums: Mapping[str, Tensor], level: float = 0.95, resamples: int = 1000, seed: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    """How fast the largest weight fades as the context grows: gamma in (largest weight) ~ n^-gamma.

    Least squares of ln(largest weight) on ln n over all rows with n >= 2; the interval by resampling windows. High
    means that the head fades as the context grows (1: like a uniform head), 0 that it holds its focus.

    Args:
        sums: of single windows, by name ("x", "xx", ...), each (window, ...), from `decay` and `update`.
        level: of the interval, in (0, 1).
        resamples: >= 1.
        seed: of the draws.

    Returns:
        Exponent, low and high end, each (...). NaN where all n are equal; no interval from fewer than two windows.

    Examples:
        >>> logits = torch.zeros(1, 8, 8).masked_fill(~torch.ones(8, 8).tril().bool(), -torch.inf)
        >>> uniform = abbe.measures.Rows(logits, logits.softmax(-1), torch.randn(1, 8, 4), softmax=True)
        >>> sums = abbe.measures.decay(uniform)["decay"].sums()
        >>> windows = {name: torch.stack([part, part]) for name, part in sums.items()}
        >>> [round(float(x), 6) for x in abbe.measures.decay_exponent(windows)]
        [1.0, 1.0, 1.0]
    """
    shape = sums["x"].shape[1:]
    flat, measured = _flat(sums)
    value, resampled = _value_and_resampled(flat, resamples, seed)
    windows = measured.sum(0)
    none = (windows < 2) | value.isnan()
    low, high = (torch.where(none, torch.nan, end).view(shape) for end in interval_ends(resampled, level, windows))
    return value.view(shape), low, high


def mean_decay_exponent(
    sums: Mapping[str, Tensor], level: float = 0.95, resamples: int = 1000, seed: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    """The mean exponent of all heads, and its interval by resampling windows with all their heads.

    High (1) means that heads fade with the context like uniform ones, 0 that they hold their focus.

    Args:
        sums: of single windows, as for `decay_exponent`.
        level: of the interval, in (0, 1).
        resamples: >= 1.
        seed: of the draws.

    Returns:
        Mean exponent, low and high end: numbers.

    Examples:
        >>> logits = torch.zeros(1, 8, 8).masked_fill(~torch.ones(8, 8).tril().bool(), -torch.inf)
        >>> uniform = abbe.measures.Rows(logits, logits.softmax(-1), torch.randn(1, 8, 4), softmax=True)
        >>> sums = abbe.measures.decay(uniform)["decay"].sums()
        >>> windows = {name: torch.stack([part, part]) for name, part in sums.items()}
        >>> round(float(abbe.measures.mean_decay_exponent(windows)[0]), 6)
        1.0
    """
    flat, measured = _flat(sums)
    exponents, resampled = _value_and_resampled(flat, resamples, seed)
    value, windows = exponents.nanmean(), measured.any(1).sum()
    none = (windows < 2) | value.isnan()
    ends = interval_ends(resampled.nanmean(1, keepdim=True), level, windows)
    low, high = (torch.where(none, torch.nan, end[0]) for end in ends)
    return value, low, high


def weighted_decay_exponents(sums: Mapping[str, Tensor], counts: Tensor) -> Tensor:
    """Decay exponents of weighted windows.

    High (1) means that heads fade with the context, 0 that they hold their focus. The same counts for two models on the
    same windows give paired differences; counts of 1 except for one window, a jackknife.

    Args:
        sums: of single windows, as for `decay_exponent`.
        counts: how often each window counts, (weighting, window).

    Returns:
        Exponents, (weighting, ...); NaN where all n are equal.

    Examples:
        >>> logits = torch.zeros(1, 8, 8).masked_fill(~torch.ones(8, 8).tril().bool(), -torch.inf)
        >>> uniform = abbe.measures.Rows(logits, logits.softmax(-1), torch.randn(1, 8, 4), softmax=True)
        >>> sums = abbe.measures.decay(uniform)["decay"].sums()
        >>> windows = {name: torch.stack([part, part]) for name, part in sums.items()}
        >>> [round(float(x), 6) for x in abbe.measures.weighted_decay_exponents(windows, torch.eye(2))]
        [1.0, 1.0]
    """
    flat, _ = _flat(sums)
    return _slope(flat, counts.double()).view(len(counts), *sums["x"].shape[1:])


def _flat(sums: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], Tensor]:
    """The sums as (window, cell), neutral where a window has no row; and where it has one."""
    flat = {name: sums[name].double().reshape(len(sums["x"]), -1) for name in (*_ADDED, "smallest", "largest")}
    measured = flat["rows"] > 0  # false for NaN, too
    neutral = dict.fromkeys(_ADDED, 0.0) | {"smallest": torch.inf, "largest": -torch.inf}
    return {name: torch.where(measured, flat[name], fill) for name, fill in neutral.items()}, measured


def _value_and_resampled(flat: Mapping[str, Tensor], resamples: int, seed: int) -> tuple[Tensor, Tensor]:
    """Exponents of all windows together, (cell,), and of every resample, (resample, cell)."""
    windows = len(flat["x"])
    value = _slope(flat, torch.ones(1, windows, dtype=torch.float64))[0]
    return value, _slope(flat, resampled_counts(windows, resamples, seed))


def _slope(flat: Mapping[str, Tensor], counts: Tensor) -> Tensor:
    """-slope of every resample, (resample, cell); NaN where all its rows have one n."""
    rows, x, y, xx, xy = (counts @ flat[name] for name in _ADDED)
    drawn = counts.unsqueeze(-1) > 0
    smallest = torch.where(drawn, flat["smallest"], torch.inf).amin(1)
    largest = torch.where(drawn, flat["largest"], -torch.inf).amax(1)
    varies = largest > smallest
    spread = torch.where(varies, rows * xx - x * x, torch.nan)
    return -(rows * xy - x * y) / spread
