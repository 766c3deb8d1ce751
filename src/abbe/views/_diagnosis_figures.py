"""The charts of a run as files for papers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from ._report.charts_growth import growth_chart
from ._report.charts_map import map_chart
from ._shared.drawings import save_drawings

if TYPE_CHECKING:
    from ..results import Run


def save_diagnosis_figures(run: Run, folder: str | os.PathLike[str]) -> list[Path]:
    """Draw the map of the heads and their growth over the length, as PNG and SVG, light and dark."""
    return save_drawings(folder, lambda theme: {"map": map_chart(run, theme), "growth": growth_chart(run, theme)})
