"""merge: the result of a study whose parts were made by workers."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from .._errors import AbbeError
from .._files import read_json
from .._locks import held
from ..results import MANIFEST, Result, Run, checked_manifest
from . import _open
from ._engine.sharing.board import Board, Failure, Unit
from ._engine.sharing.calls import call_from_json, spelled_as_called
from ._engine.sharing.crew import Crew, Make, current, refuse_without, temporarily
from ._engine.sharing.runs import merged_run
from ._engine.watch import Watch, watching
from ._report.result import Report
from ._report.study import merged_report
from ._work import STUDIES


def merge(folder: str | os.PathLike[str], *, progress: bool = True, **arguments: Any) -> Result:
    """Make table, page and manifest of a folder whose parts were made by `work` (or `--shard`), as one process would.

    Parts that failed three times are left out and listed as skipped. A finished folder is simply opened. A diagnosis or
    a report needs neither weights nor text for this; other studies load the model again.

    Args:
        folder: the run folder that the workers shared.
        progress: report on standard error.
        arguments: those that the folder cannot keep, such as `model=network, tokenizer=tokenizer`.

    Returns:
        The result of the study.

    Raises:
        AbbeError: parts are missing.

    Examples:
        >>> _ = abbe.work("diagnose", lengths=32, windows=2, queries=4, folder="shared", shard="1/1", progress=False)
        >>> abbe.merge("shared", progress=False)
        Run(abbe-gpt2-5M on embedded sample, lengths [32], ... rows)
    """
    place = Path(folder)
    board = Board(Path(os.path.realpath(place)))
    request = board.request() if place.is_dir() else None
    if request is None:
        return _without_workers(place)
    study = request.get("study")
    if study not in STUDIES:
        raise AbbeError(f"{place} was shared by workers of {study!r}, which this version does not know")
    units = board.units()
    if missing := board.left(units):  # refused before the model is loaded
        raise _missing(board, len(missing), len(units))
    with held(place):
        with temporarily(current, _Merger(board)):
            result = _without_model(study, place, board, progress)
            if result is None:
                result = _by_the_study(study, place, request, arguments, progress)
        board.clear()  # while it is held: a worker that joins now is refused, and cannot lose its mark
    return result


class _Merger(Crew):
    """Goes through the stages of a shared study as a worker does, but makes nothing and refuses an incomplete stage."""

    board: Board

    def __init__(self, board: Board) -> None:
        self.board = board

    def share(self, units: Sequence[Unit], make: Make, watch: Watch | None, needed: bool) -> dict[str, Failure]:
        missing = self.board.left(units, needed=True)
        failures = {unit.name: self.board.failure(unit) for unit in missing if self.board.has_given_up(unit)}
        failed = {name: failure for name, failure in failures.items() if failure is not None}
        if needed and failed:
            refuse_without(next(iter(failed.values())))
        if len(missing) > len(failed):
            raise _missing(self.board, len(missing) - len(failed), len(units))
        return failed

    def need(self, units: Sequence[Unit], make: Make) -> None:
        self.share(units, make, None, needed=True)


def _missing(board: Board, missing: int, units: int) -> AbbeError:
    are = "part is" if missing == 1 else "parts are"
    return AbbeError(
        f"{missing} of {units} {are} missing in {board.run}: run the unfinished shards again, "
        "or the same command with --shard any, which makes the rest"
    )


def _without_model(study: str, place: Path, board: Board, progress: bool) -> Result | None:
    """Studies of windows alone need no weights; None if this one does."""
    with watching(progress) as watch:
        if study == Report.study:
            return merged_report(place, board, watch.announce)
        merged = merged_run(place, board, study, watch.announce) if study == Run.study else None
    if merged is None:
        return None
    merged.run.save(place)
    return merged.run


def _by_the_study(
    study: str, place: Path, request: Mapping[str, Any], arguments: Mapping[str, Any], progress: bool
) -> Result:
    """Call the study, which finds all parts there."""
    stored, absent = call_from_json(request)
    if lacking := [name for name in absent if name not in arguments]:
        extra = ", ".join(f"{name}=..." for name in lacking)
        raise AbbeError(f"{place} cannot keep {' and '.join(lacking)}: call abbe.merge(folder, {extra}) from Python")
    from .. import studies

    call: Callable[..., Result] = getattr(studies, study)
    with spelled_as_called(request):
        return call(**{**stored, **arguments}, folder=place, progress=progress)


def _without_workers(place: Path) -> Result:
    """A folder that no workers share is finished, or cannot be merged."""
    if not (place / MANIFEST).is_file():
        raise AbbeError(f"{place} holds no run: name the folder (--out) of the shards")
    manifest = checked_manifest(place / MANIFEST, read_json(place / MANIFEST))
    if not manifest.get("finished"):
        raise AbbeError(f"the run in {place} was not made by shards: the same command with this folder resumes it")
    return _open.open(place)
