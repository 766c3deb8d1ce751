"""The charts of a study of capacity as files for papers."""

from __future__ import annotations

import os
from pathlib import Path

from .._errors import AbbeError
from ..studies._capacity_parts import Capacity
from ._capacity_charts import capacity_chart
from ._figures import drawings
from ._theme import THEMES


def save_capacity_figures(found: Capacity, folder: str | os.PathLike[str]) -> list[Path]:
    """PNG and SVG, light and dark; the files that were written."""
    target = Path(folder)
    try:
        target.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise AbbeError(f"{target} is a file: give a folder for the figures") from None
    written = []
    for theme in THEMES:
        for ending, drawn in drawings(capacity_chart(found, theme)).items():
            written.append(target / f"capacity{'-dark' if theme == 'dark' else ''}.{ending}")
            written[-1].write_bytes(drawn)
    return written
