"""--shard and abbe merge, as commands."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_runs import command_of, run, run_main

import abbe

pytest_plugins = ("cli_fixtures",)

QUICK = ("--lengths", "16,32", "--windows", "2", "--queries", "4", "--sizes", "1,3")


def test_shards_and_merge(folder: Path, book: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    command = ("diagnose", folder, "--text", "book.txt", *QUICK, "--quiet")
    first = run(*command, "--out", "run", "--shard", "1/2")
    assert first.exit_code == 0
    assert first.stdout == "shard 1/2: 2 parts made, 2 of 4 missing\n"
    last = run(*command, "--out", "run", "--shard", "2/2", "--json")
    assert json.loads(last.stdout) == {"shard": "2/2", "made": 2, "total": 4, "missing": []}
    assert last.stderr == "shard 2/2: 2 parts made, all 4 are there\n"
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")  # text and model are found from any folder
    merged = run("merge", "../run", "--quiet")
    assert (merged.exit_code, merged.stdout) == (0, "../run/diagnose.html\n")
    local = abbe.diagnose(folder, book, lengths=[16, 32], windows=2, queries=4, sizes=[1, 3], progress=False)
    assert abbe.open_run("../run").table.equals(local.table)
    again = run("merge", "../run", "--json")
    assert json.loads(again.stdout)["table"] == local.table.to_dicts()


def test_merge_makes_what_is_missing(folder: Path, book: Path, tmp_path: Path) -> None:
    command = ("diagnose", folder, "--text", book, *QUICK, "--quiet")
    assert run(*command, "--out", tmp_path / "run", "--shard", "1/2").exit_code == 0
    assert run("merge", tmp_path / "run", "--quiet").stdout == f"{tmp_path / 'run' / 'diagnose.html'}\n"
    local = abbe.diagnose(folder, book, lengths=[16, 32], windows=2, queries=4, sizes=[1, 3], progress=False)
    assert abbe.open_run(tmp_path / "run").table.equals(local.table)


def test_what_a_shard_has_not(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for option in (["--open"], ["--figures", "drawn"]):
        assert run_main(monkeypatch, "diagnose", str(folder), "--shard", "1/2", *option) == 2
        assert capsys.readouterr().err == (
            f"abbe: a shard makes no page and no figures: give {option[0]} to abbe merge instead\n"
        )


@pytest.mark.slow
def test_text_from_a_pipe_is_kept_for_the_merge(folder: Path, tmp_path: Path) -> None:
    text = "In the beginning there was a lens, and it was ground by hand. " * 10
    command = ("diagnose", folder, "--text", "-", *QUICK, "--quiet", "--out", tmp_path / "run", "--shard", "1/2")
    assert run(*command, typed=text).exit_code == 0
    assert abbe.merge(tmp_path / "run", progress=False).manifest["text"]["name"] == "standard input"


def test_which_commands_can_be_shared() -> None:
    def has_shard(command: str) -> bool:
        return any("--shard" in parameter.opts for parameter in command_of(command).params)

    assert all(map(has_shard, ("report", "reproduce", "diagnose", "capacity", "compare", "calibrate", "train text")))
    assert not any(map(has_shard, ("lift", "watch", "verify", "merge")))
