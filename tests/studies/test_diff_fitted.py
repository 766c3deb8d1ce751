"""`abbe.diff`: decay exponents and critical N, which are no means over windows, on both sides."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import polars as pl
import pytest
import tiny_models
import tiny_runs
import torch
from inside import difference_table, fitted_rows
from test_diff import planted, settings

import abbe
from abbe.measures import decay_exponent, weighted_decay_exponents
from abbe.models import wrap

QUICK: dict[str, Any] = {"windows": 6, "queries": 8, "lengths": [16, 32], "sizes": (1, 2), "progress": False}


@pytest.fixture(scope="module")
def sharper() -> abbe.Difference:
    return abbe.diff(tiny_runs.model(), planted(), tiny_runs.TEXT, **QUICK)


@pytest.mark.slow
def test_exponents_are_those_of_two_diagnoses(sharper: abbe.Difference) -> None:
    rows = sharper.table.filter(pl.col("measure") == "decay_exponent")
    assert rows["length"].is_null().all()
    for column, model in (("first", tiny_runs.model()), ("second", planted())):
        table = abbe.diagnose(model, tiny_runs.TEXT, **QUICK).table.filter(pl.col("measure") == "decay_exponent")
        both = rows.join(table, on=["layer", "head"], nulls_equal=True)
        assert len(both) == 9  # eight heads, and their mean
        np.testing.assert_allclose(both[column], both["value"], rtol=1e-9)
    assert bool((rows["low"] <= rows["difference"]).all())
    assert bool((rows["difference"] <= rows["high"]).all())


@pytest.mark.slow
def test_the_planted_head_alone_changes(sharper: abbe.Difference) -> None:
    heads = sharper.of_heads.filter(pl.col("measure") == "decay_exponent")
    others = heads.filter((pl.col("layer") != 1) | (pl.col("head") != 2))
    assert others["difference"].abs().max() < 1e-6
    assert not others["changed"].any()
    (finding,) = (one for one in sharper.findings if "exponent" in one.sentence and one.topic == "over lengths")
    mean = sharper.table.filter((pl.col("measure") == "decay_exponent") & pl.col("head").is_null()).row(0, named=True)
    assert finding.numbers["difference"] == mean["difference"]
    assert finding.sentence.startswith("Decay exponent ")


def test_windows_that_count_twice_are_as_good_as_two() -> None:
    chance = torch.Generator().manual_seed(0)
    sums = {name: 1 + torch.rand(3, 2, generator=chance, dtype=torch.float64) for name in ("rows", "x", "y", "xy")}
    sums |= {"xx": sums["x"] ** 2 + 1, "smallest": torch.zeros(3, 2), "largest": torch.ones(3, 2)}
    counts = torch.tensor([[1, 1, 1], [2, 0, 1]])
    for row, places in zip(weighted_decay_exponents(sums, counts), ([0, 1, 2], [0, 0, 2]), strict=True):
        drawn = {name: x[places] for name, x in sums.items()}
        torch.testing.assert_close(row, decay_exponent(drawn, resamples=2)[0])


def distances(until: int, heads: int = 12, seed: int = 0) -> list[dict[str, torch.Tensor]]:
    """Windows in which sets smaller than `until` lie farther away than random ones."""
    chance = torch.Generator().manual_seed(seed)
    near = torch.tensor([float(size < until) for size in (1, 2, 4)], dtype=torch.float64)
    made = []
    for _ in range(8):
        noise = torch.randn(2, 1, heads, 3, generator=chance, dtype=torch.float64)
        made.append({"distance/value": noise[0] + 50 * near, "distance/control": noise[1]})
    return made


def critical(first: list[Any], second: list[Any]) -> tuple[dict[str, Any], list[str]]:
    """The row of the finished table, and what was left out."""
    chosen = settings(queries=8, sizes=(1, 2, 4), resamples=200)
    rows, why = fitted_rows({64: first}, {64: second}, ["a", "b"], chosen)
    return (difference_table({}, {}, chosen, fitted=rows).row(0, named=True) if rows else {}), why


def test_critical_n_moves_as_planted() -> None:
    row, why = critical(distances(4), distances(2, seed=1))
    assert (row["first"], row["second"], row["difference"], row["length"]) == (4, 2, -2, 64)
    assert row["low"] <= row["high"] < 0
    assert (row["p_value"], row["q_value"], row["changed"]) == (None, None, True)  # by its interval alone
    assert why == ["The decay exponent is not compared: these runs did not keep the sums that it is fitted to."]
    same, _ = critical(distances(4), distances(4))
    assert (same["difference"], same["low"], same["high"], same["changed"]) == (0, 0, 0, False)


def test_what_has_no_critical_n_says_why() -> None:
    row, why = critical(distances(4), distances(9))
    assert row == {}
    assert why[1] == ("Critical N at 64 tokens is not compared: on b every selection up to N = 4 differs from random.")
    _, why = critical(distances(4, heads=2), distances(2, heads=2))
    assert why[1].endswith("with 2 heads the test cannot distinguish anything from chance.")
    with_nothing = [{key: x * torch.nan for key, x in one.items()} for one in distances(4)]
    assert critical(with_nothing, with_nothing)[1][1].endswith("no set size leaves keys out.")


@pytest.mark.slow
def test_an_encoder_needs_several_lengths() -> None:
    """All its queries see all keys, so windows of one length have one n."""
    models = [wrap(tiny_models.bert(vocab_size=256), tiny_models.byte_tokenizer(), "tiny bert") for _ in range(2)]
    second = dataclasses.replace(models[1], name="other")
    one = abbe.diff(models[0], second, tiny_runs.TEXT, **(QUICK | {"lengths": 16}))
    (finding,) = (said for said in one.findings if said.topic == "not compared" and "decay" in said.sentence)
    assert "all queries see the same number of keys; measure several lengths" in finding.sentence
    two = abbe.diff(models[0], second, tiny_runs.TEXT, **QUICK)
    assert len(two.table.filter(pl.col("measure") == "decay_exponent")) == 9


@pytest.mark.slow
def test_the_page_shows_them(sharper: abbe.Difference) -> None:
    page = sharper.to_html()
    assert "<td>decay exponent</td>" in page
    assert "L = None" not in page
