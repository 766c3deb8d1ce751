"""train_length, train_recall and train_text from end to end, very short."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
from lab_cases import CYCLE

import abbe
from abbe.lab import experiments

QUIET: dict[str, Any] = {"progress": False, "workers": 1}


def test_length_tests_some_normalizers_on_networks_trained_with_softmax() -> None:
    """Adaptive temperature, and the hard maximum, however it is spelt."""
    result = abbe.train_length(
        normalizers=["softmax", "adaptive-temperature", "top-k:k=1"], rates=0.01, seeds=2, steps=10, lengths=[64, 16],
        **QUIET,
    )  # fmt: skip
    first, *others = result.table.partition_by("normalizer", maintain_order=True)
    assert [rows["normalizer"][0] for rows in others] == ["adaptive-temperature", "topk:k=1"]
    for rows in others:
        assert first["train_loss"].to_list() == rows["train_loss"].to_list()
        assert first["loss"].to_list() != rows["loss"].to_list()
    assert result.lengths["length"].unique().sort().to_list() == [16, 64]
    assert len(result.lengths) == 3 * 2 * 2
    assert result.lengths.filter(run=2)["entropy"].to_list() == [0.0] * 4
    assert (result.lengths.filter(run=0)["entropy"] > 0).all()
    assert result.manifest["settings"]["lengths"] == [16, 64]
    findings = {finding.topic: finding for finding in result.findings}
    assert {"softmax by length", "adaptive-temperature by length"} <= findings.keys()
    name = "hard maximum on the trained softmax logits"
    assert name in findings["normalizers against softmax on the longest sets"].numbers
    assert name in findings["fit and generalisation"].sentence


def test_sizes_of_a_recall_task() -> None:
    result = abbe.train_recall(
        task="mqar", pairs=3, symbols=513, length=48, width=24, normalizers="softmax", rates=0.003, seeds=1, steps=10,
        **QUIET,
    )  # fmt: skip
    sizes = {"task": "mqar", "pairs": 3, "symbols": 513, "length": 48, "layers": 2}
    text = result.manifest["text"]
    assert {name: text[name] for name in sizes} == sizes
    assert "3 pairs of 513 symbols in 48 tokens" in text["name"]
    assert result.manifest["settings"]["width"] == 24
    assert result.table["start_loss"][0] == pytest.approx(math.log(513), abs=1.0)


def test_text_learns_some_and_is_judged_by_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experiments, "_TIMED", 1)
    short = dataclasses.replace(experiments.USUAL["text"], readings=2, test_size=8)
    monkeypatch.setitem(experiments.USUAL, "text", short)
    text = abbe.Text("cycle", CYCLE)
    result = abbe.train_text(text, normalizers="softmax", rates=0.003, seeds=1, steps=10, **QUIET)
    assert result.experiment == "text"
    assert (result.table["loss"] < result.table["start_loss"]).all()
    assert "nats" in result.findings[0].sentence
    assert result.manifest["text"]["task"] == "text"


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["sgd", "muon"])
def test_mqar_with_every_option(optimizer: str) -> None:
    result = abbe.train_recall(
        task="mqar", normalizers="entmax:alpha=1.5,learn=true", temperature="learned:0.5", optimizers=optimizer,
        rates=0.01, seeds=2, steps=12, qk_norm=True, **QUIET,
    )  # fmt: skip
    assert result.table["qk_norm"].all()
    assert result.table["temperature_end"].n_unique() == 2
    assert result.table["learned"].is_not_null().all()
    assert result.summary["optimizer"].to_list() == [optimizer]


@pytest.mark.slow
def test_softmax_learns_maximum_retrieval_and_decays() -> None:
    """At a tenth of the usual steps; the usual ones reach 98 % with 16 items."""
    result = abbe.train_length(normalizers="softmax", rates=0.01, seeds=2, steps=300, lengths=[16, 1024], **QUIET)
    numbers = result.findings[0].numbers
    assert numbers["accuracy_16"] > 0.9  # type: ignore[operator]
    assert numbers["accuracy_1024"] < 0.5  # type: ignore[operator]
