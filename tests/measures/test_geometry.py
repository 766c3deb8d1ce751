"""Geometry against the plain loops, the kernels against the reference, limits, controls and invariances."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from inside import fused_geometry, reference_geometry, row_geometry
from plain import least_gap, plain_geometry
from row_cases import as_type, changed, masked_and_absent, nasty_rows, random_rows, seeded
from torch import Tensor

from abbe import AbbeError, bounds
from abbe.measures import Reading, Rows, Sets, choose_sets, geometry, selection

GRID = (1, 2, 3, 5, 8)
COUNTED = ("separability", "recall", "precision", "f_score")


def readings(rows: Rows, grid: tuple[int, ...] = GRID, seed: int = 0) -> tuple[Sets, dict[str, Reading]]:
    sets = choose_sets(rows, grid, seeded(seed))
    return sets, geometry(rows, sets) | selection(rows, sets)


def same_where_defined(values: Mapping[str, Reading], expected: Mapping[str, Tensor], part: str, close: float) -> None:
    for name, reading in values.items():
        got, want = getattr(reading, part).double(), expected[name]
        assert torch.equal(reading.defined, ~want.isnan()), name
        torch.testing.assert_close(got[reading.defined], want[reading.defined], rtol=close, atol=close, msg=name)


@pytest.mark.quick(4)
@pytest.mark.parametrize("mask", ["all", "causal", "window", "some"])
@pytest.mark.parametrize(("heads", "groups"), [(4, 4), (4, 2), (4, 1)])
def test_values_and_controls_are_those_of_the_loops(mask: str, heads: int, groups: int) -> None:
    rows = random_rows(1, heads=heads, groups=groups, mask=mask)
    sets, measured = readings(rows)
    same_where_defined(measured, plain_geometry(rows, sets.selected, GRID), "value", 1e-10)
    del measured["top_mass"]  # its control is N/n
    same_where_defined(measured, plain_geometry(rows, sets.random, GRID), "control", 1e-10)


@pytest.mark.quick(6)
@pytest.mark.parametrize("mask", ["all", "causal", "window", "some"])
@pytest.mark.parametrize("width", [1, 3, 17, 64])
def test_kernels_give_the_same(mask: str, width: int, kernels: None) -> None:
    """Counts are compared where float32 determines them: no member and stranger at nearly one distance."""
    rows = as_type(random_rows(2, heads=2, groups=1, keys=37, width=width, mask=mask), torch.float32)
    sets, measured = readings(rows)
    precise = as_type(rows, torch.float64)
    assert rows.fused
    assert not precise.fused
    compared = 0
    for order, part in ((sets.selected, "value"), (sets.random, "control")):
        expected = plain_geometry(precise, order, GRID)
        clear = clearly_apart(precise, order)
        for name in set(measured) - ({"top_mass"} if part == "control" else set()):
            chosen = measured[name].defined & clear if name.startswith(COUNTED) else measured[name].defined
            got, want = getattr(measured[name], part).double()[chosen], expected[name][chosen]
            torch.testing.assert_close(got, want, rtol=2e-5, atol=1e-6, msg=f"{name} {part}")
            compared += int(chosen.sum()) if name == "f_score" else 0
    assert compared > 40 or width == 1


def clearly_apart(rows: Rows, order: Tensor) -> Tensor:
    """Bool (head, query, N): no member is nearly as far from the sum as a stranger."""
    clear = torch.zeros(*order.shape[:2], len(GRID), dtype=torch.bool)
    for head, query in itertools.product(range(rows.heads), range(rows.queries)):
        seen = rows.visible[head, query].nonzero().flatten().tolist()
        weights, x = rows.weights[head, query, seen], rows.group(head)[seen]
        for i, size in enumerate(GRID):
            if size < len(seen):
                chosen = [seen.index(int(j)) for j in order[head, query, :size]]
                clear[head, query, i] = least_gap(weights, x, chosen) > 1e-5
    return clear


@pytest.mark.parametrize("fused", [True, False])
def test_float32_tells_the_tokens_of_sharp_rows_apart(fused: bool, kernels: None) -> None:
    """Almost all keys lie at almost one distance ||s||: counts are those of float64, where float32 distances tie."""
    logits = 6 * torch.randn(4, 16, 200, generator=seeded(3))
    vectors = torch.randn(4, 200, 24, generator=seeded(4)) + 0.3
    rows = Rows(logits, torch.softmax(logits, -1), vectors, softmax=True)
    sets = choose_sets(rows, (5, 20), seeded(5))
    measured = row_geometry(rows, sets) if fused else reference_geometry(rows, sets)
    for place, size in enumerate((5, 20)):
        member = torch.zeros_like(rows.visible).scatter(-1, sets.selected[..., :size], True)
        a, x = rows.weights.double(), vectors.double()
        s = torch.einsum("hqk,hkd->hqd", torch.where(member, a, 0.0), x)
        offset = a * (a * (x**2).sum(-1)[:, None] - 2 * torch.einsum("hqd,hkd->hqk", s, x))
        nearest = torch.where(member, torch.inf, offset).amin(-1, keepdim=True)
        farthest = torch.where(member, offset, -torch.inf).amax(-1, keepdim=True)
        closed, intruders = ((member & (offset <= nearest)).sum(-1), (~member & (offset <= farthest)).sum(-1))
        assert torch.equal(measured.sets.closed[0, ..., place].double(), closed.double())
        assert torch.equal(measured.sets.intruders[0, ..., place].double(), intruders.double())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_negative_weights(dtype: torch.dtype, kernels: None) -> None:
    """They turn a vector round; a set that holds one has no divergence."""
    rows = random_rows(13, heads=2, keys=21, width=6, mask="some", dtype=dtype)
    signs = torch.where(torch.rand(rows.weights.shape, generator=seeded(2)) < 0.4, -1.0, 1.0).to(dtype)
    rows = changed(rows, weights=rows.weights * signs)
    sets, measured = readings(rows)
    precise = as_type(rows, torch.float64)
    for order, part in ((sets.selected, "value"), (sets.random, "control")):
        expected, clear = plain_geometry(precise, order, GRID), clearly_apart(precise, order)
        for name in set(measured) - {"selected_divergence", "top_mass"}:
            chosen = measured[name].defined & clear
            got, want = getattr(measured[name], part).double()[chosen], expected[name][chosen]
            torch.testing.assert_close(got, want, rtol=2e-5, atol=1e-6, msg=f"{name} {part}")
    negative = (rows.weights.gather(-1, sets.selected).cummin(-1).values < 0)[..., torch.tensor(GRID) - 1]
    assert not bool((measured["selected_divergence"].defined & negative).any())


def test_kernel_limits_are_those_of_the_reference_rounded_up(kernels: None) -> None:
    rows = random_rows(3, keys=40, width=16, dtype=torch.float32)
    sets = choose_sets(rows, GRID, seeded(0))
    fast = fused_geometry(rows, sets, rows.vectors, (rows.vectors**2).sum(-1)).limits
    slow = reference_geometry(as_type(rows, torch.float64), sets).limits
    defined = sets.defined(rows)
    for name in ("mass", "longest", "reach"):
        got, want = getattr(fast, name).double()[defined], getattr(slow, name)[defined]
        torch.testing.assert_close(got, want, rtol=2e-5, atol=0)
    assert bool((fast.reach.double() >= slow.reach)[defined].all())


def test_queries_one_by_one_give_the_same(kernels: None, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = random_rows(3, keys=40, width=16, dtype=torch.float32)
    sets, squares = choose_sets(rows, GRID, seeded(0)), (rows.vectors**2).sum(-1)
    together = fused_geometry(rows, sets, rows.vectors, squares)
    monkeypatch.setitem(fused_geometry.__globals__, "_SUMS_AT_ONCE", 1)  # as of vectors that are very wide
    apart = fused_geometry(rows, sets, rows.vectors, squares)
    for one, other in zip(itertools.chain(*together), itertools.chain(*apart), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("spec", ["sparsemax", "topk:k=3", "topp:p=0.4"])
def test_zero_weights_tie_exactly(spec: str, kernels: None) -> None:
    """Keys of weight 0 lie at the distance ||s||, in the set or outside: the count must not depend on rounding."""
    rows = random_rows(4, keys=24, width=7, spec=spec, mask="all", dtype=torch.float32)
    sets, measured = readings(rows)
    expected = plain_geometry(as_type(rows, torch.float64), sets.selected, GRID)
    support = (rows.weights != 0).sum(-1, keepdim=True)
    crowded = (support < torch.tensor(GRID)) & measured["recall"].defined
    assert int(crowded.sum()) > 10
    for name in ("separability", "recall", "precision"):
        torch.testing.assert_close(measured[name].value.double()[crowded], expected[name][crowded], rtol=1e-6, atol=0)


def test_same_vectors_tie_exactly_by_the_cosine(kernels: None) -> None:
    """Repeated tokens: one vector at several keys, of which some are selected and some are not."""
    rows = random_rows(5, keys=48, width=16, mask="all", dtype=torch.float32)
    rows = changed(rows, vectors=rows.vectors[:, :6].repeat(1, 8, 1).contiguous())
    sets = choose_sets(rows, GRID, seeded(1))
    fast, slow = geometry(rows, sets), geometry(as_type(rows, torch.float64), sets)
    for name in ("separability_cosine", "recall_cosine", "precision_cosine"):
        several = torch.tensor(GRID) > 1
        torch.testing.assert_close(fast[name].value[..., several].double(), slow[name].value[..., several])


def test_keys_close_to_the_sum_are_measured_by_differences(kernels: None) -> None:
    """A stranger almost equal to the only member: ||y||^2 - 2 y.s + ||s||^2 alone would lose all digits."""
    rows = random_rows(6, heads=1, queries=1, keys=30, width=8, mask="all", dtype=torch.float32)
    weights = torch.full((1, 1, 30), 1e-4)
    weights[..., 3], weights[..., 7] = 0.4, 0.4 - 1e-5
    x = rows.vectors.clone()
    x[:, 7] = x[:, 3]
    rows = changed(rows, weights=weights, vectors=x)
    sets, measured = readings(rows, (1, 2))
    want = plain_geometry(as_type(rows, torch.float64), sets.selected, (1, 2))
    for name in ("distance", "precision", "recall", "separability"):
        torch.testing.assert_close(measured[name].value.double(), want[name], rtol=1e-5, atol=0)


@pytest.mark.parametrize("factor", [1e-12, 1e-20, 1e-30, 1e-36])
def test_sets_of_faint_weights_are_counted_as_any_others(factor: float, kernels: None) -> None:
    """As the random sets of a peaked row: in float32 the squares of such weights underflow."""
    rows = random_rows(8, heads=1, queries=4, keys=40, width=6, mask="all", dtype=torch.float32)
    order = torch.arange(1, 40).expand(1, 4, -1)
    for weights in (rows.weights * factor, rows.weights * factor * (rows.weights > 0.02)):
        weights[..., 0] = 1.0  # beside which all others are faint
        made = changed(rows, weights=weights)
        values = geometry(made, Sets(GRID, order, order))
        raised = (weights.double() / factor).clamp(max=1e3)
        expected = plain_geometry(changed(as_type(made, torch.float64), weights=raised), order, GRID)
        for name, metric in itertools.product(COUNTED, ("", "_cosine")):
            torch.testing.assert_close(
                values[name + metric].control.double(), expected[name + metric], rtol=1e-6, atol=1e-6, msg=name + metric
            )
        far = plain_geometry(as_type(made, torch.float64), order, GRID)
        for name in ("distance", "net_distance"):
            torch.testing.assert_close(values[name].control.double(), far[name], rtol=1e-5, atol=0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", nasty_rows())
def test_nothing_exceeds_its_limit_or_is_nan(name: str, dtype: torch.dtype, kernels: None) -> None:
    rows = nasty_rows(dtype)[name]
    _, measured = readings(rows)
    slack = 1e-10 if dtype == torch.float64 else 1e-5
    for measure, reading in measured.items():
        for part in (reading.value, reading.limit, reading.control):
            if part is None or (part is reading.control and measure == "selected_divergence"):
                continue  # a random set may have no mass, and then no divergence
            assert bool(torch.isfinite(part[reading.defined]).all()), measure
        if reading.limit is not None:
            largest = rows.vectors.abs().amax() if "distance" in measure else 1.0
            over = reading.value - reading.limit * (1 + slack) - slack * largest
            assert bool((over[reading.defined] <= 0).all()), measure


@given(st.integers(0, 10**6), st.integers(2, 14), st.sampled_from(["all", "causal", "some"]), st.floats(0.1, 30))
def test_limits_hold_and_are_above_the_exact_theorem(seed: int, keys: int, mask: str, scale: float) -> None:
    rows = random_rows(seed, heads=2, queries=3, keys=keys, width=2, mask=mask, scale=scale)
    _, measured = readings(rows)
    for name, exact in (("distance", bounds.distance_bound), ("net_distance", bounds.net_distance_bound)):
        reading = measured[name]
        assert reading.limit is not None
        where = reading.defined
        assert bool((reading.value <= reading.limit * (1 + 1e-10) + 1e-12)[where].all())
        for h, q, i in where.nonzero().tolist():
            theorem = exact(rows.weights[h, q], rows.group(h), GRID[i], rows.visible[h, q])
            assert float(reading.limit[h, q, i]) >= float(theorem) * (1 - 1e-10) - 1e-12


def test_no_limit_where_weights_do_not_sum_to_one() -> None:
    _, measured = readings(random_rows(7, spec="sigmoid"))
    limit = measured["distance"].limit
    assert limit is not None
    assert bool(limit[measured["distance"].defined].isnan().all())
    assert measured["top_mass"].limit is None


@given(st.integers(0, 10**6))
def test_order_of_the_keys_does_not_matter(seed: int) -> None:
    rows = random_rows(seed, heads=2, queries=3, keys=11, mask="some")
    turn = torch.randperm(11, generator=seeded(seed))
    turned = Rows(rows.logits[..., turn], rows.weights[..., turn], rows.vectors[:, turn], softmax=True)
    before, after = readings(rows)[1], readings(turned)[1]
    for name, reading in before.items():
        for part in ("value", "limit"):
            a, b = getattr(reading, part), getattr(after[name], part)
            if a is not None:
                torch.testing.assert_close(a[reading.defined], b[reading.defined], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_masked_key_is_an_absent_key(dtype: torch.dtype, kernels: None) -> None:
    """Also with other vectors at invisible keys; controls, too, as the draws go over the visible keys in order."""
    masked, absent = masked_and_absent(8, dtype)
    close = 1e-10 if dtype == torch.float64 else 1e-5
    one, other = readings(masked)[1], readings(absent)[1]
    for name, reading in one.items():
        assert bool((reading.defined == other[name].defined).all())
        for part in ("value", "limit", "control"):
            a, b = getattr(reading, part), getattr(other[name], part)
            if a is not None:
                torch.testing.assert_close(a, b, rtol=close, atol=close, msg=f"{name} {part}")


@given(st.integers(0, 10**6), st.floats(1e-3, 1e3))
def test_scale_of_the_vectors(seed: int, factor: float) -> None:
    rows = random_rows(seed, heads=2, queries=2, keys=9, mask="all")
    small, large = readings(rows)[1], readings(changed(rows, vectors=factor * rows.vectors))[1]
    for name, reading in small.items():
        scale = factor if "distance" in name else 1.0
        torch.testing.assert_close(large[name].value, scale * reading.value, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", nasty_rows())
def test_one_selected_token_is_always_separable(name: str, dtype: torch.dtype, kernels: None) -> None:
    rows = nasty_rows(dtype)[name]
    _, measured = readings(rows, (1, 2))
    for metric in ("separability", "separability_cosine"):
        reading = measured[metric]
        assert reading.control is not None
        for part in (reading.value, reading.control):
            assert bool((part[..., 0] == 1)[reading.defined[..., 0]].all())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_random_sets_have_the_exact_expectation(dtype: torch.dtype, kernels: None) -> None:
    """Second moment of the net distance, and the mean distance, within 4 standard errors of theory and enumeration."""
    repeats, keys = 4000, 7
    one = random_rows(9, heads=1, queries=1, keys=keys, width=3, mask="all")
    many = Rows(one.logits.expand(1, repeats, -1), one.weights.expand(1, repeats, -1), one.vectors, softmax=True)
    measured = readings(as_type(many, dtype), (1, 2, 4, 6))[1]
    for i, size in enumerate((1, 2, 4, 6)):
        squares = measured["net_distance"].control[0, :, i].double() ** 2
        exact = float(bounds.expected_net_distance_squared(one.weights[0, 0], one.vectors[0], size))
        assert abs(float(squares.mean()) - exact) <= 4 * float(squares.std()) / math.sqrt(repeats)
        lengths = measured["distance"].control[0, :, i].double()
        exact = float(bounds.expected_distance_exact(one.weights[0, 0], one.vectors[0], size))
        assert abs(float(lengths.mean()) - exact) <= 4 * float(lengths.std()) / math.sqrt(repeats)


@pytest.mark.parametrize("mask", ["all", "some", "window"])
def test_random_order_visits_visible_keys_once_and_is_nested(mask: str, kernels: None) -> None:
    rows = random_rows(10, heads=3, queries=8, keys=25, mask=mask, dtype=torch.float32)
    sets = choose_sets(rows, (3, 20), seeded(2))
    slow = choose_sets(as_type(rows, torch.float64), (3, 20), seeded(2))
    for h, q in itertools.product(range(3), range(8)):
        n = min(20, int(rows.count[h, q]))
        order = sets.random[h, q, :n].tolist()
        assert order == slow.random[h, q, :n].tolist()
        assert len(set(order)) == n
        assert bool(rows.visible[h, q, order].all())


def test_rows_without_keys_or_weight_are_undefined() -> None:
    rows = random_rows(11, mask="some")
    weights = rows.weights.clone()
    weights[1, 2] = 0
    measured = readings(changed(rows, weights=weights))[1]
    for reading in measured.values():
        assert not bool(reading.defined[0, 0].any())
        assert not bool(reading.defined[1, 2].any())
        assert bool(reading.defined[2, 3, 0])


def test_vectors_with_nan_are_refused() -> None:
    rows = random_rows(12)
    rows.vectors[0, 0, 0] = math.nan
    with pytest.raises(AbbeError, match="vectors hold NaN"):
        row_geometry(rows, choose_sets(rows, GRID, seeded(0)))


@pytest.mark.parametrize("grid", [(), (0, 1), (2, 1), (1, 1), (1.5,)])
def test_bad_grids_are_refused(grid: tuple[int, ...]) -> None:
    with pytest.raises(AbbeError, match="sizes must hold whole numbers >= 1 in rising order"):
        choose_sets(random_rows(0), grid, seeded(0))
