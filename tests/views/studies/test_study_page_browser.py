"""The pages of capacity and calibration in a real browser, from disk and without a network."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import test_calibration_view as calibration
import test_capacity_view as capacity

pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytestmark = pytest.mark.skipif(shutil.which("chromium") is None, reason="chromium is not installed")
WIDE, PHONE = {"width": 1280, "height": 900}, {"width": 360, "height": 740}


@contextmanager
def opened(browser: Any, file: Path, theme: str, viewport: dict[str, int]) -> Iterator[Any]:
    """A page that says nothing on its console, has no error, and is not wider than the screen."""
    context = browser.new_context(color_scheme=theme, viewport=viewport)
    page, problems = context.new_page(), []
    page.on("console", lambda message: problems.append(message.text))
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.goto(file.as_uri())
    yield page
    assert page.evaluate("document.documentElement.scrollWidth") == viewport["width"]
    assert not problems
    context.close()


@pytest.mark.quick(1)
@pytest.mark.parametrize(("viewport", "theme"), [(PHONE, "dark"), (WIDE, "light"), (WIDE, "dark"), (PHONE, "light")])
def test_charts_are_drawn_in_the_theme_and_fit(
    viewport: dict[str, int], theme: str, browser: Any, tmp_path: Path
) -> None:
    file = tmp_path / "capacity.html"
    capacity.made_up(capacity.settings_of(), "<script>document.title='x'</script>" + "very" * 40).to_html(file)
    with opened(browser, file, theme, viewport) as page:
        page.locator(f".chart:not(.print)[data-drawn={theme}] svg.marks").wait_for()
        assert page.title().startswith("abbe capacity: How many tokens does <script>")


def test_a_page_without_charts_changes_its_theme(browser: Any, tmp_path: Path) -> None:
    file = tmp_path / "calibrate.html"
    calibration.made_up(True).to_html(file)
    with opened(browser, file, "light", PHONE) as page:
        page.get_by_role("button", name="Dark theme").click()
        assert page.locator("html").get_attribute("data-theme") == "dark"
