"""Alternatives after calibration: fitted on the first half of the text, compared on the second."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from .._errors import AbbeError
from ..models import LoadedModel, Text


def halves(text: Text) -> tuple[Text, Text]:
    """The text in two parts that share no word, cut at a space near its middle."""
    middle = len(text.content) // 2
    cut = next((place for place in range(middle, len(text.content)) if text.content[place].isspace()), middle)
    return Text(f"{text.name}, first half", text.content[:cut]), Text(text.name, text.content[cut:])


def calibrated_swap(
    model: LoadedModel, spec: str, text: Text, *, length: int, windows: int, seed: int, folder: Path
) -> str:
    """What to swap after the parameters of this spec were fitted to the model; its own losses are measured briefly."""
    from .. import studies

    calibrate: Any = studies.calibrate
    found = calibrate(
        model, spec, text, length=length, windows=windows, held_out=1, seed=seed, folder=folder, progress=False
    )  # fmt: skip
    if found.file is None:
        raise AbbeError(f"calibration of {spec} left no file to swap in {folder}")
    return f"file:{os.fspath(found.file)}"
