"""A search in which everything was learned has no scan, and still a page and a table for the terminal."""

from __future__ import annotations

import dataclasses
import io

import pytest
from rich.console import Console
from test_lift_view import made_up

from abbe.studies import Lift
from abbe.views import lift_table


def learned_alone() -> Lift:
    result = made_up("retrieval")
    return dataclasses.replace(result, scan=result.scan.clear())


@pytest.mark.slow
def test_the_page_has_no_map_of_a_scan_and_all_else() -> None:
    page = learned_alone().to_html()
    assert "What does each normalizer do in each layer alone?" not in page
    assert "Pass keys by length and depth" in page


def test_the_terminal_shows_it() -> None:
    console = Console(width=120, no_color=True, record=True, file=io.StringIO())
    console.print(lift_table(learned_alone()))
    assert "plan" in console.export_text()
