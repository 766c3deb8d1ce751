"""Readings of critical N: what "expected" means, and what is tested.

arXiv 2508.17821 compares the distance of the selected tokens with an expected one. That can be the mean over random
sets, drawn here, or the formula of its Theorem 1(2) without epsilon. The Kolmogorov-Smirnov test can be run on the
heads' means over queries, per query on the heads' distances there, or on all queries of all heads at once.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ...measures import Reading, critical_of_units

LEVELS = (0.01, 0.05)  # of the test, in the text and in the pseudocode of the paper
EXPECTED: Mapping[str, str] = {  # with its key in the records of windows
    "random sets": "distance/control",
    "formula": "expected_distance_low/value",
}
TESTS = ("head means", "each query", "all queries")
DEFAULT = "random sets", "head means"
READINGS = tuple(itertools.product(EXPECTED, TESTS))


def critical_name(level: float, expected: str, test: str) -> str:
    """The measure in the table of a run."""
    return f"critical_n@{level:g}, {expected}, {test}"


def rejecting_name(level: float, expected: str, test: str) -> str:
    return f"rejecting@{level:g}, {expected}, {test}"


def units_key(expected: str, test: str, level: float) -> str:
    """In the record of a window: critical N of its tests, (test,), +inf if every N is rejected."""
    return f"critical/{expected}/{test}@{level:g}"


class QueryDistances:
    """The distances of single queries in one window, kept until all layers are read: a test needs all heads."""

    def __init__(self) -> None:
        self._blocks: list[Tensor] = []
        self._layers: list[Tensor] = []
        self._positions = torch.tensor([], dtype=torch.long)

    def add(self, distance: Reading, formula: Reading) -> None:
        """A block of queries of one layer; NaN where a set leaves no key out."""
        assert distance.control is not None
        parts = [x.float() for x in (distance.value, distance.control, formula.value)]
        self._blocks.append(torch.where(distance.defined, torch.stack(parts), torch.nan).cpu())

    def end_layer(self, positions: Tensor) -> None:
        if self._blocks:
            self._layers.append(torch.cat(self._blocks, 2))
            self._blocks, self._positions = [], positions

    def tests(self, length: int, grid: Sequence[int]) -> dict[str, Tensor]:
        """Critical N per query, and of all queries at once, by `units_key`; empty if nothing was added.

        Sets of at most half the window. Single queries come from its second half, where all see enough keys: else
        they would be tested at different sizes.
        """
        if not self._layers:
            return {}
        usable = [i for i, n in enumerate(grid) if 2 * n <= length]
        sizes = [grid[i] for i in usable]
        distances = torch.cat(self._layers, 1)[..., usable]  # (kind, head, query, N)
        late = distances[:, :, self._positions >= length // 2]
        units = {"each query": late.permute(0, 2, 3, 1), "all queries": distances.flatten(1, 2).mT[:, None]}
        critical = {}
        for (place, expected), test, level in itertools.product(enumerate(EXPECTED, 1), TESTS[1:], LEVELS):
            true, other = units[test][0], units[test][place]
            key = units_key(expected, test, level)
            none = torch.empty(0, dtype=torch.float64)
            critical[key] = critical_of_units(true, other, sizes, level) if sizes and len(true) else none
        return critical


def over_units(critical: Tensor) -> tuple[float | None, float | None]:
    """The median critical N (None if more than half of the tests reject at every N), and the share of such tests."""
    tested = critical[~critical.isnan()].sort().values
    if not len(tested):
        return None, None
    median = float(tested[(len(tested) - 1) // 2])
    return None if median == torch.inf else median, float((tested == torch.inf).double().mean())
