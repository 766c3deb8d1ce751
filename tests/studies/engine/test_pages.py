"""`folder=` of abbe.report, abbe.compare and abbe.reproduce: the page of the command line is there, too."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import compare_runs
import pytest
import tiny_runs

import abbe
from abbe import studies

REPORT: dict[str, Any] = tiny_runs.QUICK | {"lengths": [16], "windows": 2, "temperatures": (1.0,)}


def quick_report(**options: Any) -> Any:
    return abbe.report(tiny_runs.model(), tiny_runs.TEXT, **REPORT, **options)


def quick_compare(**options: Any) -> Any:
    return abbe.compare(compare_runs.word_model(), compare_runs.TEXT, **compare_runs.QUICK, **options)


def quick_reproduce(**options: Any) -> Any:
    return abbe.reproduce(tiny_runs.model(), tiny_runs.TEXT, figures=["3"], quick=True, progress=False, **options)


CASES = [
    pytest.param(quick_report, "report.html", id="report"),
    pytest.param(quick_compare, "compare.html", id="compare"),
    pytest.param(quick_reproduce, "reproduce.html", id="reproduce"),
]


@pytest.mark.quick(1)
@pytest.mark.parametrize(("call", "name"), CASES)
def test_the_folder_holds_the_page(call: Callable[..., Any], name: str, tmp_path: Path) -> None:
    call(folder=tmp_path / "out")
    page = (tmp_path / "out" / name).read_text(encoding="utf-8")
    assert page.lower().startswith("<!doctype html>")
    assert "tiny" in page  # the model
    assert not list((tmp_path / "out").glob(".*.part"))


def test_without_a_folder_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert quick_report().numbers
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["report", "compare", "reproduce"])
def test_arguments_and_help_are_those_of_the_study(name: str) -> None:
    public, study = getattr(abbe, name), getattr(studies, name)
    assert inspect.signature(public) == inspect.signature(study)
    assert public.__doc__ == study.__doc__
