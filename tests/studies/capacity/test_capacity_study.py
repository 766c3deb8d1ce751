"""capacity: the whole study, its files, and refusals."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import planted_capacity
import polars as pl
import pytest
import tiny_models
import tiny_runs
import torch
from capacity_runs import QUICK, made
from inside import window_losses
from polars.testing import assert_frame_equal

import abbe
from abbe.models import windows as cut_windows
from abbe.models import wrap
from abbe.studies import capacity


@pytest.mark.quick(1)
@pytest.mark.parametrize("family", ["gpt2", "llama", "mistral", "gemma2", "gpt-oss"])
def test_every_family_has_all_parts(family: str) -> None:
    result = made(family)
    whole = result.table.filter(pl.col("layer").is_null())
    layers = len(result.manifest["layers"])
    assert whole.height == 8
    assert result.table.height == 8 + 16 * layers
    assert result.growth.height == 4 + 8 * layers
    assert result.correlation.height == 16
    assert result.table["first"].null_count() == 0
    whole_numbers = result.table["capacity"].ceil().cast(pl.Int32)
    assert ((result.table["first"] == whole_numbers) == result.table["monotone"]).all()
    assert (result.table["capacity"] <= result.table["length"] + 1).all()
    assert result.table["share"].to_list() == (result.table["capacity"] / result.table["length"]).to_list()
    assert result.table["separability"].is_between(0, 1).all()
    assert result.table["separability_n"].min() >= 2
    assert result.manifest["sinks"] == (family == "gpt-oss")
    assert {one.topic for one in result.findings} >= {"capacity", "growth", "layers", "geometry and function"}
    assert all(one.sentence.endswith(".") and one.rule.endswith(".") and one.numbers for one in result.findings)


def test_a_sink_is_one_more_key() -> None:
    """Sizes go on to L keys and the sink: only then no query of gpt-oss is touched."""
    model = tiny_runs.model("gpt-oss")
    cut = cut_windows(tiny_runs.TEXT, [12], 1, 0, tokenizer=model.tokenizer, context=model.context)
    own = float(window_losses(model, cut))
    with abbe.swap(model, "topk:k=13,renormalize=false"):
        assert float(window_losses(model, cut)) == pytest.approx(own, rel=1e-5)
    tried = made("gpt-oss", lengths=[8], tau=1e-9, layers=False).curve["n"]
    assert tried.max() == 8
    assert made("llama", lengths=[8], tau=1e-9, layers=False).curve["n"].max() == 7


def test_separability_is_that_of_diagnose_on_the_same_windows() -> None:
    result = made(tau=0.05)
    grid = sorted(result.table["separability_n"].unique().to_list())
    run = tiny_runs.run(sizes=grid, temperatures=(), **{key: QUICK[key] for key in ("windows", "queries", "resamples")})
    assert result.table["layer"].is_null().any()
    assert result.table["layer"].is_not_null().any()
    for row in result.table.iter_rows(named=True):
        rows = tiny_runs.pick(run.table, "separability", row["length"], of_heads=row["layer"] is not None)
        rows = rows.filter(pl.col("n") == row["separability_n"])
        if row["layer"] is not None:
            rows = rows.filter(pl.col("layer") == row["layer"])
        assert row["separability"] == pytest.approx(rows["value"].mean())
        assert row["control"] == pytest.approx(rows["control"].mean())


@pytest.mark.slow
def test_same_seed_same_study() -> None:
    first = made()
    assert_frame_equal(first.table, made().table)
    assert not first.curve.equals(made(seed=5).curve)


@pytest.mark.slow
def test_losses_are_paired_and_shared() -> None:
    """The own loss of a length is one number, and adding a tau changes no other row."""
    result, more = made(), made(tau=[0.01, 0.05, 0.2])
    assert result.curve.group_by("layer", "length", "way").agg(pl.col("baseline").n_unique())["baseline"].max() == 1
    kept = more.table.filter(pl.col("layer").is_null() & (pl.col("tau") < 0.1))
    mine = result.table.filter(pl.col("layer").is_null())
    assert kept["capacity"].to_list() == mine["capacity"].to_list()


def test_json_and_files(tmp_path: Path) -> None:
    result = made(folder=tmp_path)
    again = json.loads((tmp_path / "capacity.json").read_text())
    assert again == json.loads(json.dumps(result.as_json(), allow_nan=False))
    assert pl.read_csv(tmp_path / "table.csv").height == result.table.height
    assert pl.read_csv(tmp_path / "curve.csv")["n"].to_list() == result.curve["n"].to_list()
    assert abbe.open_run(tmp_path / "separability").manifest["settings"]["lengths"] == [16, 40]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tau": 0.0}, "tau must be numbers > 0"),
        ({"tau": [0.01, -1.0]}, "tau must be numbers > 0"),
        ({"tau": [math.nan]}, "tau must be numbers > 0"),
        ({"tau": []}, "tau must be numbers > 0"),
        ({"tau": "much"}, "tau must be numbers > 0"),
        ({"tau": [0.05, 0.05]}, "tau has duplicates"),
        ({"way": "cutting"}, "way is 'cutting', but must be one of deletion, renormalised"),
        ({"way": ["deletion", "deletion"]}, "way has duplicates"),
        ({"lengths": [16, 128]}, "window length 128 is above the model's context of 64 tokens"),
        ({"lengths": [1]}, "too short"),
        ({"windows": 0}, "at least 1 of each length"),
        ({"layer_windows": 0}, "layer_windows is 0"),
        ({"layer_lengths": [16, 24]}, "layer_lengths has 24, but must be among the lengths: 16, 40$"),
        ({"layer_lengths": 24}, "layer_lengths has 24, but must be among the lengths: 16, 40$"),
        ({"layer_lengths": ["short", 16]}, "layer_lengths has 'short', but must be among the lengths: 16, 40$"),
        ({"layer_lengths": []}, "layer_lengths is empty: name some of the lengths 16, 40, or leave the layers out"),
        ({"layer_lengths": [16, 16]}, "layer_lengths has duplicates"),
        ({"layer_lengths": [16], "layers": False}, r"layer_lengths is \[16\], but layers are left out: give only one"),
        ({"queries": 0}, "queries is 0"),
        ({"seed": -1}, "seed is -1"),
    ],
)
def test_refusals(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(abbe.AbbeError, match=message):
        made(folder=tmp_path / "new", **options)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("family", ["bert", "t5"])
def test_models_without_a_loss_are_refused(family: str) -> None:
    with pytest.raises(abbe.AbbeError, match="capacity needs a causal language model"):
        made(family)


def test_a_loss_of_zero_is_refused() -> None:
    model = planted_capacity.model(1)
    with torch.no_grad():
        model.network.lm_head.weight.mul_(100)
    with pytest.raises(abbe.AbbeError, match="has a loss of 0 at length 40: a rise relative to it is meaningless"):
        capacity(model, planted_capacity.TEXT, **QUICK)


def test_a_text_that_is_too_short_is_refused_by_its_length() -> None:
    model = wrap(tiny_models.gpt2(vocab_size=256), tiny_models.byte_tokenizer(), "tiny")
    with pytest.raises(abbe.AbbeError, match="short is too short for windows of 40 tokens"):
        capacity(model, abbe.Text("short", "only a few words here, no more"), **QUICK)
