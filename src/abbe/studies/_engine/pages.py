"""The page that a study leaves in its folder."""

from __future__ import annotations

from pathlib import Path

from ...results import Result
from .watch import Watch


def leave_page(result: Result, folder: Path, watch: Watch) -> None:
    """Write the page; where nothing can be drawn, the numbers are there all the same, and a line says why."""
    try:
        result.to_html(folder / result.page)
    except ImportError as error:
        watch.announce(f"no page: {error.name} is not installed (pip install 'abbe[report]')")
