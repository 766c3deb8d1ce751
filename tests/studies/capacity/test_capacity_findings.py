"""Findings of capacity, from planted losses."""

from __future__ import annotations

from typing import Any

import pytest
from capacity_runs import WAYS, asked, curve_of, model_row, result_of, rows_of
from inside import capacity_rules

from abbe.studies import Capacity
from abbe.words.finding import Finding

UP, DOWN, MIXED = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6], [0.6, 0.5, 0.4, 0.3, 0.2, 0.1], [0.3, 0.1, 0.5, 0.2, 0.6, 0.25]
EQUAL = [0.5] * 6
ONE = {"ways": ["deletion"], "lengths": [64], "layers": False}


def by_topic(result: Capacity) -> dict[str, Finding]:
    return {finding.topic: finding for finding in result.findings}


def geometry(capacities: list[float], shares: list[float]) -> Finding:
    """What is said about layers of these capacities and separabilities."""
    settings: dict[str, Any] = {"taus": [0.01], "ways": ["renormalised"], "lengths": [64]}
    rows = [model_row(curve_of([0.19] * 3, way="renormalised"), 0.01)]
    for layer, (needed, share) in enumerate(zip(capacities, shares, strict=True)):
        curve = curve_of([0.01] * 3, way="renormalised", layer=layer)
        row = rows_of(curve, of=len(shares), taus=[0.01])[-1]
        rows.append({**row, "capacity": needed, "separability": share, "separability_n": 8})
    return by_topic(result_of(rows, of=len(shares), **settings))["geometry and function"]


@pytest.mark.parametrize(
    ("capacities", "shares", "words"),
    [
        ([1, 2, 3, 4, 5, 6], UP, ["Geometry and function go together here", "need more keys"]),
        ([1, 2, 3, 4, 5, 6], DOWN, ["Geometry and function", "need fewer keys", "-1.00, p = 0.0028"]),
        ([1, 2, 3, 4, 5, 6], MIXED, ["No relation", "with 6 layers ("]),
        ([1, 2, 3, 4], [0.1, 0.2, 0.3, 0.4], ["No relation", "as so few layers cannot give a small p"]),
        ([1, 2], [0.1, 0.2], ["cannot be judged: too few layers."]),
        ([1, 1, 1], [0.1, 0.2, 0.3], ["cannot be judged: all layers are equal in one of the two."]),
    ],
)
def test_geometry_and_function(capacities: list[float], shares: list[float], words: list[str]) -> None:
    sentence = geometry(capacities, shares).sentence
    assert [part for part in words if part not in sentence] == []


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [
        (0.3, 0.7, "the smaller the share of it that is needed"),
        (-0.2, 0.3, "no growth with the length can be shown"),
        (0.7, 1.2, "it grows, and no change of its share"),
        (1.2, 1.6, "the larger the share that is needed"),
        (-0.5, -0.1, "longer texts need less"),
        (None, None, "single windows give no interval, so nothing can be shown"),
    ],
)
def test_growth_in_words(low: float | None, high: float | None, words: str) -> None:
    settings: dict[str, Any] = {"taus": [0.05], "ways": ["deletion"], "lengths": [64, 128], "layers": False}
    rows = [model_row(curve_of([0.19] * 3, length), 0.05) for length in (64, 128)]
    tables = capacity_rules.tables([], rows, 1, asked(**settings))
    tables["growth"] = Capacity.frame("growth").of([(None, "deletion", 0.05, 0.05, 0.5, low, high, 2)])
    needed, growth = capacity_rules.findings(tables, asked(**settings))
    assert (needed.topic, growth.topic) == ("capacity", "growth")
    assert words in growth.sentence
    assert "It is 6 % of 64 tokens, 3 % of 128" in growth.sentence
    changes = low is not None and high is not None and not low <= 1 <= high
    assert growth.sentence.endswith("; no single share, such as 6 %, fits all.") == changes
    assert "only the top 4 keys (4 to 4) per query, with their weights unchanged" in needed.sentence
    assert needed.numbers["N at 5 %"] == 4


def test_a_curve_that_is_not_monotone_is_reported() -> None:
    curve = curve_of([0.19] * 3)
    curve.truncated[0] = curve.baseline  # one key is fine, two are not
    row = model_row(curve, 0.05)
    assert (row["capacity"], row["monotone"], row["first"]) == (4, False, 1)
    first, *_, last = result_of([row], taus=[0.05], **ONE).findings
    assert last.topic == "not monotone"
    assert last.sentence.startswith("In 1 of 1 rows a smaller N also kept the loss")
    assert "For the whole model, deletion at 64 tokens and 5 %, N = 1 also held, while N* is 4." in last.sentence
    assert "4 keys (4 to 4; the first N that holds is 1) per query" in first.sentence


@pytest.mark.parametrize(
    ("capacity", "low", "high", "words"),
    [
        (1500, 1020.4, 2000, "1,500 keys (1,020 to 2,000{})"),
        (61, 55, 170, "61 keys (55 to 170{})"),
        (7.254, 0.52, 999.7, "7.25 keys (0.52 to 1,000{})"),
        (1, None, None, "1 key"),
    ],
)
@pytest.mark.parametrize("monotone", [True, False])
def test_numbers_are_written_out(
    capacity: float, low: float | None, high: float | None, words: str, monotone: bool
) -> None:
    row = model_row(curve_of([0.19] * 3), 0.05)
    row |= {"capacity": float(capacity), "low": low, "high": high, "monotone": monotone, "first": 1100}
    first, *others = result_of([row], taus=[0.05], **ONE).findings
    if low is not None:
        assert words.format("" if monotone else "; the first N that holds is 1,100") in first.sentence
    assert monotone or f"N = 1,100 also held, while N* is {words.partition(' ')[0]}." in others[-1].sentence


# -- Layers -----------------------------------------------------------------------------------------------------------


def of_cells(shares: dict[tuple[int, str], list[float]], **changed: Any) -> dict[str, Finding]:
    """By topic, for six layers that need 1, 2, ... keys and have these separabilities at each length and way."""
    settings = {"taus": [0.01, 0.05], "lengths": [64, 128]} | changed
    rows = rows_of(*(curve_of([0.19] * 3, length, way) for length, way in shares), **settings)
    for (length, way), of_layers in shares.items():
        for layer, share in enumerate(of_layers):
            curve = curve_of([0.01 * (layer + 1)] * 3, length, way, layer)
            more = {"separability": share, "separability_n": 8}
            rows += [row | more for row in rows_of(curve, of=6, **settings)]
    return by_topic(result_of(rows, of=6, **settings))


def cells(*shares: list[float]) -> dict[tuple[int, str], list[float]]:
    """At 64 tokens, deletion and renormalised; then at 128."""
    return dict(zip([(length, way) for length in (64, 128) for way in WAYS], shares, strict=True))


def test_the_cell_that_is_reported_was_decided_beforehand() -> None:
    found = of_cells(cells(MIXED, MIXED, MIXED, UP))["geometry and function"]
    assert found.sentence.startswith("Geometry and function go together here")
    assert (found.numbers["length"], found.numbers["way"]) == (128, "renormalised")
    topics = of_cells(cells(UP, UP, UP, MIXED))
    assert topics["geometry and function"].sentence.startswith("No relation between separability and capacity")
    assert "Length and way were fixed in advance" in topics["geometry and function"].rule
    layers = topics["layers"]
    assert (layers.numbers["length"], layers.numbers["way"]) == (128, "renormalised")
    assert "layer 5 needs the most: 36 keys (36 to 36) for a rise of at most 0.17 %" in layers.sentence


def test_the_other_cells_are_counted_and_chance_is_reported() -> None:
    found = of_cells(cells(UP, DOWN, MIXED, UP))["geometry over lengths and ways"]
    assert "3 show this relation (more keys with higher separability in 2, fewer in 1)" in found.sentence
    assert "By chance alone 4 tests give up to 0.2" in found.sentence
    assert {name: found.numbers[name] for name in ("pairs", "judged", "shown")} == {"pairs": 4, "judged": 4, "shown": 3}
    assert found.numbers["p, renormalised at 64"] == pytest.approx(2 / 720)
    none = of_cells(cells(MIXED, MIXED, MIXED, EQUAL))["geometry over lengths and ways"].sentence
    assert "none shows this relation; 1 cannot be judged. By chance alone 3 tests give up to 0.15" in none
    equal = of_cells(cells(EQUAL, EQUAL, EQUAL, EQUAL))["geometry over lengths and ways"].sentence
    assert equal == "None of the 4 pairs of way and length can be judged."


def test_a_single_cell_is_not_counted() -> None:
    topics = of_cells({(128, "deletion"): UP}, ways=["deletion"], lengths=[128])
    assert "geometry over lengths and ways" not in topics
    assert topics["geometry and function"].numbers["way"] == "deletion"


@pytest.mark.parametrize(("windows", "words"), [(2, "50 %"), (4, "87 %"), (5, "93 %"), (6, None), (1, None)])
def test_intervals_from_few_windows_are_said_to_be_too_narrow(windows: int, words: str | None) -> None:
    """At 95 %, from six windows on nothing is to be said."""
    curves = [curve_of([0.19] * windows), curve_of([0.19] * windows, layer=0)]
    rows = [row | {"separability": 0.5, "separability_n": 8} for row in rows_of(*curves, taus=[0.05])]
    rule = by_topic(result_of(rows, taus=[0.05], ways=["deletion"], lengths=[64]))["layers"].rule
    assert f"on {windows} evenly spaced windows of that length" in rule
    assert ("in at most" in rule) == (words is not None)
    if words is not None:
        assert f"in at most {words} of cases, not in 95 %." in rule


def test_separability_is_shown_at_the_size_of_the_model() -> None:
    """N itself, from 2 to L/2."""
    sizes = [capacity_rules.shown_size(n, 64) for n in (1, 2, 7, 7.2, 60)]
    assert sizes == [2, 2, 7, 8, 32]
    curves = [curve_of([0.19] * 3, length) for length in (64, 128)] + [curve_of([0.29] * 3, 128, "renormalised")]
    rows = rows_of(*curves, taus=[0.05, 0.1])
    assert capacity_rules.sizes_for(rows) == [2, 3, 4, 6]
