"""Findings of capacity, from planted losses."""

from __future__ import annotations

import polars as pl
import pytest
from capacity_runs import asked, curve_of, model_row
from inside import (
    CORRELATION_SCHEMA,
    GROWTH_SCHEMA,
    capacity_table,
    common_sizes,
    correlation_table,
    curve_rows,
    findings,
    needed_keys,
    sizes_for,
)
from inside import capacity_shown_size as shown_size


def claim(capacities: list[float], shares: list[float]) -> str:
    """What is said about geometry for layers of these capacities and separabilities."""
    settings = asked(taus=(0.01,), ways=("renormalised",), lengths=(64,))
    rows = [model_row(curve_of([0.19] * 3, way="renormalised"), 0.01, settings)]
    for layer, (needed, share) in enumerate(zip(capacities, shares, strict=True)):
        row = curve_rows(curve_of([0.01] * 3, way="renormalised", layer=layer), len(shares), settings)[-1]
        rows.append({**row, "capacity": needed, "separability": share, "separability_n": 8})
    correlation = correlation_table(rows, settings)
    growth = pl.DataFrame(schema=GROWTH_SCHEMA)
    entries = findings(capacity_table(rows), growth, correlation, settings)
    return next(one.sentence for one in entries if one.topic == "geometry and function")


def test_geometry_that_predicts_function() -> None:
    up = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    assert claim(up, [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]).startswith(
        "Geometry and function go together here: layers of higher separability need more keys"
    )
    assert "need fewer keys (rank correlation of capacity and separability -1.00, p = 0.0028)" in claim(
        up, [0.6, 0.5, 0.4, 0.3, 0.2, 0.1]
    )
    weak = claim(up, [0.3, 0.1, 0.5, 0.2, 0.6, 0.25])
    assert weak.startswith("No relation between separability and capacity can be shown with 6 layers (")


def test_too_few_layers_cannot_show_a_relation() -> None:
    assert "as so few layers cannot give a small p" in claim([1.0, 2.0, 3.0, 4.0], [0.1, 0.2, 0.3, 0.4])
    assert claim([1.0, 2.0], [0.1, 0.2]).endswith("cannot be judged: too few layers.")
    assert claim([1.0, 1.0, 1.0], [0.1, 0.2, 0.3]).endswith("cannot be judged: all layers are equal in one of the two.")


@pytest.mark.parametrize(
    ("exponent", "low", "high", "words"),
    [
        (0.5, 0.3, 0.7, "the smaller the share of it that is needed"),
        (0.1, -0.2, 0.3, "no growth with the length can be shown"),
        (0.9, 0.7, 1.2, "it grows, and no change of its share"),
        (1.4, 1.2, 1.6, "the larger the share that is needed"),
        (-0.3, -0.5, -0.1, "longer texts need less"),
        (0.5, None, None, "single windows give no interval, so nothing can be shown"),
    ],
)
def test_growth_in_words(exponent: float, low: float | None, high: float | None, words: str) -> None:
    settings = asked(taus=(0.05,), ways=("deletion",), lengths=(64, 128), layers=False)
    rows = [model_row(curve_of([0.19] * 3, length), 0.05, settings) for length in (64, 128)]
    growth = pl.DataFrame([(None, "deletion", 0.05, 0.05, exponent, low, high, 2)], schema=GROWTH_SCHEMA, orient="row")
    entries = findings(capacity_table(rows), growth, pl.DataFrame(schema=CORRELATION_SCHEMA), settings)
    assert [one.topic for one in entries] == ["capacity", "growth"]
    assert words in entries[1].sentence
    assert "N* not rounded up" in entries[1].rule
    assert "It is 6 % of 64 tokens, 3 % of 128" in entries[1].sentence
    changes = low is not None and high is not None and not low <= 1 <= high
    assert entries[1].sentence.endswith("; no single share, such as 6 %, fits all.") == changes
    assert (
        "only the top 4 keys (4 to 4) per query, with their weights unchanged, raises the loss by at most 5 %"
        in entries[0].sentence
    )


def test_a_curve_that_is_not_monotone_is_reported() -> None:
    curve = curve_of([0.19] * 3)
    curve.truncated[0] = curve.baseline  # one key is fine, two are not
    settings = asked(taus=(0.05,), ways=("deletion",), lengths=(64,), layers=False)
    row = model_row(curve, 0.05, settings)
    assert (row["capacity"], row["monotone"], row["first"]) == (4, False, 1)
    empty = pl.DataFrame(schema=GROWTH_SCHEMA), pl.DataFrame(schema=CORRELATION_SCHEMA)
    entries = findings(capacity_table([row]), *empty, settings)
    assert entries[-1].topic == "not monotone"
    assert entries[-1].sentence.startswith("In 1 of 1 rows a smaller N also kept the loss")
    assert "For the whole model, deletion at 64 tokens and 5 %, N = 1 also held, while N* is 4." in entries[-1].sentence
    assert "4 keys (4 to 4; the first N that holds is 1) per query" in entries[0].sentence


@pytest.mark.parametrize(
    ("capacity", "low", "high", "words"),
    [
        (1500, 1020.4, 2000, "1,500 keys (1,020 to 2,000)"),
        (61, 55, 170, "61 keys (55 to 170)"),
        (7.254, 0.52, 999.7, "7.25 keys (0.52 to 1,000)"),
        (1, None, None, "1 key"),
    ],
)
def test_ends_are_written_like_the_number(capacity: float, low: float | None, high: float | None, words: str) -> None:
    row = {"capacity": capacity, "low": low, "high": high, "monotone": True, "first": 1}
    assert needed_keys(row) == words
    if low is not None:
        odd = needed_keys(row | {"monotone": False, "first": 1100})
        assert odd == words.removesuffix(")") + "; the first N that holds is 1,100)"


def test_a_large_number_that_is_not_monotone_is_written_out() -> None:
    settings = asked(taus=(0.05,), ways=("deletion",), lengths=(64,), layers=False)
    row = model_row(curve_of([0.19] * 3), 0.05, settings) | {"capacity": 1500.0, "first": 1100, "monotone": False}
    empty = pl.DataFrame(schema=GROWTH_SCHEMA), pl.DataFrame(schema=CORRELATION_SCHEMA)
    assert "N = 1,100 also held, while N* is 1,500." in findings(capacity_table([row]), *empty, settings)[-1].sentence


def test_separability_is_shown_at_the_same_size() -> None:
    assert [shown_size(n, 64) for n in (1, 2, 7, 7.2, 60)] == [2, 2, 7, 8, 32]
    settings = asked(taus=(0.05, 0.1), ways=("deletion",), lengths=(64, 128))
    rows = [model_row(curve_of([0.19] * 3, length), tau, settings) for length in (64, 128) for tau in (0.05, 0.1)]
    assert common_sizes(rows, settings) == {(64, "deletion"): 4, (128, "deletion"): 4}
    other = model_row(curve_of([0.29] * 3, 128, "renormalised"), 0.05, settings)
    assert common_sizes([*rows, other], settings)[128, "renormalised"] == 6
    assert sizes_for([*rows, other]) == [2, 4, 6]
