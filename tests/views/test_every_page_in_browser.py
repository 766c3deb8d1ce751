"""Every page in a real browser, from disk and without a network, on a desk and on a phone, light and dark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import made_up
import made_up_calibration
import made_up_capacity
import made_up_compare
import made_up_watch
import pytest
from page_in_browser import PHONE, WIDE, Opened, Seen, needs_browser, opener

from abbe.studies import verify

pytestmark = needs_browser
NASTY = "<script>document.title='x'</script>" + "very" * 40
STATEMENTS = ("vanishing", "spectral", "spectral-paper", "theorem-2-upper", "distance-sandwich-upper")
WORDS: dict[str, Any] = {"text": {"name": NASTY, "characters": 5}, "skipped": [NASTY]}
PAGES: dict[str, Callable[[], str]] = {
    "capacity": lambda: made_up_capacity.made_up(NASTY).to_html(),
    "watch": lambda: made_up_watch.training(model={"name": NASTY}, skipped=[NASTY]).to_html(),
    "compare": lambda: made_up_compare.comparison(**WORDS).to_html(),
    "verify": lambda: verify(STATEMENTS, 5, 0).to_html(),
    "reproduce": lambda: made_up.reproduction(manifest=made_up.MANIFEST | WORDS).to_html(),
    "calibrate": lambda: made_up_calibration.made_up(True).to_html(),
}
SCREENS = [(PHONE, "dark"), (WIDE, "light"), (WIDE, "dark"), (PHONE, "light")]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    folder = tmp_path_factory.mktemp("pages")

    def file(study: str) -> Path:
        path = folder / f"{study}.html"
        if not path.exists():
            path.write_text(PAGES[study](), encoding="utf-8")
        return path

    return file


@pytest.mark.quick(4)
@pytest.mark.parametrize("study", PAGES)
@pytest.mark.parametrize(("viewport", "theme"), SCREENS)
def test_it_opens_without_a_message_or_a_request_and_fits(
    study: str, viewport: dict[str, int], theme: str, browser: Any, files: Callable[[str], Path]
) -> None:
    with opener(browser, files(study)) as open_page:
        seen = open_page(theme, viewport)
        assert seen.page.title().startswith(f"abbe {study}")
        if study not in ("watch", "verify"):  # whose curves are drawn by the page, or in advance
            seen.drawn(theme).printed()
            for chart in seen.page.locator(".chart:not(.print) svg.marks").all():
                assert 250 < chart.bounding_box()["width"] <= viewport["width"]
                texts = chart.locator("text").all()
                assert all(text.bounding_box()["height"] >= 9 for text in texts[:12] if text.is_visible())
        assert not seen.page.get_by_text("need JavaScript").is_visible()
        seen.fits()
        seen.open_details()
        seen.fits()
        if viewport is WIDE:  # nobody scrolls sideways for a column that is not seen
            hidden = "all => all.filter(e => e.scrollWidth > e.clientWidth).length"
            assert seen.page.locator("#tables .scroll").evaluate_all(hidden) == 0
        seen.quiet()


@pytest.mark.slow
@pytest.mark.parametrize("study", ["compare", "reproduce"])
def test_without_scripts_the_numbers_are_there(study: str, browser: Any, files: Callable[[str], Path]) -> None:
    with opener(browser, files(study)) as open_page:
        page = open_page(java_script_enabled=False).page
        assert page.get_by_text("need JavaScript").is_visible()
        assert page.locator("table").first.is_visible()


def test_the_theme_can_be_changed(browser: Any, files: Callable[[str], Path]) -> None:
    with opener(browser, files("calibrate")) as open_page:
        seen = open_page(viewport=PHONE)
        seen.page.get_by_role("button", name="Dark theme").click()
        assert seen.page.locator("html").get_attribute("data-theme") == "dark"
        seen.fits()
        seen.quiet()


# -- Tables and charts as all pages have them -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def compared(browser: Any, files: Callable[[str], Path]) -> Iterator[Seen]:
    """One page for tests that hold however another has sorted its table."""
    with opener(browser, files("compare")) as open_page:
        yield open_page().drawn("light")


@pytest.fixture
def reproduced(browser: Any, files: Callable[[str], Path]) -> Iterator[Opened]:
    with opener(browser, files("reproduce")) as open_page:
        yield open_page


def losses(seen: Seen) -> Any:
    return seen.page.get_by_role("region", name="Loss", exact=True)


def column(seen: Seen, number: int) -> list[str]:
    cells = losses(seen).locator(f"tbody td:nth-child({number})").all_inner_texts()
    return [text.partition(" ")[0] for text in cells]


def test_a_header_sorts_by_numbers_in_both_directions(compared: Seen) -> None:
    button = losses(compared).locator("th button").nth(1)
    button.click()
    assert column(compared, 2) == ["3.2", "3.21", "3.21", "4.9", "6.1"]
    assert column(compared, 1)[-1] == "sparsemax"
    button.focus()
    compared.page.keyboard.press("Enter")
    assert column(compared, 2) == ["6.1", "4.9", "3.21", "3.21", "3.2"]
    change = losses(compared).locator("th button").nth(3)  # +0.0050, +0.01, 0, +1.7, +2.9
    change.click()
    assert column(compared, 1) == ["baseline", "topp:p=0.9", "topk:k=32", "entmax:alpha=1.5", "sparsemax"]
    assert compared.messages == []


@pytest.mark.slow
def test_the_rule_opens_by_keyboard(compared: Seen) -> None:
    details = compared.page.locator(".findings details").first
    details.locator("summary").focus()
    compared.page.keyboard.press("Enter")
    assert compared.page.get_by_text("An alternative helps if").is_visible()


@pytest.mark.slow
def test_the_theme_follows_the_system_until_one_is_chosen(reproduced: Opened) -> None:
    seen = reproduced().drawn("light")
    seen.page.emulate_media(color_scheme="dark")
    seen.drawn("dark")
    seen.page.get_by_role("button", name="Light theme").click()
    seen.drawn("light")
    seen.page.emulate_media(color_scheme="light")
    seen.page.emulate_media(color_scheme="dark")
    seen.page.wait_for_timeout(200)
    assert seen.page.locator("html").get_attribute("data-theme") == "light"


@pytest.mark.slow
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_point_has_a_tooltip(reproduced: Opened, theme: str) -> None:
    seen = reproduced(theme).drawn(theme)
    seen.page.locator("[data-chart='2a']:not(.print) .mark-symbol.role-mark path").first.hover()
    tooltip = seen.page.locator("#vg-tooltip-element.visible")
    tooltip.wait_for()
    for words in ("selected: N largest weights", "length L (tokens)", "32"):
        assert words in tooltip.inner_text()


@pytest.mark.slow
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_chart_can_be_saved(reproduced: Opened, theme: str) -> None:
    seen = reproduced(theme).drawn(theme)
    chart = seen.page.locator("[data-chart='2a']:not(.print)")
    chart.locator("summary").click()
    for words, start in (("PNG", b"\x89PNG"), ("SVG", b"<svg")):
        with seen.page.expect_download() as waiting:
            chart.get_by_text(f"Save as {words}").click()
        assert waiting.value.suggested_filename == f"figure-2a.{words.lower()}"
        assert Path(waiting.value.path()).read_bytes().startswith(start)
    assert seen.messages == []


@pytest.mark.slow
def test_charts_are_drawn_anew_for_another_width(reproduced: Opened) -> None:
    phone = reproduced(viewport=PHONE).drawn("light")
    chart = phone.page.locator("[data-chart='2a']:not(.print) svg.marks")
    narrow = chart.bounding_box()
    phone.page.set_viewport_size(WIDE)
    phone.page.wait_for_timeout(1500)
    broad = chart.bounding_box()
    assert broad["width"] > 2 * narrow["width"]
    assert broad["height"] < narrow["height"]  # side by side, no longer one below the other
