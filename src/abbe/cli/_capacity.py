"""abbe capacity"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ._invocation import RESUMES, current
from ._options import (
    MEASURED,
    Debug,
    Figures,
    Lengths,
    Model,
    Opened,
    Seed,
    TextFiles,
    Windows,
    check_folder,
    folder_for,
    json_option,
    numbers,
    out_option,
    quiet_option,
)
from ._shown import show_result

EXAMPLES = (
    "abbe capacity",
    "abbe capacity smollm2 --text book.txt --tau 0.01 --lengths 256,1024 --no-layers --out smollm2-capacity",
    "abbe capacity ./my-model --way renormalised --figures figures --json",
    "abbe capacity smollm2 --text book.txt --targets last:128",
)


def capacity(
    model: Model = "embedded",
    text: TextFiles = None,
    tau: Annotated[
        str, typer.Option(help="Allowed rise of the loss, relative to the unchanged model.", rich_help_panel=MEASURED)
    ] = "0.01,0.05",
    lengths: Lengths = None,
    windows: Windows = 8,
    way: Annotated[
        str,
        typer.Option(
            help="deletion keeps the weights as they are, renormalised makes them sum to 1 again.",
            rich_help_panel=MEASURED,
        ),
    ] = "deletion,renormalised",
    layers: Annotated[
        bool,
        typer.Option("--layers/--no-layers", help="Also truncate every layer alone.", rich_help_panel=MEASURED),
    ] = True,
    layer_lengths: Annotated[
        str | None,
        typer.Option(help="Lengths at which layers are truncated; by default all.", rich_help_panel=MEASURED),
    ] = None,
    layer_windows: Annotated[
        int, typer.Option(help="Windows of each length for layers, evenly spaced among them.", rich_help_panel=MEASURED)
    ] = 4,
    targets: Annotated[
        str,
        typer.Option(
            help="Which tokens of each window are scored: all, or last:N, such as last:128.", rich_help_panel=MEASURED
        ),
    ] = "all",
    seed: Seed = 0,
    out: Annotated[Path | None, out_option("capacity")] = None,
    opened: Opened = False,
    figures: Figures = None,
    as_json: Annotated[bool, json_option("Print all tables, findings and the manifest as JSON.")] = False,
    quiet: Annotated[bool, quiet_option("No cost line, no bar, no table; only the path of the page.")] = False,
    debug: Debug = False,
) -> None:
    """How many of its top keys per query a model needs before its loss rises, and whether its geometry agrees."""
    from ..studies import capacity as run_capacity
    from ..views import capacity_table

    current.if_stopped = RESUMES
    folder = out or folder_for("capacity", model)
    if figures is not None:
        check_folder("--figures", figures)
    found = run_capacity(
        model,
        text,
        tau=numbers("--tau", tau, float),
        lengths=None if lengths is None else numbers("--lengths", lengths, int),
        windows=windows,
        way=[one.strip() for one in way.split(",")],
        layers=layers,
        layer_lengths=None if layer_lengths is None else numbers("--layer-lengths", layer_lengths, int),
        layer_windows=layer_windows,
        targets=targets,
        seed=seed,
        folder=folder,
        progress=not quiet,
    )
    if figures is not None:
        from ..views import save_capacity_figures

        save_capacity_figures(found, figures)
    more = f"figures: {figures}" if figures else ""
    show_result(found, capacity_table(found), folder, as_json=as_json, quiet=quiet, opened=opened, more=more)
