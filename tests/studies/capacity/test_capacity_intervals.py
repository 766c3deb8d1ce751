"""Crossings, intervals of planted losses, growth, and rank correlations."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
from capacity_runs import asked, curve_of, made, model_row
from hypothesis import given
from hypothesis import strategies as st
from inside import (
    crossings,
    curve_rows,
    curve_table,
    expanded_tail,
    growth_exponent,
    growth_table,
    least_p_value,
    rank_correlation,
    whole_interval,
)
from inside import engine_interval as interval


def test_crossing_is_log_linear() -> None:
    rises, sizes = torch.tensor([0.4, 0.2, 0.1, 0.0]).double(), [1, 4, 16, 64]
    halfway = crossings(rises, sizes, 0.15)
    assert float(halfway) == pytest.approx(8.0)  # halfway between ln 4 and ln 16
    assert float(crossings(rises, sizes, 0.05)) == pytest.approx(32.0)  # all keys: no rise
    assert float(crossings(rises, sizes, 0.5)) == 1.0
    assert float(crossings(rises, sizes, 0.2)) == pytest.approx(4.0)
    broken = torch.tensor([0.1, math.inf, math.nan, 0.0, 0.0]).double()
    assert float(crossings(broken, [1, 2, 4, 8, 64], 0.05)) == pytest.approx(8.0)


@pytest.mark.parametrize("full", [0.06, math.nan, math.inf])
def test_all_keys_that_are_not_enough_have_no_crossing(full: float) -> None:
    """Some resamples may have one nevertheless: an end among the others is unknown."""
    rises = torch.tensor([[0.4, 0.2, full], [0.4, 0.2, 0.0], [0.01, 0.01, full]]).double()
    assert crossings(rises, [1, 4, 16], 0.05).isfinite().tolist() == [False, True, False]
    assert crossings(rises[:, 2:], [16], 0.05).tolist() == [math.inf, 16, math.inf]
    drawn = torch.tensor([3.0] * 90 + [math.inf] * 10).double()
    assert interval(drawn, 0.95, 8) == (3.0, None)
    assert whole_interval(drawn, 0.95, 8) == (3.0, None)


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
    result = made(windows=1, layers=False)
    for table in (result.table, result.curve, result.growth):
        assert table["low"].is_null().all()
        assert table["high"].is_null().all()


def test_growth_of_a_power_law() -> None:
    lengths = [64, 128, 256]
    exponent = growth_exponent(torch.tensor([[4.0, 8.0, 16.0], [7.0, 7.0, 7.0]]), lengths)
    assert exponent.tolist() == pytest.approx([1.0, 0.0])
    slope = scipy.stats.linregress(np.log(lengths), np.log([3, 9, 11])).slope
    assert float(growth_exponent(torch.tensor([3.0, 9.0, 11.0]), lengths)) == pytest.approx(slope)
    curves = [curve_of([0.05 * length**0.5] * 3, length) for length in (64, 256)]
    table = growth_table(curves, 2, asked(lengths=(64, 256), ways=("deletion",), taus=(0.05,)))
    assert table.rows() == [(None, "deletion", 0.05, 0.05, *[pytest.approx(0.5)] * 3, 2)]
    assert growth_table(curves[:1], 2, asked(ways=("deletion",))).height == 0


def slope_for(crossing: float, allowed: float = 0.05) -> float:
    """Of a window whose rise, its slope over N, falls to what is allowed there, by straight lines over ln N."""
    below, above = math.floor(crossing), math.floor(crossing) + 1
    part = math.log(crossing / below) / math.log(above / below)
    return allowed / ((1 - part) / below + part / above)


LENGTHS = (128, 256, 512, 1024)


def growth_of(crossings: list[float], spread: float, **changed: Any) -> dict[str, Any]:
    """Of a model with these true crossings at the four lengths; its five windows lie around them."""
    around = [1 + spread * place for place in (-2, 1, -1, 2, 0)]
    curves = [
        curve_of([slope_for(crossing) * factor for factor in around], length, baseline=[4.0] * 5)
        for crossing, length in zip(crossings, LENGTHS, strict=True)
    ]
    settings = asked(lengths=LENGTHS, ways=("deletion",), taus=(0.05,), layers=False, **changed)
    return growth_table(curves, 2, settings).row(0, named=True)


def test_growth_is_not_that_of_rounded_numbers() -> None:
    """1.9, 1.9, 2.1, 2.1 rounded up are 2, 2, 3, 3, and grow three times as fast."""
    crossings, logs = [1.9, 1.9, 2.1, 2.1], np.log(LENGTHS)
    growth = growth_of(crossings, 0.01)
    assert growth["exponent"] == pytest.approx(scipy.stats.linregress(logs, np.log(crossings)).slope, rel=1e-9)
    assert growth["exponent"] < 0.3 * scipy.stats.linregress(logs, np.log([2, 2, 3, 3])).slope
    assert growth["low"] < growth["exponent"] < growth["high"]


def test_growth_of_a_flat_truth_has_an_interval_with_a_width() -> None:
    """All crossings of resamples are rounded to 3, so rounded numbers would have none."""
    growth = growth_of([2.5] * 4, 0.04)
    assert growth["exponent"] == pytest.approx(0, abs=1e-12)
    assert growth["low"] < -0.005
    assert growth["high"] > 0.005


SLOPES = [0.1, 0.35, 0.8, 0.05, 0.6]  # of unequal windows
TAIL = expanded_tail(5, 0.9)
EXPANDED = asked(resamples=400, level=0.9, lengths=(64, 128), taus=(0.05,))


def drawn_rises(length: int, slopes: list[float]) -> np.ndarray:
    """(resample, N - 1): relative rises of windows drawn in pairs, by loops."""
    seed, count = EXPANDED.seed + length, len(slopes)
    drawn = torch.randint(count, (400, count), generator=torch.Generator().manual_seed(seed)).tolist()
    means = [sum((i + 1) * slopes[i] for i in some) / sum(i + 1 for i in some) for some in drawn]
    return np.array(means)[:, None] / np.arange(1, length)


def drawn_crossings(length: int, slopes: list[float], allowed: float) -> np.ndarray:
    sizes = np.log(np.arange(1, length))
    return np.array([math.exp(np.interp(-allowed, -rises, sizes)) for rises in drawn_rises(length, slopes)])


def expanded(resampled: np.ndarray) -> list[float]:
    """The ends at the expanded tail, which are not those of plain percentiles."""
    ends, plain = (np.quantile(resampled, [q, 1 - q]).tolist() for q in (TAIL, 0.05))
    assert ends[0] < plain[0]
    assert plain[1] < ends[1]
    return ends


def test_intervals_of_a_layer_are_expanded() -> None:
    rows = curve_rows(curve_of(SLOPES, layer=0), 2, EXPANDED)
    assert rows
    for row in rows:
        assert [row["low"], row["high"]] == pytest.approx(
            expanded(drawn_crossings(64, SLOPES, row["allowed"])), rel=1e-9
        )


@pytest.mark.parametrize("layer", [None, 0])
def test_intervals_of_rises_are_expanded(layer: int | None) -> None:
    table, rises = curve_table([curve_of(SLOPES, layer=layer)], EXPANDED), drawn_rises(64, SLOPES)
    for n in (1, 7, 63):
        row = table.row(n - 1, named=True)
        assert [row["low"], row["high"]] == pytest.approx(expanded(rises[:, n - 1]), rel=1e-9)


@pytest.mark.parametrize("layer", [None, 0])
def test_intervals_of_growth_are_expanded(layer: int | None) -> None:
    """Lengths are resampled apart; the fewest windows of a length decide."""
    slopes = {64: SLOPES, 128: [*SLOPES, 0.4, 0.9, 0.2]}
    curves = [curve_of(some, length, layer=layer) for length, some in slopes.items()]
    row = growth_table(curves, 2, EXPANDED).row(0, named=True)
    short, long = (drawn_crossings(length, some, row["allowed"]) for length, some in slopes.items())
    assert [row["low"], row["high"]] == pytest.approx(expanded(np.log(long / short) / math.log(2)), rel=1e-9)


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 9)), min_size=3, max_size=7))
def test_rank_correlation_with_ties(pairs: list[tuple[int, int]]) -> None:
    x, y = ([float(pair[side]) for pair in pairs] for side in (0, 1))
    correlation = rank_correlation(x, y)
    if len(set(x)) == 1 or len(set(y)) == 1:
        assert (correlation.value, correlation.p_value) == (None, None)
        return
    assert correlation.value == pytest.approx(scipy.stats.spearmanr(x, y).statistic)
    assert correlation.exact
    assert correlation.count == len(pairs)


def test_exact_p_value_is_that_of_scipy() -> None:
    x, y = [1.0, 5.0, 2.0, 2.0, 8.0, 3.0], [0.9, 0.2, 0.7, 0.8, 0.3, 0.1]
    exact = scipy.stats.permutation_test(
        (x,), lambda some: scipy.stats.spearmanr(some, y).statistic, permutation_type="pairings", n_resamples=math.inf
    )
    correlation = rank_correlation(x, y)
    assert correlation.p_value == pytest.approx(exact.pvalue)
    assert rank_correlation([1, 2, 3, 4], [1, 2, 3, 4]).p_value == pytest.approx(2 / 24) == least_p_value(4)


def test_many_layers_are_permuted_by_a_seed() -> None:
    generator = np.random.default_rng(0)
    x = generator.normal(size=24).tolist()
    y = (np.array(x) + 2 * generator.normal(size=24)).tolist()
    correlation = rank_correlation(x, y, seed=3)
    assert not correlation.exact
    assert correlation == rank_correlation(x, y, seed=3)
    assert correlation.p_value == pytest.approx(scipy.stats.spearmanr(x, y).pvalue, abs=0.02)
    assert rank_correlation(x, x).p_value == pytest.approx(1 / 10_001)


def test_layers_without_separability_are_left_out() -> None:
    correlation = rank_correlation([1, 2, 3, 4], [0.1, math.nan, 0.3, 0.4])
    assert (correlation.count, correlation.value) == (3, pytest.approx(1.0))
    assert rank_correlation([1, 2], [1, 2]).value is None
