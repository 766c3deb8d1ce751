"""The pages of capacity and calibration in a real browser, from disk and without a network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import test_calibration_view as calibration
import test_capacity_view as capacity
from page_in_browser import PHONE, WIDE, needs_browser, opener

pytestmark = needs_browser


@pytest.mark.quick(1)
@pytest.mark.parametrize(("viewport", "theme"), [(PHONE, "dark"), (WIDE, "light"), (WIDE, "dark"), (PHONE, "light")])
def test_charts_are_drawn_in_the_theme_and_fit(
    viewport: dict[str, int], theme: str, browser: Any, tmp_path: Path
) -> None:
    file = tmp_path / "capacity.html"
    capacity.made_up(capacity.settings_of(), "<script>document.title='x'</script>" + "very" * 40).to_html(file)
    with opener(browser, file) as open_page:
        seen = open_page(theme, viewport).drawn(theme)
        assert seen.page.title().startswith("abbe capacity: How many keys per query does <script>")
        seen.fits()
        seen.quiet()


def test_the_theme_can_be_changed(browser: Any, tmp_path: Path) -> None:
    file = tmp_path / "calibrate.html"
    calibration.made_up(True).to_html(file)
    with opener(browser, file) as open_page:
        seen = open_page(viewport=PHONE)
        seen.page.get_by_role("button", name="Dark theme").click()
        assert seen.page.locator("html").get_attribute("data-theme") == "dark"
        seen.fits()
        seen.quiet()
