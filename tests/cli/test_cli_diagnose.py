"""`abbe diagnose`: what it prints and writes, its exit codes, and mistakes told in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_runs import run, run_main

import abbe
from abbe import studies

pytest_plugins = ("cli_fixtures",)


QUICK = ("--lengths", "16,32", "--windows", "2", "--queries", "4", "--sizes", "1,3")


def test_table_and_folder(folder: Path, book: Path, tmp_path: Path) -> None:
    result = run("diagnose", folder, "--text", book, *QUICK, "--out", tmp_path / "run")
    assert result.exit_code == 0, result.output
    assert "mean over 8 heads, windows of 32 tokens" in result.stdout
    assert "separability" in result.stdout
    assert "High means that the weight is spread over many keys" in result.stdout
    assert "self-check error" in result.stderr
    assert "4 windows, 96 tokens: about" in result.stderr
    assert result.stdout.endswith(f"page: {tmp_path / 'run' / 'diagnose.html'}\n")
    saved = abbe.open_run(tmp_path / "run")
    assert saved.manifest["text"]["name"] == "book.txt"
    assert saved.manifest["settings"]["sizes"] == [1, 3]


def test_json_is_the_whole_table_and_the_manifest(folder: Path, book: Path, tmp_path: Path) -> None:
    result = run("diagnose", folder, "--text", book, *QUICK, "--json", "--quiet", "--out", tmp_path / "run")
    printed, saved = json.loads(result.stdout), abbe.open(tmp_path / "run")
    assert printed["table"] == saved.table.to_dicts()
    assert printed["manifest"] == saved.manifest
    assert result.stderr == ""


def test_standard_input(folder: Path, book: Path) -> None:
    piped = run(
        "diagnose", folder, "--text", "-", *QUICK, "--json", "--quiet", "--out", "piped", typed=book.read_text()
    )
    from_file = run("diagnose", folder, "--text", book, *QUICK, "--json", "--quiet")
    assert json.loads(piped.stdout)["table"] == json.loads(from_file.stdout)["table"] != []


def test_stopping_says_how_to_go_on(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def stop(*_args: object, **_options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(studies, "diagnose", stop)
    for arguments in ([], ["--out", "run"]):
        assert run_main(monkeypatch, "diagnose", *arguments) == 130
        assert "again to resume" in capsys.readouterr().err
