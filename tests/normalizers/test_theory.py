"""Properties P7, P8, P17 and P18 of the theory notes, in float64, on drawn and adversarial rows."""

from __future__ import annotations

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from inside import normalizers_row_map as _row_map
from normalizer_cases import Case, every_case, random_logits
from tiers import examples
from torch import Tensor
from torch.func import jacrev
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
    norm = float(torch.linalg.matrix_norm(jacobian(made, row), ord=2))
    assert min(norm, abs(norm - 1)) < 1e-9
    assert norm == pytest.approx(float((made(row) > 0).sum() > 1), abs=1e-9)
    torch.testing.assert_close(made(made(row)), made(row), rtol=0, atol=1e-12)
    size = min(len(row), len(other))
    one, two = row[:size], other[:size]
    assert float((made(one) - made(two)).norm()) <= float((one - two).norm()) * CLOSE + 1e-12
    nearest, point = made(one), torch.softmax(two, -1)  # the projection is nearer than any other point
    assert float((one - nearest).norm()) <= float((one - point).norm()) * CLOSE + 1e-12


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
