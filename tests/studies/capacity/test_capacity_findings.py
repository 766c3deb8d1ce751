"""Findings of capacity, from planted losses; their sentences stand in `sentences.txt`."""

from __future__ import annotations

import pytest
from capacity_runs import (
    DOWN,
    EQUAL,
    MIXED,
    UP,
    WAYS,
    cells,
    falling,
    geometry,
    growing,
    layers_of,
    of_cells,
    planted,
    with_a_hole,
)


@pytest.mark.parametrize(
    ("capacities", "shares", "correlation", "p_value"),
    [
        ([1, 2, 3, 4, 5, 6], UP, 1, 2 / 720),
        ([1, 2, 3, 4, 5, 6], DOWN, -1, 2 / 720),
        ([1, 2, 3, 4], [0.1, 0.2, 0.3, 0.4], 1, 2 / 24),
        ([*range(1, 13)], [0.01 * place for place in range(12)], 1, 1 / 10_001),  # of random orders
        ([1, 2], [0.1, 0.2], None, None),
        ([1, 1, 1], [0.1, 0.2, 0.3], None, None),
    ],
)
def test_geometry_and_function(
    capacities: list[float], shares: list[float], correlation: float | None, p_value: float | None
) -> None:
    numbers = geometry(capacities, shares).numbers
    expected = (correlation, p_value) if correlation is None else pytest.approx((correlation, p_value))
    assert (numbers["correlation"], numbers["p_value"]) == expected


def test_the_model_comes_before_its_growth() -> None:
    needed, growth = growing(0.5, 0.02)
    assert (needed.topic, growth.topic) == ("capacity", "growth")
    assert needed.numbers["N at 5 %"] == 6  # 4 times the root of 2, rounded up
    assert growth.numbers["N*/L at 128"] == 6 / 128
    assert growth.numbers["low"] < 0.5 < growth.numbers["high"]


def test_a_curve_that_is_not_monotone_is_reported() -> None:
    result = with_a_hole()
    assert result.table.select("capacity", "monotone", "first").row(0) == (4, False, 1)
    assert result.findings[-1].topic == "not monotone"


def test_the_cell_that_is_reported_was_decided_beforehand() -> None:
    for shares, p_value in (((MIXED, MIXED, MIXED, UP), 2 / 720), ((UP, UP, UP, MIXED), None)):
        found = of_cells(cells(*shares))
        for topic in ("geometry and function", "layers"):
            assert (found[topic].numbers["length"], found[topic].numbers["way"]) == (128, "renormalised")
        measured = found["geometry and function"].numbers["p_value"]
        assert measured == pytest.approx(p_value) if p_value else measured > 0.05
        needed = sorted(found["layers"].numbers[f"N of layer {layer}"] for layer in range(6))
        assert needed == pytest.approx([1, 2, 3, 4, 5, 6], rel=0.1)  # interpolated between powers of 2


def test_the_other_cells_are_counted() -> None:
    numbers = of_cells(cells(UP, DOWN, MIXED, UP))["geometry over lengths and ways"].numbers
    assert {name: numbers[name] for name in ("pairs", "judged", "shown")} == {"pairs": 4, "judged": 4, "shown": 3}
    assert numbers["p, renormalised at 64"] == pytest.approx(2 / 720)
    numbers = of_cells(cells(MIXED, MIXED, MIXED, EQUAL))["geometry over lengths and ways"].numbers
    assert {name: numbers[name] for name in ("pairs", "judged", "shown")} == {"pairs": 4, "judged": 3, "shown": 0}
    alone = of_cells({(128, "deletion"): UP})
    assert "geometry over lengths and ways" not in alone
    assert alone["geometry and function"].numbers["way"] == "deletion"


@pytest.mark.parametrize("windows", [1, 2, 4, 5, 6])
def test_intervals_from_few_windows_are_said_to_be_too_narrow(windows: int) -> None:
    """At 95 %, from six windows on nothing is to be said."""
    assert ("in at most" in layers_of(windows).rule) == (1 < windows < 6)


def test_separability_is_shown_at_the_size_of_the_model() -> None:
    """N itself, from 2 to L/2."""
    slopes = {(64, "deletion"): 0.05, (64, "renormalised"): 0.34, (16, "deletion"): 0.34, (16, "renormalised"): 0.7}
    result = planted(
        lambda length, way, layer, n: falling([slopes[length, way] if n else 0.0] * 3)(length, way, layer, n),
        lengths=[16, 64], way=WAYS, tau=[0.05, 0.1],
    )  # fmt: skip
    shown = {(row["length"], row["way"], row["tau"]): row["separability_n"] for row in result.table.to_dicts()}
    needed = {(row["length"], row["way"], row["tau"]): row["capacity"] for row in result.table.to_dicts()}
    assert shown == {key: max(2, min(keys, key[0] // 2)) for key, keys in needed.items()}
    assert {1, 7, 14} <= set(needed.values())
    assert set(shown.values()) == {2, 4, 7, 8}
