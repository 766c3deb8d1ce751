"""Work in other threads."""

from __future__ import annotations

import threading
from collections.abc import Callable

import abbe


def in_two_threads(work: Callable[[int], None]) -> None:
    """Calls it with 0 and with 1 at the same time."""
    start = threading.Barrier(2)

    def begin(number: int) -> None:
        start.wait()
        work(number)

    threads = [threading.Thread(target=begin, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def refused_in_another_thread(work: Callable[[], object]) -> str:
    """The error of another thread that does this; empty if it may."""
    messages = []

    def run() -> None:
        try:
            work()
            messages.append("")
        except abbe.AbbeError as error:
            messages.append(str(error))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return messages[0]
