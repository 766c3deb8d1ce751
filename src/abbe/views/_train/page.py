"""An experiment as a page, and its charts as files for papers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from .._shared.drawings import save_drawings
from .._shared.theme import THEMES
from .._study_page import study_page
from .charts import train_charts
from .table import train_tables
from .words import about_lines, question_of

if TYPE_CHECKING:
    from ...studies import Experiment


def train_page(experiment: Experiment) -> str:
    """One self-contained HTML page that works from disk, without a network."""
    charts = {theme: train_charts(experiment, theme) for theme in THEMES}
    question, about = question_of(experiment), about_lines(experiment)
    return study_page(experiment, question, about, experiment.findings, train_tables(experiment), charts)


def save_train_figures(experiment: Experiment, folder: str | os.PathLike[str]) -> list[Path]:
    """Draw an experiment as PNG and SVG, light and dark."""
    return save_drawings(folder, lambda theme: train_charts(experiment, theme))
