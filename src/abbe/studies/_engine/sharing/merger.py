"""Who merges: goes through the stages of a shared study as a worker does, and makes no parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...._errors import AbbeError
from ..watch import Watch
from .board import Board, Failure, Unit
from .crew import Make, refuse_without


class Merger:
    """Makes nothing: refuses a stage that is not complete."""

    def __init__(self, board: Board) -> None:
        self.board = board

    def ask(self, study: str, arguments: Mapping[str, Any]) -> None:
        """Known already."""

    def begin(self, folder: Path) -> None:
        """It was begun by workers."""

    def share(self, units: Sequence[Unit], make: Make, watch: Watch | None, needed: bool) -> dict[str, Failure]:
        missing = self.board.left(units, needed=True)
        failed = {unit.name: failure for unit in missing if (failure := self._given_up(unit)) is not None}
        if needed and failed:
            refuse_without(next(iter(failed.values())))
        if len(missing) > len(failed):
            raise AbbeError(missing_line(self.board, len(missing) - len(failed), len(units)))
        return failed

    def need(self, units: Sequence[Unit], make: Make) -> None:
        self.share(units, make, None, needed=True)

    def leave(self) -> None:
        """Tables are what is wanted."""

    def independent(self) -> None:
        """All stages have to be there."""

    def _given_up(self, unit: Unit) -> Failure | None:
        return self.board.failure(unit) if self.board.has_given_up(unit) else None


def missing_line(board: Board, missing: int, units: int) -> str:
    are = "part is" if missing == 1 else "parts are"
    return (
        f"{missing} of {units} {are} missing in {board.run}: run the shards again that did not finish, "
        "or the same command with --shard any, which takes all that is left"
    )
