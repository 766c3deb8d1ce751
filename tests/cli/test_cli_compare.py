"""`abbe compare`: what it asks the study for, what it writes and prints, and what it refuses."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny_models
from cli_runs import run, run_main

pytest_plugins = ("cli_fixtures",)


@pytest.fixture
def asked(stand_in: Callable[..., dict[str, Any]]) -> dict[str, Any]:
    """What the study was asked for; study and views are stand-ins."""
    return stand_in("compare", {"table": (1, math.nan)})


def test_defaults(asked: dict[str, Any]) -> None:
    result = run("compare")
    assert result.exit_code == 0, result.output
    assert result.stdout == f"THE TABLE\npage: {Path('abbe-compare-embedded/compare.html')}\n"
    assert asked == {"folder": Path("abbe-compare-embedded"), "progress": True}  # the rest is left to the study


def test_every_option_reaches_the_study(asked: dict[str, Any], tmp_path: Path) -> None:
    given = ["--with", "entmax:alpha=1.5", "--with", "topk:k=32", "--text", "a.txt", "--length", "256", "--windows"]
    given += ["3", "--needle-lengths", "64,128", "--prompts", "9", "--calibrate"]
    given += ["--seed", "7", "--out", str(tmp_path / "out")]
    assert run("compare", "org/model", *given, "--quiet").exit_code == 0
    assert asked == {
        "model": "org/model", "text": ["a.txt"], "normalizers": ["entmax:alpha=1.5", "topk:k=32"], "length": 256,
        "windows": 3, "needle_lengths": [64, 128], "prompts": 9, "calibrate": True, "seed": 7,
        "folder": tmp_path / "out", "progress": False,
    }  # fmt: skip


def test_json_quiet_figures_and_browser(asked: dict[str, Any], tmp_path: Path) -> None:
    result = run("compare", "--json", "--figures", "pictures", "--open")
    assert json.loads(result.stdout) == {"table": [1, None]}
    assert result.stderr == f"figures: pictures\npage: {Path('abbe-compare-embedded/compare.html')}\n"
    assert asked["drawn in"] == Path("pictures")
    assert asked["opened"] == (tmp_path / "abbe-compare-embedded" / "compare.html").as_uri()
    quiet = run("compare", "smollm2", "--quiet")
    assert (quiet.stdout, quiet.stderr) == (f"{Path('abbe-compare-smollm2/compare.html')}\n", "")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["--with", "entmx"], "unknown normalizer 'entmx'. Did you mean 'entmax'?"),
        (["--with", ""], "spec"),
        (["--with", "topk:k=0"], "topk: k"),
        (["--with", "sparsemax", "--with", "sparsemax"], "sparsemax is given twice: name each normalizer once"),
        (["--length", "65"], "window length 65 is above the model's context of 64"),
        (["--needle-lengths", "a,b"], "--needle-lengths is 'a,b', but must be numbers separated by commas"),
        (["--needle-lengths", "999"], "needle length 999 is above the model's context of 64"),
        (["--text", "no-such-file"], "there is no text file no-such-file"),
    ],
)
def test_mistakes_are_one_line(
    given: list[str], words: str, folder: Path, book: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    text = [] if "--text" in given else ["--text", str(book)]
    assert run_main(monkeypatch, "compare", folder, *text, *given) == 2
    error = capsys.readouterr().err
    assert error.startswith("abbe: ")
    assert words in error
    assert "Traceback" not in error
    assert error.count("\n") == 1
    assert not (tmp_path / "abbe-compare-tiny").exists()


def test_an_encoder_is_refused(
    book: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "encoder"
    tiny_models.bert(vocab_size=256).save_pretrained(place)  # type: ignore[operator]
    tiny_models.byte_tokenizer().save_pretrained(place)
    monkeypatch.chdir(tmp_path)
    assert run_main(monkeypatch, "compare", place, "--text", book) == 2
    assert "is an encoder: comparing normalizers needs a causal language model" in capsys.readouterr().err


def test_a_real_run(folder: Path, book: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    quick = ["--with", "sparsemax", "--length", "32", "--windows", "2", "--needle-lengths", "32", "--prompts", "1"]
    quick += ["--out", str(out)]
    result = run("compare", folder, "--text", book, *quick)
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[-1] == f"page: {out / 'compare.html'}"
    assert "Too few windows to judge" in result.stdout
    assert "2 normalizers, " in result.stderr  # the cost, before the work
    assert (out / "compare.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    again = run("compare", folder, "--text", book, *quick, "--json", "--quiet")
    assert json.loads(again.stdout)["manifest"]["text"]["name"] == "book.txt"
    assert again.stderr == ""
