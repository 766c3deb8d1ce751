"""Wrong usage of the program: one line, exit code 2; help stays as it is."""

from __future__ import annotations

import json
import re
import warnings
from pathlib import Path

import pytest
from cli_runs import run, run_main

import abbe
from abbe.runs import watch as _progress

pytest_plugins = ("cli_fixtures",)

WRONG = {
    "missing option": (["export", "tiny"], "abbe: missing option '--plan'; see abbe export --help"),
    "missing argument": (["pull"], "abbe: missing argument 'name'; see abbe pull --help"),
    "no number": (["report", "--windows", "many"], "'--windows'"),
    "half a number": (["report", "--seed", "1.5"], "'--seed'"),
    "unknown option": (["diagnose", "--lenghts", "5"], "--lengths"),
    "unknown option of abbe": (["--bogus"], "abbe: no such option: --bogus; see abbe --help"),
    "no value": (["verify", "--seed"], "option '--seed' requires an argument"),
    "a value too many": (["report", "--open=3"], "option '--open' does not take a value"),
    "an argument too many": (["diagnose", "a", "b"], "(b)"),
    "an argument to a command without any": (["doctor", "all"], "(all)"),
    "unknown command": (["reprot"], "no such command 'reprot'. Did you mean 'report'"),
}


@pytest.mark.parametrize("what", WRONG)
def test_one_line_and_exit_code_2(
    what: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments, message = WRONG[what]
    assert run_main(monkeypatch, *arguments) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("abbe: ")
    assert message.lower() in output.err.lower()  # typer writes the name of an argument in capitals, or does not
    assert output.err.count("\n") == 1
    assert run(*arguments).exit_code == 2


def test_without_arguments_help_is_shown_once() -> None:
    shown = run()
    assert shown.exit_code == 2
    assert shown.stdout.count("─ Commands ─") == 1
    assert "╭" in shown.stdout
    assert shown.stderr == ""


def test_help_and_version_end_with_0(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--help"], ["report", "--help"], ["--version"]):
        assert run_main(monkeypatch, *arguments) == 0
        shown = capsys.readouterr()
        assert shown.err == ""
    assert shown.out == f"abbe {abbe.__version__}\n"


@pytest.mark.quick(1)
@pytest.mark.parametrize("command", ["diagnose", "report"])
def test_sizes_beyond_all_queries_warn_nobody(command: str, folder: Path, book: Path, tmp_path: Path) -> None:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        done = run(
            *(command, folder, "--text", book, "--lengths", "16", "--windows", "1", "--queries", "2"),
            *("--sizes", "500", "--out", tmp_path / "out"),
        )
    assert done.exit_code == 0
    assert [str(warning.message) for warning in seen if "polars" in warning.filename or "None" in str(warning)] == []


def test_one_size_and_one_length(folder: Path, book: Path) -> None:
    quick = ("--windows", "1", "--queries", "2", "--quiet", "--json")
    done = run("diagnose", folder, "--text", book, "--lengths", "16", "--sizes", "3", "--temperatures", "1", *quick)
    rows = json.loads(done.stdout)["table"]
    assert {row["length"] for row in rows} == {16, None}
    assert {row["n"] for row in rows} == {3, None}


def test_the_text_itself_on_the_command_line(folder: Path) -> None:
    quick = ("--lengths", "16", "--windows", "1", "--queries", "2", "--quiet", "--json")
    assert run("diagnose", folder, "--text", "To be, or not to be, that is the question", *quick).exit_code == 0


def test_a_line_a_minute_leaves_standard_output_alone(
    folder: Path, book: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_progress, "EVERY", 0.005)
    words = ("diagnose", folder, "--text", book, "--lengths", "16,32", "--windows", "3", "--json")
    done = run(*words)
    assert json.loads(done.stdout)["table"]
    assert re.search(r"^abbe: \d+ s: \d+ of 6 done", done.stderr, re.MULTILINE)
    quiet = run(*words, "--quiet")
    assert (json.loads(quiet.stdout)["table"], quiet.stderr) == (json.loads(done.stdout)["table"], "")


@pytest.mark.parametrize("quiet", [[], ["--quiet"]])
def test_verify_says_a_line_a_minute(quiet: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_progress, "EVERY", 0.01)
    done = run("verify", "spectral", "frobenius", "--trials", "200", "--json", *quiet)
    assert len(json.loads(done.stdout)["verdicts"]) == 2
    assert bool(re.search(r"^abbe: \d+ s: \d of 2 done", done.stderr, re.MULTILINE)) == (not quiet)


def test_loading_says_a_line_a_minute(folder: Path, book: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_progress, "EVERY", 0.001)
    done = run("diagnose", folder, "--text", book, "--lengths", "16", "--windows", "1", "--queries", "2")
    assert f"abbe: 0 s: loading {folder}" in done.stderr
