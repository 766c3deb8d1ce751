"""`abbe capacity`: what it asks the study for, what it writes and prints."""

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
    return stand_in("capacity", {"table": [{"capacity": 3, "low": math.nan}]})


def test_defaults(asked: dict[str, Any], tmp_path: Path) -> None:
    result = run("capacity")
    page = Path("abbe-capacity-embedded") / "capacity.html"
    assert (result.exit_code, result.stdout, result.stderr) == (0, f"THE TABLE\npage: {page}\n", "")
    assert asked == {"folder": page.parent, "progress": True}  # the rest is left to the study


def test_every_option_reaches_the_study(asked: dict[str, Any], tmp_path: Path) -> None:
    given = ["--text", "a.txt", "--text", "b.txt", "--tau", "0.2", "--lengths", "128,512", "--windows", "3"]
    given += ["--way", "deletion", "--grid", "coarse", "--no-layers", "--queries", "32", "--seed", "7", "--quiet"]
    given += ["--layer-lengths", "512", "--layer-windows", "2", "--targets", "last:16", "--out", str(tmp_path / "out")]
    given += ["--level", "0.9", "--resamples", "50", "--device", "cuda", "--dtype", "bfloat16"]
    result = run("capacity", "org/model", *given, "--figures", "pictures")
    assert result.exit_code == 0
    assert (result.stdout, result.stderr) == (f"{tmp_path / 'out' / 'capacity.html'}\n", "")
    assert asked == {
        "model": "org/model", "text": ["a.txt", "b.txt"], "tau": [0.2], "lengths": [128, 512], "windows": 3,
        "way": "deletion", "layers": False, "layer_lengths": [512], "layer_windows": 2,
        "targets": "last:16", "seed": 7, "grid": "coarse", "queries": 32, "level": 0.9, "resamples": 50,
        "device": "cuda", "dtype": "bfloat16", "folder": tmp_path / "out", "progress": False,
        "drawn in": Path("pictures"),
    }  # fmt: skip


def test_json_leaves_standard_output_alone(asked: dict[str, Any]) -> None:
    result = run("capacity", "--json", "--out", "here")
    assert json.loads(result.stdout) == {"table": [{"capacity": 3, "low": None}]}
    assert result.stderr == "page: here/capacity.html\n"


@pytest.mark.parametrize(
    ("given", "line"),
    [
        (["--tau", "much"], "--tau is 'much', but must be numbers separated by commas, such as 64,256"),
        (["--tau", "0"], "tau must be numbers > 0, such as 0.01,0.05, got [0.0]"),
        (["--way", "cutting"], "way is 'cutting', but must be one of deletion, renormalised, or both"),
        (
            ["--lengths", "9,16", "--layer-lengths", "99"],
            "layer_lengths has 99, but must be among the lengths: 9, 16",
        ),
        (["--lengths", "9999"], "window length 9999 is above the model's context of 64 tokens"),
    ],
)
def test_mistakes_are_one_line(
    given: list[str], line: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_main(monkeypatch, "capacity", folder, *given) == 2
    output = capsys.readouterr()
    assert (output.out, output.err) == ("", f"abbe: {line}\n")


def test_an_encoder_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny_models.bert(vocab_size=256).save_pretrained(tmp_path / "bert")  # type: ignore[operator]
    tiny_models.byte_tokenizer().save_pretrained(tmp_path / "bert")
    assert run_main(monkeypatch, "capacity", tmp_path / "bert") == 2
    assert "is an encoder: capacity needs a causal language model" in capsys.readouterr().err


@pytest.mark.slow
def test_a_real_run(folder: Path, book: Path, tmp_path: Path) -> None:
    out, pictures = tmp_path / "out", tmp_path / "pictures"
    quick = ["--lengths", "12,24", "--windows", "2", "--tau", "0.05", "--out", out]
    result = run("capacity", folder, "--text", book, *quick, "--figures", pictures)
    assert result.exit_code == 0, result.output
    assert "How many tokens does" in result.stdout
    assert "about" in result.stderr  # the cost, before the work
    assert (pictures / "capacity.svg").is_file()
    again = run("capacity", folder, "--text", book, *quick, "--json", "--quiet")
    printed = json.loads(again.stdout)
    assert printed["manifest"]["settings"]["taus"] == [0.05]
    assert {row["length"] for row in printed["table"]} == {12, 24}
    assert again.stderr == ""
