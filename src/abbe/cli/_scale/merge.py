"""abbe merge"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..._lazy import need
from .._invocation import RESUMES, current
from .._names import EXTRA_OF
from .._options import Debug, Figures, Opened, Quiet, check_drawing, json_option
from .._shown import show_result

EXAMPLES = ("abbe merge abbe-report-smollm2 --open", "abbe merge shared/run --json")


def merge(
    folder: Annotated[Path, typer.Argument(help="Folder (--out) that the workers shared.")],
    figures: Figures = None,
    opened: Opened = False,
    as_json: Annotated[bool, json_option("Print the JSON that the sharded command would print.")] = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Merge what --shard workers computed into the table and page that a single process would have written."""
    need("abbe merge", EXTRA_OF["merge"])
    check_drawing("abbe merge", figures, opened)
    from ... import studies

    current.if_stopped = RESUMES
    was_shared = studies.progress(folder).total > 0
    result = studies.merge(folder, progress=not quiet)
    lines = [] if was_shared else [f"{folder} is already complete: nothing to merge"]
    show_result(result, folder, figures=figures, as_json=as_json, quiet=quiet, opened=opened, lines=lines)
