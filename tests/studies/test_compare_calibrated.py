"""Alternatives after calibration, beside the plain ones."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from compare_runs import made, row, word_model
from needle_models import TEXT

import abbe
from abbe import studies
from abbe.models import LoadedModel, swap
from abbe.studies._compare_calibrated import calibrated_swap, halves, kept_alpha
from abbe.studies._compare_parts import OWN


def test_halves_share_no_word() -> None:
    first, second = halves(abbe.Text("book", "aa bb cc ddd ee"))
    assert (first.content, second.content) == ("aa bb cc", " ddd ee")
    assert second.name == "book"


def test_calibrated_alternatives_stand_beside_the_plain_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, abbe.Text]] = []

    def calibrate(model: LoadedModel, spec: str, text: abbe.Text, **options: Any) -> Any:
        """Stands in for the real one: what it fits is always top-2."""
        asked.append((spec, text))
        path = Path(options["folder"]) / "fitted.safetensors"
        path.parent.mkdir(parents=True)
        with swap(model, "topk:k=2") as fitted:
            fitted.save(path)
        return SimpleNamespace(file=path)

    monkeypatch.setattr(studies, "calibrate", calibrate, raising=False)
    found = made(calibrate=True)
    names = found.table["normalizer"].to_list()
    assert names == [OWN, "sparsemax", "sparsemax, calibrated", "topk:k=2", "topk:k=2, calibrated"]
    same = [*("loss", "active", "capacity", "told_apart", "sensitivity", "needle_margin")]
    one, two = row(found, "sparsemax, calibrated"), row(found, "topk:k=2")
    assert [one[name] for name in same] == pytest.approx([two[name] for name in same])
    assert [spec for spec, _ in asked] == ["sparsemax", "topk:k=2"]
    assert row(found, "sparsemax")["sensitivity_theory"] is not None
    assert one["sensitivity_theory"] is None
    end = len(asked[0][1].content)
    assert TEXT.content.startswith(asked[0][1].content)
    assert all(window["start"] >= 0 for window in found.manifest["windows"])
    assert end < len(TEXT.content) * 0.51


@pytest.mark.parametrize(
    ("spec", "asked"),
    [
        ("entmax:alpha=1.5", "entmax:alpha=1.5,learn=false"),
        ("asentmax", "asentmax:learn=false"),
        ("hybrid:a=softmax,b=(entmax:alpha=1.5)", "hybrid:a=softmax,b=(entmax:alpha=1.5,learn=false)"),
        ("entmax:alpha=1.5,learn=true", "entmax:alpha=1.5,learn=true"),
        ("topk:k=2", "topk:k=2"),
    ],
)
def test_calibration_keeps_alpha_unless_told_to_learn_it(
    spec: str, asked: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert kept_alpha(spec) == asked
    seen: list[str] = []

    def calibrate(_model: object, spec: str, *_args: object, **_options: object) -> Any:
        seen.append(spec)
        return SimpleNamespace(file=tmp_path)

    monkeypatch.setattr(studies, "calibrate", calibrate, raising=False)
    calibrated_swap(word_model(), spec, TEXT, length=8, windows=1, seed=0, folder=tmp_path)
    assert seen == [asked]
