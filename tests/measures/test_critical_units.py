"""Critical N of many tests at once, against single tests; the formula of Theorem 1(2) for many sizes."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from row_cases import as_type, random_rows, seeded
from test_expected import by_enumeration

from abbe import AbbeError
from abbe.measures import Rows, choose_sets, critical_of_units, distance_formula, expected_distance, ks_test


@pytest.mark.parametrize("level", [0.01, 0.05])
@settings(max_examples=60)
@given(st.integers(0, 10**6), st.integers(1, 60), st.booleans(), st.floats(0, 0.4), st.floats(0, 1.5))
def test_every_unit_is_judged_by_its_own_tests(
    level: float, seed: int, samples: int, ties: bool, missing: float, shift: float
) -> None:
    draw, grid = seeded(seed), (1, 2, 4, 8)
    first, second = (torch.randn(3, 4, samples, generator=draw, dtype=torch.float64) for _ in range(2))
    second += shift * torch.arange(4).flip(0)[:, None]
    if ties:
        first, second = first.round(), second.round()
    first[torch.rand(first.shape, generator=draw) < missing] = math.nan
    for unit, critical in enumerate(critical_of_units(first, second, grid, level).tolist()):
        known = ~(first[unit].isnan() | second[unit].isnan())
        tested = [n for n in range(4) if bool(known[n].any())]
        passing = [grid[n] for n in tested if ks_test(first[unit, n, known[n]], second[unit, n, known[n]])[1] > level]
        wanted = math.nan if not tested else next(iter(passing), math.inf)
        assert critical == pytest.approx(wanted, nan_ok=True)


def test_the_first_size_that_does_not_reject() -> None:
    low, high = torch.arange(10.0), torch.arange(10.0) + 100
    true = torch.stack([torch.stack([low, low, low]), torch.stack([low, low, low]), torch.full((3, 10), math.nan)])
    other = torch.stack([torch.stack([high, low, high]), torch.stack([high, high, high]), true[2]])
    sizes = critical_of_units(true, other, (1, 4, 16), 0.01)
    assert sizes[:2].tolist() == [4.0, math.inf]
    assert math.isnan(float(sizes[2]))
    few = critical_of_units(true[..., :4], other[..., :4], (1, 4, 16), 0.01)  # four samples never reject
    assert few[:2].tolist() == [1.0, 1.0]
    with pytest.raises(AbbeError, match="must both be"):
        critical_of_units(true, other[:2], (1, 4, 16), 0.01)


@settings(max_examples=25)
@given(st.integers(0, 10**6), st.integers(3, 7), st.sampled_from(["all", "some", "causal"]), st.booleans())
def test_the_formula_is_that_of_all_sets(seed: int, keys: int, mask: str, fused: bool) -> None:
    """Brute force: the mean of y_i - s over every set of N keys without i, its length summed over i."""
    from inside import measures_rows as _rows

    rows = random_rows(seed, heads=2, queries=3, keys=keys, width=2, groups=1, mask=mask)
    plain, before = rows, _rows.FUSED_FROM
    if fused:
        rows = as_type(rows, torch.float32)
        _rows.FUSED_FROM = 1
    try:
        reading = distance_formula(rows, choose_sets(rows, (1, 2, 3, 5), seeded(0)))["expected_distance_low"]
    finally:
        _rows.FUSED_FROM = before
    for h, q, i in reading.defined.nonzero().tolist():
        seen, size = plain.visible[h, q], (1, 2, 3, 5)[i]
        a, x = plain.weights[h, q, seen], plain.group(h)[seen]
        least = by_enumeration(a, x, size)[0]
        # float32 loses half of its digits where ||mu|| nearly cancels, at single keys
        close = {"rel": 2e-5, "abs": 5e-4 * float((a[:, None] * x).norm())} if fused else {"rel": 1e-9, "abs": 1e-7}
        assert float(reading.value[h, q, i]) == pytest.approx(least, **close)


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("mask", ["causal", "window", "some"])
def test_the_kernel_gives_what_the_reference_gives(kernels: None, groups: int, mask: str) -> None:
    rows = random_rows(3, heads=4, queries=40, keys=300, width=16, groups=groups, mask=mask)
    sizes = (1, 2, 7, 50, 149, 299)
    exact = expected_distance(rows, choose_sets(rows, sizes, seeded(0)))["expected_distance_low"]
    single: Rows = as_type(rows, torch.float32)
    assert single.fused
    fused = distance_formula(single, choose_sets(single, sizes, seeded(0)))["expected_distance_low"]
    assert torch.equal(fused.defined, exact.defined)
    torch.testing.assert_close(fused.value.double()[fused.defined], exact.value[exact.defined], rtol=2e-6, atol=1e-6)
