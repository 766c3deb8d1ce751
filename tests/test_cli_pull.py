"""`abbe pull`: what it prints, its exit codes, and that the rest of the command line stays light."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from abbe import AbbeError, cli
from abbe.models import _pull


@pytest.fixture
def recipe(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    """minilm is made in place, or fails with the error that is put in here."""
    chosen: dict[str, Any] = {"error": None, "made": 0}

    def make(work: Path, target: Path, step: _pull.Step) -> dict[str, Any]:
        step("downloading a stand-in")
        if chosen["error"] is not None:
            raise chosen["error"]
        target.mkdir()
        chosen["made"] += 1
        return {"what": "a stand-in with 6 layers"}

    monkeypatch.setitem(_pull.RECIPES, "minilm", _pull._Recipe(make, 0))
    monkeypatch.setenv("ABBE_CACHE", str(tmp_path / "cache"))
    return chosen


def run(*arguments: str) -> Result:
    return CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1"}).invoke(cli.app, list(arguments))


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
    monkeypatch.setattr(sys, "argv", ["abbe", "pull", "minilm"])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert stopped.value.code == 2
    told = capsys.readouterr()
    assert told.out == ""
    step, line = told.err.splitlines()
    assert step == "downloading a stand-in"
    assert line.startswith("abbe: ")


def test_unknown_names_and_no_name(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["abbe", "pull", "smolm2"])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert stopped.value.code == 2
    assert "Did you mean 'smollm2'?" in capsys.readouterr().err
    assert run("pull").exit_code == 2


def test_help_names_the_models() -> None:
    result = run("pull", "--help")
    assert result.exit_code == 0
    for word in ("smollm2", "stories15m", "minilm", "ABBE_CACHE"):
        assert word in result.stdout


def test_import_and_help_do_not_load_transformers() -> None:
    code = """
import sys, abbe, abbe.cli, abbe.models
from typer.testing import CliRunner
assert CliRunner().invoke(abbe.cli.app, ["--help"]).exit_code == 0
print([name for name in ("transformers", "tokenizers", "huggingface_hub", "gguf") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == "[]"
