"""Alternatives that are not one spec: patterns with specs, and saved swaps."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from compare_runs import made, row, word_model
from inside import as_alternatives, truncated_rules

import abbe
from abbe.models import swap
from abbe.normalizers import normalizer

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


def test_heads_that_no_pattern_names_keep_their_softmax() -> None:
    """Also where only the largest weights are kept: all of them are softmax with the others left out."""
    rules = list(truncated_rules(word_model(), "layers.1=sparsemax", 3).values())
    assert str(rules[0]) == "topk:k=3"
    assert (str(rules[1].inner), rules[1].keep) == ("sparsemax", 3)


@pytest.mark.slow
def test_a_file_is_not_calibrated_again(tmp_path: Path) -> None:
    file = saved(tmp_path / "part.safetensors", "sparsemax")
    comparison = made(normalizers=[file, "layers.0=topk:k=2"], calibrate=True, folder=tmp_path / "out")
    line = "layers.0=topk:k=2"
    assert comparison.table["normalizer"].to_list() == ["baseline", file, line, f"{line}, calibrated"]
    assert row(comparison, f"{line}, calibrated")["loss"] is not None


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


def test_what_was_given_is_read_once(tmp_path: Path) -> None:
    (spec,) = as_alternatives("topk:k=2")
    assert (spec.name, spec.rules, spec.spec, spec.what, spec.digest) == (*["topk:k=2"] * 4, "")
    (patterns,) = as_alternatives({"*": "softmax"})
    assert (patterns.name, patterns.rules, patterns.spec) == ("*=softmax", {"*": "softmax"}, None)
    assert as_alternatives("*=softmax") == (patterns,)
    (tmp_path / "x").write_bytes(b"abc")
    name = f"file:{tmp_path / 'x'}"
    file, other = as_alternatives([name, "sparsemax"])
    assert (file.name, file.rules, file.spec, file.what) == (name, None, None, name)
    assert file.digest.startswith("ba7816bf8f01cfea")
    assert not other.digest
