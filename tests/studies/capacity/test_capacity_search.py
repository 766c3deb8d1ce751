"""Which sizes are tried: planted set sizes and brute force."""

from __future__ import annotations

import math

import numpy as np
import planted_capacity
import polars as pl
import pytest
import torch
from capacity_runs import QUICK
from hypothesis import given
from hypothesis import strategies as st
from inside import (
    COARSE,
    EXACT,
    WAYS,
    Curve,
    Sizes,
    bracket,
    crossings,
    is_monotone,
    least_whole,
    search,
    window_losses,
)

import abbe
from abbe.models import windows as cut_windows
from abbe.studies import capacity


@pytest.mark.quick(2)
@pytest.mark.parametrize("needed", [1, 2, 5, 7, 8, 11])
def test_a_planted_set_size_is_found(needed: int) -> None:
    result = capacity(planted_capacity.model(needed), planted_capacity.TEXT, layers=False, **QUICK)
    assert result.table.height == 8  # 2 lengths, 2 ways, 2 taus
    assert set(result.table["capacity"]) == set(result.table["low"]) == set(result.table["high"]) == {needed}
    assert result.table["monotone"].all()
    assert set(result.table["first"]) == {needed}
    for row in result.growth.iter_rows(named=True):
        curve = result.curve.filter(way=row["way"])
        places = [crossing_by_hand(curve.filter(length=length), needed, row["tau"]) for length in QUICK["lengths"]]
        slope = np.polyfit(np.log(QUICK["lengths"]), np.log(places), 1)[0]
        assert row["exponent"] == pytest.approx(slope, abs=1e-9)
    assert result.correlation.height == 0


def crossing_by_hand(curve: pl.DataFrame, needed: int, tau: float) -> float:
    """Between needed - 1, which fails, and needed, on a straight line over ln N."""
    if needed == 1:
        return 1.0
    above, below = (curve.filter(n=n)["rise"].item() for n in (needed - 1, needed))
    return math.exp(math.log(needed - 1) + (above - tau) / (above - below) * math.log(needed / (needed - 1)))


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
        assert is_monotone(rises, tau, untouched)
        sizes = sorted(rises)
        crossing = crossings(
            torch.tensor([*(rises[n] for n in sizes), 0.0], dtype=torch.float64), [*sizes, untouched], tau
        )
        assert float(least_whole(crossing)) == least
        assert curve_through(rises, untouched).first(tau) == least


@given(st.lists(st.floats(0, 1), min_size=1, max_size=70), st.floats(0.001, 0.9))
def test_what_is_not_monotone_holds_from_the_least_on(curve: list[float], tau: float) -> None:
    untouched = len(curve) + 1
    rises = searched(curve, [tau], Sizes.of(EXACT, untouched))
    fails, holds = bracket(rises, tau, untouched)
    assert holds == fails + 1
    assert all(rise <= tau for n, rise in rises.items() if n >= holds)
    assert fails == 0 or curve[fails - 1] > tau
    assert is_monotone(rises, tau, untouched) == (not any(rise <= tau for n, rise in rises.items() if n < holds))
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
    for n in search(rises, taus, sizes):
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
    assert not is_monotone(rises, 0.01, 16)
    assert bracket({1: math.nan, 2: 0.0}, 0.1, 4) == (1, 2)  # what is no number does not hold


def test_a_coarse_search_tries_powers_of_two_only() -> None:
    curve = [1 / n for n in range(1, 1024)]
    rises = searched(curve, [0.03, 0.004], Sizes.of(COARSE, 1024))
    assert sorted(rises) == [1, 4, 16, 32, 64, 128, 256]
    fine = searched(curve, [0.03, 0.004], Sizes.of(EXACT, 1024))
    assert {33, 34, 249, 250} <= set(fine)
    assert len(fine) <= 10 + 2 * 9
