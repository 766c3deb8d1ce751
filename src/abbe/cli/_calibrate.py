"""abbe calibrate"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import _complete
from ._invocation import RESUMES, current
from ._options import (
    MEASURED,
    Debug,
    Model,
    Opened,
    Queries,
    Seed,
    TextFiles,
    count_or_all,
    folder_for,
    json_option,
    out_option,
    quiet_option,
)
from ._shown import show_result

EXAMPLES = (
    "abbe calibrate --with entmax:alpha=1.5,learn=false",
    "abbe calibrate smollm2 --with topk:k=32 --text book.txt --finetune 50 --out fitted",
    "abbe calibrate --with 'layers.2-5=sparsemax; layers.0.heads.3=topk:k=32'",
)


def calibrate(
    spec: Annotated[
        str,
        typer.Option(
            "--with",
            help="The normalizer, or 'PATTERN=SPEC; ...' for some layers or heads; learn=false in it keeps what could "
            "be fitted.",
            autocompletion=_complete.normalizers,
            rich_help_panel=MEASURED,
        ),
    ],
    model: Model = "embedded",
    text: TextFiles = None,
    length: Annotated[
        int | None,
        typer.Option(help="Tokens per window; 512, or the model's context if less.", rich_help_panel=MEASURED),
    ] = None,
    windows: Annotated[int, typer.Option(help="Windows to fit on.", rich_help_panel=MEASURED)] = 8,
    held_out: Annotated[
        int,
        typer.Option(help="Further windows, for the losses; six or more can show a change.", rich_help_panel=MEASURED),
    ] = 8,
    queries: Queries = "32",
    steps: Annotated[int, typer.Option(help="Steps of the fit at most.", rich_help_panel=MEASURED)] = 20,
    finetune: Annotated[
        int,
        typer.Option(
            help="Then fine-tune the same parameters on the loss, for so many steps.", rich_help_panel=MEASURED
        ),
    ] = 0,
    seed: Seed = 0,
    out: Annotated[Path | None, out_option("calibrate")] = None,
    opened: Opened = False,
    as_json: Annotated[bool, json_option("Print losses, errors, parameters and manifest as JSON.")] = False,
    quiet: Annotated[bool, quiet_option("No cost line, no bar, no table; only the path of the page.")] = False,
    debug: Debug = False,
) -> None:
    """Swap a normalizer in and fit its temperature, alpha, ... head by head to the outputs of the unchanged model."""
    from ..studies import calibrate as run_calibrate
    from ..views import calibration_table

    current.if_stopped = RESUMES
    folder = out or folder_for("calibrate", model, _short(spec))
    found = run_calibrate(
        model,
        text,
        normalizer=spec,
        length=length,
        windows=windows,
        held_out=held_out,
        queries=count_or_all("--queries", queries),
        steps=steps,
        finetune=finetune,
        seed=seed,
        folder=folder,
        progress=not quiet,
    )
    more = f"swap: {found.file}"
    show_result(found, calibration_table(found), folder, as_json=as_json, quiet=quiet, opened=opened, more=more)


def _short(spec: str) -> str:
    """The spec as part of a file name."""
    return "".join(letter if letter.isalnum() or letter in ".-" else "-" for letter in spec)
