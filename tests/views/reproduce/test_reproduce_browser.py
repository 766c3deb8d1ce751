"""The page of `abbe reproduce` in a real browser, from disk and without a network."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_up import reproduction
from page_in_browser import PHONE, WIDE, Opened, Seen, needs_browser

pytestmark = [needs_browser, pytest.mark.slow]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "reproduce.html"
    reproduction().to_html(path)
    return path


@pytest.fixture(params=["light", "dark"])
def seen(request: pytest.FixtureRequest, opened: Opened) -> Seen:
    return opened(request.param, WIDE).drawn(request.param)


def test_the_theme_follows_the_system_until_one_is_chosen(opened: Opened) -> None:
    seen = opened().drawn("light")
    seen.page.emulate_media(color_scheme="dark")
    seen.drawn("dark")
    seen.page.get_by_role("button", name="Light theme").click()
    seen.drawn("light")
    seen.page.emulate_media(color_scheme="light")
    seen.page.emulate_media(color_scheme="dark")
    seen.page.wait_for_timeout(200)
    assert seen.page.locator("html").get_attribute("data-theme") == "light"


def test_a_point_has_a_tooltip(seen: Seen) -> None:
    seen.page.locator("[data-chart='2a']:not(.print) .mark-symbol.role-mark path").first.hover()
    tooltip = seen.page.locator("#vg-tooltip-element.visible")
    tooltip.wait_for()
    for words in ("selected: N largest weights", "length L (tokens)", "32"):
        assert words in tooltip.inner_text()


def test_a_chart_can_be_saved(seen: Seen) -> None:
    chart = seen.page.locator("[data-chart='2a']:not(.print)")
    chart.locator("summary").click()
    for words, start in (("PNG", b"\x89PNG"), ("SVG", b"<svg")):
        with seen.page.expect_download() as waiting:
            chart.get_by_text(f"Save as {words}").click()
        assert waiting.value.suggested_filename == f"figure-2a.{words.lower()}"
        assert Path(waiting.value.path()).read_bytes().startswith(start)
    assert seen.messages == []


def test_charts_are_drawn_anew_for_another_width(opened: Opened) -> None:
    phone = opened(viewport=PHONE).drawn("light")
    chart = phone.page.locator("[data-chart='2a']:not(.print) svg.marks")
    narrow = chart.bounding_box()
    phone.page.set_viewport_size(WIDE)
    phone.page.wait_for_timeout(1500)
    broad = chart.bounding_box()
    assert broad["width"] > 2 * narrow["width"]
    assert broad["height"] < narrow["height"]  # side by side, no longer one below the other
