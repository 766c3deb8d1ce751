"""The merger goes through the stages of a shared study as a worker does, but makes no parts."""

from __future__ import annotations

from collections.abc import Sequence

from ...._errors import AbbeError
from ..watch import Watch
from .board import Board, Failure, Unit
from .crew import Crew, Make, refuse_without


class Merger(Crew):
    """Makes nothing: refuses an incomplete stage."""

    board: Board

    def __init__(self, board: Board) -> None:
        self.board = board

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

    def _given_up(self, unit: Unit) -> Failure | None:
        return self.board.failure(unit) if self.board.has_given_up(unit) else None


def missing_line(board: Board, missing: int, units: int) -> str:
    are = "part is" if missing == 1 else "parts are"
    return (
        f"{missing} of {units} {are} missing in {board.run}: run the shards again that did not finish, "
        "or the same command with --shard any, which takes all that is left"
    )
