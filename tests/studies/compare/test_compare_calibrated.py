"""Alternatives after calibration, beside the plain ones."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from compare_runs import QUICK, made, row, word_model
from inside import PromptMaker, halves
from inside import compare_study as study
from needle_models import TEXT

import abbe
from abbe import studies
from abbe.models import LoadedModel, swap
from abbe.studies import compare
from abbe.words.names import BASELINE


def test_halves_share_no_word() -> None:
    first, second = halves(abbe.Text("book", "aa bb cc ddd ee"))
    assert (first.content, second.content) == ("aa bb cc", " ddd ee")
    assert (first.name, second.name) == ("book, first half", "book, second half")


def test_calibrated_alternatives_stand_beside_the_plain_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, abbe.Text]] = []

    def calibrate(model: LoadedModel, text: abbe.Text, *, normalizer: str, **options: Any) -> Any:
        """Stands in for the real one: what it fits is always top-2."""
        asked.append((normalizer, text))
        path = Path(options["folder"]) / "fitted.safetensors"
        path.parent.mkdir(parents=True)
        with swap(model, "topk:k=2") as fitted:
            fitted.save(path)
        return SimpleNamespace(file=path, manifest={"skipped": [f"too little of {normalizer}"]})

    monkeypatch.setattr(studies, "calibrate", calibrate, raising=False)
    comparison = made(calibrate=True)
    names = comparison.table["normalizer"].to_list()
    assert names == [BASELINE, "sparsemax", "sparsemax, calibrated", "topk:k=2", "topk:k=2, calibrated"]
    same = [*("loss", "active", "capacity", "separable", "sensitivity", "needle_margin")]
    one, two = row(comparison, "sparsemax, calibrated"), row(comparison, "topk:k=2")
    assert [one[name] for name in same] == pytest.approx([two[name] for name in same])
    assert [spec for spec, _ in asked] == ["sparsemax", "topk:k=2"]
    assert row(comparison, "sparsemax")["sensitivity_theory"] is not None
    assert one["sensitivity_theory"] is None
    assert asked[0][1].content == halves(TEXT)[0].content
    reasons = [why for why in comparison.manifest["skipped"] if "too little" in why]
    assert reasons == [f"{spec}, calibrated: too little of {spec}" for spec in ("sparsemax", "topk:k=2")]


def test_nothing_that_is_compared_was_seen_by_the_calibration(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows and prompts are of the second half; their places are those in the whole text."""
    read: list[abbe.Text] = []
    cut: list[Any] = []

    def windows_for(model: Any, text: abbe.Text, *args: Any) -> Any:
        read.append(text)
        cut.extend(original(model, text, *args))
        return original(model, text, *args)

    class Maker(PromptMaker):
        def __init__(self, tokenizer: Any, text: abbe.Text, seed: int) -> None:
            read.append(text)
            super().__init__(tokenizer, text, seed)

    original = study.windows_for
    monkeypatch.setattr(study, "windows_for", windows_for)
    monkeypatch.setattr(study, "PromptMaker", Maker)
    text = abbe.Text(TEXT.name, TEXT.content[:2400])  # too short for so many windows
    comparison = compare(word_model(), text, **(QUICK | {"calibrate": True, "normalizers": "sparsemax", "windows": 8}))
    first, second = halves(text)
    assert [text.content for text in read] == [second.content] * 2
    tokenizer = word_model().tokenizer
    for place, window in zip(comparison.manifest["windows"], cut, strict=True):
        assert len(first.content) <= place["start"] < place["end"] <= len(text.content)
        tokens = tokenizer(text.content[place["start"] : place["end"]], add_special_tokens=False)["input_ids"]
        assert tokens == window.tokens.tolist()
    assert any("windows, because words, second half has only" in why for why in comparison.manifest["skipped"])
    assert any("stand in words, second half as whole words" in why for why in comparison.manifest["skipped"])
    assert any(why.startswith("sparsemax, calibrated: length 40") for why in comparison.manifest["skipped"])


def test_calibration_keeps_alpha_unless_told_to_learn_it(tmp_path: Path) -> None:
    specs = ["entmax:alpha=1.5", "entmax:alpha=1.5,learn=true"]
    made(calibrate=True, normalizers=specs, folder=tmp_path)
    fitted = [set(abbe.open(folder).parameters["parameter"]) for folder in sorted((tmp_path / "calibrated").iterdir())]
    assert fitted == [{"t"}, {"t", "alpha"}]
