"""abbe export"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..._errors import AbbeError
from ..._lazy import need
from .. import _complete
from .._invocation import current
from .._names import EXTRA_OF
from .._options import Debug, Model, TextFiles, json_option, output, quiet_option, setting
from .._shown import print_json

EXAMPLES = (
    "abbe export smollm2 --plan 'layers.0-9=softmax:temperature=0.8' --out sharper",
    "abbe export smollm2 --plan part/tuned.safetensors --text book.txt --out lifted",
    "abbe export smollm2 --plan softmax:temperature=0.9 --out sharper --gguf sharper.gguf",
)


def export(
    model: Model,
    plan: Annotated[
        str,
        setting(
            "A normalizer, 'PATTERN=SPEC; ...' for some layers or heads, a file that calibrate, lift or Swap.save "
            "wrote, or the folder of such a run.",
            autocompletion=_complete.normalizers,
        ),
    ],
    out: Annotated[Path, output("Folder for model, tokenizer and card; must be new or empty.")],
    text: TextFiles = None,
    gguf: Annotated[
        Path | None,
        output("A GGUF file that llama.cpp made from the exported folder, to compare with the folder."),
    ] = None,
    as_json: Annotated[bool, json_option("Print the content of abbe_export.json.")] = False,
    quiet: Annotated[bool, quiet_option("Only the path of the folder.")] = False,
    debug: Debug = False,
) -> None:
    """Write a model with other normalizers as a folder that others can load.

    Temperatures of softmax are folded into the weights: a plain checkpoint that runs without abbe.

    Other normalizers are stored beside the weights and need `import abbe` to load.

    The folder is checked in a fresh process.
    """
    need("abbe export", EXTRA_OF["export"])
    from ... import models
    from ...models import gguf_error, read_export

    if gguf is not None and gguf.suffix != ".gguf":
        raise AbbeError(f"--gguf is {str(gguf)!r}, but must be a .gguf file made by llama.cpp from the exported folder")
    current.if_stopped = "nothing was left behind, the same command starts again"
    written = read_export(out) if gguf is not None and gguf.is_file() else models.export(model, plan, out, text=text)
    facts = dict(written.facts)
    lines = [
        "a plain checkpoint: it runs without abbe" if written.plain else "needs abbe: vLLM and llama.cpp cannot run it",
        f"outputs differ from those of the swapped model by {written.error:.1e} of their standard deviation",
    ]
    if gguf is not None:
        facts["gguf"] = gguf_error(written, gguf, text)
        lines.append(f"{gguf} differs from the folder by {facts['gguf']:.1e} of that")
    if as_json:
        print_json(facts)
        return
    for line in () if quiet else lines:
        typer.echo(line)
    typer.echo(out if quiet else f"folder: {out}")
