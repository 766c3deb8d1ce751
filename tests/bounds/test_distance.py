"""P12, P13 and P14 on the shipped distances, against enumeration of all subsets in plain Python."""

from __future__ import annotations

import itertools
import math
import statistics

import pytest
import torch
from bound_cases import (
    Placed,
    at_most,
    close,
    marked,
    placed,
    plain_distance,
    plain_net_distance,
    subsets,
    tensor,
    top,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import examples
from torch import Tensor

from abbe import bounds

PLACED_FUNCTIONS = (
    bounds.distance,
    bounds.net_distance,
    bounds.distance_bound,
    bounds.distance_bound_root_paper,
    bounds.net_distance_bound,
    bounds.expected_distance_bound_paper,
    bounds.expected_net_distance_squared,
    lambda *args, **more: torch.stack(bounds.distance_sandwich(*args, **more)),
    lambda *args, **more: torch.stack(bounds.expected_distance_bounds(*args, **more)),
)


def largest_norm(case: Placed) -> float:
    return max(math.hypot(*v) for v in case.x.tolist())


def mean_over_subsets(case: Placed, of: object) -> float:
    return statistics.fmean(of(case.y, subset) for subset in subsets(case.keys, case.n))


@given(placed(), st.data())
def test_distances_by_definition(case: Placed, data: st.DataObject) -> None:
    chosen = top(case.a, case.n)
    close(bounds.distance(case.a, case.x, case.n), plain_distance(case.y, chosen))
    close(bounds.net_distance(case.a, case.x, case.n), plain_net_distance(case.y, chosen))
    subset = data.draw(st.sets(st.integers(0, case.keys - 1), min_size=1))
    close(bounds.distance(case.a, case.x, marked(case.keys, subset)), plain_distance(case.y, subset))
    close(bounds.net_distance(case.a, case.x, marked(case.keys, subset)), plain_net_distance(case.y, subset))


@given(placed(), st.data())
def test_p12_sandwich_for_any_set(case: Placed, data: st.DataObject) -> None:
    subset = data.draw(st.sets(st.integers(0, case.keys - 1), min_size=1))
    chosen, distance = marked(case.keys, subset), plain_distance(case.y, subset)
    low, high = bounds.distance_sandwich(case.a, case.x, chosen)
    assert at_most(low, distance, atol=1e-11)
    assert at_most(distance, high, atol=1e-11)
    outside = math.fsum(math.hypot(*case.y[i]) for i in range(case.keys) if i not in subset)
    close((high - low) / 2, outside)
    rest = 1 - math.fsum(case.a[i].item() for i in subset)
    assert at_most(outside, rest * largest_norm(case))


@given(placed(min_size=2))
def test_p12_sandwich_equality(case: Placed) -> None:
    """Identical vectors reach the lower side, unselected vectors opposite to s the upper one."""
    chosen = marked(case.keys, top(case.a, case.n))
    equal = case.x[:1].expand_as(case.x)
    close(bounds.distance(case.a, equal, case.n), bounds.distance_sandwich(case.a, equal, case.n)[0], atol=1e-11)
    opposite = torch.where(chosen.unsqueeze(-1), equal, -equal)
    close(bounds.distance(case.a, opposite, case.n), bounds.distance_sandwich(case.a, opposite, case.n)[1], atol=1e-11)


@given(placed())
def test_p12_theorem_1_in_its_linear_form(case: Placed) -> None:
    bound = bounds.distance_bound(case.a, case.x, case.n)
    assert at_most(plain_distance(case.y, top(case.a, case.n)), bound, atol=1e-11)
    chosen, x = top(case.a, case.n), case.x.tolist()
    rest = [i for i in range(case.keys) if i not in chosen]
    mass = math.fsum(case.a[i].item() for i in chosen)
    d1 = max((math.dist(x[i], x[j]) for i in rest for j in chosen), default=0.0)
    longest = max(math.hypot(*x[j]) for j in chosen)
    close(bound, (1 - mass) * d1 + longest * (mass * len(rest) - (1 - mass)), atol=1e-11)
    bracket = max(mass * len(rest) - (1 - mass), 0)
    root = bounds.distance_bound_root_paper(case.a, case.x, case.n)
    close(root, (1 - mass) * d1 + longest * math.sqrt(bracket), atol=1e-6)
    if bracket > 1:
        assert at_most(root, bound)


@given(placed())
def test_p12_theorem_1_equality_for_identical_vectors(case: Placed) -> None:
    equal = case.x[:1].expand_as(case.x)
    close(bounds.distance_bound(case.a, equal, case.n), bounds.distance(case.a, equal, case.n), atol=1e-11)


@given(placed(), st.data())
def test_net_distance_bound_for_any_set(case: Placed, data: st.DataObject) -> None:
    subset = data.draw(st.sets(st.integers(0, case.keys - 1), min_size=1))
    for chosen in (case.n, marked(case.keys, subset)):
        bound = bounds.net_distance_bound(case.a, case.x, chosen)
        assert at_most(bounds.net_distance(case.a, case.x, chosen), bound, atol=1e-11)
        equal = case.x[:1].expand_as(case.x)
        close(bounds.net_distance_bound(case.a, equal, chosen), bounds.net_distance(case.a, equal, chosen), atol=1e-11)


@settings(max_examples=examples(60))
@given(placed(max_size=8))
def test_p13_second_moment_of_the_net_distance(case: Placed) -> None:
    wanted = mean_over_subsets(case, lambda y, subset: plain_net_distance(y, subset) ** 2)
    close(bounds.expected_net_distance_squared(case.a, case.x, case.n), wanted, atol=1e-11)


@pytest.mark.parametrize("keys", [1, 2, 3])
def test_p13_for_the_shortest_rows(keys: int) -> None:
    a, x = torch.full((keys,), 1 / keys, dtype=torch.float64), tensor([2.0, 1.0], [0.0, 1.0], [-1.0, 3.0])[:keys]
    for n in range(1, keys + 1):
        wanted = mean_over_subsets(Placed(a, x, n), lambda y, subset: plain_net_distance(y, subset) ** 2)
        close(bounds.expected_net_distance_squared(a, x, n), wanted)


@settings(max_examples=examples(60))
@given(placed(max_size=10))
def test_p14_expected_distance_against_enumeration(case: Placed) -> None:
    wanted = mean_over_subsets(case, plain_distance)
    low, high = bounds.expected_distance_bounds(case.a, case.x, case.n)
    assert at_most(low, wanted, atol=1e-11)
    assert at_most(wanted, high, atol=1e-11)
    close(bounds.expected_distance_exact(case.a, case.x, case.n), wanted, atol=1e-11)
    close(bounds.expected_distance_bound_paper(case.a, case.x, case.n), low, atol=0)
    assert at_most(wanted, bounds.expected_distance_ceiling(case.n, largest_norm(case)), atol=1e-11)


@settings(max_examples=examples(60))
@given(placed(max_size=7))
def test_p14_the_moments_behind_the_sandwich(case: Placed) -> None:
    """mu_i and V_i are the mean and the variance of y_i - s over the subsets that leave i out."""
    keys, y, low, high = case.keys, case.y, [], []
    for i in range(keys):
        sums = [
            [y[i][c] - math.fsum(y[j][c] for j in subset) for c in range(len(y[0]))]
            for subset in subsets(keys, case.n)
            if i not in subset
        ]
        if sums:
            mean = [statistics.fmean(part) for part in zip(*sums, strict=True)]
            low.append(math.hypot(*mean))
            high.append(math.sqrt(statistics.fmean(math.fsum(c * c for c in v) for v in sums)))
    share = (keys - case.n) / keys
    limits = bounds.expected_distance_bounds(case.a, case.x, case.n)
    close(limits[0], share * math.fsum(low), atol=1e-7)
    close(limits[1], share * math.fsum(high), atol=1e-7)


@given(placed(min_size=2))
def test_p14_equality_when_the_subset_does_not_matter(case: Placed) -> None:
    n = case.keys - 1
    low, high = bounds.expected_distance_bounds(case.a, case.x, n)
    close(low, high, atol=1e-7)
    close(low, mean_over_subsets(Placed(case.a, case.x, n), plain_distance), atol=1e-7)
    a, x = torch.full_like(case.a, 1 / case.keys), case.x[:1].expand_as(case.x)
    low, high = bounds.expected_distance_bounds(a, x, case.n)
    close(low, high, atol=1e-7)
    close(low, mean_over_subsets(Placed(a, x, case.n), plain_distance), atol=1e-7)


@pytest.mark.parametrize("lean", [0.0, 1.0])
def test_the_distance_does_not_collapse_when_n_grows_with_the_row(lean: float) -> None:
    generator, distances = torch.Generator().manual_seed(0), []
    for keys in (16, 64, 256):
        x = torch.randn(40, keys, 8, generator=generator, dtype=torch.float64) + lean
        a = torch.full((40, keys), 1 / keys, dtype=torch.float64)
        distances.append(float(bounds.distance(a, x, keys // 4).mean()))
    for before, after in itertools.pairwise(distances):
        assert after / before == pytest.approx(4 if lean else 2, rel=0.25)  # like L, or like its root
    all_but_none = bounds.distance(a, x, 256)
    assert float(all_but_none.max()) == 0


@given(placed(), st.floats(-3, 3), st.sampled_from([1e-3, 0.5, 40.0]))
def test_distances_turn_and_scale_with_the_vectors(case: Placed, angle: float, scale: float) -> None:
    if case.x.shape[-1] < 2:
        return
    turn = torch.eye(case.x.shape[-1], dtype=torch.float64)
    turn[:2, :2] = tensor([math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)])
    for function in (*PLACED_FUNCTIONS[:6], PLACED_FUNCTIONS[-2]):
        wanted = scale * function(case.a, case.x, case.n)
        close(function(case.a, scale * case.x @ turn.mT, case.n), wanted, atol=1e-6 * scale)


def drawn(seed: int = 0, *batch: int, keys: int = 6, width: int = 3) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    a = torch.softmax(torch.randn(*batch, keys, generator=generator, dtype=torch.float64), -1)
    return a, torch.randn(*batch, keys, width, generator=generator, dtype=torch.float64)


def test_gradients_stay_finite_at_equal_vectors() -> None:
    for function in PLACED_FUNCTIONS:
        a = torch.full((4,), 0.25, dtype=torch.float64, requires_grad=True)
        x = torch.ones(4, 2, dtype=torch.float64, requires_grad=True)
        function(a, x, 1).sum().backward()
        assert bool(torch.isfinite(a.grad).all() & torch.isfinite(x.grad).all())


def test_enumeration_has_a_limit() -> None:
    a, x = drawn(0, keys=9)
    close(bounds.expected_distance_exact(a, x, 3, limit=84), bounds.expected_distance_exact(a, x, 3))
    with pytest.raises(ValueError, match="84 subsets, more than 83"):
        bounds.expected_distance_exact(a, x, 3, limit=83)
