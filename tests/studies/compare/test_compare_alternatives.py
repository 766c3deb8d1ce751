"""Alternatives that are not one spec: patterns with specs, saved swaps, and calibrated ones beside the plain ones."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from compare_runs import QUICK, made, row, word_model
from needle_models import TEXT

import abbe
from abbe import studies
from abbe.models import LoadedModel, swap
from abbe.models import windows as cut_windows
from abbe.normalizers import Truncated, normalizer
from abbe.runs.loss import window_losses
from abbe.studies import compare
from abbe.words.names import BASELINE

MEASURES = ("loss", "active", "zeros", "separable", "capacity", "sensitivity", "needle_margin", "needle_accuracy")
LINE = "layers.1=sparsemax; layers.0.heads.0,2=topk:k=2"


def numbers(result: Any, name: str) -> list[float]:
    return [math.nan if (value := row(result, name)[measure]) is None else value for measure in MEASURES]


def saved(path: Path, what: Any) -> str:
    with swap(word_model(), what) as handle:
        handle.save(path)
    return f"file:{path}"


def test_patterns_that_name_all_heads_are_the_spec() -> None:
    comparison = made(normalizers=["sparsemax", "*=sparsemax", "layers.0=sparsemax; layers.1=sparsemax"])
    for name in comparison.table["normalizer"].to_list()[2:]:
        assert numbers(comparison, name) == pytest.approx(numbers(comparison, "sparsemax"), nan_ok=True)
        assert row(comparison, name)["sensitivity_theory"] is None
    assert row(comparison, "sparsemax")["sensitivity_theory"] is not None


def test_a_mapping_a_line_and_a_file_are_the_same(tmp_path: Path) -> None:
    mapping = {"layers.1": "sparsemax", "layers.0.heads.0,2": "topk:k=2"}
    file = saved(tmp_path / "part.safetensors", mapping)
    comparison = made(normalizers=[mapping, file])
    assert comparison.table["normalizer"].to_list() == ["baseline", LINE, file]
    assert numbers(comparison, LINE) == pytest.approx(numbers(comparison, file), nan_ok=True)
    own, part, whole = (row(one, name)["active"] for one, name in (
        (comparison, "baseline"), (comparison, LINE), (made(normalizers="sparsemax"), "sparsemax")
    ))  # fmt: skip
    assert whole < part < own


def test_heads_that_no_pattern_names_keep_their_softmax(tmp_path: Path) -> None:
    """Also where only the largest weights are kept: of softmax, all but those are left out."""
    made(normalizers="layers.1=sparsemax", folder=tmp_path)
    model, points = word_model(), json.loads((tmp_path / "parts" / "1-capacity.json").read_text())["points"]
    cut = cut_windows(TEXT, [40], 3, 0, tokenizer=model.tokenizer)
    assert len(points) > 2
    for keep, losses in points.items():
        rules = {"layers.0": f"topk:k={keep}", "layers.1": Truncated(normalizer("sparsemax"), int(keep))}
        with swap(model, rules):
            assert losses == pytest.approx(window_losses(model, cut).tolist(), rel=1e-6)


def test_another_file_of_the_same_name_is_another_comparison(tmp_path: Path) -> None:
    file = saved(tmp_path / "a.safetensors", "sparsemax")
    first = made(normalizers=[file], folder=tmp_path / "out")
    assert made(normalizers=[file], folder=tmp_path / "out").table.equals(first.table)
    saved(tmp_path / "a.safetensors", "topk:k=2")
    with pytest.raises(abbe.AbbeError, match="files"):
        made(normalizers=[file], folder=tmp_path / "out")


@pytest.mark.parametrize(
    ("alternatives", "message"),
    [
        (["layers.0=sparsmax"], r"unknown normalizer 'sparsmax'"),
        (["layers.0=sparsemax;;"], r"'' is not PATTERN=SPEC"),
        (["layers.9=sparsemax"], r"pattern 'layers\.9': there is no layer 9; layers: 0 "),
        (["file:absent.safetensors"], r"absent\.safetensors cannot be read: No such file"),
        ([{}], r"spec '' has no name"),
        ([3], r"3 is not a spec: write a normalizer as text"),
        (["layers.0=sparsemax", {"layers.0": "sparsemax"}], r"layers\.0=sparsemax is given twice"),
    ],
)
def test_refusals(alternatives: Any, message: str) -> None:
    with pytest.raises(abbe.AbbeError, match=message):
        made(normalizers=alternatives)


@pytest.mark.parametrize("wrapped", [lambda made: made, lambda made: [made], lambda made: [{"layers.0": made}]])
def test_an_instance_is_refused_with_what_to_give_instead(wrapped: Any) -> None:
    learned = normalizer("entmax:alpha=1.5,learn=true")
    message = r"Normalizer instance entmax:.*: save the swap and give file:PATH, or give this spec"
    with pytest.raises(abbe.AbbeError, match=message):
        made(normalizers=wrapped(learned))


# -- Calibrated -------------------------------------------------------------------------------------------------------


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
    first = asked[0][1]
    assert first.name == "words, first half"
    assert TEXT.content.startswith(first.content)
    assert TEXT.content[len(first.content)] == " "  # no word is cut
    assert len(first.content) == pytest.approx(len(TEXT.content) / 2, abs=8)
    reasons = [why for why in comparison.manifest["skipped"] if "too little" in why]
    assert reasons == [f"{spec}, calibrated: too little of {spec}" for spec in ("sparsemax", "topk:k=2")]


def test_nothing_that_is_compared_was_seen_by_the_calibration() -> None:
    """Windows and prompts are of the second half; their places are those in the whole text."""
    text = abbe.Text(TEXT.name, TEXT.content[:2400])  # too short for so many windows
    model, read = word_model(), list[list[int]]()
    model.network.base_model.register_forward_pre_hook(
        lambda _, args, given: read.append(given.get("input_ids", *args[:1])[0].tolist()), with_kwargs=True
    )
    comparison = compare(model, text, **(QUICK | {"calibrate": True, "normalizers": "sparsemax", "windows": 8}))
    places, half = comparison.manifest["windows"], len(text.content) // 2
    for place in places:
        assert half <= place["start"] < place["end"] <= len(text.content)
        cut = model.tokenizer(text.content[place["start"] : place["end"]], add_special_tokens=False)["input_ids"]
        assert cut in read
    assert any("windows, because words, second half has only" in why for why in comparison.manifest["skipped"])
    assert any("stand in words, second half as whole words" in why for why in comparison.manifest["skipped"])
    assert any(why.startswith("sparsemax, calibrated: length 40") for why in comparison.manifest["skipped"])


def test_calibration_keeps_alpha_unless_told_to_learn_it(tmp_path: Path) -> None:
    specs = ["entmax:alpha=1.5", "entmax:alpha=1.5,learn=true"]
    made(calibrate=True, normalizers=specs, folder=tmp_path)
    fitted = [set(abbe.open(folder).parameters["parameter"]) for folder in sorted((tmp_path / "calibrated").iterdir())]
    assert fitted == [{"t"}, {"t", "alpha"}]
