"""abbe compare"""

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
    Model,
    Opened,
    Seed,
    TextFiles,
    check_folder,
    folder_for,
    json_option,
    numbers,
    out_option,
    quiet_option,
)
from ._shown import show_result

EXAMPLES = (
    "abbe compare",
    "abbe compare smollm2 --with entmax:alpha=1.5 --with topk:k=32 --text book.txt",
    "abbe compare smollm2 --with 'layers.10-29=softmax:temperature=0.8' --with file:fitted/calibrated.safetensors",
    "abbe compare ./my-model --with sparsemax --calibrate --figures figures --json",
)


def compare(
    model: Model = "embedded",
    normalizers: Annotated[
        list[str] | None,
        typer.Option(
            "--with",
            help="A normalizer, 'PATTERN=SPEC; ...' for some layers or heads, or file:PATH of a saved swap; may be "
            "repeated. Without one: entmax:alpha=1.5, sparsemax, topk:k=32 and topp:p=0.9.",
            autocompletion=_complete.normalizers,
            rich_help_panel=MEASURED,
        ),
    ] = None,
    text: TextFiles = None,
    length: Annotated[
        int | None,
        typer.Option(help="Window length in tokens; 512, or the model's context.", rich_help_panel=MEASURED),
    ] = None,
    windows: Annotated[
        int,
        typer.Option(help="Windows; intervals come from them, and a recommendation needs 6.", rich_help_panel=MEASURED),
    ] = 8,
    needle_lengths: Annotated[
        str | None,
        typer.Option(help="Lengths of the needle test's prompts, such as 128,512,1024.", rich_help_panel=MEASURED),
    ] = None,
    prompts: Annotated[int, typer.Option(help="Prompts of each kind, length and depth.", rich_help_panel=MEASURED)] = 4,
    calibrate: Annotated[
        bool,
        typer.Option("--calibrate", help="Also compare each after calibration.", rich_help_panel=MEASURED),
    ] = False,
    seed: Seed = 0,
    out: Annotated[Path | None, out_option("compare")] = None,
    figures: Figures = None,
    opened: Opened = False,
    as_json: Annotated[bool, json_option("Print table, needle test, recommendation and manifest as JSON.")] = False,
    quiet: Annotated[bool, quiet_option("No cost line, no bar, no table; only the path of the page.")] = False,
    debug: Debug = False,
) -> None:
    """What replacing softmax would change: loss, sparsity, speed, retrieval."""
    from ..studies import compare as run_compare
    from ..views import compare_table

    current.if_stopped = RESUMES
    if figures is not None:
        check_folder("--figures", figures)
    folder = out or folder_for("compare", model)
    found = run_compare(
        model,
        text,
        normalizers=normalizers,
        length=length,
        windows=windows,
        needle_lengths=None if needle_lengths is None else numbers("--needle-lengths", needle_lengths, int),
        prompts=prompts,
        calibrate=calibrate,
        seed=seed,
        folder=folder,
        progress=not quiet,
    )
    if figures is not None:
        from ..views import save_compare_figures

        save_compare_figures(found, figures)
    more = f"figures: {figures}" if figures else ""
    show_result(found, compare_table(found), folder, as_json=as_json, quiet=quiet, opened=opened, more=more)
