"""`abbe reproduce`: what it prints and writes, and mistakes told in one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from cli_runs import run, run_main

from abbe import studies

pytest_plugins = ("cli_fixtures",)


def test_page_figures_table_and_data(folder: Path, book: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = run("reproduce", folder, "--text", book, "--quick", "--figure", "2a,3", "--out", out)
    assert result.exit_code == 0, result.output
    assert "statements hold" in result.stdout
    assert "24 min" in result.stdout  # the paper's time for figure 2a
    assert result.stdout.endswith(f"figures: {out / 'figures'}\npage: {out / 'reproduce.html'}\n")
    assert "about" in result.stderr  # the cost, before the work
    assert (out / "reproduce.html").read_text().lower().startswith("<!doctype html>")
    names = {path.name for path in (out / "figures").iterdir()}
    ends = [f"{theme}.{kind}" for theme in ("", "-dark") for kind in ("pdf", "png", "svg")]
    assert names == {f"figure-{figure}{end}" for figure in ("2a", "3") for end in ends}
    assert len(pl.read_csv(out / "data" / "figure-3-heads.csv")) > 0


@pytest.mark.parametrize("figures", ["all", "3", "2a, 3"])
def test_figures_by_name(figures: str, stand_in: Callable[..., dict[str, Any]]) -> None:
    asked = stand_in("reproduce", {}, view="reproduction")
    assert run("reproduce", "--figure", figures, "--figures", "drawn").exit_code == 0
    assert asked["figures"] == (["2a", "3"] if "," in figures else figures)
    assert asked["drawn in"] == Path("drawn")


def test_json(folder: Path, book: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = run("reproduce", folder, "--text", book, "--quick", "--figure", "2a", "--json", "--quiet", "--out", out)
    printed = json.loads(result.stdout)
    assert {claim["figure"] for claim in printed["claims"]} == {"2a"}
    assert printed["manifest"]["settings"]["quick"] is True
    assert result.stderr == ""
    kept = json.loads((out / "reproduction.json").read_text())
    assert printed == kept


def test_folder_is_named_after_the_model(
    folder: Path, book: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run("reproduce", folder, "--text", book, "--quick", "--figure", "3", "--quiet").exit_code == 0
    assert (tmp_path / "abbe-reproduce-tiny-quick" / "reproduce.html").is_file()


def test_quiet_is_the_path_of_the_page(folder: Path, book: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = run("reproduce", folder, "--text", book, "--quick", "--figure", "3", "--quiet", "--out", out)
    assert (result.stdout, result.stderr) == (f"{out / 'reproduce.html'}\n", "")


def test_interrupt_is_reported_in_one_line(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(studies, "reproduce", interrupt)
    assert run_main(monkeypatch, "reproduce", folder, "--out", tmp_path / "out") == 130
    assert capsys.readouterr().err == "abbe: stopped; finished work is kept: run the same command again to resume\n"
