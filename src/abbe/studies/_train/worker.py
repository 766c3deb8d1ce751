"""A worker: a process with one thread that trains one configuration after the other.

What is special: jobs and answers are lines of JSON on its standard input and output, so the caller's program is not run
again here, as it would be with multiprocessing. A worker whose caller is gone ends by itself.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import IO, Any, cast

import torch

from ..._errors import AbbeError
from ...models import Text
from .configuration import Configuration
from .run import CPU, train
from .tasks import Task, make_task

_START = "from abbe.studies._train.worker import main; main()"
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")


def main() -> None:
    """Answer every line of the input; the first one names the task and the device."""
    torch.set_num_threads(1)
    caller = int(sys.argv[1])  # not getppid(): a caller that is killed while this starts would be gone already

    def alive() -> None:
        if os.getppid() != caller:
            os._exit(1)

    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print must not mix with the answers
    first = json.loads(sys.stdin.readline())
    text = None if first["text"] is None else Text(**first["text"])
    task, device = make_task(first["task"], first["sizes"], text), torch.device(first["device"])
    for line in sys.stdin:
        answer: dict[str, Any]
        try:
            answer = {"content": train(task, Configuration.from_json(json.loads(line)), alive, device)}
        except AbbeError as error:
            answer = {"refused": str(error)}
        except Exception as error:
            answer = {"failed": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def _description(task: Task) -> dict[str, Any]:
    """What another process needs to make the same task."""
    text = getattr(task, "text", None)
    sizes = {name: value for name, value in task.facts().items() if name not in ("task", "text")}
    content = None if text is None else {"name": text.name, "content": text.content}
    return {"task": task.name, "sizes": sizes, "text": content}


class Worker:
    """The process, seen from the caller."""

    def __init__(self, task: Task, device: torch.device = CPU) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _START, str(os.getpid())], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            env=os.environ | _ONE_THREAD, text=True, encoding="utf-8",
            process_group=0,  # Ctrl-C is for the caller
        )  # fmt: skip
        self._send(_description(task) | {"device": str(device)})

    def train(self, choice: Configuration) -> dict[str, Any]:
        """Blocks until the run is over."""
        self._send(choice.as_json())
        line = cast(IO[str], self._process.stdout).readline()
        if not line:
            raise AbbeError(f"a worker ended while it trained {choice.label} (out of memory?): run again to resume")
        answer: dict[str, Any] = json.loads(line)
        if "refused" in answer:
            raise AbbeError(answer["refused"])
        if "failed" in answer:
            raise RuntimeError(f"{choice.label}: {answer['failed']}")
        return cast(dict[str, Any], answer["content"])

    def close(self) -> None:
        self._process.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(OSError):  # unsent input has no reader
                    pipe.close()
        self._process.wait()

    def _send(self, content: Mapping[str, Any]) -> None:
        pipe = cast(IO[str], self._process.stdin)
        try:
            pipe.write(json.dumps(content) + "\n")
            pipe.flush()
        except BrokenPipeError:
            raise AbbeError("a worker could not start: run with --workers 1 to see why") from None
