"""The index page of many reports: a row per model with a link, and their numbers model by model."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from markupsafe import Markup

from .._shared.drawings import save_drawings
from .._shared.theme import THEMES
from .._study_page import study_page
from .charts import reports_chart
from .table import reports_question, reports_rows

if TYPE_CHECKING:
    from ...studies import Reports


def reports_page(reports: Reports) -> str:
    """The index page of many reports; its links lead to the reports beside it."""
    about = ["Every name in the table leads to the report of that model, in the folder beside this page."]
    charts = {theme: {"models": reports_chart(reports, theme)} for theme in THEMES}
    return study_page(reports, reports_question(reports), about, (), [reports_rows(reports, _linked)], charts)


def _linked(row: dict[str, Any]) -> str:
    return Markup('<a href="{}/report.html"><bdi>{}</bdi></a>').format(quote(str(row["folder"])), row["folder"])


def save_reports_figures(reports: Reports, folder: str | os.PathLike[str]) -> list[Path]:
    """Draw the numbers of many reports as PNG and SVG, light and dark."""
    return save_drawings(folder, lambda theme: {"models": reports_chart(reports, theme)})
