"""Expected distances against the bounds library, the enumeration of all sets, and random sets drawn."""

from __future__ import annotations

import itertools
import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from plain import plain_set
from row_cases import as_type, changed, masked_and_absent, nasty_rows, random_rows, seeded
from torch import Tensor

from abbe import AbbeError, bounds
from abbe.measures import (
    Reading,
    Rows,
    State,
    choose_sets,
    compute,
    critical_of_units,
    distance_formula,
    expected_distance,
    ks_test,
    update,
)

GRID = (1, 2, 3, 5, 8)
NAMES = ("expected_distance_low", "expected_distance_high", "expected_net_distance")


def readings(rows: Rows, grid: tuple[int, ...] = GRID) -> tuple[Reading, Reading, Reading]:
    measured = expected_distance(rows, choose_sets(rows, grid, seeded(0)))
    assert tuple(measured) == NAMES
    return measured[NAMES[0]], measured[NAMES[1]], measured[NAMES[2]]


def by_enumeration(a: Tensor, x: Tensor, size: int) -> tuple[float, float, float, float]:
    """Low and high from the mean and the scatter of y_i - s over all sets without i; then the mean of the distance,
    and the root of the mean square of the net distance, over all sets."""
    y, n = a[:, None] * x, len(a)
    low = high = 0.0
    for i in range(n):
        others = [j for j in range(n) if j != i]
        apart = torch.stack([y[i] - y[list(chosen)].sum(0) for chosen in itertools.combinations(others, size)])
        low += float(apart.mean(0).norm())
        high += math.sqrt(float((apart**2).sum(-1).mean()))
    sets = [plain_set(a, x, chosen) for chosen in itertools.combinations(range(n), size)]
    mean = sum(one["distance"] for one in sets) / len(sets)
    square = sum(one["net_distance"] ** 2 for one in sets) / len(sets)
    return (n - size) / n * low, (n - size) / n * high, mean, math.sqrt(square)


@settings(max_examples=30)
@given(st.integers(0, 10**6), st.integers(2, 7), st.floats(0, 20), st.sampled_from(["all", "some"]), st.booleans())
def test_values_are_those_of_all_sets(seed: int, keys: int, scale: float, mask: str, negative: bool) -> None:
    """For any weights, negative ones too. N = n - 1 and rows of two keys are among them."""
    rows = random_rows(seed, heads=2, queries=2, keys=keys, width=2, mask=mask, scale=scale)
    if negative:
        rows = changed(rows, weights=rows.weights * torch.where(rows.weights > 0.2, -1.0, 1.0).double())
    low, high, net = readings(rows, (1, 2, 3, 4, 5, 6, 7))
    for h, q, i in low.defined.nonzero().tolist():
        seen, size = rows.visible[h, q], i + 1
        a, x = rows.weights[h, q, seen], rows.group(h)[seen]
        least, most, mean, root = by_enumeration(a, x, size)
        tiny = 3e-8 * len(a) * float((a[:, None] * x).norm())  # the root of what float64 rounds
        assert float(low.value[h, q, i]) == pytest.approx(least, rel=1e-9, abs=tiny)
        assert float(high.value[h, q, i]) == pytest.approx(most, rel=1e-9, abs=tiny)
        assert float(net.value[h, q, i]) == pytest.approx(root, rel=1e-9, abs=tiny)
        assert float(low.value[h, q, i]) - tiny <= mean <= float(high.value[h, q, i]) + tiny
        if size == len(a) - 1:
            assert float(high.value[h, q, i]) == pytest.approx(mean, rel=1e-9, abs=tiny)
    assert torch.equal(low.defined, rows.count.unsqueeze(-1) > torch.arange(1, 8))


@pytest.mark.quick(8)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(("heads", "groups"), [(4, 4), (4, 2), (4, 1)])
@pytest.mark.parametrize("mask", ["all", "causal", "window", "some"])
def test_values_are_those_of_the_bounds(mask: str, heads: int, groups: int, dtype: torch.dtype, kernels: None) -> None:
    """Of rows cut to their visible keys, in float64 at the numbers given."""
    rows = random_rows(1, heads=heads, groups=groups, keys=23, mask=mask, dtype=dtype)
    low, high, net = readings(rows)
    compared = 0
    for h, q, i in low.defined.nonzero().tolist():
        seen = rows.visible[h, q]
        a, x = rows.weights[h, q, seen].double(), rows.group(h)[seen].double()
        least, most = bounds.expected_distance_bounds(a, x, GRID[i])
        root = torch.sqrt(bounds.expected_net_distance_squared(a, x, GRID[i]))
        for reading, wanted in ((low, least), (high, most), (net, root)):
            assert float(reading.value[h, q, i]) == pytest.approx(float(wanted), rel=1e-9)
        compared += 1
    assert compared > 50


def test_float32_rows_keep_their_digits_where_the_means_cancel() -> None:
    """Nearly equal y and N = 1: ||mu|| is a thousandth of what its parts are, and their squares a millionth."""
    x = 1 + 1e-3 * torch.randn(1, 300, 8, generator=seeded(2))
    rows = Rows(torch.zeros(1, 1, 300), torch.full((1, 1, 300), 1 / 300), x, softmax=True)
    low, high, _ = readings(rows, (1, 2))
    least, most = bounds.expected_distance_bounds(rows.weights[0, 0].double(), x[0].double(), 1)
    assert float(low.value[0, 0, 0]) == pytest.approx(float(least), rel=1e-6)
    assert float(high.value[0, 0, 0]) == pytest.approx(float(most), rel=1e-6)
    assert float(least) < 1e-2


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", nasty_rows())
def test_nasty_rows(name: str, dtype: torch.dtype, kernels: None) -> None:
    rows = nasty_rows(dtype)[name]
    low, high, net = readings(rows)
    sets = choose_sets(rows, GRID, seeded(0))
    for reading in (low, high, net):
        assert torch.equal(reading.defined, sets.defined(rows))
        assert bool(torch.isfinite(reading.value).all())
        assert bool((reading.value >= 0).all())
    assert bool((low.value <= high.value).all())


@settings(max_examples=25)
@given(st.integers(0, 10**6), st.lists(st.integers(1, 11), max_size=4, unique=True))
def test_blocks_give_the_same_as_all_at_once(seed: int, cuts: list[int]) -> None:
    """Causal rows, too, whose blocks end at different keys."""
    rows = random_rows(seed, heads=4, groups=2, queries=12, keys=16, mask=("causal", "some")[seed % 2])
    whole = update({}, expected_distance(rows, choose_sets(rows, GRID, seeded(1))))
    draw, state = seeded(1), State()
    for start, stop in pairwise([0, *sorted(cuts), 12]):
        part = Rows(rows.logits[:, start:stop], rows.weights[:, start:stop], rows.vectors, softmax=True)
        state = update(state, expected_distance(part, choose_sets(part, GRID, draw)))
    assert state.keys() == whole.keys()
    for name, part_of_state in whole.items():
        torch.testing.assert_close(state[name], part_of_state, rtol=1e-9, atol=1e-9, msg=name)
    assert compute(whole)[NAMES[0]].value.shape == (4, len(GRID))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_masked_key_is_an_absent_key(dtype: torch.dtype) -> None:
    """Also with other vectors at invisible keys."""
    masked, absent = masked_and_absent(4, dtype)
    for one, other in zip(readings(masked), readings(absent), strict=True):
        assert bool(one.defined.all())
        torch.testing.assert_close(one.value, other.value, rtol=1e-10, atol=0)


def test_rows_without_keys_or_weight_are_undefined() -> None:
    rows = random_rows(5, mask="some")
    weights = rows.weights.clone()
    weights[1, 2] = 0
    for reading in readings(changed(rows, weights=weights), (*GRID, 100)):
        assert not bool(reading.defined[0, 0].any())
        assert not bool(reading.defined[1, 2].any())
        assert not bool(reading.defined[..., -1].any())
        assert bool(reading.defined[2, 3, 0])
        assert bool((reading.value[~reading.defined] == 0).all())


def test_vectors_with_nan_are_refused_and_no_graph_is_left() -> None:
    rows = random_rows(6)
    rows.vectors.requires_grad_()
    assert not any(reading.value.requires_grad for reading in readings(rows))
    bad = rows.vectors.detach().clone()
    bad[0, 0, 0] = math.nan
    with pytest.raises(AbbeError, match="vectors hold NaN"):
        readings(changed(rows, vectors=bad))


# -- Critical sizes of units ------------------------------------------------------------------------------------------


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
