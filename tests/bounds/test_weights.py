"""P9, P10, P11 and P17 on the shipped bounds of the weights."""

from __future__ import annotations

import math

import mpmath
import pytest
import torch
from bound_cases import TEMPERATURES, at_most, close, logit_rows, temperatures, tensor, top, weight_rows
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck

import abbe
from abbe import bounds

ALPHAS = (1.05, 1.25, 1.5, 1.75, 2.0)
spreads = st.integers(1, 3000).map(lambda i: i / 100)


def two_level(keys: int, high: int, spread: float) -> Tensor:
    """`high` logits at the spread, the others at 0."""
    return spread * (torch.arange(keys) < high).double()


@given(logit_rows(), temperatures)
def test_p9_every_weight_lies_in_its_bounds(row: Tensor, t: float) -> None:
    a = torch.softmax(row / t, -1)
    low, high = bounds.weight_bounds(row, t)
    assert at_most(low, a)
    assert at_most(a, high)
    spread = float(row.max() - row.min())
    least, most = bounds.weight_range(spread, len(row), t)
    assert at_most(least, low)
    assert at_most(high, most)
    assert bool((a > 0).all()) or float(least) < 1e-300  # the lower side is not vacuous


@given(st.integers(2, 9), spreads, temperatures)
def test_p9_equality_for_two_level_logits(keys: int, spread: float, t: float) -> None:
    one_up, one_down = two_level(keys, 1, spread), two_level(keys, keys - 1, spread)
    for row, key, side in ((one_up, 0, 1), (one_down, -1, 0)):
        weight = torch.softmax(row / t, -1)[key]
        close(bounds.weight_bounds(row, t)[side][key], weight, atol=0)
        close(bounds.weight_range(spread, keys, t)[side], weight, atol=0)


@given(logit_rows(), temperatures)
def test_p9_the_range_of_the_paper_is_true_and_looser(row: Tensor, t: float) -> None:
    row = row.clamp(-15, 15)
    a, size = torch.softmax(row / t, -1), row.abs().max()
    low, high = bounds.weight_range_paper(size, len(row), t)
    assert at_most(low, a)
    assert at_most(a, high)
    tight = bounds.weight_range(2 * size, len(row), t)
    assert at_most(low, tight[0])
    assert at_most(tight[1], high)


def test_the_range_of_the_paper_is_vacuous_until_the_row_is_long() -> None:
    d, t = 1.5, 0.5
    turn = math.exp(2 * d / t)
    assert float(bounds.weight_range_paper(d, math.floor(turn), t)[1]) > 1
    assert float(bounds.weight_range_paper(d, math.ceil(turn), t)[1]) < 1


@given(logit_rows())
def test_lemma_1_for_softplus(row: Tensor) -> None:
    row = row.clamp(-20, 20)
    shaped = torch.nn.functional.softplus(row)
    a, ends = shaped / shaped.sum(), (shaped.min(), shaped.max())
    low, high = bounds.general_weight_range(*ends, len(row))
    assert at_most(low, a)
    assert at_most(a, high)
    loose_low, loose_high = bounds.general_weight_range_paper(*ends, len(row))
    assert at_most(loose_low, low)
    assert at_most(high, loose_high)
    ratio, keys = float(ends[1] / ends[0]), len(row)
    close(loose_high / high, (keys + ratio - 1) / keys)


@given(st.integers(2, 9), spreads, temperatures)
def test_lemma_1_is_tight_and_softmax_is_a_case_of_it(keys: int, spread: float, t: float) -> None:
    ratio = math.exp(min(spread / t, 600))
    for side, shaped, key in ((1, [ratio] + [1.0] * (keys - 1), 0), (0, [ratio] * (keys - 1) + [1.0], -1)):
        weight = shaped[key] / math.fsum(shaped)
        close(bounds.general_weight_range(1.0, ratio, keys)[side], weight, atol=0)
    for general, softmax in zip(
        bounds.general_weight_range(1.0, ratio, keys), bounds.weight_range(min(spread / t, 600), keys), strict=True
    ):
        close(general, softmax, atol=0)


@given(weight_rows(), st.data())
def test_top_mass_and_selected_set_against_sorting(a: Tensor, data: st.DataObject) -> None:
    n = data.draw(st.integers(1, len(a)))
    chosen = bounds.selected_set(a, n)
    assert sorted(top(a, n)) == chosen.nonzero().flatten().tolist()
    close(bounds.top_mass(a, n), math.fsum(sorted(a.tolist(), reverse=True)[:n]))


def test_earlier_keys_win_ties() -> None:
    assert bounds.selected_set(tensor(0.2, 0.3, 0.2, 0.3), 3).tolist() == [True, True, False, True]
    equal = torch.full((5000,), 1 / 5000, dtype=torch.float64)  # long enough for a sort that is not stable to show
    assert bool(bounds.selected_set(equal, 2000)[:2000].all())


@given(logit_rows(), temperatures, st.data())
def test_p9_top_mass_bounds(row: Tensor, t: float, data: st.DataObject) -> None:
    n = data.draw(st.integers(1, len(row)))
    low, high = bounds.top_mass_bounds(row.max() - row.min(), len(row), n, t)
    mass = bounds.top_mass(torch.softmax(row / t, -1), n)
    assert at_most(low, mass)
    assert at_most(mass, high)


@given(st.integers(1, 9), st.data(), spreads, temperatures)
def test_p9_top_mass_equality(keys: int, data: st.DataObject, spread: float, t: float) -> None:
    n = data.draw(st.integers(1, keys))
    equal = torch.zeros(keys, dtype=torch.float64)
    close(bounds.top_mass_bounds(0.0, keys, n, t)[1], bounds.top_mass(torch.softmax(equal, -1), n))
    close(bounds.top_mass_bounds(spread, keys, n, t)[0], bounds.top_mass(torch.softmax(equal, -1), n))
    row = two_level(keys, n, spread)
    close(bounds.top_mass_bounds(spread, keys, n, t)[1], bounds.top_mass(torch.softmax(row / t, -1), n))


@given(weight_rows())
@example(tensor(1.0, 0.0))
def test_entropy_and_effective_number_by_definition(a: Tensor) -> None:
    wanted = -math.fsum(p * math.log(p) for p in a.tolist() if p > 0)
    close(bounds.entropy(a), wanted)
    assert at_most(bounds.entropy(a), math.log(len(a)))
    close(bounds.effective_number(a), 1 / math.fsum(p * p for p in a.tolist()))
    assert at_most(1.0, bounds.effective_number(a))
    assert at_most(bounds.effective_number(a), float(len(a)))


@given(logit_rows(), temperatures)
def test_p10_entropy_and_effective_number_bounds(row: Tensor, t: float) -> None:
    a, spread = torch.softmax(row / t, -1), row.max() - row.min()
    deficit = math.log(len(row)) - bounds.entropy(a)
    assert at_most(deficit, bounds.entropy_deficit_bound(spread, t))
    assert at_most(bounds.entropy_deficit_bound(spread, t), bounds.entropy_deficit_bound_loose(spread, t))
    assert at_most(bounds.effective_number_bound(spread, len(row), t), bounds.effective_number(a))


@pytest.mark.parametrize("x", [1e-9, 1e-4, 0.03, 0.0999, 0.1, 0.1001, 0.5, 1.0, 3.0, 30.0, 500.0, 2000.0])
def test_entropy_deficit_is_the_specht_ratio(x: float) -> None:
    with mpmath.workdps(60):
        rho = mpmath.exp(mpmath.mpf(x))
        specht = (rho - 1) * rho ** (1 / (rho - 1)) / (mpmath.e * mpmath.log(rho))
        wanted = float(mpmath.log(specht))
    close(bounds.entropy_deficit_bound(x), wanted, atol=0)
    close(bounds.entropy_deficit_bound(2 * x, 2.0), wanted, atol=0)


def test_entropy_deficits_as_printed() -> None:
    """In theory.md; its .475 at R/T = 2 is .4745, so .474."""
    deficits = bounds.entropy_deficit_bound(tensor(1, 2, 5, 10, 20)).tolist()
    assert deficits == pytest.approx([0.1233, 0.4745, 2.418, 6.697, 16.004], rel=5e-4)


@pytest.mark.parametrize("x", [0.5, 2.0, 5.0])
def test_p10_entropy_deficit_is_approached_as_the_row_grows(x: float) -> None:
    """Two-level rows with the best share of high keys."""
    bound, worst = float(bounds.entropy_deficit_bound(x)), []
    for keys in (10, 100, 1000):
        deficits = [
            math.log(keys) - bounds.entropy(torch.softmax(two_level(keys, high, x), -1)) for high in range(1, keys)
        ]
        worst.append(float(max(deficits)) / bound)
    assert sorted(worst) == worst
    assert 0.9999 < worst[-1] <= 1 + 1e-9


def test_p10_the_quadratic_is_tight_at_small_spread() -> None:
    row = two_level(10, 5, 1e-2)
    deficit = math.log(10) - bounds.entropy(torch.softmax(row, -1))
    assert float(deficit / bounds.entropy_deficit_bound_loose(1e-2)) > 0.9999


@pytest.mark.parametrize(("low", "times"), [(1, 1), (2, 1), (3, 4), (9, 2)])
def test_p10_effective_number_equality(low: int, times: int) -> None:
    """rho = low, and one of 1 + rho keys at the top: the share 1/(1 + rho)."""
    keys, t = (1 + low) * times, 0.3
    row = two_level(keys, times, t * math.log(low)) if low > 1 else torch.zeros(keys).double()
    number = bounds.effective_number(torch.softmax(row / t, -1))
    close(bounds.effective_number_bound(t * math.log(low), keys, t), number, atol=0)


errors = st.sampled_from([1e-6, 0.01, 0.1, 0.5, 0.9])


@given(st.integers(2, 2000), st.data(), errors, temperatures)
def test_p11_margin_equality(keys: int, data: st.DataObject, error: float, t: float) -> None:
    n = data.draw(st.integers(1, keys - 1))
    margin = float(bounds.margin_needed(keys, error, t, n))
    close(margin, t * math.log((keys - n) * (1 - error) / (n * error)))
    mass = torch.softmax(two_level(keys, n, margin) / t, -1)[:n].sum()
    close(mass, 1 - error)
    close(bounds.winners_mass(margin, keys, t, n), 1 - error)
    for step in (1e-3, -1e-3):  # necessary and sufficient
        moved = torch.softmax(two_level(keys, n, margin + step * t) / t, -1)[:n].sum()
        assert (float(moved) > 1 - error) == (step > 0)


@given(logit_rows(min_size=1), errors, temperatures)
def test_p11_margin_is_enough_for_any_competitors(others: Tensor, error: float, t: float) -> None:
    keys = len(others) + 1
    winner = others.max() + bounds.margin_needed(keys, error, t)
    top_weight = torch.softmax(torch.cat([winner.unsqueeze(0), others]) / t, -1)[0]
    assert at_most(1 - error, top_weight, atol=1e-11)


@pytest.mark.quick(2)
@pytest.mark.parametrize("alpha", ALPHAS)
@given(row=logit_rows(min_size=2))
def test_p17_contenders_of_entmax(alpha: float, row: Tensor) -> None:
    made = abbe.normalizer("entmax", alpha=alpha)
    gap, k = bounds.entmax_gap(alpha), int(bounds.entmax_contenders(row, alpha))
    p = made(row)
    assert bool((p[row <= row.max() - gap] == 0).all())
    assert int((p > 0).sum()) <= k
    assert at_most(1 / k, p.max())
    assert at_most(bounds.entropy(p), math.log(k), atol=1e-9)
    longer = torch.cat([row, (row.max() - gap - torch.arange(4)).to(row)])
    assert int(bounds.entmax_contenders(longer, alpha)) == k


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("k", [1, 2, 7])
def test_p17_equality_for_equal_contenders(alpha: float, k: int) -> None:
    gap = float(bounds.entmax_gap(alpha))
    row = torch.cat([torch.zeros(k), torch.full((50,), -gap)]).double()
    assert int(bounds.entmax_contenders(row, alpha)) == k
    p = abbe.normalizer("entmax", alpha=alpha)(row)
    close(p.max(), 1 / k)
    close(bounds.entropy(p), math.log(k))


def test_p17_the_gap_is_tight_and_known() -> None:
    assert (float(bounds.entmax_gap(2.0)), float(bounds.entmax_gap(1.5))) == (1.0, 2.0)
    for alpha in (1.25, 1.5, 2.0):
        inside = tensor(0.0, -float(bounds.entmax_gap(alpha)) * 0.95)
        assert float(abbe.normalizer("entmax", alpha=alpha)(inside)[1]) > 0


def test_a_selection_prefers_a_visible_key_without_weight_to_an_absent_one() -> None:
    a, mask = tensor(0.0, 1.0, 0.0), torch.tensor([False, True, True])
    assert bounds.selected_set(a, 2, mask).tolist() == [False, True, True]


@pytest.mark.parametrize("spread", [0.0, 3.0, 1000.0])
def test_a_row_of_one_key_holds_everything(spread: float) -> None:
    for t in TEMPERATURES:
        for side in (*bounds.weight_range(spread, 1, t), *bounds.top_mass_bounds(spread, 1, 1, t)):
            assert float(side) == 1
    assert [float(side) for side in bounds.weight_bounds(tensor(spread))] == [1, 1]
    assert [float(side) for side in bounds.general_weight_range(1e-300, 1e300, 1)] == [1, 1]


def test_float32_stays_float32_and_whole_numbers_are_taken() -> None:
    row = torch.tensor([0.0, 1.0, 3.0])
    assert all(side.dtype == torch.float32 for side in bounds.weight_bounds(row))
    assert bounds.entropy(torch.softmax(row, -1)).dtype == torch.float32
    assert bounds.top_mass(torch.softmax(row, -1), 2).dtype == torch.float32
    assert float(bounds.weight_range(1, 4, 2)[0]) == pytest.approx(1 / (1 + 3 * math.exp(0.5)), rel=1e-12)


@pytest.mark.parametrize("spread", [0.02, 0.09, 0.11, 2.0, 40.0])
def test_bounds_can_be_differentiated(spread: float) -> None:
    r, t = tensor(spread).requires_grad_(), tensor(0.7).requires_grad_()
    for call in (
        lambda r, t: bounds.weight_range(r, 5, t),
        lambda r, t: bounds.weight_range_paper(r, 5, t),
        lambda r, t: bounds.top_mass_bounds(r, 5, 2, t)[1],
        lambda r, t: bounds.entropy_deficit_bound(r, t),
        lambda r, t: bounds.entropy_deficit_bound_loose(r, t),
        lambda r, t: bounds.effective_number_bound(r, 5, t),
        lambda r, t: bounds.winners_mass(r, 5, t, 2),
        lambda r, t: bounds.margin_needed(5, torch.sigmoid(-r / 40), t, 2),
    ):
        assert gradcheck(call, (r, t), rtol=1e-4, atol=1e-6)


def test_gradients_are_finite_at_a_one_hot_row() -> None:
    one_hot = tensor(1.0, 0.0).requires_grad_()
    (bounds.entropy(one_hot) + bounds.effective_number(one_hot)).backward()
    assert bool(torch.isfinite(one_hot.grad).all())
