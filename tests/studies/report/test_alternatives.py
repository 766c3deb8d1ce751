"""Other normalizers on the same logits, in the table of a report: against loops, planted cases, pairs of windows."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import polars as pl
import pytest
import torch
from separable_by_loops import plain_separable
from tiny_runs import TEXT, model, settings
from torch import Tensor

import abbe
from abbe.measures import bootstrap_interval
from abbe.models import AttentionCall, Window, tap, windows
from abbe.runs.window import check_model, query_positions, run_model

SHARPER = "softmax:temperature=0.7"
SPARSE = ("entmax:alpha=1.25", "entmax:alpha=1.5", "sparsemax", "topk:k=32", "topp:p=0.9", "threshold:rel=0.1")
QUICK: dict[str, Any] = {
    "lengths": [16, 40],
    "windows": 3,
    "queries": 8,
    "sizes": 1,
    "temperatures": (),
    "resamples": 50,
}


@cache
def tried(family: str = "gpt2", **options: Any) -> pl.DataFrame:
    return abbe.report(model(family), TEXT, progress=False, **(QUICK | options)).alternatives


def captured(family: str, window: Window) -> list[tuple[Tensor, Tensor]]:
    """Logits (head, query, key) and values (key head, key, feature) of every layer at 32 queries, float64."""
    tiny, pairs = model(family), list[tuple[Tensor, Tensor]]()
    queries = query_positions(40, settings(queries=32), window)

    def read(call: AttentionCall) -> None:
        pairs.append((call.logits(queries)[0].double(), call.value[0].double()))

    with tap(tiny) as open_tap, torch.no_grad():
        check_model(tiny, open_tap, window.tokens)
        open_tap.listen(read)
        run_model(tiny, window.tokens)
    return pairs


def mean_separable(weights: Tensor, logits: Tensor, vectors: Tensor) -> float:
    values = []
    for a, row in zip(weights, logits, strict=True):
        one = plain_separable(a.tolist(), (row > -math.inf).nonzero()[:, 0].tolist(), vectors.tolist(), 20)
        values += [] if one is None else [one]
    return sum(values) / len(values)


@pytest.mark.quick(1)
@pytest.mark.parametrize("family", ["gpt2", "llama", "bert"])
def test_the_whole_way_by_loops(family: str) -> None:
    """Of the three windows of the longest length; gains and their intervals are of pairs of windows."""
    cut = windows(TEXT, [40], 3, 0, tokenizer=model(family).tokenizer)
    of_windows = [captured(family, window) for window in cut]
    own_separable: list[float] = []
    table = tried(family)
    assert table["normalizer"].unique(maintain_order=True).to_list() == ["baseline", *SPARSE, SHARPER]
    for row in table.filter(pl.col("head").is_in([0, 3])).iter_rows(named=True):
        made = abbe.normalizer("softmax" if row["normalizer"] == "baseline" else row["normalizer"])
        separable, active, changed, output = list[float](), list[float](), 0.0, 0.0
        for layers in of_windows:
            logits, values = layers[row["layer"]]
            v = values[row["head"] // (4 // len(values))]
            weights, own = made(logits)[row["head"]], torch.softmax(logits, -1)[row["head"]]
            separable.append(mean_separable(weights, logits[row["head"]], v))
            active.append(float((weights > 0).sum(-1).double().mean()))
            changed += float(((weights - own) @ v).square().sum())
            output += float((own @ v).square().sum())
        assert row["separable"] == pytest.approx(sum(separable) / 3, abs=1e-5)
        assert row["active"] == pytest.approx(sum(active) / 3, rel=1e-3)
        assert row["output_change"] == pytest.approx(math.sqrt(changed / output), abs=1e-5)
        if row["normalizer"] == "baseline":
            own_separable = separable
            assert (row["gain"], row["gain_low"], row["gain_high"]) == (0, None, None)
            continue
        gains = torch.tensor(separable, dtype=torch.float64) - torch.tensor(own_separable, dtype=torch.float64)
        assert row["gain"] == pytest.approx(float(gains.mean()), abs=1e-5)
        ends = [float(end) for end in bootstrap_interval(gains, 0.95, 50, 0)]
        assert [row["gain_low"], row["gain_high"]] == pytest.approx(ends, abs=1e-5)


def test_the_sparse_ones_have_fewer_active_keys_and_the_control_has_all() -> None:
    mean = dict(tried().group_by("normalizer").agg(pl.col("active").mean()).iter_rows())
    assert mean[SHARPER] == mean["baseline"] > max(mean[spec] for spec in SPARSE)


def test_equal_logits_give_numbers() -> None:
    """Sparse normalizers of equal logits are uniform, or keep the first keys; nothing is NaN."""
    tiny = model()
    for block in tiny.network.transformer.h:  # type: ignore[union-attr]
        block.attn.c_attn.weight.data[:, :32] = block.attn.c_attn.bias.data[:32] = 0
    table = abbe.report(tiny, TEXT, progress=False, **(QUICK | {"windows": 1})).alternatives
    assert table.drop("separable_low", "separable_high", "gain_low", "gain_high").null_count().sum_horizontal()[0] == 0
    active = dict(table.filter(layer=0, head=0).select("normalizer", "active").iter_rows())
    assert active["sparsemax"] == active["baseline"] > active["topk:k=32"]
    for name in ("separable_low", "separable_high", "gain_low", "gain_high"):
        assert table[name].is_null().all()  # one window has no interval


def test_an_alternative_replaces_the_sink_together_with_softmax() -> None:
    """Top-32 of 40 keys leaves out next to nothing else."""
    moved = [tried(family).filter(normalizer="topk:k=32")["output_change"] for family in ("llama", "gpt-oss")]
    assert moved[0].max() < 0.02 < 0.05 < moved[1].min()  # type: ignore[operator]


def test_effective_tokens_and_sensitivity_are_those_of_a_run() -> None:
    options: dict[str, Any] = {"lengths": [40], "windows": 3, "queries": 32, "resamples": 50, "progress": False}
    for name, normalizer in (("baseline", None), ("entmax:alpha=1.5", "entmax:alpha=1.5")):
        heads = abbe.diagnose(model(), TEXT, normalizer=normalizer, sizes=(1,), **options).table
        rows = tried().filter(normalizer=name)
        for column, measure in (("effective_tokens", "effective_tokens"), ("sensitivity", "sensitivity_worst_mean")):
            want = heads.filter((pl.col("measure") == measure) & pl.col("head").is_not_null()).sort("layer", "head")
            assert rows[column].to_list() == pytest.approx(want["value"].to_list(), rel=1e-5)


def test_output_change_is_of_values_whatever_the_vectors() -> None:
    first, second = tried(), tried(vectors="embedding")
    assert first["output_change"].to_list() == second["output_change"].to_list()
    assert first["separable"].to_list() != second["separable"].to_list()


def test_cross_attention_without_vectors_has_no_rows() -> None:
    assert tried("t5", vectors="hidden")["layer"].n_unique() == 4
