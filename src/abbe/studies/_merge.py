"""merge: the result of a study whose parts workers have made."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from .._errors import AbbeError
from .._files import read_json
from .._locks import held
from ..results import MANIFEST, Result, Run, checked_manifest
from . import _open
from ._diagnose.study import merged_diagnosis
from ._engine.sharing.asked import arguments_of, spelled_as_asked
from ._engine.sharing.board import Board
from ._engine.sharing.crew import current
from ._engine.sharing.merger import Merger, missing_line
from ._engine.watch import watching
from ._report.result import Report
from ._report.study import merged_report
from ._work import STUDIES


def merge(folder: str | os.PathLike[str], *, progress: bool = True, **arguments: Any) -> Result:
    """Make table, page and manifest of a folder whose parts `work` (or `--shard`) has made, as one process would.

    Parts that failed three times are left out and listed as skipped. A folder that is finished already is opened. A
    diagnosis or a report needs neither weights nor text for this; the others load the model again.

    Args:
        folder: the run folder that the workers shared.
        progress: say what is done, on standard error.
        arguments: what the folder cannot keep, such as `model=network, tokenizer=tokenizer`.

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
    asked = board.asked() if place.is_dir() else None
    if asked is None:
        return _without_workers(place)
    study = asked.get("study")
    if study not in STUDIES:
        raise AbbeError(f"{place} was shared by workers of {study!r}, which this version does not know")
    _refuse_missing(board)
    with held(place):
        before = current.set(Merger(board))
        try:
            result = _without_model(study, place, board, progress)
            if result is None:
                result = _by_the_study(study, place, asked, arguments, progress)
        finally:
            current.reset(before)
        board.clear()  # while it is held: a worker that joins now is refused, and cannot lose its mark
    return result


def _without_model(study: str, place: Path, board: Board, progress: bool) -> Result | None:
    """Studies of windows alone need no weights; None if this one does."""
    with watching(progress) as watch:
        if study == Run.study:
            return merged_diagnosis(place, board, watch.announce)
        return merged_report(place, board, watch.announce) if study == Report.study else None


def _by_the_study(
    study: str, place: Path, asked: Mapping[str, Any], arguments: Mapping[str, Any], progress: bool
) -> Result:
    """The study itself finds that all parts are there."""
    known, absent = arguments_of(asked)
    if lacking := [name for name in absent if name not in arguments]:
        given = ", ".join(f"{name}=..." for name in lacking)
        raise AbbeError(f"{place} cannot keep {' and '.join(lacking)}: call abbe.merge(folder, {given}) from Python")
    from .. import studies

    call: Callable[..., Result] = getattr(studies, study)
    with spelled_as_asked(asked):
        return call(**{**known, **arguments}, folder=place, progress=progress)


def _without_workers(place: Path) -> Result:
    """A folder that no workers share now is finished, or is none to merge."""
    if not (place / MANIFEST).is_file():
        raise AbbeError(f"{place} holds no run: name the folder (--out) of the shards")
    manifest = checked_manifest(place / MANIFEST, read_json(place / MANIFEST))
    if not manifest.get("finished"):
        raise AbbeError(f"the run in {place} was not made by shards: the same command with this folder resumes it")
    return _open.open(place)


def _refuse_missing(board: Board) -> None:
    """Before the model is loaded."""
    units = board.units()
    if missing := board.left(units):
        raise AbbeError(missing_line(board, len(missing), len(units)))
