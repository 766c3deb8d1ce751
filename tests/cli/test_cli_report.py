"""`abbe report`: what it asks the study for, what it writes and prints."""

from __future__ import annotations

import json
import math
import webbrowser
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli_runs import run

from abbe import open_run

pytest_plugins = ("cli_fixtures",)


@pytest.fixture
def asked(stand_in: Callable[..., dict[str, Any]]) -> dict[str, Any]:
    """What the study was asked for; study and views are stand-ins."""
    return stand_in("report", {"numbers": (1, math.nan), "verdicts": [{"x": math.inf}]})


def test_defaults(asked: dict[str, Any]) -> None:
    result = run("report")
    assert result.exit_code == 0, result.output
    assert result.stdout == f"THE TABLE\npage: {Path('abbe-report-embedded/report.html')}\n"
    assert asked == {"folder": Path("abbe-report-embedded"), "progress": True}  # the rest is left to the study


def test_every_option_reaches_the_study(asked: dict[str, Any], tmp_path: Path) -> None:
    given = ["--text", "a.txt", "--text", "b.txt", "--lengths", "128,512", "--windows", "3", "--queries", "all"]
    given += ["--sizes", "1,5", "--vectors", "output", "--seed", "7", "--out", str(tmp_path / "out"), "--quiet"]
    assert run("report", "org/model", *given).exit_code == 0
    assert asked == {
        "model": "org/model", "text": ["a.txt", "b.txt"], "lengths": [128, 512], "windows": 3, "queries": "all",
        "sizes": [1, 5], "vectors": "output", "seed": 7, "folder": tmp_path / "out", "progress": False,
    }  # fmt: skip


def test_json_leaves_standard_output_alone(asked: dict[str, Any]) -> None:
    result = run("report", "--json", "--figures", "pictures")
    assert json.loads(result.stdout) == {"numbers": [1, None], "verdicts": [{"x": None}]}
    assert result.stderr == f"figures: pictures\npage: {Path('abbe-report-embedded/report.html')}\n"
    assert run("report", "--json", "--quiet").stderr == ""


def test_quiet_is_the_path_of_the_page(asked: dict[str, Any]) -> None:
    result = run("report", "smollm2", "--quiet")
    assert (result.stdout, result.stderr) == (f"{Path('abbe-report-smollm2/report.html')}\n", "")


def test_figures(asked: dict[str, Any], tmp_path: Path) -> None:
    result = run("report", "--figures", tmp_path / "pictures")
    assert asked["drawn in"] == tmp_path / "pictures"
    assert f"figures: {tmp_path / 'pictures'}\npage: " in result.stdout


def test_the_page_is_opened_only_when_asked(
    asked: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("report", "--no-open")
    assert "opened" not in asked
    assert run("report", "--open").stderr == ""
    assert asked["opened"] == (tmp_path / "abbe-report-embedded" / "report.html").as_uri()
    monkeypatch.setattr(webbrowser, "open", lambda address: False)
    result = run("report", "--open")
    assert (result.exit_code, result.stderr) == (0, "abbe: no browser was found: open the page yourself\n")


def test_a_real_run(folder: Path, book: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    quick = ["--lengths", "16,32", "--windows", "2", "--queries", "4", "--sizes", "1,3"]
    result = run("report", folder, "--text", book, *quick, "--out", out)
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[-1] == f"page: {out / 'report.html'}"
    assert "about" in result.stderr  # the cost, before the work
    assert (out / "report.html").read_text(encoding="utf-8").lower().startswith("<!doctype html>")
    assert open_run(out).manifest["settings"]["lengths"] == [16, 32]
    again = run("report", folder, "--text", book, *quick, "--out", out, "--json", "--quiet")
    assert json.loads(again.stdout)["manifest"]["text"]["name"] == "book.txt"
    assert again.stderr == ""
