"""Which sizes are tried (planted set sizes, brute force), crossings, intervals, growth and rank correlations."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import polars as pl
import pytest
import scipy.stats
import torch
from capacity_runs import QUICK, WAYS, at_sizes, falling, made, planted

import abbe
from abbe.measures import interval_ends
from abbe.models import windows as cut_windows
from abbe.runs.loss import window_losses
from abbe.studies import capacity


def every_rise(model: abbe.LoadedModel, length: int, way: str) -> np.ndarray:
    """The rise at every N from 1 to L, without a search."""
    cut = cut_windows(abbe.read_text(), [length], 3, 0, tokenizer=model.tokenizer, context=model.context)
    own, flag = window_losses(model, cut).mean(), "true" if way == "renormalised" else "false"
    rises = []
    for n in range(1, length + 1):
        with abbe.swap(model, f"topk:k={n},renormalize={flag}"):
            rises.append(float(window_losses(model, cut).mean() / own - 1))
    return np.array(rises)


@pytest.mark.slow
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


LENGTHS = [3, 5, 9, 14, 22, 31, 47, 64]
TAUS = [0.0051, 0.1004, 0.3503, 0.8007]  # none is a rise of a curve


@pytest.mark.parametrize("seed", range(2))
def test_random_curves_are_searched_exactly(seed: int) -> None:
    """Deletion: rises that fall, with ties and steps; renormalised: rises in any order."""
    chance = np.random.default_rng(seed)
    steps = {length: np.round(chance.uniform(0, 1, length - 1) ** 3, chance.integers(1, 4)) for length in LENGTHS}
    rises = {("deletion", length): np.sort(some)[::-1] for length, some in steps.items()}
    rises |= {("renormalised", length): chance.permutation(some) for length, some in steps.items()}
    result = planted(
        lambda length, way, layer, n: [1.0 + (0 if n is None else rises[way, length][n - 1])],
        lengths=LENGTHS, way=WAYS, tau=TAUS, windows=1, queries=1,
    )  # fmt: skip
    assert result.table.height == len(LENGTHS) * len(WAYS) * len(TAUS)
    for row in result.table.iter_rows(named=True):
        way, length, tau = row["way"], row["length"], row["tau"]
        curve, cell = rises[way, length], result.curve.filter(length=length, way=way)
        tried = dict(cell.select("n", "rise").iter_rows())
        assert tried == pytest.approx({n: curve[n - 1] for n in tried})
        holding = [n for n in tried if curve[n - 1] <= tau]
        needed = int(row["capacity"])
        assert row["first"] == min(holding, default=length)
        if way == "deletion":
            assert needed == next((n for n, rise in enumerate(curve, 1) if rise <= tau), length)
            assert row["monotone"]
        # The size below fails, every size that was tried from there on holds, and the one above was tried.
        assert needed == 1 or curve[needed - 2] > tau
        assert {n for n in tried if n >= needed} <= set(holding)
        assert needed + 1 >= length or needed + 1 in tried
        assert row["monotone"] == (not any(n < needed for n in holding))


def test_the_first_that_holds_stands_beside_the_least() -> None:
    """A size that was tried; the least whole number, if the curve is monotone and N is interpolated."""
    hole = planted(at_sizes({1: 0.5, 2: 0.005, 4: 0.3, 8: 0.0}), windows=1, tau=[0.01, 0.4]).table
    assert hole.select("capacity", "first", "monotone").rows() == [(8, 2, False), (2, 2, True)]
    layer = at_sizes({1: 0.4, 2: 0.3, 4: 0.2, 8: 0.2 - 0.1 * math.log(2) / math.log(4), 16: 0.1, 32: 0.05})
    rows = planted(layer, windows=1, tau=[0.15, 0.5], layers=True).table.filter(layer=0)
    assert rows["capacity"].to_list() == pytest.approx([8, 1])
    assert planted(layer, windows=1, tau=0.14, grid="coarse").table["first"].to_list() == [10]  # 9.2
    assert planted(at_sizes({1: 0.9}), windows=1, tau=0.1).table["first"].to_list() == [64]  # all keys


@pytest.mark.parametrize(
    ("rises", "tried", "needed", "monotone"),
    [
        ([0.5, 0.3, 0.005, 0.2, 0.002, 0.001], {4, 5, 6}, 5, True),  # a hole above the crossing moves it
        ([0.5, 0.005, 0.3, 0.3, 0.001], {2, 4, 5}, 5, False),
        ([0.5, 0.5, 0.005, math.nan, 0.001], {4, 5}, 5, True),  # what is no number does not hold
    ],
)
def test_a_hole_above_the_crossing_moves_it(rises: list[float], tried: set[int], needed: int, monotone: bool) -> None:
    result = planted(at_sizes(dict(enumerate(rises, 1))), lengths=[16], windows=1, tau=0.01)
    assert tried <= set(result.curve["n"])
    assert result.table["capacity"].to_list() == [needed]
    assert result.table["monotone"].to_list() == [monotone]


def test_a_coarse_search_tries_powers_of_two_only() -> None:
    curve = falling([1.0])
    some = {"lengths": [1024], "windows": 1, "queries": 1, "tau": [0.03001, 0.00401]}
    coarse, fine = (planted(curve, grid=grid, **some).curve["n"].to_list() for grid in ("coarse", "exact"))
    assert coarse == [1, 4, 16, 32, 64, 128, 256]
    assert {33, 34, 249, 250} <= set(fine)
    assert len(fine) <= 10 + 2 * 9


# -- Crossings, intervals of planted losses, growth, and rank correlations --------------------------------------------


def test_crossing_is_log_linear() -> None:
    places = np.log([1, 4, 16, 64])

    def losses(length: int, way: str, layer: int | None, n: int | None) -> list[float]:
        return [1.0] if n is None else [1 + float(np.interp(math.log(n), places, [0.4, 0.2, 0.1, 0.0]))]

    result = planted(losses, windows=1, grid="coarse", tau=[0.05, 0.12, 0.15, 0.2, 0.5])
    assert result.table["capacity"].to_list() == pytest.approx([32, 4 * 4**0.8, 8, 4, 1])  # halfway between ln 4, ln 16
    broken = {1: 0.1, 2: math.inf, 4: math.nan, 8: 0.0}
    assert planted(at_sizes(broken), windows=1, grid="coarse").table["capacity"].to_list() == pytest.approx([8])


SLOPES = [0.1, 0.35, 0.8, 0.05, 0.6]  # of unequal windows
EXPANDED: dict[str, Any] = {"windows": 5, "layer_windows": 5, "resamples": 400, "level": 0.9}


def drawn_rises(sizes: list[int], length: int, slopes: list[float], resamples: int = 400) -> np.ndarray:
    """(resample, N): relative rises of windows drawn in pairs, by loops; 0 with all keys."""
    count = len(slopes)
    drawn = torch.randint(count, (resamples, count), generator=torch.Generator().manual_seed(length)).tolist()
    means = [sum((i + 1) * slopes[i] for i in some) / sum(i + 1 for i in some) for some in drawn]
    return np.array(means)[:, None] * [1 / n if n < length else 0.0 for n in sizes]


def drawn_crossings(
    curve: pl.DataFrame, slopes: list[float], allowed: float, resamples: int = 400
) -> np.ndarray:  # fmt: skip
    """By straight lines over ln N between the sizes that were tried."""
    length, sizes = curve["length"][0], [*curve["n"], curve["length"][0]]
    rises = drawn_rises(sizes, length, slopes, resamples)
    return np.array([math.exp(np.interp(-allowed, -one, np.log(sizes))) for one in rises])


def expanded(resampled: np.ndarray, windows: int = 5, level: float = 0.9) -> list[float]:
    """The ends at the expanded tail, which are not those of plain percentiles."""
    ends = [float(end) for end in interval_ends(torch.from_numpy(resampled)[:, None], level, windows)]
    plain = np.quantile(resampled, [(1 - level) / 2, (1 + level) / 2]).tolist()
    assert ends[0] < plain[0]
    assert plain[1] < ends[1]
    return ends


@pytest.fixture(scope="module")
def unequal() -> Any:
    return planted(falling(SLOPES), 2, lengths=[64, 128], layers=True, **EXPANDED)


def test_the_interval_of_the_model_is_that_of_resampled_pairs(unequal: Any) -> None:
    """Against loops: draw windows, take own and truncated losses of the same ones, and find the least whole N."""
    for row in unequal.table.filter(pl.col("layer").is_null()).iter_rows(named=True):
        curve = unequal.curve.filter(pl.col("layer").is_null(), length=row["length"])
        low, high = expanded(np.ceil(drawn_crossings(curve, SLOPES, 0.05) - 1e-9))
        assert (row["low"], row["high"]) == (math.floor(low), math.ceil(high))
        assert row["low"] < row["capacity"] < row["high"]


def test_ends_between_whole_numbers_are_rounded_outwards() -> None:
    """Of few resamples, quantiles lie between them."""
    lengths, broken = [24, 40, 64, 96, 128], 0
    result = planted(falling(SLOPES), lengths=lengths, **(EXPANDED | {"resamples": 6}))
    for row in result.table.iter_rows(named=True):
        curve = result.curve.filter(length=row["length"])
        whole = torch.from_numpy(np.ceil(drawn_crossings(curve, SLOPES, 0.05, 6) - 1e-9))[:, None]
        low, high = (float(end) for end in interval_ends(whole, 0.9, 5))
        assert (row["low"], row["high"]) == (math.floor(low + 1e-9), math.ceil(high - 1e-9))
        broken += (low % 1 > 0.01) + (high % 1 > 0.01)
    assert broken > 4


def test_intervals_of_layers_rises_and_growth_are_expanded(unequal: Any) -> None:
    for layer in (None, 0, 1):
        of_layer = pl.col("layer").eq_missing(layer)
        curves = {length: unequal.curve.filter(of_layer, length=length) for length in (64, 128)}
        for row in unequal.table.filter(of_layer).iter_rows(named=True):
            if layer is not None:
                ends = expanded(drawn_crossings(curves[row["length"]], SLOPES, row["allowed"]))
                assert [row["low"], row["high"]] == pytest.approx(ends, rel=1e-9)
        for length, curve in curves.items():
            rises = drawn_rises(curve["n"].to_list(), length, SLOPES)
            for place, row in enumerate(curve.iter_rows(named=True)):
                assert [row["low"], row["high"]] == pytest.approx(expanded(rises[:, place]), rel=1e-9)
        for row in unequal.growth.filter(of_layer).iter_rows(named=True):  # lengths are resampled apart
            short, long = (drawn_crossings(curve, SLOPES, row["allowed"]) for curve in curves.values())
            ends = expanded(np.log(long / short) / math.log(2))
            assert [row["low"], row["high"]] == pytest.approx(ends, rel=1e-9)


def test_one_window_has_no_interval() -> None:
    row = planted(falling([0.19]), windows=1).table.row(0, named=True)
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


LONG = (128, 256, 512, 1024)


def growth_of(crossings: list[float], spread: float) -> dict[str, Any]:
    """Of a model with these true crossings at the four lengths; its five windows lie around them."""
    around, truth = [1 + spread * place for place in (-2, 1, -1, 2, 0)], dict(zip(LONG, crossings, strict=True))

    def losses(length: int, way: str, layer: int | None, n: int | None) -> list[float]:
        return falling([slope_for(truth[length]) * factor for factor in around], [4.0] * 5)(length, way, layer, n)

    return planted(losses, lengths=LONG, windows=5, queries=1).growth.row(0, named=True)


def test_growth_is_not_that_of_rounded_numbers() -> None:
    """1.9, 1.9, 2.1, 2.1 rounded up are 2, 2, 3, 3, and grow three times as fast."""
    crossings, logs = [1.9, 1.9, 2.1, 2.1], np.log(LONG)
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


def correlated(of: int, seed: int = 0, ties: int = 99) -> Any:
    """Layers that need random numbers of keys, with ties: of separabilities, those that are measured."""
    slopes = np.random.default_rng(1).integers(1, min(ties, 40), size=(2, 3, of))

    def losses(length: int, way: str, layer: int | None, n: int | None) -> list[float]:
        slope = 8 if layer is None else slopes[WAYS.index(way), [8, 16, 24].index(length), layer]
        return falling([0.01 * float(slope)])(length, way, layer, n)

    return planted(losses, of, lengths=[8, 16, 24], way=WAYS, layers=True, windows=1, layer_windows=1, tau=0.05,
                   seed=seed)  # fmt: skip


def test_rank_correlations_are_those_of_scipy_with_ties() -> None:
    result = correlated(6, ties=4)
    judged = 0
    for row in result.correlation.iter_rows(named=True):
        rows = result.table.filter(
            pl.col("layer").is_not_null(), *(pl.col(key) == row[key] for key in ("way", "length", "allowed"))
        )
        x, y = rows["capacity"].to_list(), rows["separability"].to_list()
        assert (row["layers"], row["exact"]) == (len(x), True)
        if len(set(x)) == 1 or len(set(y)) == 1:
            assert (row["correlation"], row["p_value"]) == (None, None)
            continue
        judged += 1
        assert row["correlation"] == pytest.approx(scipy.stats.spearmanr(x, y).statistic)
        ranks, others = (scipy.stats.rankdata(side) for side in (x, y))
        orders = np.array([np.corrcoef(ranks[list(order)], others)[0, 1] for order in itertools.permutations(range(6))])
        assert row["p_value"] == pytest.approx(np.mean(abs(orders) >= abs(row["correlation"]) - 1e-9))
    assert judged > 3


def test_many_layers_are_permuted_by_a_seed() -> None:
    result = correlated(12)
    assert not result.correlation["exact"].any()
    assert result.correlation.equals(correlated(12).correlation)
    for row in result.correlation.filter(pl.col("correlation").is_not_null()).iter_rows(named=True):
        rows = result.table.filter(
            pl.col("layer").is_not_null(), *(pl.col(key) == row[key] for key in ("way", "length", "allowed"))
        )
        expected = scipy.stats.spearmanr(rows["capacity"], rows["separability"])
        assert row["correlation"] == pytest.approx(expected.statistic)
        assert row["p_value"] == pytest.approx(expected.pvalue, abs=0.06)
        assert row["p_value"] >= 1 / 10_001
