"""Properties P1-P8 and P17-P19 of the theory notes, in float64, on drawn and adversarial rows."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from inside import normalizers_row_map as _row_map
from normalizer_cases import Case, every_case, random_logits
from tiers import examples
from torch import Tensor
from torch.func import jacrev, vmap
from typed import jacobian, weights

import abbe

CLOSE = 1 + 1e-9
ALPHAS = (1.05, 1.25, 1.5, 1.75, 2.0)


def rows(min_size: int = 1, max_size: int = 12) -> st.SearchStrategy[Tensor]:
    """Multiples of 1/1024 (so that shifts are exact), with ties, levels and outliers."""
    fine = st.integers(-20_000, 20_000).map(lambda i: i / 1024)
    coarse = st.integers(-3, 3).map(float)
    far = st.sampled_from([-1e4, -50.0, 0.0, 0.5, 50.0, 1e4])
    lists = [st.lists(kind, min_size=min_size, max_size=max_size) for kind in (fine, coarse, st.one_of(fine, far))]
    return st.one_of(*lists).map(lambda row: torch.tensor(row, dtype=torch.float64))


def spectral(matrix: Tensor) -> float:
    return float(torch.linalg.matrix_norm(matrix, ord=2))


temperatures = st.sampled_from([0.01, 0.3, 1.0, 7.0])


@given(rows(), temperatures)
@example(torch.zeros(2, dtype=torch.float64), 1.0)
@example(torch.tensor([3.0, 3.0, -90.0], dtype=torch.float64), 0.3)
def test_p1_spectral_norm_of_softmax(row: Tensor, temperature: float) -> None:
    made = abbe.normalizer("softmax", temperature=temperature)
    a, norm = weights(made, row), temperature * spectral(jacobian(made, row))
    spread = float((a * (1 - a)).max())
    assert spread <= norm * CLOSE + 1e-12
    assert norm <= 2 * spread * CLOSE + 1e-12
    assert norm <= 0.5 * CLOSE


def test_p1_is_tight() -> None:
    norms = [
        spectral(jacobian(abbe.normalizer("softmax"), torch.tensor([0.0, gap, -40.0]).double())) for gap in (0, 0.01)
    ]
    assert max(norms) > 0.4999


@given(rows(), temperatures)
def test_p2_frobenius_entry_and_row_sums_of_softmax(row: Tensor, temperature: float) -> None:
    made = abbe.normalizer("softmax", temperature=temperature)
    a, j = weights(made, row), jacobian(made, row)
    p2, p3, spread = float((a**2).sum()), float((a**3).sum()), float((a * (1 - a)).max())
    frobenius = float(torch.linalg.matrix_norm(j)) * temperature
    assert frobenius == pytest.approx(math.sqrt(max(p2 - 2 * p3 + p2**2, 0)), rel=1e-9, abs=2e-8)
    assert frobenius <= math.sqrt(p2 * (1 - p2) + 1e-15) * CLOSE
    assert frobenius <= 0.5 * CLOSE
    assert float(j.abs().max()) * temperature == pytest.approx(spread, rel=1e-9, abs=1e-15)
    assert spread <= 0.25
    for sums in (j.abs().sum(-1), j.abs().sum(-2)):
        assert float(sums.max()) * temperature == pytest.approx(2 * spread, rel=1e-9, abs=1e-15)


@given(rows(max_size=8), temperatures)
def test_p3_infinity_to_one_norm_of_softmax(row: Tensor, temperature: float) -> None:
    made = abbe.normalizer("softmax", temperature=temperature)
    a, j = weights(made, row), jacobian(made, row)
    signs = torch.tensor(list(itertools.product((-1.0, 1.0), repeat=len(row))), dtype=torch.float64)
    by_signs = float((signs @ j).abs().sum(-1).max()) * temperature
    mass = ((signs > 0).double() @ a).clamp(0, 1)
    assert by_signs == pytest.approx(4 * float((mass * (1 - mass)).max()), rel=1e-9, abs=1e-12)
    assert by_signs <= CLOSE


@given(rows(min_size=2), st.data(), temperatures)
def test_p4_tanh_bounds(row: Tensor, data: st.DataObject, temperature: float) -> None:
    step = data.draw(rows(min_size=len(row), max_size=len(row)))
    made = abbe.normalizer("softmax", temperature=temperature)
    moved = float((made(row + step) - made(row)).norm())
    width, size = float(step.max() - step.min()), float(step.norm())
    assert moved <= math.sqrt(2) * math.tanh(width / (4 * temperature)) * CLOSE + 1e-15
    assert width / 4 <= size / (2 * math.sqrt(2)) * CLOSE
    assert moved <= min(size / (2 * temperature), math.sqrt(2)) * CLOSE + 1e-15


@given(st.integers(1, 4000).map(lambda i: i / 100), temperatures)
def test_p4_equality_for_two_tokens(width: float, temperature: float) -> None:
    step = torch.tensor([width / 2, -width / 2], dtype=torch.float64)
    made = abbe.normalizer("softmax", temperature=temperature)
    moved = float((made(step / 2) - made(-step / 2)).norm())
    assert moved == pytest.approx(math.sqrt(2) * math.tanh(width / (4 * temperature)), rel=1e-9)


def test_p5_the_published_bound_is_false() -> None:
    """min(1/(4T), sqrt 2) is passed at (1/2, 1/2), and by far at l = (0, 0, -.03), T = .01."""
    assert spectral(jacobian(abbe.normalizer("softmax"), torch.zeros(2).double())) == pytest.approx(0.5, rel=1e-12)
    cold = abbe.normalizer("softmax", temperature=0.01)
    assert spectral(jacobian(cold, torch.tensor([0.0, 0.0, -0.03]).double())) == pytest.approx(48.8, abs=0.05)


@given(rows(min_size=2, max_size=8))
def test_p6_norm_by_the_log_derivative(row: Tensor) -> None:
    """||J|| <= max |(log F)'| / 2 for weights F(l) / sum F(l)."""
    row = row.clamp(-30, 30)
    shapes = {
        "exp": torch.exp,
        "softplus": torch.nn.functional.softplus,
        "softplus^3": lambda x: torch.nn.functional.softplus(x) ** 3,
        "1 + elu": lambda x: 1 + torch.nn.functional.elu(x),
        "x^2 + 0.3": lambda x: x**2 + 0.3,
    }
    for name, shape in shapes.items():
        j = jacrev(lambda x, shape=shape: shape(x) / shape(x).sum())(row)
        slope = vmap(torch.func.grad(lambda x, shape=shape: shape(x).log()))(row).abs().max()
        assert spectral(j) <= 0.5 * float(slope) * CLOSE + 1e-12, name
    j = jacrev(lambda x: x.exp() / x.exp().sum())(row)
    torch.testing.assert_close(j, jacobian(abbe.normalizer("softmax"), row), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("alpha", [1.0, 1.25, 1.5, 1.75, 2.0])
def test_p7_entmax_jacobian_by_its_formula(alpha: float) -> None:
    """diag u - u u^T / sum u with u = p^(2 - alpha); alpha = 1 is the general map at its limit, softmax."""
    row = random_logits(9, seed=4, scale=1.0)
    general = _row_map.MAPS["entmax"].reference

    def call(x: Tensor) -> Tensor:
        return general(x, torch.tensor([1.0, alpha - 1], dtype=torch.float64))

    p = call(row)
    u = torch.where(p > 0, p ** (2 - alpha), 0.0)
    formula = torch.diag(u) - torch.outer(u, u) / u.sum()
    torch.testing.assert_close(jacrev(call)(row), formula, rtol=1e-9, atol=1e-11)
    step = 1e-6 * torch.eye(9, dtype=torch.float64)
    numeric = torch.stack([(call(row + move) - call(row - move)) / 2e-6 for move in step], -1)
    torch.testing.assert_close(formula, numeric, rtol=0, atol=1e-8)
    named = abbe.normalizer("softmax") if alpha == 1 else abbe.normalizer("entmax", alpha=alpha)
    torch.testing.assert_close(named(row), p, rtol=1e-11, atol=1e-14)
    torch.testing.assert_close(named.jacobian(row), formula, rtol=1e-9, atol=1e-11)


@given(rows(), rows())
def test_p8_sparsemax_is_a_projection(row: Tensor, other: Tensor) -> None:
    made = abbe.normalizer("sparsemax")
    norm = spectral(jacobian(made, row))
    assert min(norm, abs(norm - 1)) < 1e-9
    assert norm == pytest.approx(float((made(row) > 0).sum() > 1), abs=1e-9)
    torch.testing.assert_close(made(made(row)), made(row), rtol=0, atol=1e-12)
    size = min(len(row), len(other))
    one, two = row[:size], other[:size]
    assert float((made(one) - made(two)).norm()) <= float((one - two).norm()) * CLOSE + 1e-12
    nearest, point = made(one), torch.softmax(two, -1)  # the projection is nearer than any other point
    assert float((one - nearest).norm()) <= float((one - point).norm()) * CLOSE + 1e-12


@pytest.mark.parametrize("alpha", ALPHAS)
@example(row=torch.tensor([3.0, 1.0, 1.0, 1.0, 1.0], dtype=torch.float64))  # on the edge for alpha = 1.5
@given(row=rows(min_size=2))
def test_p17_gap_support_and_peak_of_entmax(alpha: float, row: Tensor) -> None:
    made, gap = abbe.normalizer("entmax", alpha=alpha), 1 / (alpha - 1)
    output = weights(made, row)
    far, inside = row <= row.max() - gap, int((row > row.max() - gap).sum())
    assert bool((output[far] == 0).all())
    assert int((output > 0).sum()) <= inside
    assert float(output.max()) >= (1 - 1e-9) / inside
    entropy = -float(torch.special.xlogy(output, output).sum())
    assert entropy <= math.log(inside) + 1e-9


@pytest.mark.parametrize("alpha", ALPHAS)
@given(row=rows(), below=st.lists(st.integers(0, 3000).map(lambda i: i / 64), min_size=1, max_size=20))
def test_p17_keys_below_the_threshold_change_nothing(alpha: float, row: Tensor, below: list[float]) -> None:
    made = abbe.normalizer("entmax", alpha=alpha)
    output = weights(made, row)
    best = int(output.argmax())
    threshold = float(row[best]) - float(output[best]) ** (alpha - 1) / (alpha - 1)
    extra = torch.tensor([threshold - 1e-9 - step for step in below], dtype=torch.float64)
    longer = weights(made, torch.cat([row, extra]))
    torch.testing.assert_close(longer[: len(row)], output, rtol=1e-9, atol=1e-9)
    assert float(longer[len(row) :].max()) <= 1e-9


@every_case()
@settings(max_examples=examples(40))
@given(row=rows(), shift=st.integers(-64, 64).map(lambda i: i / 4), seed=st.integers(0, 9))
def test_p18_laws_of_weights(case: Case, row: Tensor, shift: float, seed: int) -> None:
    """Sum, sign, order, permutation and shift, where the case says that they hold."""
    made, row = case.make(), row.expand(3, 1, -1)
    output = weights(made, row)
    assert bool((output >= 0).all())
    if case.simplex:
        torch.testing.assert_close(output.sum(-1), torch.ones(3, 1, dtype=torch.float64), rtol=1e-9, atol=0)
    if case.order_preserving:
        ordered = row[0, 0].sort(stable=True)
        steps = output[..., ordered.indices].diff(dim=-1)
        strict = ordered.values.diff() > 0
        assert bool((steps >= -1e-12)[..., strict].all())
        if case.continuous:
            assert bool((steps.abs() <= 1e-12)[..., ~strict].all())
    if case.shift_invariant:
        torch.testing.assert_close(made(row + shift), output, rtol=1e-9, atol=1e-12)
    if case.permutation_equivariant:
        order = torch.randperm(row.shape[-1], generator=torch.Generator().manual_seed(seed))
        distinct = len(row[0, 0].unique()) == row.shape[-1]
        assume(distinct or case.continuous)
        torch.testing.assert_close(made(row[..., order]), output[..., order], rtol=1e-9, atol=1e-12)


@pytest.mark.quick(6)
@every_case()
@settings(max_examples=examples(40))
@given(row=rows(min_size=2), mask=st.lists(st.booleans(), min_size=12, max_size=12))
def test_p18_masking_is_removing(case: Case, row: Tensor, mask: list[bool]) -> None:
    made, keep = case.make(), torch.tensor(mask[: len(row)])
    output = weights(made, row.expand(3, 1, -1), keep)
    assert bool((output[..., ~keep] == 0).all())
    if bool(keep.any()):
        torch.testing.assert_close(output[..., keep], made(row[keep].expand(3, 1, -1)), rtol=1e-9, atol=1e-12)


@given(row=rows(), mask=st.lists(st.booleans(), min_size=12, max_size=12), s=st.sampled_from([0.1, 0.43, 1.0, 3.0]))
def test_p19_scalable_softmax(row: Tensor, mask: list[bool], s: float) -> None:
    keep = torch.tensor(mask[: len(row)])
    keep[0] = True
    scaled = torch.where(keep, s * math.log(int(keep.sum())) * row, -torch.inf)
    torch.testing.assert_close(
        weights(abbe.normalizer("ssmax", s=s), row, keep), torch.softmax(scaled, -1), rtol=1e-9, atol=1e-12
    )
