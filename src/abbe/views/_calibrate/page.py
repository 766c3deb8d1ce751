"""A calibration as a page, and its charts as files for papers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from ...words.manifest import part_of, text_name
from .._shared.drawings import save_drawings
from .._shared.theme import THEMES
from .._study_page import study_page
from .charts import calibration_chart
from .table import calibration_question, calibration_tables

if TYPE_CHECKING:
    from ...studies import Calibration


def calibration_page(calibration: Calibration) -> str:
    """One self-contained HTML page that works from disk, without a network."""
    windows, held_out = (len(calibration.manifest.get(name) or ()) for name in ("windows", "held_out"))
    length = part_of(calibration.manifest, "settings").get("length")
    about = f"on {text_name(calibration.manifest)}: fitted on {windows} windows of {length} tokens, {held_out} held out"
    charts = {theme: {"calibration": calibration_chart(calibration, theme)} for theme in THEMES}
    question, tables = calibration_question(calibration), calibration_tables(calibration)
    return study_page(calibration, question, [about], calibration.findings, tables, charts)


def save_calibration_figures(calibration: Calibration, folder: str | os.PathLike[str]) -> list[Path]:
    """Draw a calibration as PNG and SVG, light and dark."""
    return save_drawings(folder, lambda theme: {"calibration": calibration_chart(calibration, theme)})
