"""The numbers of a block of rows from which all usual measures follow, and those of several layers together.

Kernels compute them while the rows of a layer are in the cache. The measures then take some hundred torch calls on few
numbers, and a call costs more than its arithmetic: the numbers of several layers are joined first, and the calls made
once for all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..normalizers import Normalizer
from ._dispersion import (
    DecayReading,
    PatternWeight,
    SetMasses,
    decay_readings,
    dispersion_readings,
    pattern_readings,
    pattern_weights,
    selection_readings,
    set_masses,
)
from ._geometry import LimitTerms, RowGeometry, SetGeometry, geometry_readings, row_geometry
from ._rows import RowFacts, Rows, RowSummary, Sets
from ._sensitivity import ChangeNorms, change_norms, sensitivity_readings
from ._state import Reading

__all__ = ["BlockNumbers", "block_numbers", "join_heads"]


@dataclass(frozen=True, eq=False)
class BlockNumbers:
    """The numbers of a block of rows, or of the heads of several blocks.

    Attributes:
        rows: their numbers per row, without logits and weights.
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
        """Blocks of one kind can be joined: they differ at most in the number of heads."""
        rows, total = self.rows, self.rows.facts.total
        names = tuple(self.geometry), tuple(self.patterns), tuple(self.norms)
        flags = rows.range_limit is None, rows.softmax, rows.sink
        return (self.grid, *names, *flags, total.shape[1:], total.dtype, total.device)

    def readings(self, vectors: str, normalizer: Normalizer) -> dict[str, Reading | DecayReading]:
        """Every measure.

        Args:
            vectors: the kind of vectors for the geometry.
            normalizer: of the weights.

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
        vectors: (group, key, feature), by kind; those of the rows are one of them.
        normalizer: of the weights.
        temperatures: T > 0 at which the sensitivity is measured; none leaves it out.
        generator: of the directions of the sensitivity.
        positions: of the queries in the window, (query,), for attention patterns.
        expected: `pattern_keys` of the tokens of the window; None leaves the patterns out.

    Returns:
        The numbers; `readings` turns them into measures.

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
    """One block with the heads of all blocks, which must be of one kind.

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
    limits = [block.rows.range_limit for block in blocks if block.rows.range_limit is not None]
    facts = RowFacts(*_joined([block.rows.facts for block in blocks]))
    geometry = {}
    for kind in first.geometry:
        sets = _joined([block.geometry[kind].sets for block in blocks], -3)
        geometry[kind] = RowGeometry(
            SetGeometry(*sets), LimitTerms(*_joined([block.geometry[kind].limits for block in blocks], -3))
        )
    return BlockNumbers(
        replace(first.rows, facts=facts, range_limit=torch.cat(limits) if limits else None),
        first.grid,
        SetMasses(*_joined([block.masses for block in blocks], -3)),
        geometry,
        {name: PatternWeight(*_joined([block.patterns[name] for block in blocks])) for name in first.patterns},
        {t: ChangeNorms(*_joined([block.norms[t] for block in blocks])) for t in first.norms},
    )


def _joined(parts: Sequence[Sequence[Tensor]], heads: int = 0) -> list[Tensor]:
    """Field by field, along the axis of the heads."""
    return [torch.cat(field, heads) for field in zip(*parts, strict=True)]
