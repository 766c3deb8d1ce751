"""Layers truncated alone: at several lengths and both ways, their growth, correlations, cost and findings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import planted_capacity
import polars as pl
import pytest
import scipy.stats
import tiny_runs
import torch
from capacity_runs import QUICK, asked, curve_of, made, model_row
from inside import (
    GROWTH_SCHEMA,
    WAYS,
    capacity_table,
    correlation_table,
    curve_rows,
    evenly_spaced,
    findings,
    growth_table,
    reported_way,
    window_losses,
)
from inside import capacity_shown_size as shown_size

import abbe
from abbe.models import Window
from abbe.models import windows as cut_windows
from abbe.studies import Capacity, capacity
from abbe.words.finding import Finding

CELLS = [(length, way) for length in (16, 40) for way in WAYS]


def of_layers(result: Capacity) -> pl.DataFrame:
    return result.table.filter(pl.col("layer").is_not_null())


def test_a_layer_that_does_nothing_needs_one_key_at_every_length_in_both_ways() -> None:
    study = capacity(planted_capacity.model(5, layers=2), planted_capacity.TEXT, **QUICK)
    rows = of_layers(study)
    assert sorted(rows["allowed"].unique()) == [0.005, 0.01, 0.025, 0.05]
    for length, way in CELLS:
        cell = rows.filter((pl.col("length") == length) & (pl.col("way") == way))
        assert cell.height == 8  # 2 layers, 2 taus, each with its equal share
        assert cell.filter(pl.col("layer") == 1)["capacity"].to_list() == [1] * 4
        first = cell.filter(pl.col("layer") == 0)["capacity"]  # between the sizes that were tried, 4 and 8
        assert first.is_between(4, 8, closed="right").all()
    assert rows.height == 8 * len(CELLS)
    assert any(one.sentence.startswith("Truncated alone at 40 tokens, renormalised, layer 0") for one in study.findings)


@pytest.mark.parametrize(
    ("there", "count", "places"),
    [
        (8, 4, [1, 3, 5, 7]),
        (8, 1, [4]),
        (8, 2, [2, 6]),
        (8, 3, [1, 4, 6]),
        (8, 7, [0, 1, 2, 4, 5, 6, 7]),
        (3, 1, [1]),
        (3, 2, [0, 2]),
        (8, 8, list(range(8))),
        (3, 5, [0, 1, 2]),
    ],
)
def test_some_windows_are_evenly_spaced(there: int, count: int, places: list[int]) -> None:
    cut = [Window(16, index, torch.arange(16), index, index + 1) for index in range(there)]
    assert [window.index for window in evenly_spaced(cut, count)] == places
    assert places == [next(i for i in range(there) if (i + 1) / there > (2 * part + 1) / (2 * min(count, there)))
                      for part in range(min(count, there))]  # fmt: skip


@pytest.mark.quick(1)
@pytest.mark.parametrize(("count", "places"), [(2, [0, 2]), (1, [1])])
@pytest.mark.parametrize("kept", [False, True])
def test_layers_are_truncated_on_evenly_spaced_windows_of_every_length_and_way(
    count: int, places: list[int], kept: bool, tmp_path: Path
) -> None:
    """Own losses beside them are those of the same windows; truncated ones those of a swap by hand."""
    model = tiny_runs.model()
    cut = cut_windows(tiny_runs.TEXT, [16, 40], 3, 0, tokenizer=model.tokenizer, context=model.context)
    options = {"layer_windows": count, "folder": tmp_path if kept else None}
    study = made(**options)
    if kept:
        study = made(**options)  # from the losses in the folder
    assert set(of_layers(study)["windows"]) == {count}
    for length, way in CELLS:
        some = [window for window in cut if window.length == length and window.index in places]
        own, flag = float(window_losses(model, some).mean()), "true" if way == "renormalised" else "false"
        rows = study.curve.filter(pl.col("layer").is_not_null() & (pl.col("length") == length) & (pl.col("way") == way))
        assert rows["baseline"].to_list() == pytest.approx([own] * rows.height)
        with abbe.swap(model, {"layers.1": f"topk:k=4,renormalize={flag}"}):
            truncated = float(window_losses(model, some).mean())
        assert rows.filter((pl.col("layer") == 1) & (pl.col("n") == 4))["loss"][0] == pytest.approx(truncated)


@pytest.mark.slow
@pytest.mark.quick(1)
@pytest.mark.parametrize("given", [[16], 16])
def test_layers_only_at_the_lengths_asked_for(given: Any) -> None:
    result = made(layer_lengths=given)
    assert set(of_layers(result)["length"]) == {16}
    assert set(result.table.filter(pl.col("layer").is_null())["length"]) == {16, 40}
    assert result.growth["layer"].null_count() == result.growth.height == 4
    assert set(result.correlation["length"]) == {16}
    assert any(one.sentence.startswith("Truncated alone at 16 tokens, renormalised") for one in result.findings)
    assert result.manifest["settings"]["layer_lengths"] == [16]
    whole = made()
    assert whole.manifest["settings"]["layer_lengths"] == [16, 40]
    assert of_layers(whole).filter(pl.col("length") == 16).equals(of_layers(result))


def test_one_way_only() -> None:
    result = made(way="deletion", layer_lengths=[40, 16], tau=0.05)
    assert set(of_layers(result)["way"]) == {"deletion"} == set(result.correlation["way"])
    assert result.manifest["settings"]["layer_lengths"] == [16, 40]
    assert any(one.sentence.startswith("Truncated alone at 40 tokens, deletion") for one in result.findings)
    assert [reported_way(ways) for ways in (WAYS, WAYS[::-1], ("deletion",))] == ["renormalised"] * 2 + ["deletion"]


def test_no_layers_at_all() -> None:
    result = made(layers=False)
    assert of_layers(result).height == result.correlation.height == 0
    assert result.manifest["settings"]["layer_lengths"] == []
    assert {one.topic for one in result.findings} <= {"capacity", "growth", "not monotone"}


def least_by_interpolation(slope: float, length: int, allowed: float) -> float:
    sizes = np.arange(1, length)
    return float(np.exp(np.interp(-allowed, -slope / sizes, np.log(sizes))))


def test_growth_of_every_layer() -> None:
    """Needed keys are not rounded: the slope is that of what is read off between sizes."""
    lengths, slopes = (64, 128, 256), {0: [0.13, 0.2, 0.33], 1: [0.21, 0.21, 0.21]}
    curves = [
        curve_of([slope] * 3, length, way, layer)
        for way in WAYS
        for layer, some in slopes.items()
        for length, slope in zip(lengths, some, strict=True)
    ]
    curves += [curve_of([0.2] * 3, length, "deletion") for length in lengths]
    table = growth_table(curves, 2, asked(lengths=lengths, taus=(0.05,)))
    assert table.schema == pl.Schema(GROWTH_SCHEMA)
    assert table.height == 2 * 2 * 2 + 1
    for row in table.filter(pl.col("layer").is_not_null()).iter_rows(named=True):
        some = zip(slopes[row["layer"]], lengths, strict=True)
        needed = [least_by_interpolation(slope, length, row["allowed"]) for slope, length in some]
        slope = scipy.stats.linregress(np.log(lengths), np.log(needed)).slope
        assert (row["exponent"], row["low"], row["high"]) == pytest.approx((slope,) * 3)
        assert row["lengths"] == 3
    assert sorted(table["allowed"].unique()) == [0.025, 0.05]
    assert table.filter(pl.col("layer").is_null()).rows()[0][:4] == (None, "deletion", 0.05, 0.05)


def test_one_window_has_no_interval_of_growth() -> None:
    curves = [curve_of([0.2], length, "deletion", 0) for length in (64, 128)]
    table = growth_table(curves, 2, asked(lengths=(64, 128), taus=(0.05,)))
    assert table.height == 2
    assert table["low"].null_count() == table["high"].null_count() == 2


@pytest.mark.slow
def test_a_correlation_for_every_way_length_and_rise() -> None:
    result = made("gpt-oss", lengths=[12, 40], layer_windows=2)
    rows = of_layers(result)
    assert result.correlation.select("way", "length", "tau", "allowed").is_unique().all()
    assert result.correlation.height == 2 * 2 * 4
    for row in result.correlation.iter_rows(named=True):
        cell = rows.filter(*(pl.col(name) == row[name] for name in ("way", "length", "tau", "allowed"))).sort("layer")
        needed, share = cell["capacity"].to_list(), cell["separability"].to_list()
        assert row["layers"] == len(needed) == len(result.manifest["layers"])
        if row["correlation"] is not None:
            assert row["correlation"] == pytest.approx(scipy.stats.spearmanr(needed, share).statistic)
        model = result.table.filter(
            pl.col("layer").is_null(), *(pl.col(name) == row[name] for name in ("way", "length")), pl.col("tau") == 0.01
        )
        size = shown_size(model["capacity"][0], row["length"])
        assert set(cell["separability_n"]) == {size} == {row["separability_n"]}


def test_the_cost_counts_layers_at_their_lengths_and_in_all_ways(capsys: pytest.CaptureFixture[str]) -> None:
    made(lengths=[8, 16], layer_lengths=[16], tau=0.05, layer_windows=2, progress=True)
    layers = len(tiny_runs.model().network.transformer.h)
    of_model = 1 + 2 * 6, 1 + 2 * 5  # own; both ways: N = 1, 2, 4 (and 8), and two steps of the search
    tried = 2 * layers * 4  # N = 1 and 4, at most 2 and 8 beside them
    beside = 3 * 2, 3 * (8 + 16)  # separability: windows and tokens
    windows = 3 * sum(of_model) + 2 * tried + beside[0]
    tokens = 3 * (16 * of_model[0] + 8 * of_model[1]) + 2 * 16 * tried + beside[1]
    assert f"{windows} windows, {tokens:,} tokens: about" in (capsys.readouterr().err)
    made(lengths=[16], tau=0.05, layer_windows=5, way="deletion", progress=True)
    assert f"{3 * 7 + 3 * layers * 4 + 3} windows" in capsys.readouterr().err  # there are only three windows


# -- Findings ---------------------------------------------------------------------------------------------------------


def by_topic(shares: dict[tuple[int, str], list[float]], **changed: Any) -> dict[str, Finding]:
    """By topic, for six layers that need 1, 2, ... keys and have these separabilities at each length and way."""
    settings = asked(taus=(0.01, 0.05), lengths=(64, 128), **changed)
    rows = []
    for length, way in shares:
        rows += [model_row(curve_of([0.19] * 3, length, way), tau, settings) for tau in settings.taus]
    for (length, way), some in shares.items():
        for layer, share in enumerate(some):
            curve = curve_of([0.01 * (layer + 1)] * 3, length, way, layer)
            rows += [row | {"separability": share, "separability_n": 8} for row in curve_rows(curve, 6, settings)]
    correlation = correlation_table(rows, settings)
    entries = findings(capacity_table(rows), pl.DataFrame(schema=GROWTH_SCHEMA), correlation, settings)
    return {one.topic: one for one in entries}


UP, DOWN, MIXED = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6], [0.6, 0.5, 0.4, 0.3, 0.2, 0.1], [0.3, 0.1, 0.5, 0.2, 0.6, 0.25]
EQUAL = [0.5] * 6


def cells(*shares: list[float]) -> dict[tuple[int, str], list[float]]:
    """At 64 tokens, deletion and renormalised; then at 128."""
    return dict(zip([(length, way) for length in (64, 128) for way in WAYS], shares, strict=True))


def test_the_cell_that_is_reported_was_decided_beforehand() -> None:
    topics = by_topic(cells(MIXED, MIXED, MIXED, UP))
    assert topics["geometry and function"].sentence.startswith("Geometry and function go together here")
    assert (topics["geometry and function"].numbers["length"], topics["geometry and function"].numbers["way"]) == (
        128, "renormalised",
    )  # fmt: skip
    topics = by_topic(cells(UP, UP, UP, MIXED))
    assert topics["geometry and function"].sentence.startswith("No relation between separability and capacity")
    assert "Length and way were fixed in advance" in topics["geometry and function"].rule
    needed = topics["layers"].numbers
    assert (needed["length"], needed["way"]) == (128, "renormalised")
    assert "layer 5 needs the most: 36 keys (36 to 36) for a rise of at most 0.17 %" in topics["layers"].sentence


def test_the_other_cells_are_counted_and_chance_is_reported() -> None:
    entry = by_topic(cells(UP, DOWN, MIXED, UP))["geometry over lengths and ways"]
    assert entry.sentence == (
        "Of 4 pairs of way and length, 3 show this relation (more keys with higher separability in 2, fewer in 1). "
        "By chance alone 4 tests give up to 0.2 on average: only the one above was fixed in advance."
    )
    assert {name: entry.numbers[name] for name in ("pairs", "judged", "shown")} == {"pairs": 4, "judged": 4, "shown": 3}
    assert entry.numbers["p, renormalised at 64"] == pytest.approx(2 / 720)
    none = by_topic(cells(MIXED, MIXED, MIXED, EQUAL))["geometry over lengths and ways"].sentence
    assert "none shows this relation; 1 cannot be judged. By chance alone 3 tests give up to 0.15" in none
    equal = by_topic(cells(EQUAL, EQUAL, EQUAL, EQUAL))["geometry over lengths and ways"].sentence
    assert equal == "None of the 4 pairs of way and length can be judged."


def test_a_single_cell_is_not_counted() -> None:
    topics = by_topic({(128, "deletion"): UP}, ways=("deletion",), layer_lengths=(128,))
    assert "geometry over lengths and ways" not in topics
    assert topics["geometry and function"].numbers["way"] == "deletion"


@pytest.mark.parametrize(("windows", "words"), [(2, "50 %"), (4, "87 %"), (5, "93 %"), (6, None), (1, None)])
def test_intervals_from_few_windows_are_said_to_be_too_narrow(windows: int, words: str | None) -> None:
    """At 95 %, from six windows on nothing is to be said."""
    settings = asked(taus=(0.05,), ways=("deletion",), lengths=(64,))
    rows = [model_row(curve_of([0.19] * windows), 0.05, settings)]
    row = curve_rows(curve_of([0.19] * windows, layer=0), 1, settings)[0]
    rows.append(row | {"separability": 0.5, "separability_n": 8})
    growth = pl.DataFrame(schema=GROWTH_SCHEMA)
    entries = findings(capacity_table(rows), growth, correlation_table(rows, settings), settings)
    rule = next(one.rule for one in entries if one.topic == "layers")
    assert f"on {windows} evenly spaced windows of that length" in rule
    if words is None:
        assert "in at most" not in rule
    else:
        assert (
            f"from {windows} windows cannot extend beyond them, so it contains the true number in at most {words}"
            in rule
        )
        assert rule.endswith("not in 95 %.")
