"""Which sizes are tried (planted set sizes, brute force), crossings, intervals, growth and rank correlations."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
from capacity_runs import QUICK, WAYS, asked, curve_of, made, model_row, rows_of
from hypothesis import given
from hypothesis import strategies as st
from inside import capacity_rules, expanded_tail, truncation

import abbe
from abbe.models import windows as cut_windows
from abbe.runs.loss import window_losses
from abbe.studies import capacity

COARSE, EXACT, Curve, Sizes = truncation.COARSE, truncation.EXACT, truncation.Curve, truncation.Sizes
bracket, crossings, interval = truncation.bracket, truncation.crossings, truncation.interval


def every_rise(model: abbe.LoadedModel, length: int, way: str) -> np.ndarray:
    """The rise at every N from 1 to L, without a search."""
    cut = cut_windows(abbe.read_text(), [length], 3, 0, tokenizer=model.tokenizer, context=model.context)
    own, flag = window_losses(model, cut).mean(), "true" if way == "renormalised" else "false"
    rises = []
    for n in range(1, length + 1):
        with abbe.swap(model, f"topk:k={n},renormalize={flag}"):
            rises.append(float(window_losses(model, cut).mean() / own - 1))
    return np.array(rises)


@pytest.mark.quick(1)
@pytest.mark.parametrize("way", WAYS)
def test_search_gives_what_brute_force_gives(way: str) -> None:
    """Of a trained model; taus are chosen where its curve crosses them once."""
    model = abbe.load("embedded")
    rises = every_rise(model, 24, way)
    assert abs(rises[-1]) < 1e-6  # a query with at most N keys is untouched
    once = [n for n in range(1, 23) if rises[:n].min() > max(0, rises[n:].max()) + 1e-5]
    assert len(once) > 4, rises
    taus = [float((rises[:n].min() + max(0, rises[n:].max())) / 2) for n in once]
    result = capacity(model, tau=taus, way=way, layers=False, **(QUICK | {"lengths": [24]}))
    assert result.table["capacity"].to_list() == [n + 1 for n in reversed(once)]
    assert result.table["monotone"].all()
    evaluated = result.curve.select("n", "rise").rows()
    assert [rise for _, rise in evaluated] == pytest.approx([rises[n - 1] for n, _ in evaluated], abs=1e-6)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=70), st.lists(st.floats(0.001, 0.9), min_size=1, max_size=3))
def test_monotone_rises_are_searched_exactly(drops: list[float], taus: list[float]) -> None:
    curve, untouched = sorted(drops, reverse=True), len(drops) + 1
    rises = searched(curve, taus, Sizes.of(EXACT, untouched))
    for tau in taus:
        least = next((n for n, rise in enumerate(curve, 1) if rise <= tau), untouched)
        assert bracket(rises, tau, untouched) == (least - 1, least)
        assert curve_through(rises, untouched).monotone(tau)
        sizes = sorted(rises)
        crossing = crossings(
            torch.tensor([*(rises[n] for n in sizes), 0.0], dtype=torch.float64), [*sizes, untouched], tau
        )
        assert float(truncation.least_whole(crossing)) == least
        assert curve_through(rises, untouched).first(tau) == least


@given(st.lists(st.floats(0, 1), min_size=1, max_size=70), st.floats(0.001, 0.9))
def test_what_is_not_monotone_holds_from_the_least_on(curve: list[float], tau: float) -> None:
    untouched = len(curve) + 1
    rises = searched(curve, [tau], Sizes.of(EXACT, untouched))
    fails, holds = bracket(rises, tau, untouched)
    assert holds == fails + 1
    assert all(rise <= tau for n, rise in rises.items() if n >= holds)
    assert fails == 0 or curve[fails - 1] > tau
    assert curve_through(rises, untouched).monotone(tau) == (
        not any(rise <= tau for n, rise in rises.items() if n < holds)
    )
    assert holds + 1 >= untouched or holds + 1 in rises  # the size beyond was tried
    tried = [n for n, rise in rises.items() if rise <= tau]
    assert curve_through(rises, untouched).first(tau) == min(tried, default=untouched) <= holds


def curve_through(rises: dict[int, float], untouched: int, layer: int | None = None) -> Curve:
    """One window with a loss of 1."""
    sizes, baseline = tuple(sorted(rises)), torch.ones(1, dtype=torch.float64)
    truncated = torch.tensor([[1 + rises[n]] for n in sizes], dtype=torch.float64)
    curve = Curve(untouched, "deletion", layer, untouched, layer is None, sizes, baseline, baseline, truncated)
    known = [*(rises[n] for n in sizes), 0.0]  # not rounded by 1 + x - 1
    curve.__dict__["rises"] = torch.tensor(known, dtype=torch.float64)
    return curve


def test_the_first_that_holds_stands_beside_the_least() -> None:
    """Of the whole model one that was tried; of a layer the least whole number, if its curve is monotone."""
    hole = curve_through({1: 0.5, 2: 0.005, 4: 0.3, 8: 0.0}, 16)
    assert (hole.first(0.01), hole.monotone(0.01)) == (2, False)
    assert float(hole.needed(0.01)) == 8
    assert hole.first(0.4) == 2
    assert hole.monotone(0.4)
    layer = curve_through({1: 0.4, 4: 0.2, 16: 0.1}, 64, layer=0)
    assert float(layer.needed(0.14)) == pytest.approx(4 * 4**0.6)  # 9.2
    assert (layer.first(0.14), layer.first(0.5)) == (10, 1)
    assert curve_through({1: 0.9, 2: 0.9, 3: 0.9}, 4).first(0.1) == 4  # all keys


def searched(curve: list[float], taus: list[float], sizes: Sizes) -> dict[int, float]:
    rises: dict[int, float] = {}
    while (n := truncation.next_size(rises, taus, sizes)) is not None:
        assert n not in rises
        rises[n] = curve[n - 1]
    return rises


def test_a_hole_above_the_crossing_moves_it() -> None:
    curve = [0.5, 0.3, 0.005, 0.2, 0.002] + [0.001] * 10
    rises = searched(curve, [0.01], Sizes.of(EXACT, 16))
    assert bracket(rises, 0.01, 16) == (4, 5)
    odd = [0.5, 0.005, 0.3, 0.3] + [0.001] * 11
    rises = searched(odd, [0.01], Sizes.of(EXACT, 16))
    assert bracket(rises, 0.01, 16) == (4, 5)
    assert not curve_through(rises, 16).monotone(0.01)
    assert bracket({1: math.nan, 2: 0.0}, 0.1, 4) == (1, 2)  # what is no number does not hold


def test_a_coarse_search_tries_powers_of_two_only() -> None:
    curve = [1 / n for n in range(1, 1024)]
    rises = searched(curve, [0.03, 0.004], Sizes.of(COARSE, 1024))
    assert sorted(rises) == [1, 4, 16, 32, 64, 128, 256]
    fine = searched(curve, [0.03, 0.004], Sizes.of(EXACT, 1024))
    assert {33, 34, 249, 250} <= set(fine)
    assert len(fine) <= 10 + 2 * 9


# -- Crossings, intervals of planted losses, growth, and rank correlations --------------------------------------------


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
    assert interval(drawn, 0.95, 8, whole=True) == (3.0, None)


def test_the_interval_is_that_of_resampled_pairs() -> None:
    """Against loops: draw windows, take own and truncated losses of the same ones, find the least N by counting."""
    slopes = [0.1, 0.35, 0.8, 0.05, 0.6]
    row = model_row(curve_of(slopes), 0.05, resamples=400, level=0.9)
    drawn = torch.randint(5, (400, 5), generator=torch.Generator().manual_seed(64)).tolist()
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


def test_the_last_digit_does_not_widen_an_interval() -> None:
    tail = expanded_tail(5, 0.9)
    places = 50 + (torch.arange(1001).double() - 1000 * tail)  # the lower percentile is 50, but for rounding
    low, high = interval(places, 0.9, 5, whole=True)
    assert (low, high) == (50, math.ceil(1050 - 2000 * tail))
    assert interval(None, 0.9, 5, whole=True) == (None, None)


def test_one_window_has_no_interval() -> None:
    row = model_row(curve_of([0.19]), 0.05)
    assert (row["capacity"], row["low"], row["high"]) == (4, None, None)
    result = made(windows=1, layers=False)
    for table in (result.table, result.curve, result.growth):
        assert table["low"].is_null().all()
        assert table["high"].is_null().all()


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
    settings = asked(lengths=LENGTHS, ways=("deletion",), taus=[0.05], layers=False, **changed)
    return capacity_rules.growth_table(curves, 2, settings).row(0, named=True)


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
EXPANDED = asked(resamples=400, level=0.9, lengths=(64, 128), taus=[0.05])


def drawn_rises(length: int, slopes: list[float]) -> np.ndarray:
    """(resample, N - 1): relative rises of windows drawn in pairs, by loops."""
    seed, count = EXPANDED["seed"] + length, len(slopes)
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
    rows = rows_of(curve_of(SLOPES, layer=0), of=2, **EXPANDED)
    assert rows
    for row in rows:
        assert [row["low"], row["high"]] == pytest.approx(
            expanded(drawn_crossings(64, SLOPES, row["allowed"])), rel=1e-9
        )


@pytest.mark.parametrize("layer", [None, 0])
def test_intervals_of_rises_are_expanded(layer: int | None) -> None:
    table, rises = capacity_rules.curve_table([curve_of(SLOPES, layer=layer)], EXPANDED), drawn_rises(64, SLOPES)
    for n in (1, 7, 63):
        row = table.row(n - 1, named=True)
        assert [row["low"], row["high"]] == pytest.approx(expanded(rises[:, n - 1]), rel=1e-9)


@pytest.mark.parametrize("layer", [None, 0])
def test_intervals_of_growth_are_expanded(layer: int | None) -> None:
    """Lengths are resampled apart; the fewest windows of a length decide."""
    slopes = {64: SLOPES, 128: [*SLOPES, 0.4, 0.9, 0.2]}
    curves = [curve_of(some, length, layer=layer) for length, some in slopes.items()]
    row = capacity_rules.growth_table(curves, 2, EXPANDED).row(0, named=True)
    short, long = (drawn_crossings(length, some, row["allowed"]) for length, some in slopes.items())
    assert [row["low"], row["high"]] == pytest.approx(expanded(np.log(long / short) / math.log(2)), rel=1e-9)


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 9)), min_size=3, max_size=7))
def test_rank_correlation_with_ties(pairs: list[tuple[int, int]]) -> None:
    x, y = ([float(pair[side]) for pair in pairs] for side in (0, 1))
    correlation = capacity_rules.rank_correlation(x, y)
    if len(set(x)) == 1 or len(set(y)) == 1:
        assert (correlation["correlation"], correlation["p_value"]) == (None, None)
        return
    assert correlation["correlation"] == pytest.approx(scipy.stats.spearmanr(x, y).statistic)
    assert correlation["exact"]
    assert correlation["layers"] == len(pairs)


def test_exact_p_value_is_that_of_scipy() -> None:
    x, y = [1.0, 5.0, 2.0, 2.0, 8.0, 3.0], [0.9, 0.2, 0.7, 0.8, 0.3, 0.1]
    exact = scipy.stats.permutation_test(
        (x,), lambda some: scipy.stats.spearmanr(some, y).statistic, permutation_type="pairings", n_resamples=math.inf
    )
    correlation = capacity_rules.rank_correlation(x, y)
    assert correlation["p_value"] == pytest.approx(exact.pvalue)
    assert (
        capacity_rules.rank_correlation([1, 2, 3, 4], [1, 2, 3, 4])["p_value"]
        == pytest.approx(2 / 24)
        == capacity_rules.least_p_value(4)
    )


def test_many_layers_are_permuted_by_a_seed() -> None:
    generator = np.random.default_rng(0)
    x = generator.normal(size=24).tolist()
    y = (np.array(x) + 2 * generator.normal(size=24)).tolist()
    correlation = capacity_rules.rank_correlation(x, y, seed=3)
    assert not correlation["exact"]
    assert correlation == capacity_rules.rank_correlation(x, y, seed=3)
    assert correlation["p_value"] == pytest.approx(scipy.stats.spearmanr(x, y).pvalue, abs=0.02)
    assert capacity_rules.rank_correlation(x, x)["p_value"] == pytest.approx(1 / 10_001)


def test_layers_without_separability_are_left_out() -> None:
    correlation = capacity_rules.rank_correlation([1, 2, 3, 4], [0.1, math.nan, 0.3, 0.4])
    assert (correlation["layers"], correlation["correlation"]) == (3, pytest.approx(1.0))
    assert capacity_rules.rank_correlation([1, 2], [1, 2])["correlation"] is None
