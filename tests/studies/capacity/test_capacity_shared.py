"""`abbe capacity` and `abbe compare` find the same N*, with the same interval, on the same grid."""

from __future__ import annotations

import math
from typing import Any

import planted_capacity
import pytest
import tiny_runs
from compare_runs import row, word_model
from needle_models import TEXT

import abbe
from abbe.models import LoadedModel
from abbe.studies import capacity, compare

ENDS = ("capacity", "low", "high")
SHARED: dict[str, Any] = {"windows": 4, "resamples": 60, "queries": 4, "progress": False}


def by_capacity(model: LoadedModel, text: abbe.Text, length: int, tau: float, grid: str) -> list[float]:
    result = capacity(
        model, text, lengths=[length], tau=tau, way="renormalised", layers=False, grid=grid, **SHARED
    ).table.row(0, named=True)  # fmt: skip
    assert result["monotone"]
    assert result["first"] == math.ceil(result["capacity"] - 1e-9)
    return [result[name] for name in ENDS]


def by_compare(model: LoadedModel, text: abbe.Text, length: int, tau: float, grid: str) -> list[float]:
    """Softmax swapped in is an alternative, too: it needs what the baseline needs."""
    comparison = compare(
        model, text, normalizers="softmax", length=length, tau=tau, grid=grid, needle_lengths=length, prompts=1,
        **SHARED,
    )  # fmt: skip
    names = ("capacity", "capacity_low", "capacity_high")
    baseline, swapped = ([row(comparison, name)[column] for column in names] for name in ("baseline", "softmax"))
    assert swapped == pytest.approx(baseline, rel=1e-4)
    assert row(comparison, "softmax")["capacity_ratio"] == pytest.approx(1.0, rel=1e-4)
    return baseline


@pytest.mark.parametrize("grid", ["coarse", pytest.param("exact", marks=pytest.mark.slow)])
def test_the_same_grid_gives_the_same_number_and_interval(grid: str) -> None:
    """Of a model whose windows differ, so that the interval has a width."""
    case = word_model(), TEXT, 40, 0.0005, grid
    mine, theirs = by_capacity(*case), by_compare(*case)
    assert theirs == pytest.approx(mine, rel=1e-6)
    assert mine[1] < mine[2]


@pytest.mark.quick(1)
@pytest.mark.parametrize("needed", [8, 5, 1, 2, 7, 11])
def test_both_find_a_planted_number(needed: int) -> None:
    """Exactly; on the coarse grid above the power of 2 that fails, and not above the one that holds."""
    case = planted_capacity.model(needed), planted_capacity.TEXT, 40, 0.05
    assert by_capacity(*case, "exact") == by_compare(*case, "exact") == [needed] * 3
    above = 2 ** math.ceil(math.log2(needed))
    coarse = by_compare(*case, "coarse")
    assert coarse == pytest.approx(by_capacity(*case, "coarse"), rel=1e-6)
    assert all(above / 2 < one <= above for one in coarse)


def test_a_sink_is_one_more_key_for_both() -> None:
    """Where hardly any rise is allowed, nearly all of the 8 keys and the sink are needed."""
    case = tiny_runs.model("gpt-oss"), tiny_runs.TEXT, 8, 1e-6, "exact"
    assert by_compare(*case) == pytest.approx(by_capacity(*case))


@pytest.mark.parametrize("study", [capacity, compare])
def test_an_unknown_grid_is_refused(study: Any) -> None:
    with pytest.raises(abbe.AbbeError, match="grid is 'fine', but must be one of exact, coarse"):
        study(word_model(), TEXT, grid="fine", progress=False)
