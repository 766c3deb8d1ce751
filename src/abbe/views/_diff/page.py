"""A diff as a page, and its charts as files for papers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from .._shared.drawings import save_drawings
from .._shared.theme import THEMES
from .._study_page import study_page
from .charts import diff_charts
from .table import diff_lines, diff_tables, head_table

if TYPE_CHECKING:
    from ...studies import Difference


def diff_page(diff: Difference) -> str:
    """One self-contained HTML page that works from disk, without a network."""
    question, *about = diff_lines(diff)
    charts = {theme: diff_charts(diff, theme) for theme in THEMES}
    return study_page(diff, question, about, diff.findings, [head_table(diff), *diff_tables(diff)], charts)


def save_diff_figures(diff: Difference, folder: str | os.PathLike[str]) -> list[Path]:
    """Draw a difference as PNG and SVG, light and dark."""
    return save_drawings(folder, lambda theme: diff_charts(diff, theme))
