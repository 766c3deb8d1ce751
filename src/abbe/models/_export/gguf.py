"""A GGUF file of an export, read back: abbe writes none, since llama.cpp's script knows each layout."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from ..._errors import AbbeError
from .._load.load import load
from .._load.quiet import quiet
from .._session.selfcheck import main_output, relative_error
from .._text import Text, read_text
from .check import allowed, checked_dtype, in_dtype
from .export import FACTS, Export, trial_on


def read_export(folder: str | os.PathLike[str]) -> Export:
    """An export that was written before.

    Args:
        folder: that `export` wrote.

    Returns:
        What is in it.

    Raises:
        AbbeError: it is not such a folder.

    Examples:
        >>> abbe.models.read_export("elsewhere")
        Traceback (most recent call last):
        ...
        abbe._errors.AbbeError: elsewhere was not written by `abbe export`: it has no abbe_export.json
    """
    path = Path(folder)
    try:
        facts = json.loads((path / FACTS).read_text("utf-8"))
        return Export(path, facts["kind"] == "folded", float(facts["error"]), facts)
    except (OSError, ValueError, KeyError, TypeError):
        raise AbbeError(f"{path} was not written by `abbe export`: it has no {FACTS}") from None


def gguf_error(
    written: Export,
    path: str | os.PathLike[str],
    text: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | Text | None = None,
) -> float:
    """Read a GGUF file that llama.cpp's script made of an export: how far its outputs are from the folder's.

    Args:
        written: a plain export.
        path: of the file.
        text: real text to compare on; the sample that comes with abbe if None.

    Returns:
        Largest difference of the outputs over their standard deviation; high means a coarse or a wrong file.

    Raises:
        AbbeError: there is no such file, or a file of float32 does not agree with the folder.

    Examples:
        >>> written = abbe.models.Export("folder", plain=False, error=0.0, facts={})
        >>> abbe.models.gguf_error(written, "model.gguf")
        Traceback (most recent call last):
        ...
        abbe._errors.AbbeError: folder needs abbe, so llama.cpp cannot run it: fold softmax temperatures
    """
    if not written.plain:
        raise AbbeError(f"{written.folder} needs abbe, so llama.cpp cannot run it: fold softmax temperatures")
    file = Path(path).expanduser()
    if not file.is_file():
        raise AbbeError(
            f"{written.folder} is written; abbe makes no GGUF itself: run llama.cpp's `python convert_hf_to_gguf.py "
            f"{written.folder} --outfile {file} --outtype f32`, then the same command again reads it back"
        )
    folder, back = load(written.folder), load(file)
    content = text if isinstance(text, Text) else read_text(text)
    with quiet():
        trial = trial_on(folder, content)
        inputs, dtype = trial.inputs, checked_dtype(folder.network, trial)
        if trial_on(back, content).inputs["input_ids"].tolist() != inputs["input_ids"].tolist():
            raise AbbeError(f"{file} cuts the text into other tokens than {written.folder}")
        outputs = []
        for model in (folder, back):
            network: Any = model.network
            with in_dtype(network, dtype), torch.no_grad():
                outputs.append(main_output(network(**inputs)))
    error = relative_error(*outputs)
    if _is_float32(file) and not error <= allowed(dtype):
        limit = f"allowed {allowed(dtype):g}"
        raise AbbeError(f"{file} differs from {written.folder} by {error:.2g} of the outputs' deviation ({limit})")
    return error


def _is_float32(file: Path) -> bool:
    from gguf import GGMLQuantizationType, GGUFReader

    return all(tensor.tensor_type == GGMLQuantizationType.F32 for tensor in GGUFReader(file).tensors)
