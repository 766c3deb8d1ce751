"""abbe merge"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..._later import need
from .._invocation import RESUMES, current
from .._names import EXTRA_OF
from .._options import Debug, Figures, Opened, check_folder, json_option, quiet_option
from .._shown import show_result

EXAMPLES = ("abbe merge abbe-report-smollm2 --open", "abbe merge shared/run --json")
_SHOWN = {  # functions of abbe.views: table and figures
    "diagnose": ("diagnosis_table", "save_diagnosis_figures"),
    "report": ("report_table", "save_report_figures"),
    "reproduce": ("reproduction_table", "save_figures"),
    "capacity": ("capacity_table", "save_capacity_figures"),
    "compare": ("compare_table", "save_compare_figures"),
    "calibrate": ("calibration_table", "save_calibration_figures"),
    "train": ("train_table", "save_train_figures"),
}


def merge(
    folder: Annotated[Path, typer.Argument(help="Folder (--out) of the shards.")],
    figures: Figures = None,
    opened: Opened = False,
    as_json: Annotated[bool, json_option("Print what the command of the shards would print as JSON.")] = False,
    quiet: Annotated[bool, quiet_option("No table; only the path of the page.")] = False,
    debug: Debug = False,
) -> None:
    """Make table and page of a folder whose parts were made with --shard, as a single process would have made them."""
    need("abbe merge", EXTRA_OF["merge"])
    if figures is not None:
        need("abbe merge --figures", "report")
        check_folder("--figures", figures)
    if opened:
        need("abbe merge --open", "report")
    from ... import studies, views

    current.if_stopped = RESUMES
    was_shared = studies.progress(folder).total > 0
    result = studies.merge(folder, progress=not quiet)
    table, save_figures = _SHOWN.get(result.study, ("", ""))
    lines = [] if was_shared else [f"{folder} was finished before: nothing was to merge"]
    if figures is not None and save_figures:
        getattr(views, save_figures)(result, figures)
        lines.append(f"figures: {figures}")
    shown = getattr(views, table)(result) if table else ""
    show_result(result, shown, folder, as_json=as_json, quiet=quiet, opened=opened, lines=lines)
