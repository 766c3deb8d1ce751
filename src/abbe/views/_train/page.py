"""An experiment as a page, and its charts as files for papers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from .._reproduce.figures import save_drawings
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
    """Draw every chart of an experiment as PNG and SVG, light and dark.

    `train_charts` says what they show.

    Args:
        experiment: from `abbe.train_temperature`, `train_length`, `train_recall` or `train_text`.
        folder: for the files; made if it is missing.

    Examples:
        >>> small = {"rates": 0.01, "seeds": 1, "steps": 20, "workers": 1, "progress": False}
        >>> experiment = abbe.train_recall(normalizers="softmax", **small)
        >>> abbe.views.save_train_figures(experiment, "figures")[0].name
        'best.png'
    """
    return save_drawings(folder, lambda theme: train_charts(experiment, theme))
