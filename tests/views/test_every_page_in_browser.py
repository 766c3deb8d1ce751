"""Every page in a real browser, from disk and without a network, on a desk and on a phone, light and dark."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import made_up
import made_up_calibration
import made_up_capacity
import made_up_compare
import made_up_watch
import pytest
from page_in_browser import PHONE, WIDE, needs_browser, opener

from abbe.studies import verify

pytestmark = needs_browser
NASTY = "<script>document.title='x'</script>" + "very" * 40
STATEMENTS = ("vanishing", "spectral", "spectral-paper", "theorem-2-upper", "distance-sandwich-upper")
WORDS: dict[str, Any] = {"text": {"name": NASTY, "characters": 5}, "skipped": [NASTY]}
PAGES: dict[str, Callable[[], str]] = {
    "capacity": lambda: made_up_capacity.made_up(made_up_capacity.settings_of(), NASTY).to_html(),
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
