"""How a study goes through the parts of a shared folder: as one of its workers, or to merge them.

A study calls `share` with the parts of a stage before it goes through them as usual, and `leave_to_merge` before it
makes its tables. In a plain run both do nothing. A worker makes its share, and leaves the study (`Enough`) if a stage
is incomplete or only tables remain. A merger refuses missing parts, and continues.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from ...._errors import AbbeError
from ...._files import CannotWrite
from ...._workers import Alive, expires_after
from ....words.numbers import many
from ..watch import Watch
from .board import ATTEMPTS, Board, Failure, Unit, one_line
from .shard import Shard

_POLL = 0.5  # seconds between two looks at parts that other workers have claimed, or that failed here
_PATIENCE = 10  # claim lifetimes: how long a part that failed here is left to workers that may be busy elsewhere
_ROW = 5  # parts that fail in a row before any is made: the machine is at fault, not the parts

Make = Callable[[Unit], object]
_T = TypeVar("_T")


class Enough(Exception):
    """A worker has done what it can: the study ends here for it."""


class _Later(Exception):
    """A prerequisite failed here and is left to others: the part itself is postponed."""


class Crew:
    """A plain run, which shares nothing."""

    board: Board | None = None

    def called(self, study: str, arguments: Mapping[str, Any]) -> None:
        """Called by the study with its arguments, before it begins."""

    def begin(self, folder: Path) -> None:
        """The folder is known to belong to this run, or to a run in it."""

    def share(self, units: Sequence[Unit], make: Make, watch: Watch | None, needed: bool) -> dict[str, Failure]:
        """One stage; the failures to leave out, by part."""
        return {}

    def need(self, units: Sequence[Unit], make: Make) -> None:
        """Prerequisites of a part."""

    def leave(self) -> None:
        """Only tables remain."""

    def independent(self) -> None:
        """The next stages do not depend on those so far."""


current: ContextVar[Crew] = ContextVar("crew", default=Crew())  # noqa: B039 - a plain run has no state


class Worker(Crew):
    """Makes the parts of its share that nobody else makes."""

    board: Board

    def __init__(self, board: Board, alive: Alive, shard: Shard | None) -> None:
        self.board, self.alive, self.shard = board, alive, shard
        self.units: list[Unit] = []
        self.made = 0
        self._at_end = False
        self._request: dict[str, Any] | None = None
        self._place = 0  # of the next part among all that are dealt out
        self._depends = False  # the next stage needs those before it
        self._failed: set[str] = set()  # parts that failed here
        self._row: dict[str, str] = {}  # failures since the last part that was made, with their reasons
        self._depth = 0  # parts being made now: one may need another
        self._set_aside = 0  # parts that failed in earlier calls and get fresh attempts

    @property
    def stopped(self) -> str:
        """Why this worker makes no more parts; empty while it does."""
        if self.made or len(self._row) < _ROW:
            return ""
        *_, last = self._row.values()
        return f"{len(self._row)} parts failed one after the other here, last: {last}; stopping"

    def called(self, study: str, arguments: Mapping[str, Any]) -> None:
        if self._request is None:  # else called from within the shared study
            self._request = {"study": study, **arguments}

    def begin(self, folder: Path) -> None:
        if self._request is not None and folder.resolve() == self.board.run:
            self.board.set_request(self._request)
            if self.shard is None:  # started to finish everything
                self._set_aside = self.board.set_aside(self.alive.others() | {self.alive.name})

    def share(self, units: Sequence[Unit], make: Make, watch: Watch | None, needed: bool) -> dict[str, Failure]:
        if self._set_aside and watch is not None:
            watch.announce(f"{many(self._set_aside, 'part')} failed earlier: trying again, up to {ATTEMPTS} times")
            self._set_aside = 0
        self.units += units
        self.board.list_stage(units)
        mine = self._mine(units)
        if watch is not None:
            watch.expect(len(mine))
        self._settle(mine, make, watch)
        if len(mine) < len(units):
            others, failed = set(units).difference(mine), self.board.failed_names()
            self._settle([unit for unit in units if unit in others and unit.name in failed], make, None)
        if self.board.left(units, needed):
            raise Enough
        self._depends = True
        return {}

    def need(self, units: Sequence[Unit], make: Make) -> None:
        new = [unit for unit in units if unit not in self.units]
        if new:
            self.units += new
            self.board.list_stage(new)
        self._settle(units, make, None)
        for unit in units:
            if not unit.is_there and (failure := self.board.failure(unit)) is not None:
                refuse_without(failure)

    def leave(self) -> None:
        self._at_end = True
        raise Enough

    def independent(self) -> None:
        self._at_end = self._depends = False

    @property
    def is_complete(self) -> bool:
        """Whether only merging remains."""
        return self._at_end and all(self._is_over(unit) for unit in self.units)

    def _mine(self, units: Sequence[Unit]) -> list[Unit]:
        """Dealt out in turn. A stage that needs earlier ones is for all workers that get this far: others have left."""
        first, self._place = self._place, self._place + len(units)
        if self.shard is None or self._depends:
            return list(units)
        return [unit for place, unit in enumerate(units, first) if self.shard.has(place)]

    def _settle(self, units: Sequence[Unit], make: Make, watch: Watch | None) -> None:
        """Make these, or wait for workers that do. A part that failed here is left to other workers, if any."""
        since = time.monotonic()
        while units:
            left = [unit for unit in units if not self._is_settled(unit, make, watch)]
            if len(left) == len(units):
                failed = [unit for unit in left if unit.name in self._failed]
                others = self._others(time.monotonic() - since) if failed else set()
                again = {unit for unit in failed if self._is_left_to_nobody(unit, others)}
                if self._depth and len(again) < len(failed):
                    raise _Later
                time.sleep(_POLL)
                left = [unit for unit in left if unit not in again or not self._is_settled(unit, make, watch, True)]
                since = time.monotonic() if again else since
            else:
                since = time.monotonic()
            units = left

    def _others(self, waited: float) -> set[str]:
        """Workers that may still make a part that failed here: none, if they had long enough."""
        return self.alive.others() if waited < _PATIENCE * expires_after() else set()

    def _is_left_to_nobody(self, unit: Unit, others: set[str]) -> bool:
        """Whether a part that failed here has failed for all other live workers, too."""
        failure = self.board.failure(unit)
        return failure is None or others <= set(failure.workers)

    def _is_settled(self, unit: Unit, make: Make, watch: Watch | None, again: bool = False) -> bool:
        """Make a part that nobody has made or claimed; True if it needs no more work."""
        is_over = self._is_over(unit)
        if not is_over:
            if unit.name in self._failed and not again:
                return False
            if self.stopped:
                raise Enough
            if not self.alive.claim(unit.name):
                return False
            try:
                is_over = not self.board.left([unit])  # it may have been finished between the look and the claim
                if not is_over:
                    self._make(unit, make)
                    is_over = self._is_over(unit)
            finally:
                self.alive.release(unit.name)
        if is_over and watch is not None:
            watch.step(unit.name)
        return is_over

    def _is_over(self, unit: Unit) -> bool:
        return unit.is_there or self.board.has_given_up(unit)

    def _make(self, unit: Unit, make: Make) -> None:
        self._depth += 1
        try:
            make(unit)
        except (CannotWrite, Enough):  # not the part's fault
            raise
        except _Later:
            return
        except Exception as error:
            self._fail(unit, one_line(error))
            return
        finally:
            self._depth -= 1
        if not unit.is_there:
            self._fail(unit, "it was made, but its file is not there")
            return
        self.made += 1
        self._row.clear()
        self.board.forgive(unit)

    def _fail(self, unit: Unit, reason: str) -> None:
        self.board.fail(unit, reason, self.alive.name)
        self._failed.add(unit.name)
        self._row.pop(unit.name, None)
        self._row[unit.name] = reason  # as the last


def refuse_without(failure: Failure) -> NoReturn:
    """Refuse to continue without a part that everything else needs."""
    raise AbbeError(f"{failure}; the rest needs it: the same command without --shard tries it again, and shows why")


def share(units: Sequence[Unit], make: Make, watch: Watch | None = None, needed: bool = True) -> dict[str, Failure]:
    """In a shared folder: make these parts together with other workers. Returns the failures to leave out, by part.

    If the parts are `needed`, a worker ends once one of them has failed too often, and merging is refused.
    """
    return current.get().share(units, make, watch, needed)


def need(units: Sequence[Unit], make: Make) -> None:
    """In a shared folder: prerequisites are made by the first worker to come, and the others wait for them."""
    current.get().need(units, make)


@contextmanager
def temporarily(variable: ContextVar[_T], value: _T) -> Iterator[None]:
    before = variable.set(value)
    try:
        yield
    finally:
        variable.reset(before)


def alone() -> AbstractContextManager[None]:
    """For a whole study that is one part of another: within, it is a plain run."""
    return temporarily(current, Crew())


def unit_in(folder: Path, part: str, files: Sequence[Path]) -> Unit:
    """A part of a run folder, which may lie within the folder of the shared study."""
    board, inner = current.get().board, Path(os.path.realpath(folder))
    within = Path() if board is None else inner.relative_to(board.run)
    return Unit((within / part).as_posix(), tuple(Path(os.path.realpath(file.parent)) / file.name for file in files))


def remember(folder: Path, content: Mapping[str, Any]) -> None:
    """A worker records what only the model knows, for the merger."""
    crew = current.get()
    if isinstance(crew, Worker):
        crew.board.remember(folder, content)


def leave_to_merge() -> None:
    """A worker ends here: all parts are there, and the merger makes the tables."""
    current.get().leave()


@contextmanager
def independently() -> Iterator[None]:
    """A worker that has to leave this part of a study continues after it."""
    try:
        yield
    except Enough:
        current.get().independent()


def is_shared() -> bool:
    """Whether workers make the parts: this process, or those whose parts it merges."""
    return current.get().board is not None


def is_worker() -> bool:
    return isinstance(current.get(), Worker)
