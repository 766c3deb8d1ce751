"""Crossings, intervals of planted losses, growth, and rank correlations."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats
import torch
from capacity_runs import asked, curve_of, made
from hypothesis import given
from hypothesis import strategies as st

from abbe.measures._bootstrap import expanded_tail
from abbe.studies._capacity_intervals import crossings, growth_exponent, whole_interval
from abbe.studies._capacity_ranks import least_p_value, rank_correlation
from abbe.studies._capacity_tables import growth_table, model_row


def test_crossing_is_log_linear() -> None:
    rises = torch.tensor([0.4, 0.2, 0.1]).double()
    halfway = crossings(rises, [1, 4, 16], 64, 0.15)
    assert float(halfway) == pytest.approx(8.0)  # halfway between ln 4 and ln 16
    assert float(crossings(rises, [1, 4, 16], 64, 0.05)) == pytest.approx(32.0)  # all keys: no rise
    assert float(crossings(rises, [1, 4, 16], 64, 0.5)) == 1.0
    assert float(crossings(rises, [1, 4, 16], 64, 0.2)) == pytest.approx(4.0)
    broken = torch.tensor([0.1, math.inf, math.nan, 0.0]).double()
    assert float(crossings(broken, [1, 2, 4, 8], 64, 0.05)) == pytest.approx(8.0)


def test_equal_windows_have_an_interval_without_width() -> None:
    row = model_row(curve_of([0.19] * 4), 0.05, asked())
    assert (row["capacity"], row["low"], row["high"], row["share"]) == (4, 4, 4, 4 / 64)


def test_the_interval_is_that_of_resampled_pairs() -> None:
    """Against loops: draw windows, take own and truncated losses of the same ones, find the least N by counting."""
    slopes = [0.1, 0.35, 0.8, 0.05, 0.6]
    settings = asked(resamples=400, level=0.9)
    row = model_row(curve_of(slopes), 0.05, settings)
    drawn = torch.randint(5, (400, 5), generator=torch.Generator().manual_seed(settings.seed + 64)).tolist()
    least = []
    for places in drawn:
        own = sum(i + 1.0 for i in places)
        rise = [sum((i + 1.0) * slopes[i] / n for i in places) / own for n in range(1, 64)]
        least.append(next(n for n, one in enumerate(rise, 1) if one <= 0.05 + 1e-12))
    tail = expanded_tail(5, 0.9)
    assert tail < 0.05
    assert row["low"] == math.floor(np.quantile(least, tail))
    assert row["high"] == math.ceil(np.quantile(least, 1 - tail))
    assert row["low"] < row["capacity"] < row["high"]


@pytest.mark.parametrize(
    ("resampled", "level", "ends"),
    [
        ([4, 5], 0.5, (4, 5)),  # percentiles 4.2 and 4.8
        ([2, 4, 7, 9], 0.8, (2, 9)),  # 2.3 and 8.7
        ([1, 2, 3, 4, 5], 0.5, (1, 5)),  # 1.8 and 4.2
        ([1, 2, 3, 4, 5], 0.2, (2, 4)),  # 2.5 and 3.5
        ([6, 6, 6], 0.9, (6, 6)),
    ],
)
def test_ends_of_whole_numbers_are_whole_and_outside(
    resampled: list[float], level: float, ends: tuple[float, float]
) -> None:
    assert whole_interval(torch.tensor(resampled).double(), level, 5) == ends
    tail = expanded_tail(5, level)
    assert ends == (math.floor(np.quantile(resampled, tail)), math.ceil(np.quantile(resampled, 1 - tail)))


def test_the_last_digit_does_not_widen_an_interval() -> None:
    tail = expanded_tail(5, 0.9)
    places = 50 + (torch.arange(1001).double() - 1000 * tail)  # the lower percentile is 50, but for rounding
    low, high = whole_interval(places, 0.9, 5)
    assert (low, high) == (50, math.ceil(1050 - 2000 * tail))
    assert whole_interval(None, 0.9, 5) == (None, None)


def test_one_window_has_no_interval() -> None:
    row = model_row(curve_of([0.19]), 0.05, asked())
    assert (row["capacity"], row["low"], row["high"]) == (4, None, None)
    found = made(windows=1, layers=False)
    for table in (found.table, found.curve, found.growth):
        assert table["low"].is_null().all()
        assert table["high"].is_null().all()


def test_growth_of_a_power_law() -> None:
    lengths = [64, 128, 256]
    found = growth_exponent(torch.tensor([[4.0, 8.0, 16.0], [7.0, 7.0, 7.0]]), lengths)
    assert found.tolist() == pytest.approx([1.0, 0.0])
    slope = scipy.stats.linregress(np.log(lengths), np.log([3, 9, 11])).slope
    assert float(growth_exponent(torch.tensor([3.0, 9.0, 11.0]), lengths)) == pytest.approx(slope)
    curves = [curve_of([0.0499 * length**0.5] * 3, length) for length in (64, 256)]
    table = growth_table(curves, 2, asked(lengths=(64, 256), ways=("deletion",), taus=(0.05,)))
    assert table.rows() == [(None, "deletion", 0.05, 0.05, *[pytest.approx(0.5)] * 3, 2)]
    assert growth_table(curves[:1], 2, asked(ways=("deletion",))).height == 0


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 9)), min_size=3, max_size=7))
def test_rank_correlation_is_that_of_scipy(pairs: list[tuple[int, int]]) -> None:
    x, y = ([float(pair[side]) for pair in pairs] for side in (0, 1))
    found = rank_correlation(x, y)
    if len(set(x)) == 1 or len(set(y)) == 1:
        assert (found.value, found.p_value) == (None, None)
        return
    assert found.value == pytest.approx(scipy.stats.spearmanr(x, y).statistic)
    assert found.exact
    assert found.count == len(pairs)


def test_exact_p_value_is_that_of_scipy() -> None:
    x, y = [1.0, 5.0, 2.0, 2.0, 8.0, 3.0], [0.9, 0.2, 0.7, 0.8, 0.3, 0.1]
    exact = scipy.stats.permutation_test(
        (x,), lambda some: scipy.stats.spearmanr(some, y).statistic, permutation_type="pairings", n_resamples=math.inf
    )
    found = rank_correlation(x, y)
    assert found.p_value == pytest.approx(exact.pvalue)
    assert rank_correlation([1, 2, 3, 4], [1, 2, 3, 4]).p_value == pytest.approx(2 / 24) == least_p_value(4)


def test_many_layers_are_permuted_by_a_seed() -> None:
    generator = np.random.default_rng(0)
    x = generator.normal(size=24).tolist()
    y = (np.array(x) + 2 * generator.normal(size=24)).tolist()
    found = rank_correlation(x, y, seed=3)
    assert not found.exact
    assert found == rank_correlation(x, y, seed=3)
    assert found.p_value == pytest.approx(scipy.stats.spearmanr(x, y).pvalue, abs=0.02)
    assert rank_correlation(x, x).p_value == pytest.approx(1 / 10_001)


def test_layers_without_separability_are_left_out() -> None:
    found = rank_correlation([1, 2, 3, 4], [0.1, math.nan, 0.3, 0.4])
    assert (found.count, found.value) == (3, pytest.approx(1.0))
    assert rank_correlation([1, 2], [1, 2]).value is None
