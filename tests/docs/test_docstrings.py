"""Docstrings of public names: complete, and their examples run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from docstrings import Documented, examples, faults, public_methods, public_names, run

import abbe

NAMES = public_names()
ALL = [*NAMES, *(method for one in NAMES if isinstance(one.made, type) for method in public_methods(one))]
CHEAP = ("bounds", "entmax", "measures", "normalizers")  # in the quick tier: no model, small tensors


def is_cheap(documented: Documented) -> bool:
    return documented.name.split(".")[1] in CHEAP


def test_every_public_name_and_method_is_documented() -> None:
    assert len(NAMES) > 150
    assert [fault for one in ALL for fault in faults(one)] == []


def test_a_gap_would_be_seen() -> None:
    def forgetful(logits: object, temperature: float) -> None:
        """A summary.

        Args:
            logits: of some shape.
            other: which is not there.

        Example:
            >>> 1 + 1
        """

    said = " ".join(faults(Documented("abbe.forgetful", forgetful)))
    for part in ("does not explain temperature", "explains other", "section Example is unknown", "has no example"):
        assert part in said
    wrong = Documented("abbe.wrong", type("Wrong", (), {"__doc__": "One.\n\nExamples:\n    >>> 1 + 1\n    3\n"}))
    test = examples(wrong)
    assert test is not None
    assert "Expected:\n    3\nGot:\n    2" in run(test)


@pytest.mark.parametrize("info", abbe.list_normalizers(), ids=lambda info: info.name)
def test_examples_of_normalizers_run(info: abbe.NormalizerInfo) -> None:
    made = abbe.normalizer(info.example)
    heads = made._given.get("heads", 1)
    weights = made(torch.linspace(-2, 2, 8).expand(heads, 8, 8), torch.ones(8, 8).tril().bool())
    assert weights.shape == (heads, 8, 8)
    assert bool(weights.isfinite().all())


@pytest.mark.parametrize("package", CHEAP)
def test_examples_of_small_functions_run(package: str) -> None:
    tests = [test for one in ALL if one.name.split(".")[1] == package and (test := examples(one)) is not None]
    assert len(tests) > 10
    assert "".join(map(run, tests)) == ""


ONCE = ("calibrate", "capacity", "compare", "diagnose", "diff", "lift", "report", "reproduce", "train_recall")
WITH_MODELS = [one for one in ALL if not is_cheap(one) and examples(one) is not None]


@pytest.fixture(scope="module")
def made_once() -> Iterator[None]:
    """A study that many examples call with the same arguments, and that keeps no folder, runs once."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ONCE:
            patch.setattr(abbe, name, remembering(getattr(abbe, name)))
        yield


def remembering(study: Callable[..., Any]) -> Callable[..., Any]:
    made: dict[str, Any] = {}

    def call(*args: Any, **kwargs: Any) -> Any:
        if "folder" in kwargs:
            return study(*args, **kwargs)
        asked = repr((args, sorted(kwargs.items())))
        if asked not in made:
            made[asked] = study(*args, **kwargs)
        return made[asked]

    return call


@pytest.mark.slow
@pytest.mark.usefixtures("made_once")
@pytest.mark.parametrize("documented", WITH_MODELS, ids=lambda one: one.name)
def test_examples_with_models_run(documented: Documented, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One after the other in this process, each in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    test = examples(documented)
    assert test is not None
    assert run(test) == ""
