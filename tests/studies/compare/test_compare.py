"""compare as a whole: its parts, its folder and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import tiny_models
import tiny_runs
from compare_runs import QUICK, counted, made, row, word_model
from needle_models import TEXT
from rich.console import Console

import abbe
from abbe.models import swap, wrap
from abbe.models import windows as cut_windows
from abbe.runs.loss import window_losses
from abbe.runs.measuring import Job
from abbe.runs.watch import Stages, Watch
from abbe.studies import Comparison, compare
from abbe.words.names import BASELINE


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    return made()


# -- The whole --------------------------------------------------------------------------------------------------------


def test_all_parts_are_there(comparison: Comparison) -> None:
    assert comparison.table["normalizer"].to_list() == [BASELINE, "sparsemax", "topk:k=2"]
    assert comparison.judgements["normalizer"].to_list() == ["sparsemax", "topk:k=2"]
    assert row(comparison, "topk:k=2")["matched_heads"] == 0  # two keys cannot be as flat as these heads
    assert row(comparison, BASELINE)["needle_gain"] is None
    assert comparison.table["needle_gain"].null_count() == 1
    gains = ("needle_gain", "needle_gain_low", "needle_gain_high")  # no interval without a changed answer
    known = comparison.table.drop("sensitivity_theory", *gains).filter(pl.col("matched_heads") > 0)
    assert known.height == 2
    assert known.null_count().sum_horizontal()[0] == 0
    assert set(comparison.needle["kind"].drop_nulls()) == {"key-value", "needle"}
    assert comparison.recommendation.topic == "recommendation"
    reasons = [line.split(":")[0] for line in comparison.manifest["skipped"]]  # this text has 24 words
    needles = [f"needle prompts of {length} tokens" for length in (31, 31, 40, 40)]  # words, and decoys
    assert reasons == ["key-value prompts of 40 tokens", *needles]
    json.dumps(comparison.as_json(), allow_nan=False)


def test_losses_are_those_of_the_swapped_model(comparison: Comparison) -> None:
    model = word_model()
    cut = cut_windows(TEXT, [40], 3, 0, tokenizer=model.tokenizer, context=model.context)
    own = window_losses(model, cut)
    with swap(model, "topk:k=2"):
        other = window_losses(model, cut)
    assert row(comparison, BASELINE)["loss"] == pytest.approx(float(own.mean()), rel=1e-12)
    assert row(comparison, "topk:k=2")["loss"] == pytest.approx(float(other.mean()), rel=1e-12)
    assert row(comparison, "topk:k=2")["loss_change"] == pytest.approx(float((other - own).mean()), rel=1e-9)
    assert row(comparison, "topk:k=2")["perplexity"] == pytest.approx(float(other.mean().exp()), rel=1e-9)


def test_softmax_swapped_in_changes_nothing() -> None:
    result = made(normalizers=["softmax"])
    own, same = row(result, BASELINE), row(result, "softmax")
    for name in ("loss_change", "loss_rise", "separable_gain"):
        assert same[name] == pytest.approx(0, abs=1e-5)
    for name in ("effective_tokens", "active", "zeros", "separability", "capacity", "sensitivity_ratio", "temperature"):
        assert same[name] == pytest.approx(own[name], rel=1e-3, abs=1e-9)
    assert same["capacity_ratio"] == pytest.approx(1, rel=1e-3)
    assert not result.judgements["separates"][0]
    assert not result.judgements["retrieves"][0]


@pytest.mark.quick(2)
@pytest.mark.parametrize("family", ["llama", "mistral", "gemma2", "gpt-oss"])
def test_every_kind_of_causal_model(family: str) -> None:
    """Grouped heads, sliding windows, soft caps, and sinks, which count as one more key."""
    quick = QUICK | {"length": 32, "windows": 2, "needle_lengths": [16], "normalizers": ["entmax:alpha=1.5"]}
    result = compare(tiny_runs.model(family), tiny_runs.TEXT, **quick)
    other = row(result, "entmax:alpha=1.5")
    assert 0 < other["zeros"] < 1
    assert other["active"] < row(result, BASELINE)["active"]
    assert other["matched_heads"] > 0.5
    assert result.needle.is_empty()  # bytes are no words
    assert len(result.manifest["skipped"]) == 2


def test_one_window_has_no_intervals_and_proves_nothing() -> None:
    result = made(windows=1)
    assert result.table["loss_low"].is_null().all()
    assert result.table["capacity_high"].is_null().all()
    assert not result.judgements["affordable"].any()
    assert result.recommendation.sentence.startswith("Too few windows to judge")


def test_the_bar_ends_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a fresh run, of one that is resumed, and whatever number of sizes the search of the capacity tries."""
    bars = counted(monkeypatch, 2, lambda: made(normalizers="sparsemax", calibrate=True, folder=tmp_path))
    assert bars == [(bars[0][0],) * 2] * 2
    assert bars[0][0] > 3 * 3 * 4
    watch = Watch(Console(quiet=True))
    (bar,) = counted(monkeypatch, 1, lambda: stages_of(watch))
    assert bar == (5, 5)


def stages_of(watch: Watch) -> None:
    stages = Stages(watch, {"short": 2, "long": 3})
    for stage in ("short",) * 5 + ("long",):  # a guess too low, and one too high
        stages.step(stage, "a pass")
    stages.end("long")


@pytest.mark.parametrize(
    ("context", "length", "lengths"),
    [(1024, 512, [128, 256, 512, 1024]), (700, 512, [128, 256, 512]), (64, 40, [40])],
)
def test_lengths_of_needles(context: int, length: int, lengths: list[int], tmp_path: Path) -> None:
    network = tiny_models.gpt2(vocab_size=256, n_positions=context, n_layer=1)
    model = wrap(network, tiny_models.byte_tokenizer(context), "tiny")
    options: dict[str, Any] = {"length": length, "folder": tmp_path, "windows": 1, "progress": False}
    settings = tiny_runs.claimed(model, tmp_path, lambda: compare(model, TEXT, **options))
    assert settings["needle_lengths"] == lengths


# -- A folder ---------------------------------------------------------------------------------------------------------


def test_a_comparison_with_prompts_of_another_form_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    describe = Job.describe
    with monkeypatch.context() as before:
        before.setattr(Job, "describe", lambda job, settings: describe(job, settings | {"needle_decoys": 0}))
        made(folder=tmp_path)
    with pytest.raises(abbe.AbbeError, match=r"holds another run \(different: needle_decoys\)"):
        made(folder=tmp_path)


# -- Refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"normalizers": []}, "there is nothing to compare with: name a normalizer, such as entmax:alpha=1.5"),
        ({"normalizers": ["entmx"]}, "unknown normalizer 'entmx'. Did you mean 'entmax'"),
        ({"normalizers": ["sparsemax", "sparsemax"]}, "sparsemax is given twice"),
        ({"length": 65}, "window length 65 is above the model's context of 64"),
        ({"needle_lengths": [65]}, "needle length 65 is above the model's context of 64"),
        ({"needle_lengths": [32, 16]}, "needle_lengths must be whole numbers from 1 in rising order"),
    ],
)
def test_refusals(options: dict[str, Any], words: str) -> None:
    with pytest.raises(abbe.AbbeError, match=words.replace("(", r"\(")):
        made(**options)


@pytest.mark.parametrize("family", ["bert", "t5"])
def test_a_model_without_a_loss_is_refused(family: str) -> None:
    with pytest.raises(abbe.AbbeError, match="comparing normalizers needs a causal language model"):
        compare(tiny_runs.model(family), tiny_runs.TEXT, **QUICK)
