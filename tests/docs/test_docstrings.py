"""Docstrings of public names: complete, and their examples run."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from docstrings import Documented, examples, faults, public_methods, public_names, run, sections, text_of

import abbe

NAMES = public_names()
ALL = [*NAMES, *(method for one in NAMES if isinstance(one.made, type) for method in public_methods(one))]
CHEAP = ("bounds", "entmax", "measures", "normalizers")  # in the quick tier: no model, small tensors
HIGH_OR_LOW = re.compile(r"\b(high|higher|low|lower|large|larger|small|smaller|narrow|wide|FALSE)\b", re.IGNORECASE)
# They give no measured number: sets, orders, states, tables of names, and what kernels work on.
WITHOUT_HIGH_OR_LOW = {
    *("abbe.bounds.catalogue", "abbe.bounds.selected_set"),
    *(f"abbe.measures.{name}" for name in ("by_groups", "checked_grid", "choose_sets", "compute", "decay", "merge")),
    *(
        f"abbe.measures.{name}"
        for name in ("block_numbers", "enough_windows", "join_heads", "last_occurrence", "pattern_keys", "random_order")
    ),
    *(f"abbe.measures.{name}" for name in ("resampled_counts", "resampled_means", "summarize", "update")),
    *(f"abbe.normalizers.{name}" for name in ("differentiate_support", "find_support", "format_spec", "support_map")),
    *(f"abbe.normalizers.{name}" for name in ("inside_transform", "parse_spec", "step_attention", "usual_specs")),
    "abbe.normalizers.weights_of_map",
}


def is_cheap(documented: Documented) -> bool:
    return documented.name.split(".")[1] in CHEAP


def test_every_public_name_and_method_is_documented() -> None:
    assert len(NAMES) > 200
    assert [fault for one in ALL for fault in faults(one)] == []


def test_functions_say_what_large_and_small_mean() -> None:
    silent = set()
    for one in NAMES:
        parts = sections(text_of(one))
        if (
            is_cheap(one)
            and not isinstance(one.made, type)
            and not HIGH_OR_LOW.search(parts[""] + parts.get("Returns", ""))
        ):
            silent.add(one.name)
    assert silent == WITHOUT_HIGH_OR_LOW


STUDIES = (
    *("calibrate", "capacity", "compare", "cost", "diagnose", "diff", "lift", "report", "report_each", "reproduce"),
    *("train_length", "train_recall", "train_temperature", "train_text", "verify"),
)


def test_studies_say_it_too() -> None:
    texts = {name: sections(text_of(Documented(name, getattr(abbe, name)))) for name in STUDIES}
    said = {name: parts[""] + parts.get("Returns", "") for name, parts in texts.items()}
    assert [name for name in STUDIES if not HIGH_OR_LOW.search(said[name])] == []


def test_views_of_numbers_say_it_too() -> None:
    shown = [one for one in NAMES if re.match(r"abbe\.views\.\w+_(table|charts?)$", one.name)]
    silent = {one.name.rpartition(".")[2] for one in shown if not HIGH_OR_LOW.search(sections(text_of(one))[""])}
    assert silent == {"doctor_table"}


def test_registries_say_it_too() -> None:
    assert all(re.search(r"\b(high|low|large|small)\w*\b", info.meaning) for info in abbe.measures.list_measures())
    assert all(info.meaning and info.example for info in abbe.list_normalizers())


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
