"""`abbe lift`: what it asks the study for, what it writes and prints."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli_runs import run, run_main

pytest_plugins = ("cli_fixtures",)


@pytest.fixture
def asked(stand_in: Callable[..., dict[str, Any]]) -> dict[str, Any]:
    """What the study was asked for; study and views are stand-ins."""
    return stand_in("lift", {"lifted": False}, file="plan.safetensors")


def test_defaults(asked: dict[str, Any]) -> None:
    result = run("lift")
    folder = Path("abbe-lift-embedded-sparse")
    assert result.stdout == f"THE TABLE\nplan: {folder / 'plan.safetensors'}\npage: {folder / 'lift.html'}\n"
    assert asked == {"folder": folder, "progress": True}  # the rest is left to the study


def test_all_options(asked: dict[str, Any]) -> None:
    words = "lift tiny --text a.txt --goal retrieval --max-loss 0.2% --budget none --with logn:trained=512,floor=1"
    more = "--length 64 --windows 6 --steps 0 --lengths 512,1024 --prompts 2 --seed 7 --out x"
    run(*words.split(), *more.split())
    assert asked == {
        "model": "tiny", "text": ["a.txt"], "goal": "retrieval", "max_loss": "0.2%", "budget": None,
        "normalizers": ["logn:trained=512,floor=1"], "length": 64, "windows": 6, "steps": 0, "lengths": [512, 1024],
        "prompts": 2, "seed": 7, "folder": Path("x"), "progress": True,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("option", "line"),
    [
        ("--goal=fast", "abbe: goal is 'fast', but must be one of sparse, retrieval, loss\n"),
        ("--max-loss=5", "abbe: max_loss is '5', but must be a share of the loss, such as 0.5% or 0.005\n"),
        ("--budget=soon", "abbe: budget is 'soon', but must be a time such as 90s, 20m or 1.5h\n"),
    ],
)
def test_mistakes_are_one_line(
    option: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_main(monkeypatch, "lift", option) == 2
    assert capsys.readouterr().err == line
    assert not list(tmp_path.iterdir())
