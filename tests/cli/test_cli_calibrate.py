"""`abbe calibrate`: what it asks the study for, what it writes and prints."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli_runs import run, run_main

import abbe
from abbe import views
from abbe.words.numbers import percent

pytest_plugins = ("cli_fixtures",)


@pytest.fixture
def asked(stand_in: Callable[..., dict[str, Any]]) -> dict[str, Any]:
    """What the study was asked for; study and views are stand-ins."""
    return stand_in("calibrate", {"losses": [1.5]}, view="calibration", file="calibrated.safetensors")


def test_defaults(asked: dict[str, Any]) -> None:
    result = run("calibrate")
    folder = Path("abbe-calibrate-embedded-entmax-alpha-1.5")
    assert result.stdout == f"THE TABLE\nswap: {folder / 'calibrated.safetensors'}\npage: {folder / 'calibrate.html'}\n"
    assert asked == {"folder": folder, "progress": True}  # the rest is left to the study


def test_every_option_reaches_the_study(asked: dict[str, Any], tmp_path: Path) -> None:
    given = ["--text", "a.txt", "--text", "b.txt", "--length", "128", "--windows", "3", "--held-out", "4"]
    given += ["--queries", "all", "--steps", "7", "--finetune", "9", "--seed", "5", "--out", str(tmp_path / "out")]
    result = run("calibrate", "org/model", "--with", "sparsemax", *given, "--quiet")
    assert (result.stdout, result.stderr) == (f"{tmp_path / 'out' / 'calibrate.html'}\n", "")
    assert asked == {
        "model": "org/model", "normalizer": "sparsemax", "text": ["a.txt", "b.txt"], "length": 128, "windows": 3,
        "held_out": 4, "queries": "all", "steps": 7, "finetune": 9, "seed": 5, "folder": tmp_path / "out",
        "progress": False,
    }  # fmt: skip


def test_json_leaves_standard_output_alone(asked: dict[str, Any]) -> None:
    result = run("calibrate", "--with", "sparsemax", "--json")
    assert json.loads(result.stdout) == {"losses": [1.5]}
    assert result.stderr.startswith("swap: ")
    assert run("calibrate", "--with", "sparsemax", "--json", "--quiet").stderr == ""


def test_figures(asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    drawn: list[object] = []
    monkeypatch.setattr(views, "save_figures", lambda result, folder: drawn.append((result.study, folder)))
    assert "figures: " not in run("calibrate", "--with", "sparsemax").stdout
    assert drawn == []
    result = run("calibrate", "--with", "sparsemax", "--figures", "charts")
    assert drawn == [("calibrate", Path("charts"))]
    lines = result.stdout.splitlines()
    assert [line.partition(": ")[0] for line in lines] == ["THE TABLE", "swap", "figures", "page"]
    asked.clear()
    (tmp_path / "file").write_text("")
    assert run_main(monkeypatch, "calibrate", "--with", "sparsemax", "--figures", "file") == 2
    assert asked == {}  # refused before the work


def test_a_real_run(folder: Path, book: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    quick = ["--length", "32", "--windows", "3", "--held-out", "2", "--queries", "8", "--finetune", "2"]
    result = run("calibrate", folder, "--with", "sparsemax", "--text", book, *quick, "--out", out)
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[-2:] == [f"swap: {out / 'tuned.safetensors'}", f"page: {out / 'calibrate.html'}"]
    for word in ("baseline", "swapped", "calibrated", "fine-tuned", "The loss on 2 held-out windows is"):
        assert word in result.stdout
    assert "too few held-out windows to show" in " ".join(result.stdout.split())
    assert "about" in result.stderr  # the cost, before the work
    again = run("calibrate", folder, "--with", "sparsemax", "--text", book, *quick, "--out", out, "--json", "--quiet")
    printed = json.loads(again.stdout)
    assert [stage["stage"] for stage in printed["losses"]] == ["baseline", "swapped", "calibrated", "fine-tuned"]
    assert {row["parameter"] for row in printed["parameters"]} == {"t"}
    of_layers = [line.split() for line in result.stdout.splitlines() if line.split()[:1] in (["0"], ["1"])]
    cells = [(row, what) for what in ("error", "zeros") for row in printed["layers"]]
    for line, (row, what) in zip(of_layers, cells, strict=True):
        columns = [row[f"{what}_{stage}"] for stage in ("before", "after", "tuned")]
        assert " ".join(line[1:]) == " ".join(percent(value) for value in columns)
    with abbe.swap(abbe.load(folder), f"file:{printed['file']}") as handle:
        assert sum(raw.numel() for raw in handle.parameters()) == len(printed["parameters"])


def test_mistakes_are_one_line(
    folder: Path, book: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    given = ["--text", book, "--length", "32", "--out", tmp_path / "out", "--quiet"]
    assert run_main(monkeypatch, "calibrate", folder, "--with", "entmx", *given) == 2
    assert capsys.readouterr().err == "abbe: unknown normalizer 'entmx'. Did you mean 'entmax'?\n"
    assert not (tmp_path / "out").exists()
