"""What a person sees while a study goes on: lines and one bar on standard error."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


class Watch:
    """Told what will be done and what is done. With a `total` there are several parts, which keep to the bar."""

    def __init__(self, console: Console, bar: Progress, total: int | None) -> None:
        self._console, self._bar = console, bar
        self._task = bar.add_task("", total=total)
        self._planned = total is not None
        self.part = ""  # named in front of every step

    def announce(self, line: str) -> None:
        self._console.print(line, highlight=False, markup=False)

    def say(self, line: str) -> None:
        """A line about a part."""
        if not self._planned:
            self.announce(line)

    def expect(self, steps: int) -> None:
        """Steps of one part. Shows the bar."""
        self._bar.start()
        if not self._planned:
            self._bar.reset(self._task, total=steps)

    def step(self, what: str) -> None:
        self._bar.update(self._task, advance=1, description=f"{self.part}, {what}" if self.part else what)


@contextmanager
def watching(shown: bool, total: int | None = None) -> Iterator[Watch]:
    console = Console(stderr=True, quiet=not shown)
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    bar = Progress(*columns, TimeRemainingColumn(), console=console, transient=True)
    try:
        yield Watch(console, bar, total)
    finally:
        if bar.live.is_started:  # else it would print an empty line
            bar.stop()
