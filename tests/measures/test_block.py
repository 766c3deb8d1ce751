"""Numbers of blocks: the measures that follow from them, alone and joined over layers, are those of the functions."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from row_cases import nasty_rows, random_rows, seeded

import abbe
from abbe.measures import (
    BlockNumbers,
    Rows,
    Summary,
    block_numbers,
    choose_sets,
    compute,
    decay,
    dispersion,
    geometry,
    join_heads,
    pattern_keys,
    patterns,
    selection,
    sensitivity,
    update,
)

GRID = (1, 2, 5, 11)
TEMPERATURES = (1.0, 0.5)


def tokens_of(rows: Rows) -> tuple[torch.Tensor, torch.Tensor]:
    """Positions of the queries, and tokens that repeat."""
    return torch.linspace(0, rows.keys - 1, rows.queries).round().long(), torch.arange(rows.keys) % 4


def numbers_of(rows: Rows, spec: str = "softmax") -> BlockNumbers:
    positions, tokens = tokens_of(rows)
    sets = choose_sets(rows, GRID, seeded(1))
    return block_numbers(
        rows, sets, {"value": rows.vectors}, abbe.normalizer(spec), TEMPERATURES, seeded(2), positions,
        pattern_keys(tokens),
    )  # fmt: skip


def by_functions(rows: Rows, spec: str = "softmax") -> dict[str, Summary]:
    """One measure at a time, as a reader of the documentation would."""
    sets = choose_sets(rows, GRID, seeded(1))
    of_weights = dispersion(rows) | patterns(rows, *tokens_of(rows)) | selection(rows, sets)
    of_changes = sensitivity(rows, abbe.normalizer(spec), TEMPERATURES, seeded(2))
    state: dict[str, torch.Tensor] = {}
    for name, reading in (of_weights | of_changes | geometry(rows, sets)).items():
        state |= update({}, {name: reading})
    return compute(state | update({}, decay(rows)))


def check_equal(summaries: dict[str, Summary], expected: dict[str, Summary], heads: slice = slice(None)) -> None:
    assert set(summaries) == set(expected)
    for name, want in expected.items():
        for part in ("value", "limit", "control", "rows"):
            got, right = getattr(summaries[name], part), getattr(want, part)
            assert (got is None) == (right is None), (name, part)
            if right is not None:  # sums of float64 in another order
                torch.testing.assert_close(got[heads], right, rtol=1e-13, atol=0, equal_nan=True, msg=f"{name} {part}")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@settings(max_examples=10)
@given(
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=4),
    mask=st.sampled_from(["all", "causal", "window", "some"]),
    spec=st.sampled_from(["softmax", "sparsemax", "sigmoid"]),
    seed=st.integers(0, 99),
)
def test_joined_heads_have_the_measures_of_each_layer(
    dtype: torch.dtype, sizes: list[int], mask: str, spec: str, seed: int
) -> None:
    layers = [random_rows(seed + i, heads=h, spec=spec, mask=mask, dtype=dtype) for i, h in enumerate(sizes)]
    made = abbe.normalizer(spec)
    blocks = [numbers_of(rows, spec) for rows in layers]
    together = compute(update({}, join_heads(blocks).readings("value", made)))
    start = 0
    for rows in layers:
        check_equal(together, by_functions(rows, spec), slice(start, start + rows.heads))
        start += rows.heads


@pytest.mark.parametrize("name", nasty_rows())
def test_rows_at_the_edges(name: str) -> None:
    rows = nasty_rows()[name]
    blocks = [numbers_of(rows)] * 2
    together = compute(update({}, join_heads(blocks).readings("value", abbe.normalizer("softmax"))))
    check_equal(together, by_functions(rows), slice(rows.heads))
    check_equal(together, by_functions(rows), slice(rows.heads, None))


def test_kinds_tell_what_can_be_joined() -> None:
    """Layers with more heads can; other queries, normalizers and types cannot."""
    plain = numbers_of(random_rows(heads=3)).kind
    assert plain == numbers_of(random_rows(heads=5, keys=30)).kind
    for rows in (random_rows(queries=4), random_rows(spec="sparsemax"), random_rows(dtype=torch.float32)):
        assert plain != numbers_of(rows).kind
