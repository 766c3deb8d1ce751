"""P1 to P8 on the shipped norms and bounds of the softmax Jacobian, against the dense matrix."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from bound_cases import at_most, close, logit_rows, padded, temperatures, tensor, weight_rows
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor
from torch.func import jacrev

import abbe
from abbe import bounds

ROW_FUNCTIONS = (
    bounds.largest_entry,
    bounds.spectral_norm,
    bounds.frobenius_norm,
    bounds.frobenius_norm_bound,
    bounds.one_norm,
    bounds.inf_to_one_norm,
    lambda *args: bounds.spectral_norm_bounds(*args)[0],
    lambda *args: bounds.spectral_norm_bounds(*args)[1],
)
HALF = tensor(0.5, 0.5)


def dense(row: Tensor, t: float) -> tuple[Tensor, Tensor]:
    """Weights, and their Jacobian by automatic differentiation of softmax(l/T)."""

    def call(x: Tensor) -> Tensor:
        return torch.softmax(x / t, -1)

    return call(row), jacrev(call)(row)


@given(logit_rows(), temperatures)
@example(torch.zeros(2, dtype=torch.float64), 1.0)
@example(tensor(3.0, 3.0, -90.0), 0.3)
def test_p1_spectral_norm(row: Tensor, t: float) -> None:
    a, j = dense(row, t)
    norm = bounds.spectral_norm(a, t)
    close(t * norm, t * torch.linalg.matrix_norm(j, 2), atol=1e-12)
    low, high = bounds.spectral_norm_bounds(a, t)
    assert at_most(t * low, t * norm)
    assert at_most(t * norm, t * high)
    assert at_most(high, bounds.spectral_norm_supremum(t))


@pytest.mark.parametrize("t", [0.01, 1.0, 20.0])
def test_p1_is_tight(t: float) -> None:
    close(bounds.spectral_norm(HALF, t), bounds.spectral_norm_supremum(t))
    close(bounds.spectral_norm(HALF, t), bounds.spectral_norm_bounds(HALF, t)[1])
    close(bounds.spectral_norm_supremum(t), 1 / (2 * t), atol=0)
    near = torch.softmax(tensor(0.0, 0.01, -40.0), -1)
    assert 0.4999 < t * float(bounds.spectral_norm(near, t)) < 0.5
    many = tensor(0.5, *[0.5 / 400] * 400)  # the left side: one key against many small ones
    assert float(bounds.spectral_norm_bounds(many)[0] / bounds.spectral_norm(many)) > 0.99


@given(logit_rows(), temperatures)
def test_p2_the_other_norms(row: Tensor, t: float) -> None:
    a, j = dense(row, t)
    close(t * bounds.largest_entry(a, t), t * j.abs().max())
    close(t * bounds.frobenius_norm(a, t), t * torch.linalg.matrix_norm(j), atol=3e-8)
    close(t * bounds.one_norm(a, t), t * j.abs().sum(-2).max())
    close(t * bounds.one_norm(a, t), t * j.abs().sum(-1).max())
    assert at_most(t * bounds.frobenius_norm(a, t), t * bounds.frobenius_norm_bound(a, t), atol=3e-8)
    assert at_most(t * bounds.frobenius_norm_bound(a, t), 0.5)
    assert at_most(t * bounds.largest_entry(a, t), 0.25)
    assert at_most(t * bounds.one_norm(a, t), 0.5)


def test_p2_suprema_are_reached() -> None:
    for function, wanted in (
        (bounds.largest_entry, 0.25),
        (bounds.frobenius_norm, 0.5),
        (bounds.frobenius_norm_bound, 0.5),
        (bounds.one_norm, 0.5),
        (bounds.inf_to_one_norm, 1.0),
    ):
        close(function(HALF, 0.2), wanted / 0.2)
    for n in (2, 3, 7):  # equal weights of n keys
        a = torch.full((n,), 1 / n, dtype=torch.float64)
        close(bounds.frobenius_norm(a), bounds.frobenius_norm_bound(a))
    assert float(bounds.frobenius_norm(tensor(0.6, 0.3, 0.1))) < float(
        bounds.frobenius_norm_bound(tensor(0.6, 0.3, 0.1))
    )


@given(weight_rows(max_size=8), temperatures)
def test_p3_infinity_to_one_by_signs(a: Tensor, t: float) -> None:
    j = (torch.diag(a) - torch.outer(a, a)) / t
    signs = torch.tensor(list(itertools.product((-1.0, 1.0), repeat=len(a))), dtype=torch.float64)
    norm = bounds.inf_to_one_norm(a, t)
    close(t * norm, t * (signs @ j).abs().sum(-1).max())
    assert at_most(norm, bounds.inf_to_one_supremum(t))
    close(bounds.inf_to_one_supremum(t), 1 / t, atol=0)


@pytest.mark.parametrize("seed", [0, 1])
def test_p3_at_ten_keys(seed: int) -> None:
    a = torch.softmax(torch.randn(10, generator=torch.Generator().manual_seed(seed), dtype=torch.float64), -1)
    j = torch.diag(a) - torch.outer(a, a)
    signs = torch.tensor(list(itertools.product((-1.0, 1.0), repeat=10)), dtype=torch.float64)
    close(bounds.inf_to_one_norm(a), (signs @ j).abs().sum(-1).max())
    with pytest.raises(abbe.AbbeError, match=r"weights have 21 keys.*20"):
        bounds.inf_to_one_norm(torch.full((21,), 1 / 21, dtype=torch.float64))


@given(logit_rows(min_size=2), st.data(), temperatures, st.sampled_from([1e-4, 0.1, 1.0]))
def test_p4_tanh_bounds(row: Tensor, data: st.DataObject, t: float, scale: float) -> None:
    change = scale * data.draw(logit_rows(min_size=len(row), max_size=len(row)))
    # The difference of the rows as the softmax sees them, so that rounding of l + e is no part of it.
    moved = (torch.softmax((row + change) / t, -1) - torch.softmax(row / t, -1)).norm()
    bound, size = bounds.change_bound((row + change) - row, t), ((row + change) - row).norm()
    assert at_most(moved, bound, atol=1e-11)
    by_norm = bounds.change_bound_by_norm(size, t)
    assert at_most(bound, by_norm)
    assert at_most(by_norm, min(float(size) / (2 * t), math.sqrt(2)))
    if float(size) > 0:  # the finite-difference sensitivity
        assert at_most(moved / size, min(1 / (2 * t), math.sqrt(2) / float(size)), atol=1e-9)


@given(st.integers(1, 4000).map(lambda i: i / 100), temperatures)
def test_p4_equality_for_two_keys(width: float, t: float) -> None:
    change = tensor(width / 2, -width / 2)
    moved = (torch.softmax(change / 2 / t, -1) - torch.softmax(-change / 2 / t, -1)).norm()
    close(bounds.change_bound(change, t), moved, atol=0)
    close(bounds.change_bound_by_norm(change.norm(), t), moved, atol=0)
    aside = (torch.softmax(change / t, -1) - HALF).norm()  # from l = 0 it is strict
    assert float(aside) < float(bounds.change_bound(change, t)) or width / t > 60


FAMILIES = {
    "exp": (torch.exp, 0.0),
    "softplus": (torch.nn.functional.softplus, -30.0),
    "softplus^3": (lambda x: torch.nn.functional.softplus(x) ** 3, -30.0),
    "1 + elu": (lambda x: 1 + torch.nn.functional.elu(x), -3.0),
    "x^2 + 0.3": (lambda x: x**2 + 0.3, math.sqrt(0.3)),
}


@pytest.mark.quick(2)
@pytest.mark.parametrize("family", FAMILIES)
@given(row=logit_rows(min_size=2, max_size=7))
def test_p6_norm_by_the_log_derivative(family: str, row: Tensor) -> None:
    shape, steepest = FAMILIES[family]
    row = row.clamp(-30, 30)
    j = jacrev(lambda x: shape(x) / shape(x).sum())(row)
    slope = jacrev(lambda x: shape(x).log())(row).diagonal().abs().max()
    assert at_most(torch.linalg.matrix_norm(j, 2), bounds.log_derivative_bound(slope))
    equal = torch.full((2,), steepest, dtype=torch.float64)
    j = jacrev(lambda x: shape(x) / shape(x).sum())(equal)
    slope = jacrev(lambda x: shape(x).log())(equal).diagonal().abs().max()
    close(torch.linalg.matrix_norm(j, 2), bounds.log_derivative_bound(slope))


def test_p6_softmax_is_a_case_of_it() -> None:
    close(bounds.log_derivative_bound(1 / tensor(0.1, 1.0, 3.0)), bounds.spectral_norm_supremum(tensor(0.1, 1.0, 3.0)))


LIPSCHITZ = {"sigmoid:bias=0": 0.25, "softmax": 0.5, "softmax1": 0.5, "sparsemax": 1.0}


@pytest.mark.parametrize("spec", LIPSCHITZ)
def test_p7_p8_lipschitz_constants_of_the_table(spec: str) -> None:
    for keys in (2, 64):
        assert bounds.lipschitz(spec, keys) == pytest.approx(LIPSCHITZ[spec], rel=1e-12)
    assert bounds.lipschitz("entmax:alpha=1.5", 1024) == pytest.approx(0.869, abs=5e-4)
    assert bounds.lipschitz("entmax:alpha=1.5", 2) == pytest.approx(math.sqrt(0.5), rel=1e-8)
    assert bounds.lipschitz("ssmax", 100) == abbe.normalizer("ssmax").lipschitz(100)
    assert bounds.lipschitz("ssmax:s=1", 100) == pytest.approx(math.log(100) / 2, rel=1e-9)


SELECTIVE = {"softmax": "softmax", "sparsemax": "sparsemax", "entmax15": "entmax:alpha=1.5"}


@pytest.mark.parametrize("error", [0.01, 0.1, 0.4])
@pytest.mark.parametrize("keys", [2, 3, 30, 3000])
def test_selective_temperature_gives_the_weight(keys: int, error: float) -> None:
    for spec, name in SELECTIVE.items():
        t = float(bounds.selective_temperature(spec, keys, error))
        row = torch.cat([tensor(1 / t), torch.zeros(keys - 1, dtype=torch.float64)])
        close(abbe.normalizer(name)(row)[0], 1 - error, rel=1e-8)
    t = float(bounds.selective_temperature("ssmax", keys, error))
    unit = torch.cat([tensor(1.0), torch.zeros(keys - 1, dtype=torch.float64)])
    close(abbe.normalizer("ssmax", s=1 / t / math.log(keys))(unit)[0], 1 - error, rel=1e-8)


@given(st.integers(2, 10**6), st.sampled_from([0.01, 0.1, 0.3]))
def test_sensitivity_at_equal_selectivity(keys: int, error: float) -> None:
    odds = (keys - 1) * (1 - error) / error
    for spec in ("softmax", "ssmax"):
        close(bounds.sensitivity_at_equal_selectivity(spec, keys, error), 0.5 * math.log(odds))
    sparse = float(bounds.sensitivity_at_equal_selectivity("sparsemax", keys, error))
    assert sparse == pytest.approx(((1 - error) * keys - 1) / (keys - 1), rel=1e-9)
    assert sparse < 1
    entmax = float(bounds.sensitivity_at_equal_selectivity("entmax15", keys, error))
    assert entmax <= 2 * (math.sqrt(1 - error) - math.sqrt(error / (keys - 1))) * (1 + 1e-9)
    assert entmax < 2


def test_only_softmax_pays_for_length() -> None:
    keys = torch.tensor([64, 4096, 262144])
    soft = bounds.sensitivity_at_equal_selectivity("softmax", keys)
    close(soft.diff(), 0.5 * torch.log((keys[1:] - 1) / (keys[:-1] - 1).double()))
    for spec in ("sparsemax", "entmax15"):
        assert float(bounds.sensitivity_at_equal_selectivity(spec, keys).diff().max()) < 0.45
    errors = tensor(0.01, 0.1, 0.2)
    sensitivities = bounds.sensitivity_at_equal_selectivity("entmax15", 50, errors)
    for i in range(3):
        close(sensitivities[i], bounds.sensitivity_at_equal_selectivity("entmax15", 50, float(errors[i])))


@given(weight_rows(max_size=7), temperatures, st.integers(0, 5))
def test_keys_without_weight_change_nothing(a: Tensor, t: float, seed: int) -> None:
    longer, _ = padded(a, 0.0, seed)
    for function in ROW_FUNCTIONS:
        close(t * function(longer, t), t * function(a, t), atol=3e-8 if function in ROW_FUNCTIONS[2:4] else 1e-12)


@pytest.mark.parametrize("function", ROW_FUNCTIONS)
def test_gradients_are_not_nan_at_a_one_hot_row(function: object) -> None:
    a = tensor(0.0, 1.0, 0.0).requires_grad_()
    function(a).backward()
    assert not bool(torch.isnan(a.grad).any())


@pytest.mark.parametrize("small", [1e-3, 1e-6, 1e-9, 1e-12])
def test_norms_of_peaked_rows_keep_their_digits(small: float) -> None:
    """a = (1 - e, e): every norm is known, and small."""
    a, share = tensor(1 - small, small), small * (1 - small)
    close(bounds.largest_entry(a), share, rel=1e-3, atol=0)
    close(bounds.spectral_norm(a), 2 * share, rel=1e-3, atol=0)
    close(bounds.one_norm(a), 2 * share, rel=1e-3, atol=0)
    close(bounds.inf_to_one_norm(a), 4 * share, rel=1e-3, atol=0)
    close(bounds.frobenius_norm(a), 2 * share, rel=1e-3, atol=0)
