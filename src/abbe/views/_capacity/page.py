"""A study of capacity as a page, and its charts as files for papers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from .._shared.drawings import save_drawings
from .._shared.theme import THEMES
from .._study_page import study_page
from .charts import capacity_chart
from .table import capacity_lines, capacity_tables

if TYPE_CHECKING:
    from ...studies import Capacity


def capacity_page(study: Capacity) -> str:
    """One self-contained HTML page that works from disk, without a network."""
    question, *about = capacity_lines(study)
    charts = {theme: {"capacity": capacity_chart(study, theme)} for theme in THEMES}
    return study_page(study, question, about, study.findings, capacity_tables(study), charts)


def save_capacity_figures(study: Capacity, folder: str | os.PathLike[str]) -> list[Path]:
    """Draw a study of capacity as PNG and SVG, light and dark."""
    return save_drawings(folder, lambda theme: {"capacity": capacity_chart(study, theme)})
