"""A run made from the windows that workers have measured, without the model."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from ....models import Window
from ....results import Run
from ..folder import RunFolder, identity_of, window_part
from ..measuring import finished_run, why_left_out
from ..memory import PeakMemory
from ..parts import TENSORS
from ..settings import Settings
from .board import Board, Unit, refuse_all_failed


@dataclass(frozen=True)
class MergedRun:
    """The run, and what a report needs of its folder; `cut` are all windows, including failed ones."""

    run: Run
    kept: RunFolder
    settings: Settings
    cut: list[Window]


def merged_run(folder: Path, board: Board, study: str, say: Callable[[str], object]) -> MergedRun | None:
    """None if a worker's record is incomplete or a part is damaged: then the model is needed."""
    started, memory = time.perf_counter(), PeakMemory()
    remembered = board.remembered(folder)
    if remembered is None:
        return None
    facts = remembered["facts"]
    identity = identity_of(facts["model"], facts["text"], facts["settings"])  # with the versions installed here
    kept, settings = RunFolder(folder, identity, say, study), Settings.from_json(facts["settings"])
    cut = [Window(tokens=torch.empty(0, dtype=torch.long), **place) for place in remembered["windows"]]
    there = [window for window in cut if window in kept]
    failures = {window: board.failure(_unit(folder, window)) for window in cut if window not in kept}
    known = {window: failure for window, failure in failures.items() if failure is not None}
    if cut and len(known) == len(cut):
        refuse_all_failed(list(known.values()), "windows")
    why = [why_left_out(window, failure) for window, failure in known.items()]
    if not there or len(there) + len(why) < len(cut):
        return None
    run = finished_run(settings, there, why, kept, facts | remembered["seen"], memory, started)
    return MergedRun(run, kept, settings, cut)


def _unit(folder: Path, window: Window) -> Unit:
    part = window_part(window)
    return Unit(part, (folder / f"{part}{TENSORS}",))
