"""The charts of a study of capacity as files for papers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from .._reproduce.figures import save_drawings
from .charts import capacity_chart

if TYPE_CHECKING:
    from ...studies import Capacity


def save_capacity_figures(study: Capacity, folder: str | os.PathLike[str]) -> list[Path]:
    """PNG and SVG, light and dark; the files that were written."""
    return save_drawings(folder, lambda theme: {"capacity": capacity_chart(study, theme)})
