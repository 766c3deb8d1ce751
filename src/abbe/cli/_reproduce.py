"""abbe reproduce"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import _complete
from ._invocation import RESUMES, current
from ._names import FIGURES
from ._options import (
    MEASURED,
    Debug,
    Figures,
    Model,
    Opened,
    Seed,
    TextFiles,
    check_folder,
    count_or_all,
    folder_for,
    json_option,
    out_option,
    quiet_option,
)
from ._shown import show_result

EXAMPLES = (
    "abbe reproduce",
    "abbe reproduce --quick --figure 3",
    "abbe reproduce smollm2 --text war_and_peace.txt --out smollm2-figures",
)


def reproduce(
    model: Model = "embedded",
    text: TextFiles = None,
    figure: Annotated[
        str,
        typer.Option(
            help='2a, 2b, 2c, 3, 4, several with commas, or "all".',
            autocompletion=_complete.figures,
            rich_help_panel=MEASURED,
        ),
    ] = "all",
    quick: Annotated[
        bool,
        typer.Option(
            "--quick", help="Fewer lengths, windows and resamples: a preview, not a result.", rich_help_panel=MEASURED
        ),
    ] = False,
    windows: Annotated[
        int | None, typer.Option(help="Windows of each length. [8, quick 2]", min=1, rich_help_panel=MEASURED)
    ] = None,
    queries: Annotated[
        str | None, typer.Option(help='Queries per window, or "all". [128, quick 16]', rich_help_panel=MEASURED)
    ] = None,
    seed: Seed = 0,
    out: Annotated[Path | None, out_option("reproduce")] = None,
    figures: Figures = None,
    opened: Opened = False,
    as_json: Annotated[bool, json_option("Print statements, times and manifest as JSON.")] = False,
    quiet: Annotated[bool, quiet_option("No cost line, no bar, no table; only the path of the page.")] = False,
    debug: Debug = False,
) -> None:
    """Repeat the experiments of arXiv 2508.17821 on a model: figures, a page, and which of its statements hold."""
    from ..studies import reproduce as run_reproduce
    from ..views import reproduction_table, save_figures

    current.if_stopped = RESUMES
    if figures is not None:
        check_folder("--figures", figures)
    folder = out or folder_for("reproduce", model, *(["quick"] if quick else []))
    found = run_reproduce(
        model,
        text,
        figures=FIGURES if figure == "all" else figure.split(","),
        windows=windows,
        queries=None if queries is None else count_or_all("--queries", queries),
        seed=seed,
        quick=quick,
        folder=folder,
        progress=not quiet,
    )
    drawn = figures or folder / "figures"
    save_figures(found, drawn)
    more = f"figures for papers: {drawn}"
    show_result(found, reproduction_table(found), folder, as_json=as_json, quiet=quiet, opened=opened, more=more)
