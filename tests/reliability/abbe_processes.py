"""Commands of `abbe` as processes of their own, which can be killed; and what each leaves in its folder."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_TIMEOUT = 300  # seconds; a command that takes longer hangs
MOMENTS = ("half", "written", "renamed")

_QUICK = ("--lengths", "16,32", "--windows", "2", "--queries", "4", "--sizes", "1,3")
STUDIES: dict[str, tuple[str, ...]] = {
    "diagnose": _QUICK,
    "report": _QUICK,
    "reproduce": ("--quick", "--figure", "2a"),
    "capacity": ("--lengths", "12,24", "--windows", "2", "--tau", "0.05", "--layer-lengths", "12"),
    "compare": ("--with", "sparsemax", "--length", "32", "--windows", "2", "--needle-lengths", "32", "--prompts", "1"),
    "calibrate": (
        *("--with", "sparsemax", "--length", "32", "--windows", "3", "--held-out", "2", "--queries", "8"),
        *("--steps", "3", "--finetune", "6"),
    ),
    "lift": (
        *("--with", "sparsemax", "--length", "16", "--windows", "2", "--steps", "4", "--prompts", "1"),
        *("--budget", "none"),
    ),
    "diff": _QUICK,
}
SHARED = tuple(study for study in STUDIES if study not in ("lift", "diff"))  # have --shard
OTHER = "other"  # folder of the second model, beside that of the first
# What must be the same, byte for byte, whether a study was stopped or not; times are in none of them.
_RESULTS = {
    "diagnose": ("heads.parquet",),
    "report": ("heads.parquet", "alternatives.parquet", "sample.json"),
    "reproduce": ("data/*.csv", "runs/*/heads.parquet"),
    "capacity": ("*.csv", "losses/*.json", "separability/heads.parquet"),
    "compare": ("parts/[0-9]*.json",),
    "calibrate": ("*.safetensors", "layers/*.safetensors", "losses.json"),
    "lift": ("*.safetensors", "parts/*.safetensors", "plans.csv", "scan.csv"),
    "diff": ("*.parquet", "runs/*/heads.parquet", "losses/*.json"),
}
_PARTS = {
    "diagnose": ("windows/*",),
    "report": ("windows/*",),
    "reproduce": ("runs/*/windows/*",),
    "capacity": ("losses/*", "separability/windows/*"),
    "compare": ("parts/*",),
    "calibrate": ("layers/*", "losses.json", "tuning.safetensors"),
    "lift": ("parts/fit-*", "parts/baseline*", "parts/scan-*", "parts/plan-*", "parts/chosen*", "parts/judged-*"),
    "diff": ("runs/*/windows/*", "losses/*"),
}


_GROWING = ("losses.json", "tuning.safetensors")  # of a calibration: written after every stage, or some steps


@dataclass(frozen=True)
class Ended:
    code: int  # negative for the signal that killed it
    out: str
    err: str


class Commands:
    """Starts commands on one model and one text."""

    def __init__(self, server: subprocess.Popen[str], model: Path, text: Path, scratch: Path) -> None:
        self._server, self._model, self._text, self._scratch = server, model, text, scratch
        self._count = 0
        self._outputs: dict[int, Path] = {}

    def of(self, study: str, folder: Path, *more: str) -> list[str]:
        models = [str(self._model), *([str(self._model.with_name(OTHER))] if study == "diff" else [])]
        return [study, *models, "--text", str(self._text), *STUDIES[study], "--out", str(folder), *more]

    def start(self, arguments: list[str], fault: dict[str, Any] | None = None, **more: Any) -> int:
        """The process id."""
        self._count += 1
        output = self._scratch / str(self._count)
        task = {"arguments": arguments, "folder": str(self._scratch), "output": str(output), "fault": fault} | more
        process = int(self._ask(task))
        self._outputs[process] = output
        return process

    def wait(self, process: int) -> Ended:
        guard = threading.Timer(_TIMEOUT, os.kill, (process, signal.SIGKILL))
        guard.start()
        code = int(self._ask({"wait": process}))
        guard.cancel()
        output = self._outputs.pop(process)
        files = [output.with_suffix(f".{kind}") for kind in ("out", "err")]
        return Ended(code, *(file.read_text() if file.exists() else "" for file in files))

    def run(self, arguments: list[str], fault: dict[str, Any] | None = None, **more: Any) -> Ended:
        return self.wait(self.start(arguments, fault, **more))

    def _ask(self, task: dict[str, Any]) -> str:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(json.dumps(task) + "\n")
        self._server.stdin.flush()
        return self._server.stdout.readline()


@contextmanager
def commands(model: Path, text: Path, scratch: Path) -> Iterator[Commands]:
    script = Path(__file__).with_name("fork_server.py")
    environment = os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "200", "NO_COLOR": "1"}
    environment.pop("PYTHONUNBUFFERED", None)  # Python does not say then that a pipe took only a part
    with subprocess.Popen(
        [sys.executable, str(script), str(model)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env=environment,
    ) as server:  # fmt: skip
        try:
            assert server.stdout is not None
            assert server.stdout.readline() == "ready\n"
            yield Commands(server, model, text, scratch)
        finally:
            assert server.stdin is not None
            server.stdin.close()


def results(study: str, folder: Path) -> dict[str, bytes]:
    contents = {
        str(path.relative_to(folder)): path.read_bytes()
        for pattern in _RESULTS[study]
        for path in sorted(folder.glob(pattern))
    }
    assert contents, study
    return contents


def left_over(folder: Path) -> list[str]:
    """What only a running or killed process has in a folder."""
    return [path.name for path in folder.rglob(".*")]


def parts(study: str, folder: Path) -> list[Path]:
    """What was finished of a study, file by file."""
    return [path for pattern in _PARTS[study] for path in sorted(folder.glob(pattern)) if path.name[0] != "."]


def stamps(study: str, folder: Path) -> dict[Path, int]:
    """When each part was written that is written once."""
    return {path: path.stat().st_mtime_ns for path in parts(study, folder) if path.name not in _GROWING}
