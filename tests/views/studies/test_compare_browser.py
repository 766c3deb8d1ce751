"""The page of `abbe compare` in a real browser, from disk and without a network."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import made_up_compare as made
import pytest
from page_in_browser import PHONE, Opened, Seen, needs_browser, opener

pytestmark = needs_browser
NASTY = "<script>document.title='x'</script>" + "very" * 40


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    comparison = made.comparison(text={"name": NASTY, "characters": 5}, skipped=[NASTY])
    return made.page_file(comparison, tmp_path_factory.mktemp("page"))


@pytest.fixture(params=["light", "dark"])
def seen(request: pytest.FixtureRequest, opened: Opened) -> Seen:
    return opened(request.param).drawn(request.param)


@pytest.fixture(scope="module")
def light(browser: Any, file: Path) -> Iterator[Seen]:
    """One page for tests that hold however another has sorted its table."""
    with opener(browser, file) as open_page:
        yield open_page().drawn("light")


def column(seen: Seen, number: int) -> list[str]:
    cells = seen.page.locator(f"#table > .scroll table tbody td:nth-child({number})")
    return [text.split("\n")[0] for text in cells.all_inner_texts()]


def test_opens_from_disk_without_an_error_or_a_request(light: Seen) -> None:
    whole_and_quiet(light)


@pytest.mark.slow
def test_opens_dark_without_an_error_or_a_request(opened: Opened) -> None:
    whole_and_quiet(opened("dark").drawn("dark"))


def whole_and_quiet(seen: Seen) -> None:
    seen.printed().quiet()
    assert seen.page.title() == "abbe compare: gpt2-like"
    assert seen.page.get_by_text("helps this model").is_visible()
    assert not seen.page.get_by_text("need JavaScript").is_visible()
    for chart in seen.page.locator(".chart:not(.print) svg.marks").all():
        assert chart.bounding_box()["width"] > 600


@pytest.mark.slow
def test_the_first_table_is_whole_on_a_wide_screen(seen: Seen) -> None:
    """Nobody scrolls sideways for a column that is not seen."""
    wide = seen.page.locator("#table > .scroll").evaluate("part => [part.scrollWidth, part.clientWidth]")
    assert wide[0] <= wide[1]


def test_a_header_sorts_by_numbers_in_both_directions(light: Seen) -> None:
    seen = light
    button = seen.page.locator("#table > .scroll th button").nth(1)
    button.click()
    assert column(seen, 2) == ["3.2", "3.21", "3.21", "4.9", "6.1"]
    assert column(seen, 1)[-1] == "sparsemax"
    button.focus()
    seen.page.keyboard.press("Enter")
    assert column(seen, 2) == ["6.1", "4.9", "3.21", "3.21", "3.2"]
    assert seen.messages == []


@pytest.mark.slow
def test_the_button_changes_the_theme(opened: Opened) -> None:
    seen = opened().drawn("light")
    seen.page.get_by_role("button", name="Dark theme").click()
    seen.drawn("dark")
    assert seen.ground() == "rgb(18, 22, 28)"
    seen.page.get_by_role("button", name="Light theme").click()
    seen.drawn("light")
    assert seen.messages == []


@pytest.mark.slow
def test_details_open_by_keyboard_and_points_have_tooltips(seen: Seen) -> None:
    details = seen.page.locator(".findings details").first
    details.locator("summary").focus()
    seen.page.keyboard.press("Enter")
    assert seen.page.get_by_text("An alternative helps if").is_visible()
    seen.page.locator("[data-chart=pareto]:not(.print) .mark-symbol.role-mark path").first.hover()
    tooltip = seen.page.locator("#vg-tooltip-element.visible")
    tooltip.wait_for()
    assert "loss" in tooltip.inner_text()


@pytest.mark.slow
def test_a_phone_does_not_scroll_sideways(opened: Opened) -> None:
    phone = opened(viewport=PHONE).drawn("light")
    phone.fits()
    phone.open_details()
    phone.fits()
    assert phone.messages == []


@pytest.mark.slow
def test_print_is_light_and_whole(seen: Seen) -> None:
    seen.printed()
    seen.page.emulate_media(media="print")
    assert seen.ground() == "rgb(255, 255, 255)"
    assert seen.page.locator(".chart.print svg.marks:visible").count() == 2
    assert seen.page.locator(".chart:not(.print) svg.marks:visible").count() == 0
    assert not seen.page.locator("#theme").is_visible()


@pytest.mark.slow
def test_without_scripts_the_numbers_are_there(opened: Opened) -> None:
    page = opened(java_script_enabled=False).page
    assert page.get_by_text("need JavaScript").is_visible()
    assert page.locator("#table table").first.is_visible()
    assert not page.locator("#theme").is_visible()
