"""The page of `abbe verify` in a real browser, on a phone and on a desk."""

from __future__ import annotations

from pathlib import Path

import pytest
from page_in_browser import PHONE, WIDE, Opened, Seen, needs_browser

from abbe.studies import verify

pytestmark = needs_browser
STATEMENTS = ("vanishing", "spectral", "spectral-paper", "theorem-2-upper", "distance-sandwich-upper")
LABELS = ["statement", "says", "source", "draws", "typical", "worst", "verdict"]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "verify.html"
    path.write_text(verify(STATEMENTS, 5, 0).to_html(), encoding="utf-8")
    return path


def widths(seen: Seen, place: str) -> list[float]:
    pixels: list[float] = seen.page.locator(place).evaluate_all("all => all.map(e => e.getBoundingClientRect().width)")
    return pixels


@pytest.mark.slow
@pytest.mark.quick(1)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_what_a_statement_says_can_be_read_on_a_phone(opened: Opened, scheme: str) -> None:
    seen = opened(scheme, PHONE)
    says = widths(seen, "td.says")
    assert len(says) == len(STATEMENTS)
    assert min(says) >= 0.75 * PHONE["width"]  # it was two characters wide
    cut_off = seen.page.locator(".scroll").evaluate_all("all => all.filter(e => e.scrollWidth > e.clientWidth).length")
    assert cut_off == 0
    seen.quiet()


def test_cells_say_what_they_are_where_there_is_no_header(opened: Opened) -> None:
    """A phone has no room for seven columns: every row is a block of labelled lines."""
    seen = opened("light", PHONE)
    row = seen.page.locator("tbody tr").first
    shown = row.locator("td").evaluate_all("all => all.map(e => getComputedStyle(e, '::before').content)")
    assert [label.strip('"') for label in shown] == LABELS
    tops = row.locator("td").evaluate_all("all => all.map(e => e.getBoundingClientRect().top)")
    assert tops == sorted(set(tops))  # one below the other
    # Still a table to a screen reader, with its header.
    assert seen.page.get_by_role("columnheader", name="worst").count() > 0
    assert seen.page.get_by_role("row").count() > len(STATEMENTS)


@pytest.mark.slow
@pytest.mark.parametrize("width", [900, 1280])
def test_a_wide_page_is_a_table(opened: Opened, width: int) -> None:
    seen = opened("light", WIDE | {"width": width})
    tops = (
        seen.page.locator("tbody tr").first.locator("td").evaluate_all("a => a.map(e => e.getBoundingClientRect().y)")
    )
    assert len(set(tops)) == 1
    assert min(widths(seen, "td.says")) >= 250
    assert seen.page.locator("thead").first.is_visible()
    assert seen.page.locator("td").first.evaluate("e => getComputedStyle(e, '::before').content") == "none"
