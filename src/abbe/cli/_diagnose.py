"""abbe diagnose"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import _complete
from ._invocation import RESUMES, current
from ._options import (
    MEASURED,
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
    "abbe diagnose",
    "abbe diagnose smollm2 --text book.txt --lengths 256,1024 --out run",
    "abbe diagnose ./my-model --with entmax:alpha=1.5 --json",
)


def diagnose(
    model: Model = "embedded",
    text: TextFiles = None,
    lengths: Lengths = None,
    windows: Windows = 8,
    queries: Queries = "64",
    sizes: Sizes = None,
    vectors: Vectors = "value",
    normalizer: Annotated[
        str | None,
        typer.Option(
            "--with",
            help="Another normalizer for the same logits, such as entmax:alpha=1.5.",
            autocompletion=_complete.normalizers,
            rich_help_panel=MEASURED,
        ),
    ] = None,
    temperatures: Annotated[
        str, typer.Option(help='Temperatures at which sensitivity is measured, or "none".', rich_help_panel=MEASURED)
    ] = "1",
    seed: Seed = 0,
    out: Annotated[Path | None, out_option("diagnose")] = None,
    figures: Figures = None,
    opened: Opened = False,
    as_json: Annotated[bool, json_option("Print the whole table and the manifest as JSON.")] = False,
    quiet: Annotated[bool, quiet_option("No cost line, no bar, no table; only the path of the page.")] = False,
    debug: Debug = False,
) -> None:
    """Measure how selective every attention head of a model is: dispersion, distance, separability, sensitivity."""
    from ..studies import diagnose as run_diagnose
    from ..views import diagnosis_table

    current.if_stopped = RESUMES
    if figures is not None:
        check_folder("--figures", figures)
    folder = out or folder_for("diagnose", model)
    run = run_diagnose(
        model,
        text,
        lengths=None if lengths is None else numbers("--lengths", lengths, int),
        windows=windows,
        queries=count_or_all("--queries", queries),
        sizes=None if sizes is None else numbers("--sizes", sizes, int),
        vectors=vectors,
        normalizer=normalizer,
        temperatures=() if temperatures == "none" else numbers("--temperatures", temperatures, float),
        seed=seed,
        folder=folder,
        progress=not quiet,
    )
    if figures is not None:
        from ..views import save_diagnosis_figures

        save_diagnosis_figures(run, figures)
    more = f"figures: {figures}" if figures else ""
    show_result(run, diagnosis_table(run), folder, as_json=as_json, quiet=quiet, opened=opened, more=more)
