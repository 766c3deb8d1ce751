"""A process that has everything imported and starts `abbe` commands as forks of itself, with faults if asked for.

An import of torch and transformers takes seconds, a fork some milliseconds: so a matrix of some hundred killed commands
can be run. The server itself never computes, for threads do not survive a fork. It reads one JSON object a line:

    {"arguments": [...], "folder": where to run, "output": path, "fault": {...} or null}

runs that command with standard output and error in `output`.out and `output`.err, and answers with its process id at
once. A second line, {"wait": id}, is answered with its exit code, negative for the signal that killed it.

A fault strikes at the `at`-th file that is written, at one of these moments:

    half      half of it is on disk, under its temporary name
    written   all of it, and it has not been renamed
    renamed   it has its name, and nothing was done after that

and is {"signal": number}, {"vanish": folder}, which is removed, or {"error": errno}, which also meets every later
write, as on a full disk.

Pages and figures are not drawn: that takes longer than all the rest, and is done when everything has been kept.
"""

from __future__ import annotations

import builtins
import ctypes
import json
import os
import shutil
import signal
import struct
import sys
import traceback
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import torch

import abbe
from abbe import cli, views
from abbe.models import load


class Fault:
    """Counts what is written, and strikes."""

    def __init__(self, fault: dict[str, Any]) -> None:
        self.at, self.moment = fault["at"], fault["moment"]
        self.signal, self.error, self.vanish = fault.get("signal"), fault.get("error"), fault.get("vanish")
        self.count = 0
        self._replace = Path.replace
        self._open, builtins.open = open, self.open  # type: ignore[assignment]
        Path.replace = lambda path, target: self.replace(path, target)  # type: ignore[assignment, method-assign]

    def open(self, path: Any, *how: Any, **more: Any) -> Any:
        file = self._open(path, *how, **more)
        if not str(path).endswith(".part"):
            return file
        self.count += 1
        return HalfWritten(file, self)

    def replace(self, path: Path, target: Path) -> Path:
        self.strike("written")
        result = self._replace(path, target)
        self.strike("renamed")
        return result

    def strike(self, moment: str) -> None:
        if moment != self.moment or self.count < self.at:
            return
        if self.error is not None:
            raise OSError(self.error, os.strerror(self.error))
        if self.count == self.at and self.vanish is not None:
            shutil.rmtree(self.vanish)
        if self.count == self.at and self.signal is not None:
            os.kill(os.getpid(), self.signal)


class HalfWritten:
    """A file that stops in the middle of what is written into it."""

    def __init__(self, file: BinaryIO, fault: Fault) -> None:
        self._file, self._fault = file, fault

    def write(self, content: bytes) -> None:
        half = len(content) // 2
        self._file.write(content[:half])
        self._file.flush()
        self._fault.strike("half")
        self._file.write(content[half:])

    def __enter__(self) -> HalfWritten:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def draw_nothing() -> None:
    abbe.Result.to_html = lambda result, path=None: Path(path).write_text("<!doctype html>")
    views.figures = lambda result, folder: []


def give_up_privileges() -> None:
    """Permissions bind root, too, once it has given up its capabilities (capset, version 3 of its header)."""
    header, nothing = struct.pack("Ii", 0x20080522, 0), bytes(24)
    assert ctypes.CDLL(None, use_errno=True).capset(header, nothing) == 0


def run(task: dict[str, Any]) -> NoReturn:
    """The command, in a fork."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # also when the tests themselves run under nohup
    os.chdir(task["folder"])
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    for number, kind in ((1, "out"), (2, "err")):
        target = task.get(kind) or f"{task['output']}.{kind}"
        os.dup2(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    torch.set_num_threads(1)
    if task.get("bound"):
        give_up_privileges()
    if task["fault"]:
        Fault(task["fault"])
    sys.argv = ["abbe", *task["arguments"]]
    code = 99
    try:
        cli.main()
        code = 0
    except SystemExit as stop:
        code = int(stop.code or 0)
    except BaseException:
        traceback.print_exc()
    try:
        sys.stdout.flush()
    except OSError:
        code = 98  # an interpreter that ends would say so in a traceback
    os._exit(code)


def main() -> None:
    model = sys.argv[1]
    draw_nothing()
    load(model)  # imports what reading a model needs
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of the test's terminal
    print("ready", flush=True)
    for line in sys.stdin:
        task = json.loads(line)
        if "wait" in task:
            _, status = os.waitpid(task["wait"], 0)
            print(os.waitstatus_to_exitcode(status), flush=True)
            continue
        process = os.fork()
        if process == 0:
            run(task)
        print(process, flush=True)


if __name__ == "__main__":
    main()
