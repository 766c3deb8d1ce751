"""Progress of a study on standard error: lines, and a bar on a terminal or else a line per minute."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from ..words.numbers import about

EVERY = 60.0  # seconds between two lines without a terminal
_AT_ONCE = 1e-3  # seconds: a faster step was finished earlier, and says nothing about the remaining ones


class Watch:
    """Receives what will be done and what is done."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._planned = self.silent = False
        self.part = ""  # named in front of every step

    def share(self, total: int) -> None:
        """Several parts share one bar of this many steps; their lines are dropped, since the study says them once."""
        self.expect(total)
        self._planned = self.silent = True

    def announce(self, line: str) -> None:
        self._console.print(line, highlight=False, markup=False, soft_wrap=True)

    def say(self, line: str) -> None:
        """Print a line, unless it is that of a part."""
        if not self.silent:
            self.announce(line)

    def expect(self, steps: int) -> None:
        """Announce the steps of one part."""

    def step(self, what: str) -> None:
        """One of them is done."""

    def close(self) -> None:
        """Show nothing more."""

    def _named(self, what: str) -> str:
        return ", ".join(words for words in (self.part, what) if words)


class _Bar(Watch):
    """One bar on a terminal or in a notebook, gone at the end."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
        self._bar = Progress(*columns, TimeRemainingColumn(), console=console, transient=True)
        self._task = self._bar.add_task("", total=None)

    def expect(self, steps: int) -> None:
        self._bar.start()
        if not self._planned:
            self._bar.reset(self._task, total=steps)

    def step(self, what: str) -> None:
        self._bar.update(self._task, advance=1, description=self._named(what))

    def close(self) -> None:
        if self._bar.live.is_started:  # else it would print an empty line
            self._bar.stop()


class _Lines(Watch):
    """A plain line per minute in a pipe, a file or CI, from its own thread, since one step may take longer."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(console)
        self._clock, self._started = clock, clock()
        self._total, self._done, self._what = 0, 0, ""
        self._last, self._timed, self._seconds = self._started, 0, 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._tell, args=(EVERY,), name="abbe-progress", daemon=True)
        self._thread.start()

    def expect(self, steps: int) -> None:
        self._last = self._clock()
        if not self._planned:
            self._total, self._done, self._timed, self._seconds = steps, 0, 0, 0.0

    def step(self, what: str) -> None:
        now = self._clock()
        if now - self._last >= _AT_ONCE:
            self._timed, self._seconds = self._timed + 1, self._seconds + now - self._last
        self._last, self._done, self._what = now, self._done + 1, what

    def close(self) -> None:
        self._over.set()
        self._thread.join()

    def line(self) -> str:
        """What is done and what remains, such as "abbe: 3 min: 12 of 40 done (windows of 256), about 7 min left"."""
        what = self._named(self._what)
        line = f"abbe: {about(self._clock() - self._started)}: "
        if not self._total:
            return line + (what or "starting")
        left = self._total - self._done
        line += f"{self._done} of {self._total} done" + (f" ({what})" if what else "")
        time_left = f", about {about(left * self._seconds / self._timed)} left" if self._timed and left > 0 else ""
        return line + time_left

    def _tell(self, every: float) -> None:
        while not self._over.wait(every):
            with suppress(OSError, ValueError):  # the reader is gone: the study continues
                # Not through the console, which ends the program if the pipe is closed.
                print(self.line(), file=self._console.file, flush=True)


class Stages:
    """Progress through stages whose work is only estimated: each moves the bar by what was announced for it."""

    def __init__(self, watch: Watch, steps: Mapping[str, int]) -> None:
        self._watch, self._left = watch, dict(steps)
        watch.expect(sum(steps.values()))

    def step(self, stage: str, what: str) -> None:
        """A step of a stage; those beyond what was announced do not count."""
        if self._left[stage] > 0:
            self._left[stage] -= 1
            self._watch.step(what)

    def end(self, stage: str, what: str = "") -> None:
        """The stage is over, or was done by an earlier call."""
        while self._left[stage] > 0:
            self.step(stage, what or stage)


@contextmanager
def watching(shown: bool) -> Iterator[Watch]:
    """Show on standard error what a study does: lines, and a bar on a terminal or a line per minute elsewhere.

    Args:
        shown: whether to show anything.

    Examples:
        >>> with abbe.studies.watching(False) as watch:
        ...     watch.expect(2)
        ...     watch.step("the first of two")
    """
    console = Console(stderr=True, quiet=not shown)
    kind = Watch if not shown else _Bar if console.is_terminal or console.is_jupyter else _Lines
    watch = kind(console)
    try:
        yield watch
    finally:
        watch.close()
