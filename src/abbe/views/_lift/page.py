"""A search as a page, and its charts as files for papers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from ...words.manifest import part_of, text_name
from .._shared.drawings import save_drawings
from .._shared.theme import THEMES
from .._study_page import study_page
from .charts import lift_charts
from .table import lift_question, lift_tables

if TYPE_CHECKING:
    from ...studies import Lift


def lift_page(result: Lift) -> str:
    """One self-contained HTML page that works from disk, without a network."""
    windows = part_of(result.manifest, "windows")
    counts = ", ".join(f"{len(windows.get(name) or ())} to {name} on" for name in ("fit", "choose", "judge"))
    length, longer = part_of(result.manifest, "settings").get("length"), (result.manifest.get("loss_lengths") or ())[1:]
    counts += "".join(f", and of {n:,} tokens to judge the loss once more" for n in longer)
    about = [f"on {text_name(result.manifest)}: windows of {length} tokens, {counts}", f"plan: {result.plan}"]
    charts = {theme: lift_charts(result, theme) for theme in THEMES}
    return study_page(result, lift_question(result), about, result.findings, lift_tables(result), charts)


def save_lift_figures(result: Lift, folder: str | os.PathLike[str]) -> list[Path]:
    """Draw a search for a lift as PNG and SVG, light and dark."""
    return save_drawings(folder, lambda theme: lift_charts(result, theme))
