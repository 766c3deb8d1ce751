"""The page of `abbe compare` in a real browser, from disk and without a network."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import made_up_compare as made
import pytest

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
WIDE, PHONE = {"width": 1280, "height": 900}, {"width": 360, "height": 740}
CHARTS = ("pareto", "needle")
NASTY = "<script>document.title='x'</script>" + "very" * 40


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = made.comparison(text={"name": NASTY, "characters": 5}, skipped=[NASTY])
    return made.page_file(found, tmp_path_factory.mktemp("page"))


class Seen:
    """A page in its own context, and everything it said and asked for."""

    def __init__(self, browser: Any, file: Path, scheme: str = "light", viewport: dict[str, int] = WIDE) -> None:
        self.context = browser.new_context(color_scheme=scheme, viewport=viewport)
        self.page = self.context.new_page()
        self.told: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda message: self.told.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.told.append(f"error: {error}"))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(file.as_uri())
        self.drawn(scheme)

    def drawn(self, theme: str) -> None:
        """Wait until every chart is drawn in the theme; a timeout is a failure."""
        for name in CHARTS:
            self.page.locator(f".chart:not(.print)[data-chart={name}][data-drawn={theme}] svg.marks").wait_for()

    def printed(self) -> None:
        for name in CHARTS:
            self.page.locator(f".chart.print[data-chart={name}][data-drawn=light] svg").wait_for(state="attached")

    def column(self, number: int) -> list[str]:
        cells = self.page.locator(f"#table > .scroll table tbody td:nth-child({number})")
        return [text.split("\n")[0] for text in cells.all_inner_texts()]


@pytest.fixture(params=["light", "dark"])
def seen(request: pytest.FixtureRequest, browser: Any, file: Path) -> Iterator[Seen]:
    found = Seen(browser, file, request.param)
    yield found
    found.context.close()


@pytest.fixture(scope="module")
def light(browser: Any, file: Path) -> Iterator[Seen]:
    """One page for tests that hold however another has sorted its table."""
    opened = Seen(browser, file)
    yield opened
    opened.context.close()


@pytest.fixture
def phone(browser: Any, file: Path) -> Iterator[Seen]:
    found = Seen(browser, file, viewport=PHONE)
    yield found
    found.context.close()


def test_opens_from_disk_without_an_error_or_a_request(light: Seen, file: Path) -> None:
    whole_and_quiet(light, file)


@pytest.mark.slow
def test_opens_dark_without_an_error_or_a_request(browser: Any, file: Path) -> None:
    dark = Seen(browser, file, "dark")
    whole_and_quiet(dark, file)
    dark.context.close()


def whole_and_quiet(seen: Seen, file: Path) -> None:
    seen.printed()
    assert seen.told == []
    assert seen.asked == [file.as_uri()]
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
    assert seen.column(2) == ["3.2", "3.21", "3.21", "4.9", "6.1"]
    assert seen.column(1)[-1] == "sparsemax"
    button.focus()
    seen.page.keyboard.press("Enter")
    assert seen.column(2) == ["6.1", "4.9", "3.21", "3.21", "3.2"]
    assert seen.told == []


@pytest.mark.slow
def test_the_button_changes_the_theme(browser: Any, file: Path) -> None:
    seen = Seen(browser, file)
    seen.page.get_by_role("button", name="Dark theme").click()
    seen.drawn("dark")
    ground = seen.page.evaluate("() => getComputedStyle(document.body).backgroundColor")
    assert ground == "rgb(18, 22, 28)"
    seen.page.get_by_role("button", name="Light theme").click()
    seen.drawn("light")
    assert seen.told == []
    seen.context.close()


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
def test_a_phone_does_not_scroll_sideways(phone: Seen) -> None:
    wide = "() => [document.documentElement.scrollWidth, document.body.scrollWidth]"
    assert max(phone.page.evaluate(wide)) <= PHONE["width"]
    for details in phone.page.locator("details:not(.vega-embed details)").all():
        details.locator("summary").click()
    assert max(phone.page.evaluate(wide)) <= PHONE["width"]
    assert phone.told == []


@pytest.mark.slow
def test_print_is_light_and_whole(seen: Seen) -> None:
    seen.printed()
    seen.page.emulate_media(media="print")
    ground = seen.page.evaluate("() => getComputedStyle(document.body).backgroundColor")
    assert ground == "rgb(255, 255, 255)"
    assert seen.page.locator(".chart.print svg.marks:visible").count() == len(CHARTS)
    assert seen.page.locator(".chart:not(.print) svg.marks:visible").count() == 0
    assert not seen.page.locator("#theme").is_visible()


@pytest.mark.slow
def test_without_scripts_the_numbers_are_there(browser: Any, file: Path) -> None:
    context = browser.new_context(java_script_enabled=False, viewport=WIDE)
    page = context.new_page()
    page.goto(file.as_uri())
    assert page.get_by_text("need JavaScript").is_visible()
    assert page.locator("#table table").first.is_visible()
    assert not page.locator("#theme").is_visible()
    context.close()
