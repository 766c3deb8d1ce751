"""P15 and P16 on the shipped separability, against plain Python and against simulation on the sphere."""

from __future__ import annotations

import math
from typing import NamedTuple

import pytest
import torch
from bound_cases import Placed, at_most, close, exact_cases, marked, placed, plain_sum, tensor, top
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from abbe import bounds


class Ball(NamedTuple):
    inside: list[float]
    outside: list[float]


def plain_ball(case: Placed, subset: list[int]) -> Ball:
    """Distances to the sum of the selected, of the selected and of the others."""
    s = plain_sum(case.y, subset)
    far = [math.sqrt(sum((a - b) ** 2 for a, b in zip(y, s, strict=True))) for y in case.y]
    return Ball([far[i] for i in subset], [far[i] for i in range(case.keys) if i not in subset])


@given(exact_cases(), st.sampled_from([0.0, 0.25, 1.0, 30.0]))
def test_separability_by_definition(case: Placed, radius: float) -> None:
    ball = plain_ball(case, top(case.a, case.n))
    separable = bounds.separability(case.a, case.x, case.n)
    nearest = min(ball.outside, default=math.inf)
    # The square is exact, but torch's sqrt may round its last bit the other way.
    assert float(separable.radius) == pytest.approx(nearest, rel=2.3e-16, abs=0)
    assert float(separable.ratio) == pytest.approx(sum(d <= nearest for d in ball.inside) / case.n, rel=1e-6)
    assert int(separable.inside.sum()) == sum(d <= nearest for d in ball.inside)
    assert not bool((separable.inside & ~bounds.selected_set(case.a, case.n)).any())
    fixed = bounds.separability(case.a, case.x, case.n, radius=radius)
    assert int(fixed.inside.sum()) == sum(d <= radius for d in ball.inside)
    assert float(fixed.radius) == radius
    chosen = marked(case.keys, top(case.a, case.n))
    assert bounds.separability(case.a, case.x, chosen).inside.tolist() == separable.inside.tolist()


@given(exact_cases())
def test_precision_and_recall_by_definition(case: Placed) -> None:
    ball = plain_ball(case, top(case.a, case.n))
    recall = sum(d < min(ball.outside, default=math.inf) for d in ball.inside) / case.n
    precision = case.n / (case.n + sum(d <= max(ball.inside) for d in ball.outside))
    scores = bounds.precision_recall(case.a, case.x, case.n)
    close(scores.recall, recall, rel=1e-6)
    close(scores.precision, precision, rel=1e-6)
    close(scores.f, 2 * precision * recall / (precision + recall), rel=1e-6)
    assert at_most(scores.recall, bounds.separability(case.a, case.x, case.n).ratio)


@pytest.mark.parametrize("seed", range(20))
def test_cosine_precision_and_recall_by_definition(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    a = torch.softmax(torch.randn(9, generator=generator, dtype=torch.float64), -1)
    x, n = torch.randn(9, 3, generator=generator, dtype=torch.float64), 1 + seed % 5
    case, chosen = Placed(a, x, n), top(a, n)
    s = plain_sum(case.y, chosen)
    far = [1 - sum(p * q for p, q in zip(y, s, strict=True)) / math.hypot(*y) / math.hypot(*s) for y in case.y]
    inside, outside = [far[i] for i in chosen], [far[i] for i in range(9) if i not in chosen]
    recall = sum(d < min(outside) for d in inside) / n
    precision = n / (n + sum(d <= max(inside) for d in outside))
    scores = bounds.precision_recall(a, x, n, metric="cosine")
    close(scores.recall, recall, rel=1e-6)
    close(scores.precision, precision, rel=1e-6)


def test_cosine_ignores_length_and_takes_zero_vectors() -> None:
    a, x = tensor(0.4, 0.3, 0.2, 0.1), tensor([1.0, 0.1], [1.0, -0.1], [0.0, 1.0], [0.0, 0.0])
    scores = bounds.precision_recall(a, x, 2, metric="cosine")
    assert [float(part) for part in scores] == [1, 1, 1]
    assert float(bounds.precision_recall(a, x * tensor([1.0], [50.0], [1.0], [1.0]), 2, "cosine").f) == 1


@given(placed())
def test_p15_a_single_token_is_always_separable(case: Placed) -> None:
    separable = bounds.separability(case.a, case.x, 1)
    assert float(separable.ratio) == 1
    assert float(bounds.separability(case.a, case.x, 1, radius=0.0).ratio) == 1


def test_p15_all_selected_is_separable() -> None:
    separable = bounds.separability(tensor(0.5, 0.5), tensor([1.0], [-1.0]), 2)
    assert (float(separable.ratio), float(separable.radius)) == (1, math.inf)


@pytest.mark.parametrize("seed", range(20))
def test_p15_rotation_and_common_scale(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    a = torch.softmax(torch.randn(4, 12, generator=generator, dtype=torch.float64), -1)
    x = torch.randn(4, 12, 3, generator=generator, dtype=torch.float64)
    turn = torch.linalg.qr(torch.randn(3, 3, generator=generator, dtype=torch.float64)).Q
    n, scale = 1 + seed % 6, 10.0 ** (seed % 7 - 3)
    plain, moved = bounds.separability(a, x, n), bounds.separability(a, scale * x @ turn, n)
    assert plain.inside.tolist() == moved.inside.tolist()
    close(moved.radius, scale * plain.radius)
    for metric in ("euclidean", "cosine"):
        before, after = (
            bounds.precision_recall(a, x, n, metric),
            bounds.precision_recall(a, scale * x @ turn, n, metric),
        )
        for one, two in zip(before, after, strict=True):
            close(one, two)


def on_the_sphere(draws: int, count: int, width: int, seed: int, norm: float = 1.0) -> Tensor:
    x = torch.randn(draws, count, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return norm * x / x.norm(dim=-1, keepdim=True)


def hit_rates(a: Tensor, radius: float, width: int, seed: int, norm: float = 1.0) -> tuple[float, float]:
    """Simulated E N_s/N and its standard error (never below one draw)."""
    draws = 4000
    y = a.unsqueeze(-1) * on_the_sphere(draws, len(a), width, seed, norm)
    share = ((y.sum(-2, keepdim=True) - y).norm(dim=-1) <= radius).double().mean(-1)
    return float(share.mean()), float(share.std()) / math.sqrt(draws) + 1 / draws


SPHERES = [(n, width, norm) for n in (2, 3, 6, 20) for width in (1, 3, 24) for norm in (1.0, 2.5)]


@pytest.mark.quick(8)
@pytest.mark.parametrize(("n", "width", "norm"), SPHERES)
def test_p16_corrected_theorem_2_on_the_sphere(n: int, width: int, norm: float) -> None:
    generator = torch.Generator().manual_seed(n)
    for peaked in (0.0, 1.5):
        a = 0.8 * torch.softmax(peaked * torch.randn(n, generator=generator, dtype=torch.float64), -1)
        scale = norm * float(a.norm())
        for part in (0.3, 0.7, 0.95, 1.0, 1.1, 1.6):
            radius = part * scale
            low, high = bounds.sphere_separability_bounds(a, radius, width, norm)
            mean, error = hit_rates(a, radius, width, seed=1, norm=norm)
            assert float(low) - 4 * error <= mean <= float(high) + 4 * error
            loose, _ = bounds.sphere_separability_bounds_paper(a, radius, 0.0, norm)
            assert float(loose) <= mean + 4 * error


@given(placed(max_size=6), st.sampled_from([0.1, 0.45, 0.7, 1.3]), st.integers(1, 30), st.sampled_from([1.0, 3.0]))
def test_p16_the_formula_by_pairs(case: Placed, radius: float, width: int, norm: float) -> None:
    """Sums over pairs instead of differences of power sums."""
    a, low, high = case.a.tolist(), [], []
    for i in range(len(a)):
        others = [p for j, p in enumerate(a) if j != i]
        v = norm**2 * math.fsum(p * p for p in others)
        pairs = math.fsum(p * p * q * q for j, p in enumerate(others) for k, q in enumerate(others) if j != k)
        w, r2 = 2 * norm**4 / width * pairs, radius**2
        if abs(r2 - v) < 1e-12:
            return
        cantelli = w / (w + (r2 - v) ** 2)
        low.append(1 - min(v / r2, cantelli) if r2 > v else 0.0)
        high.append(cantelli if r2 < v else 1.0)
    limits = bounds.sphere_separability_bounds(case.a, radius, width, norm)
    close(limits[0], math.fsum(low) / len(a), atol=1e-9)
    close(limits[1], math.fsum(high) / len(a), atol=1e-9)
    assert at_most(limits[0], limits[1])


@pytest.mark.parametrize("width", [1, 5])
def test_p16_equality_for_two_tokens(width: int) -> None:
    """||s - y_1|| = a_2 and ||s - y_2|| = a_1 exactly: both sides meet."""
    a = tensor(0.5, 0.3)
    for radius, wanted in ((0.2, 0.0), (0.4, 0.5), (0.6, 1.0)):
        low, high = bounds.sphere_separability_bounds(a, radius, width)
        assert (float(low), float(high)) == (wanted, wanted)
        assert hit_rates(a, radius, width, seed=3)[0] == wanted


def test_theorem_2_of_the_paper_at_one_token() -> None:
    """N_s/N = 1 at every radius, and the claimed upper side is below it."""
    for radius in (0.1, 1.0, 2.0):
        low, high = bounds.sphere_separability_bounds_paper(tensor(0.7), radius, 0.0)
        close(high, math.exp(-(radius**2) / 2))
        assert float(high) < 1
        assert float(low) == 1
        assert [float(side) for side in bounds.sphere_separability_bounds(tensor(0.7), radius, 3)] == [1, 1]


@given(placed(max_size=5), st.sampled_from([0.3, 1.0]), st.sampled_from([0.0, 0.5, 1.2]), st.sampled_from([1.0, 2.0]))
def test_theorem_2_of_the_paper_by_its_formula(case: Placed, radius: float, apart: float, norm: float) -> None:
    a, xi = case.a.tolist(), []
    for i in range(len(a)):
        others = [p for j, p in enumerate(a) if j != i]
        cross = math.fsum(p * q for j, p in enumerate(others) for k, q in enumerate(others) if j != k)
        square = norm**2 * math.fsum(p * p for p in others) + cross * (norm**2 - apart**2 / 2)
        xi.append(math.sqrt(max(square, 0)))
    low, high = bounds.sphere_separability_bounds_paper(case.a, radius, apart, norm)
    close(low, 1 - math.fsum(xi) / len(a) / radius, atol=1e-6)
    close(high, math.fsum(math.exp(-((x - radius) ** 2) / (2 * norm**2)) for x in xi) / len(a), atol=1e-6)


def simulated_estimate(n: int, keys: int, width: int, draws: int, seed: int = 0) -> tuple[float, float]:
    """Mean of N_s/N with the nearest unselected as the radius, equal weights, and its standard error."""
    generator, estimates = torch.Generator().manual_seed(seed), []
    for _ in range(draws):
        x = torch.randn(keys, width, generator=generator)
        x /= x.norm(dim=-1, keepdim=True)
        far = (x - x[:n].sum(0)).norm(dim=-1)
        estimates.append((far[:n] <= far[n:].min()).float().mean())
    shares = torch.stack(estimates)
    return float(shares.mean()), float(shares.std()) / math.sqrt(draws)


@pytest.mark.parametrize(("n", "published"), [(32, 0.95), (64, 0.61), (128, 0.19)])
def test_sphere_estimate_at_the_size_of_gpt2(n: int, published: float) -> None:
    estimate = float(bounds.sphere_separability_estimate(n, 1024, 768))
    mean, error = simulated_estimate(n, 1024, 768, draws=40)
    assert estimate == pytest.approx(mean, abs=0.03 + 4 * error)
    assert estimate == pytest.approx(published, abs=0.05)
    largest = torch.randn(4000, 1024 - n, generator=torch.Generator().manual_seed(n)).amax(-1).double()
    assert estimate == pytest.approx(float(torch.special.ndtr(math.sqrt(768 / n) - largest).mean()), abs=0.01)


def test_sphere_estimate_agrees_with_the_shipped_measure() -> None:
    a = torch.full((200, 64), 1 / 64, dtype=torch.float64)
    chosen = (torch.arange(64) < 6).expand(200, 64)
    ratio = bounds.separability(a, on_the_sphere(200, 64, 48, seed=2), chosen).ratio.double()
    estimate = float(bounds.sphere_separability_estimate(6, 64, 48))
    assert estimate == pytest.approx(float(ratio.mean()), abs=0.05 + 4 * float(ratio.std()) / math.sqrt(200))


def test_sphere_estimate_falls_with_n_and_l_and_rises_with_d() -> None:
    n, keys, d = torch.tensor([1, 2, 8, 50, 200]), torch.tensor([201, 300, 1000, 9000]), torch.tensor([2, 8, 64, 999])
    for estimate, sign in (
        (bounds.sphere_separability_estimate(n, 1000, 64), -1),
        (bounds.sphere_separability_estimate(16, keys, 64), -1),
        (bounds.sphere_separability_estimate(16, 1000, d), 1),
    ):
        assert bool((sign * estimate.diff() > 0).all())
        assert bool(((estimate >= 0) & (estimate <= 1)).all())
    close(bounds.sphere_separability_estimate(n, 1000, 64)[2], bounds.sphere_separability_estimate(8, 1000, 64))


def test_coverage_of_independent_heads() -> None:
    close(bounds.coverage_paper(0.3, 4), 1 - 0.7**4)
    close(bounds.coverage_paper(tensor(0.0, 0.5, 1.0), torch.tensor([3, 2, 1])), tensor(0.0, 0.75, 1.0))
