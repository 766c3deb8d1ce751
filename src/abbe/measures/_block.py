"""The numbers of a block of rows from which all usual measures follow, and those of several layers together.

Kernels make them while the rows of a layer are in the cache. What follows takes some hundred calls of torch on few
numbers, each of which costs more than they do: the numbers are small, so those of several layers can wait for each
other, and the calls are made once for all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..normalizers import Normalizer
from ._decay import DecayReading, decay_readings
from ._dispersion import SetMasses, dispersion_readings, selection_readings, set_masses
from ._geometry import geometry_readings
from ._patterns import PatternWeight, pattern_readings, pattern_weights
from ._rows import RowFacts, Rows, RowSummary
from ._sensitivity import ChangeNorms, change_norms, sensitivity_readings
from ._set_geometry import LimitTerms, RowGeometry, SetGeometry, row_geometry
from ._sets import Sets
from ._state import Reading


@dataclass(frozen=True, eq=False)
class BlockNumbers:
    """Of a block of rows, or of the heads of several such blocks.

    Attributes:
        rows: what is known of the rows without logits and weights.
        grid: the sizes N of the sets.
        masses: of the sets.
        geometry: of the sets, by kind of vectors.
        patterns: weight of the keys that attention patterns expect, by pattern.
        norms: how far the weights move, by temperature.
    """

    rows: RowSummary
    grid: tuple[int, ...]
    masses: SetMasses
    geometry: Mapping[Any, RowGeometry]
    patterns: Mapping[str, PatternWeight]
    norms: Mapping[float, ChangeNorms]

    @property
    def heads(self) -> int:
        """Number of heads."""
        return len(self.rows.count)

    @property
    def kind(self) -> tuple[object, ...]:
        """Blocks of one kind can be joined: they differ in the number of heads at most."""
        rows, total = self.rows, self.rows.facts.total
        names = tuple(self.geometry), tuple(self.patterns), tuple(self.norms)
        flags = rows.range_limit is None, rows.softmax, rows.sink
        return (self.grid, *names, *flags, total.shape[1:], total.dtype, total.device)

    def readings(self, vectors: str, normalizer: Normalizer) -> dict[str, Reading | DecayReading]:
        """Every measure.

        Args:
            vectors: the kind of vectors for the geometry.
            normalizer: that made the weights.

        Returns:
            Readings by name, for `update`.
        """
        return {
            **dispersion_readings(self.rows),
            **pattern_readings(self.rows, self.patterns),
            **selection_readings(self.rows, self.grid, self.masses),
            **decay_readings(self.rows),
            **(sensitivity_readings(self.rows, normalizer, self.norms) if self.norms else {}),
            **geometry_readings(self.rows, self.grid, self.geometry[vectors]),
        }


def block_numbers(
    rows: Rows, sets: Sets, vectors: Mapping[Any, Tensor], normalizer: Normalizer, temperatures: Sequence[float] = (),
    generator: torch.Generator | None = None, positions: Tensor | None = None,
    expected: Mapping[str, Tensor] | None = None,
) -> BlockNumbers:  # fmt: skip
    """The numbers of a block of rows from which every usual measure follows.

    Args:
        rows: a block of attention rows.
        sets: of these rows, from `choose_sets`.
        vectors: (group, key, feature), by a name of their kind; those of the rows are one of them.
        normalizer: that made the weights.
        temperatures: T > 0 at which the sensitivity is measured; none leaves it out.
        generator: of the directions of the sensitivity.
        positions: of the queries in the window, (query,), for attention patterns.
        expected: what `pattern_keys` gives for the tokens of the window; None leaves the patterns out.

    Returns:
        The numbers; `readings` makes measures of them.

    Examples:
        >>> logits = torch.zeros(1, 1, 8)
        >>> rows = abbe.measures.Rows(logits, logits.softmax(-1), torch.randn(1, 8, 4), softmax=True)
        >>> sets = abbe.measures.choose_sets(rows, (1, 2), torch.Generator().manual_seed(0))
        >>> softmax = abbe.normalizer("softmax")
        >>> numbers = abbe.measures.block_numbers(rows, sets, {"value": rows.vectors}, softmax)
        >>> round(float(numbers.readings("value", softmax)["effective_tokens"].value), 4)
        8.0
    """
    weights = {} if positions is None or expected is None else pattern_weights(rows, positions, expected)
    norms = {} if generator is None or not temperatures else change_norms(rows, normalizer, temperatures, generator)
    geometry = {
        kind: row_geometry(rows if points is rows.vectors else rows.with_vectors(points), sets)
        for kind, points in vectors.items()
    }
    return BlockNumbers(rows.summary, sets.grid, set_masses(rows, sets), geometry, weights, norms)


def join_heads(blocks: Sequence[BlockNumbers]) -> BlockNumbers:
    """The heads of all blocks, which are of one kind, as those of one.

    Args:
        blocks: one or more, with equal `kind`.

    Examples:
        >>> logits = torch.zeros(2, 1, 8)
        >>> rows = abbe.measures.Rows(logits, logits.softmax(-1), torch.randn(1, 8, 4), softmax=True)
        >>> sets = abbe.measures.choose_sets(rows, (1, 2), torch.Generator().manual_seed(0))
        >>> numbers = abbe.measures.block_numbers(rows, sets, {"value": rows.vectors}, abbe.normalizer("softmax"))
        >>> abbe.measures.join_heads([numbers, numbers, numbers]).heads
        6
    """
    first = blocks[0]
    if len(blocks) == 1:
        return first
    rows = replace(
        first.rows,
        facts=RowFacts(*_rows([block.rows.facts for block in blocks])),
        range_limit=None
        if first.rows.range_limit is None
        else torch.cat([block.rows.range_limit for block in blocks if block.rows.range_limit is not None]),
    )
    geometry = {}
    for kind in first.geometry:
        parts = [block.geometry[kind] for block in blocks]
        sets, limits = _sets([part.sets for part in parts]), _sets([part.limits for part in parts])
        geometry[kind] = RowGeometry(SetGeometry(*sets), LimitTerms(*limits))
    return BlockNumbers(
        rows,
        first.grid,
        SetMasses(*_sets([block.masses for block in blocks])),
        geometry,
        {name: PatternWeight(*_rows([block.patterns[name] for block in blocks])) for name in first.patterns},
        {t: ChangeNorms(*_rows([block.norms[t] for block in blocks])) for t in first.norms},
    )


def _rows(parts: Sequence[Sequence[Tensor]]) -> list[Tensor]:
    """Field by field, (head, query) each."""
    return [torch.cat(field) for field in zip(*parts, strict=True)]


def _sets(parts: Sequence[Sequence[Tensor]]) -> list[Tensor]:
    """Field by field, (..., head, query, N) each."""
    return [torch.cat(field, -3) for field in zip(*parts, strict=True)]
