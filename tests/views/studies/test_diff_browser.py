"""The page of a diff in a real browser, from disk and without a network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tiny_runs
from page_in_browser import WIDE, Opened, needs_browser
from test_diff import planted

import abbe

pytestmark = [needs_browser, pytest.mark.slow]
NARROW = {"width": 400, "height": 800}
CHARTS = ("largest", "dispersion", "separability")
ROWS = "table[data-choose] tbody tr:visible"


@pytest.fixture(scope="module")
def diff() -> abbe.Difference:
    return abbe.diff(
        tiny_runs.model(), planted(name="<b>sharper</b>"), tiny_runs.TEXT, windows=6, queries=8, lengths=[16, 40],
        sizes=(1, 5), progress=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def file(diff: abbe.Difference, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("diff") / "diff.html"
    diff.to_html(path)
    return path


def cells(page: Any, chart: str) -> list[int]:
    """Drawn cells of each map of a chart, in order."""
    panels = page.locator(f".chart:not(.print)[data-chart={chart}] .mark-rect.role-mark")
    return [panels.nth(place).locator("path").count() for place in range(panels.count())]


@pytest.mark.parametrize("viewport", [WIDE, NARROW])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_both_maps_and_their_difference_are_drawn(viewport: dict[str, int], theme: str, opened: Opened) -> None:
    seen = opened(theme, viewport).drawn(theme, CHARTS)
    page = seen.page
    for chart in CHARTS:
        assert cells(page, chart) == [8, 8, 8]
        titles = page.locator(f".chart:not(.print)[data-chart={chart}] .role-title-text").all_text_contents()
        assert [title for title in titles if title][:2] == ["tiny gpt2", "<b>sharper</b>"]
        dots = page.locator(f".chart:not(.print)[data-chart={chart}] .mark-symbol.role-mark path")
        assert dots.count() == 1  # the head that was planted
    # Maps lie side by side where there is room, else one below the other.
    boxes = [
        page.locator(".chart:not(.print)[data-chart=dispersion] .mark-rect.role-mark").nth(place).bounding_box()
        for place in range(3)
    ]
    assert (len({round(box["y"]) for box in boxes}) == 1) is (viewport is WIDE)
    assert all(box["x"] >= 0 and box["x"] + box["width"] <= viewport["width"] for box in boxes)
    seen.fits()
    seen.quiet()


def test_a_head_is_chosen_by_the_list_and_by_a_click(diff: abbe.Difference, opened: Opened) -> None:
    seen = opened()
    page = seen.ready().drawn("light", CHARTS).page
    names = page.get_by_label("head", exact=True).locator("option").all_inner_texts()
    assert len(names) == 8
    assert names[0] == "layer 1, head 2"  # the largest change comes first

    def shown() -> list[str]:
        """The head of each visible row, from its first cell, which is hidden."""
        return [str(text) for text in page.locator(f"{ROWS} td:first-child").all_text_contents()]

    assert set(shown()) == {"layer 1, head 2"}
    assert 5 < len(shown()) < 12
    page.get_by_label("head", exact=True).select_option("layer 0, head 3")
    assert set(shown()) == {"layer 0, head 3"}
    dot = page.locator(".chart:not(.print)[data-chart=dispersion] .mark-symbol.role-mark path").first
    dot.click()
    assert set(shown()) == {"layer 1, head 2"}
    assert page.get_by_label("head", exact=True).input_value() == "layer 1, head 2"
    cell = page.locator(".chart:not(.print)[data-chart=dispersion] .mark-rect.role-mark").first.locator("path").first
    layer, head = (cell.get_attribute("aria-label") or "").split("; ")[1::-1]
    cell.click()
    assert set(shown()) == {f"{layer.replace(': ', ' ')}, {head.replace(': ', ' ')}"}
    seen.quiet()


def test_the_largest_changes_come_first(diff: abbe.Difference, opened: Opened) -> None:
    seen = opened()
    page = seen.ready().page
    table = page.get_by_role("region", name="Largest changes of single heads").locator("tbody tr")
    first = diff.changed.row(0, named=True)
    assert table.first.locator("td").first.inner_text() == f"layer {first['layer']}, head {first['head']}"
    assert table.count() == diff.changed.unique(["layer", "head", "measure"]).height
    assert page.title() == "abbe diff: What changes from tiny gpt2 to <b>sharper</b>?"
    seen.quiet()


def test_without_scripts_all_heads_are_listed(opened: Opened) -> None:
    page = opened(java_script_enabled=False).page
    assert len(set(page.locator(f"{ROWS} td:first-child").all_inner_texts())) == 8
    assert page.locator("table[data-choose] th:first-child").is_visible()
