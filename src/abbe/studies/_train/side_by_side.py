"""Runs side by side on the cores: what is finished is kept at once, so that a stopped experiment resumes."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import torch

from .configuration import Configuration
from .run import CPU, train
from .tasks import Task
from .worker import Worker

_SPELL = 0.2  # seconds
Keep = Callable[[Configuration, dict[str, Any]], None]


def train_all(
    task: Task, choices: Sequence[Configuration], workers: int, keep: Keep, device: torch.device = CPU
) -> None:
    """Train each; `keep` is called as they finish, in any order, by this thread."""
    if workers == 1 or len(choices) == 1:
        with one_thread():
            for choice in choices:
                keep(choice, train(task, choice, device=device))
        return
    jobs: queue.SimpleQueue[Configuration] = queue.SimpleQueue()
    done: queue.SimpleQueue[tuple[Configuration, dict[str, Any]] | BaseException] = queue.SimpleQueue()
    for choice in choices:
        jobs.put(choice)
    crew: list[Worker] = []
    threads: list[threading.Thread] = []
    try:
        for _ in range(min(workers, len(choices))):
            crew.append(Worker(task, device))
            threads.append(threading.Thread(target=_feed, args=(crew[-1], jobs, done), daemon=True))
            threads[-1].start()
        for _ in choices:
            answer = _next(done)
            if isinstance(answer, BaseException):
                raise answer
            keep(*answer)
    finally:
        for worker in crew:
            worker.close()
        for thread in threads:
            thread.join()


def _next(done: Any) -> Any:
    """The next answer. Waits in short spells: Ctrl-C does not end a wait for a queue, but is seen between two."""
    while True:
        with suppress(queue.Empty):
            return done.get(timeout=_SPELL)


def _feed(worker: Worker, jobs: Any, done: Any) -> None:
    try:
        while True:
            choice = jobs.get_nowait()
            done.put((choice, worker.train(choice)))
    except queue.Empty:
        return
    except BaseException as error:  # the thread that waits raises it
        done.put(error)


def usual_workers(device: torch.device = CPU) -> int:
    """One per core that this process may use; on an accelerator one, which has it to itself."""
    if device.type != CPU.type:
        return 1
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def one_thread() -> Iterator[None]:
    """As in a worker: sums of other numbers of threads round differently."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
