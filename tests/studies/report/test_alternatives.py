"""Other normalizers on the same logits: against loops, planted cases, pairs of windows, every family."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import polars as pl
import pytest
import torch
from inside import alternatives_table, alternatives_windows, block_sums
from polars.testing import assert_frame_equal
from read_alone import try_alternatives
from row_cases import random_rows
from separable_by_loops import plain_separable
from tiny_runs import TEXT, model
from torch import Tensor

import abbe
from abbe.measures import Rows
from abbe.models import AttentionCall, LoadedModel, Window, tap, windows
from abbe.runs import window as _window
from abbe.runs.inputs import Settings, settings_for
from abbe.runs.window import check_model, query_positions, run_model
from abbe.studies import Report

SCHEMA = Report.frame("alternatives").schema
SHARPER = "softmax:temperature=0.7"
SPARSE = ("entmax:alpha=1.25", "entmax:alpha=1.5", "sparsemax", "topk:k=32", "topp:p=0.9", "threshold:rel=0.1")
ALTERNATIVES = (*SPARSE, SHARPER)


def settings(**options: Any) -> Settings:
    given: dict[str, Any] = {"lengths": [16, 40], "windows": 3, "queries": 8, "sizes": None, "vectors": "value"}
    given |= {"normalizer": None, "temperatures": (1.0,), "seed": 0, "level": 0.95, "resamples": 50}
    return settings_for(None, **(given | options))


def cut(tiny: LoadedModel, chosen: Settings) -> list[Window]:
    return windows(TEXT, chosen.lengths, chosen.windows, chosen.seed, tokenizer=tiny.tokenizer)


def tried(family: str = "gpt2", options: dict[str, Any] | None = None, **more: Any) -> pl.DataFrame:
    tiny, chosen = model(family), settings(**(options or {}))
    with tap(tiny) as open_tap:
        return try_alternatives(tiny, open_tap, cut(tiny, chosen), chosen, **({"queries": 8} | more))


# Sums over a block


@pytest.mark.parametrize("mask", ["causal", "some"])
def test_block_sums_by_loops(mask: str) -> None:
    own = random_rows(2, keys=24, mask=mask, groups=2)
    values = torch.randn(2, 24, 3, generator=torch.Generator().manual_seed(3)).double()
    specs = ["sparsemax", "topk:k=4", "softmax"]
    made = [abbe.normalizer(spec) for spec in specs]
    sums = block_sums(own, values, made, torch.Generator().manual_seed(0))
    for number, weights in enumerate([own.weights, *(one(own.logits) for one in made)]):
        for head in range(own.heads):
            changed, output, active = plain_change(own.weights[head], weights[head], values[head // 2])
            assert float(sums["changed"][number, head]) == pytest.approx(changed, abs=1e-12)
            assert float(sums["output"][number, head]) == pytest.approx(output)
            assert int(sums["active"][number, head]) == active
            assert int(sums["active/rows"][number, head]) == int((own.count[head] > 0).sum())
    assert bool((sums["changed"][0] == 0).all())
    assert bool((sums["changed"][3] < 1e-28).all())


def plain_change(own: Tensor, other: Tensor, values: Tensor) -> tuple[float, float, int]:
    changed = output = 0.0
    active = 0
    for mine, theirs in zip(own.tolist(), other.tolist(), strict=True):
        for f in range(values.shape[1]):
            before = sum(a * float(v) for a, v in zip(mine, values[:, f], strict=True))
            after = sum(a * float(v) for a, v in zip(theirs, values[:, f], strict=True))
            changed += (after - before) ** 2
            output += before**2
        active += sum(a > 0 for a in theirs)
    return changed, output, active


def test_sparsemax_tells_apart_what_softmax_cannot() -> None:
    """Two keys of 300 stand out by 4; together the others have, by softmax, most of the weight, and blur them."""
    draw = torch.Generator().manual_seed(4)
    logits = 0.3 * torch.randn(1, 8, 300, generator=draw)
    logits[..., :2] += 4.0
    vectors = torch.nn.functional.normalize(torch.randn(1, 300, 16, generator=draw), dim=-1)
    own = Rows(logits, torch.softmax(logits, -1), vectors, softmax=True)
    sums = block_sums(own, vectors, [abbe.normalizer("sparsemax")], draw)
    separable = sums["separable"][:, 0] / 8
    assert separable[0] < 0.5
    assert separable[1] > 0.99
    assert sums["active"][1, 0] / 8 < 3


def test_equal_logits_give_numbers() -> None:
    """Sparse normalizers of equal logits are uniform, or keep the first keys; nothing is NaN."""
    logits = torch.zeros(2, 3, 50)
    vectors = torch.randn(2, 50, 4, generator=torch.Generator().manual_seed(6))
    own = Rows(logits, torch.softmax(logits, -1), vectors, softmax=True)
    made = [abbe.normalizer(spec) for spec in ALTERNATIVES]
    sums = block_sums(own, vectors, made, torch.Generator().manual_seed(0))
    assert all(bool(x.isfinite().all()) for x in sums.values())
    active = dict(zip(ALTERNATIVES, (sums["active"][1:, 0] / 3).tolist(), strict=True))
    assert active["sparsemax"] == 50
    assert active["topk:k=32"] == 32


# The table


def test_alternatives_are_canonical_and_the_sparse_ones_give_zeros() -> None:
    logits = 2 * torch.randn(64, generator=torch.Generator().manual_seed(0))
    for spec in ALTERNATIVES:
        made = abbe.normalizer(spec)
        assert str(made) == spec
        assert bool((made(logits) == 0).any()) == (spec in SPARSE)


def captured(tiny: LoadedModel, window: Window, queries: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Logits (head, query, key) and values (key head, key, feature) of every layer, float64."""
    pairs: list[tuple[Tensor, Tensor]] = []

    def read(call: AttentionCall) -> None:
        pairs.append((call.logits(queries)[0].double(), call.value[0].double()))

    with tap(tiny) as open_tap, torch.no_grad():
        check_model(tiny, open_tap, window.tokens)
        open_tap.listen(read)
        run_model(tiny, window.tokens)
    return pairs


@pytest.mark.parametrize("family", ["gpt2", "llama", "bert"])
def test_the_whole_way_by_loops(family: str) -> None:
    tiny, chosen = model(family), settings(queries=8)
    table = tried(family, specs=["sparsemax", "topk:k=6"])
    of_windows = [
        captured(tiny, window, query_positions(40, chosen, window))
        for window in cut(tiny, chosen)
        if window.length == 40
    ]
    assert len(of_windows) == 3
    for row in table.iter_rows(named=True):
        made = abbe.normalizer("softmax" if row["normalizer"] == "baseline" else row["normalizer"])
        separable, active, changed, output = [], [], 0.0, 0.0
        for layers in of_windows:
            logits, values = layers[row["layer"]]
            v = values[row["head"] // (4 // len(values))]
            weights, own = made(logits)[row["head"]], torch.softmax(logits, -1)[row["head"]]
            separable.append(mean_separable(weights, logits[row["head"]], v))
            active.append(float((weights > 0).sum(-1).double().mean()))
            changed += float(((weights - own) @ v).square().sum())
            output += float((own @ v).square().sum())
        assert row["separable"] == pytest.approx(sum(separable) / 3, abs=1e-5)
        assert row["active"] == pytest.approx(sum(active) / 3, rel=1e-6)
        assert row["output_change"] == pytest.approx(math.sqrt(changed / output), abs=1e-5)


def mean_separable(weights: Tensor, logits: Tensor, vectors: Tensor) -> float:
    values = []
    for a, row in zip(weights, logits, strict=True):
        one = plain_separable(a.tolist(), (row > -math.inf).nonzero()[:, 0].tolist(), vectors.tolist(), 20)
        values += [] if one is None else [one]
    return sum(values) / len(values)


def test_softmax_instead_of_the_own_softmax_changes_nothing() -> None:
    table = tried("gpt2", specs=["softmax"]).filter(pl.col("normalizer") == "softmax")
    for name in ("gain", "gain_low", "gain_high", "output_change"):
        assert table[name].to_list() == [0.0] * 8


def test_softmax_without_the_sink_changes_a_model_with_sinks() -> None:
    table = tried("gpt-oss", specs=["softmax"])
    other = table.filter(pl.col("normalizer") == "softmax")
    assert (other["output_change"] > 0.05).all()
    sharper = tried("gpt-oss", {"normalizer": "sparsemax"}, specs=["softmax"])
    assert_frame_equal(sharper, table)  # own means the model's own


def test_effective_tokens_and_sensitivity_are_those_of_a_run() -> None:
    options: dict[str, Any] = {"lengths": [40], "windows": 3, "queries": 8, "resamples": 50, "progress": False}
    table = tried(specs=["entmax:alpha=1.5"])
    for name, normalizer in (("baseline", None), ("entmax:alpha=1.5", "entmax:alpha=1.5")):
        heads = abbe.diagnose(model(), TEXT, normalizer=normalizer, sizes=(1,), **options).table
        rows = table.filter(pl.col("normalizer") == name)
        for column, measure in (("effective_tokens", "effective_tokens"), ("sensitivity", "sensitivity_worst_mean")):
            want = heads.filter((pl.col("measure") == measure) & pl.col("head").is_not_null()).sort("layer", "head")
            assert rows[column].to_list() == pytest.approx(want["value"].to_list(), rel=1e-5)


def test_output_change_is_of_values_whatever_the_vectors() -> None:
    first, second = tried(), tried("gpt2", {"vectors": "embedding"})
    assert first["output_change"].to_list() == second["output_change"].to_list()
    assert first["separable"].to_list() != second["separable"].to_list()


def test_cross_attention_without_vectors_has_no_rows() -> None:
    assert tried("t5", {"vectors": "hidden"})["layer"].unique().len() == 4


def test_blocks_of_queries_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = tried()
    monkeypatch.setattr(_window, "BLOCK", 4 * 40 * 3)
    assert_frame_equal(tried(), whole, abs_tol=1e-6)


# Windows


def test_first_windows_of_the_longest_length() -> None:
    tiny, chosen, seen = model(), settings(), []
    with tap(tiny) as open_tap:
        for most in (2, 9):
            given = cut(tiny, chosen)
            assert len(alternatives_windows(given, most)) == min(most, 3)
            try_alternatives(
                tiny, open_tap, given, chosen, specs=["sparsemax"], most_windows=most, queries=4, on_window=seen.append
            )
    assert [(window.length, window.index) for window in seen] == [(40, 0), (40, 1), (40, 0), (40, 1), (40, 2)]


def test_one_window_has_no_interval() -> None:
    table = tried(most_windows=1)
    for name in ("separable_low", "separable_high", "gain_low", "gain_high"):
        assert table[name].is_null().all()
    assert table["gain"].is_not_null().all()


def made_up_sums(separable: list[list[float]], **others: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
    """One window, (normalizer, head), from the separable weight; one query."""
    x = torch.tensor(separable).double()
    sums = dict.fromkeys(("separable", "active", "effective_tokens", "sensitivity", "changed", "output"), x)
    sums |= {f"{name}/rows": torch.ones_like(x).long() for name in list(sums)[:4]}
    return sums | {name: make(x) for name, make in others.items()}


def test_gains_are_of_pairs_of_windows() -> None:
    """Windows differ much, the gain of a head does not: its interval is a point, or as wide as it really is."""
    own = [0.1, 0.9, 0.3, 0.6]
    gains = [[0.05] * 4, [0.0, 0.04, 0.08, 0.0]]
    per_window = [made_up_sums([[x, x], [x + gains[0][i], x + gains[1][i]]]) for i, x in enumerate(own)]
    table = alternatives_table(["baseline", "other"], {0: per_window}, settings(resamples=1000))
    steady, mixed = table.filter(pl.col("normalizer") == "other").rows(named=True)
    assert (steady["gain"], mixed["gain"]) == (pytest.approx(0.05), pytest.approx(0.03))
    assert steady["gain_low"] == pytest.approx(0.05)
    assert steady["gain_high"] == pytest.approx(0.05)
    assert steady["separable_high"] - steady["separable_low"] > 0.3
    assert 0 <= mixed["gain_low"] < 0.03 < mixed["gain_high"] <= 0.08


def test_what_no_query_defines_is_null() -> None:
    none = made_up_sums([[0.0], [0.0]], **{"separable/rows": lambda x: torch.zeros_like(x).long()})
    (own, other) = alternatives_table(["baseline", "other"], {3: [none, none]}, settings()).rows(named=True)
    for row in (own, other):
        assert row["layer"] == 3
        empty = {name for name, value in row.items() if value is None}
        want = {"separable", "separable_low", "separable_high", "gain", "gain_low", "gain_high", "output_change"}
        assert empty == want
