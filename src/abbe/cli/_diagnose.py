"""abbe diagnose"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import _complete
from ._invocation import RESUMES, current
from ._options import (
    MEASURED,
    OUTPUT,
    Debug,
    Lengths,
    Model,
    Queries,
    Seed,
    Sizes,
    TextFiles,
    Vectors,
    Windows,
    count_or_all,
    json_option,
    numbers,
    quiet_option,
)

EXAMPLES = (
    "abbe diagnose",
    "abbe diagnose smollm2 --text book.txt --lengths 256,1024 --out run",
    "abbe diagnose ./my-model --normalizer entmax:alpha=1.5 --json",
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
            help="Another normalizer for the same logits, such as entmax:alpha=1.5.",
            autocompletion=_complete.normalizers,
            rich_help_panel=MEASURED,
        ),
    ] = None,
    temperatures: Annotated[
        str, typer.Option(help='Temperatures at which sensitivity is measured, or "none".', rich_help_panel=MEASURED)
    ] = "1",
    seed: Seed = 0,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for the run; an interrupted run resumes from it.", rich_help_panel=OUTPUT),
    ] = None,
    as_json: Annotated[bool, json_option("Print the whole table as JSON lines.")] = False,
    quiet: Annotated[bool, quiet_option("No cost line and no progress bar.")] = False,
    debug: Debug = False,
) -> None:
    """Measure how selective every attention head of a model is: dispersion, distance, separability, sensitivity."""
    from ..studies import diagnose as run_diagnose

    current.if_stopped = RESUMES if out else "with --out FOLDER the same command would resume"
    run = run_diagnose(
        model,
        text,
        lengths=None if lengths is None else numbers("--lengths", lengths, int),
        windows=windows,
        queries=count_or_all("--queries", queries),
        grid=None if sizes is None else numbers("--sizes", sizes, int),
        vectors=vectors,
        normalizer=normalizer,
        temperatures=() if temperatures == "none" else numbers("--temperatures", temperatures, float),
        seed=seed,
        folder=out,
        progress=not quiet,
    )
    if as_json:
        typer.echo(run.heads.write_ndjson(), nl=False)
    else:
        from rich.console import Console

        from ..views import diagnosis_table

        Console().print(diagnosis_table(run))
    if out is not None:
        typer.echo(f"wrote {out}", err=True)
