"""`abbe pull`: what it prints, and its exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cli_runs import run, run_main
from inside import pull_module as _pull

from abbe import AbbeError


@pytest.fixture
def recipe(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    """minilm is made in place, or fails with the error that is put in here."""
    chosen: dict[str, Any] = {"error": None, "made": 0}

    def fill(recipe: Any, work: Path, target: Path, step: _pull.Step) -> None:
        step("downloading a stand-in")
        if chosen["error"] is not None:
            raise chosen["error"]
        target.mkdir()
        chosen["made"] += 1

    stand_in = _pull.RECIPES["minilm"]._replace(bytes_needed=0, facts={"what": "a stand-in with 6 layers"})
    monkeypatch.setitem(_pull.RECIPES, "minilm", stand_in)
    monkeypatch.setattr(_pull, "_fill", fill)
    monkeypatch.setenv("ABBE_CACHE", str(tmp_path / "cache"))
    return chosen


def test_a_pull_says_what_came_and_where_it_lies(recipe: dict[str, Any], tmp_path: Path) -> None:
    result = run("pull", "minilm")
    assert result.exit_code == 0
    assert result.stdout == f"minilm: a stand-in with 6 layers\nin {tmp_path / 'cache' / 'models' / 'minilm'}\n"
    assert result.stderr == "downloading a stand-in\n"
    again = run("pull", "minilm")
    assert (again.exit_code, again.stdout) == (0, result.stdout)
    assert again.stderr == "minilm is there already\n"
    assert recipe["made"] == 1


@pytest.mark.parametrize(
    "error", [AbbeError("no network, or the index cannot be reached"), OSError(28, "No space left on device")]
)
def test_a_failure_is_one_line_and_exit_code_2(
    recipe: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception
) -> None:
    recipe["error"] = error
    assert run_main(monkeypatch, "pull", "minilm") == 2
    output = capsys.readouterr()
    assert output.out == ""
    step, line = output.err.splitlines()
    assert step == "downloading a stand-in"
    assert line.startswith("abbe: ")


def test_unknown_names_and_no_name(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_main(monkeypatch, "pull", "smolm2") == 2
    assert "Did you mean 'smollm2'?" in capsys.readouterr().err
    assert run("pull").exit_code == 2


def test_help_names_the_models() -> None:
    result = run("pull", "--help")
    assert result.exit_code == 0
    for word in ("smollm2", "minilm", "ABBE_CACHE"):
        assert word in result.stdout


def test_json_and_quiet(recipe: dict[str, Any], tmp_path: Path) -> None:
    folder = tmp_path / "cache" / "models" / "minilm"
    quiet = run("pull", "minilm", "--quiet")
    assert (quiet.stdout, quiet.stderr) == (f"{folder}\n", "")
    printed = json.loads(run("pull", "minilm", "--json").stdout)
    assert printed == {"name": "minilm", "folder": str(folder)} | _pull.RECIPES["minilm"].about
    assert printed["what"] == "a stand-in with 6 layers"
