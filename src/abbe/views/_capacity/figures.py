"""The charts of a study of capacity as files for papers."""

from __future__ import annotations

import os
from pathlib import Path

from ...studies._capacity.result import Capacity
from .._reproduce.figures import save_drawings
from .charts import capacity_chart


def save_capacity_figures(found: Capacity, folder: str | os.PathLike[str]) -> list[Path]:
    """PNG and SVG, light and dark; the files that were written."""
    return save_drawings(folder, lambda theme: {"capacity": capacity_chart(found, theme)})
