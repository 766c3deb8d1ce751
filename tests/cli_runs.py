"""Running the command line in tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

import abbe
from abbe import cli

COMMANDS = (
    *("report", "reproduce", "diagnose", "capacity", "compare", "diff"),
    *(
        "calibrate",
        "lift",
        "export",
        "eval",
        "watch",
        "train temperature",
        "train length",
        "train recall",
        "train text",
    ),
    *("verify", "normalizers"),
    *("pull", "cost", "merge", "doctor"),
)


def command_of(name: str) -> Any:
    """The command of that name, which may stand below another one."""
    command: Any = typer.main.get_command(cli.app)
    for word in name.split():
        command = command.commands[word]
    return command


def run(*arguments: str | Path, columns: int = 200, typed: str | None = None) -> Result:
    """A command by itself: exceptions are not told as `main` tells them."""
    runner = CliRunner(env={"COLUMNS": str(columns), "NO_COLOR": "1"})
    return runner.invoke(cli.app, [str(argument) for argument in arguments], input=typed)


def run_main(monkeypatch: pytest.MonkeyPatch, *arguments: str | Path) -> int:
    """The program itself, as installed: its exit code."""
    monkeypatch.setattr(sys, "argv", ["abbe", *(str(argument) for argument in arguments)])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    return int(stopped.value.code or 0)


def run_python(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Code in a process of its own."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=300,
        env=os.environ | {"COLUMNS": "200", "NO_COLOR": "1"} | variables, check=False,
    )  # fmt: skip


class StandIn(abbe.Result):
    """A result that was never measured: what `as_json` gives, and a page with nothing on it."""

    def __init__(self, study: str, content: dict[str, Any], **more: Any) -> None:
        self.study, self.page, self._content = study, f"{study}.html", content  # type: ignore[misc]
        vars(self).update(more)

    def as_json(self) -> dict[str, Any]:
        return self._content

    def to_html(self, path: Any = None) -> str:
        return ""

    def _files(self) -> dict[str, bytes | str]:
        return {}
