"""abbe report"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from ._invocation import RESUMES, current
from ._options import (
    Debug,
    Figures,
    Lengths,
    Model,
    Opened,
    Queries,
    Seed,
    Sizes,
    TextFiles,
    Vectors,
    Windows,
    check_folder,
    count_or_all,
    folder_for,
    json_option,
    numbers,
    out_option,
    quiet_option,
)
from ._shown import show_result

EXAMPLES = (
    "abbe report",
    "abbe report smollm2 --text book.txt --open",
    "abbe report ./my-model --lengths 128,512,2048 --figures figures --json",
)


def report(
    model: Model = "embedded",
    text: TextFiles = None,
    lengths: Lengths = None,
    windows: Windows = 8,
    queries: Queries = "64",
    sizes: Sizes = None,
    vectors: Vectors = "value",
    seed: Seed = 0,
    out: Annotated[Path | None, out_option("report")] = None,
    figures: Figures = None,
    opened: Opened = False,
    as_json: Annotated[bool, json_option("Print numbers, verdicts, advice and manifest as JSON.")] = False,
    quiet: Annotated[bool, quiet_option("No cost line, no bar, no table; only the path of the page.")] = False,
    debug: Debug = False,
) -> None:
    """How selective every attention head is, where selection breaks down, and what to do about it: one offline page."""
    from ..studies import report as run_report
    from ..views import report_table

    current.if_stopped = RESUMES
    if figures is not None:
        check_folder("--figures", figures)
    folder = out or folder_for("report", model)
    found = run_report(
        model,
        text,
        lengths=None if lengths is None else numbers("--lengths", lengths, int),
        windows=windows,
        queries=count_or_all("--queries", queries),
        sizes=None if sizes is None else numbers("--sizes", sizes, int),
        vectors=vectors,
        seed=seed,
        folder=folder,
        progress=not quiet,
    )
    if figures is not None:
        from ..views import save_report_figures

        save_report_figures(found, figures)
    more = f"figures: {figures}" if figures else ""
    show_result(found, report_table(found), folder, as_json=as_json, quiet=quiet, opened=opened, more=more)
