"""Runs side by side on the cores; each is stored as soon as it is finished, so that a stopped experiment resumes."""

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

_POLL = 0.2  # seconds
Keep = Callable[[Configuration, dict[str, Any]], None]


def train_all(
    task: Task, choices: Sequence[Configuration], workers: int, keep: Keep, device: torch.device = CPU
) -> None:
    """Train all; `keep` is called by this thread for each run that finishes, in any order."""
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
            result = _next(done)
            if isinstance(result, BaseException):
                raise result
            keep(*result)
    finally:
        for worker in crew:
            worker.close()
        for thread in threads:
            thread.join()


def _next(done: Any) -> Any:
    """The next result. Polls, since Ctrl-C does not interrupt a wait for a queue."""
    while True:
        with suppress(queue.Empty):
            return done.get(timeout=_POLL)


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
    """One per core that this process may use; a single one on an accelerator."""
    if device.type != CPU.type:
        return 1
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def one_thread() -> Iterator[None]:
    """As in a worker: with another number of threads, sums round differently."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
