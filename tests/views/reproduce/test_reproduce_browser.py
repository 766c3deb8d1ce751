"""The page of `abbe reproduce` in a real browser, from disk and without a network."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_up import MANIFEST, reproduction
from page_in_browser import PHONE, WIDE, Opened, Seen, needs_browser

pytestmark = needs_browser
CHARTS = 6


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    nasty = "<script>document.title='x'</script>" + "very" * 40
    manifest = MANIFEST | {"text": {"name": nasty, "characters": 5}}
    path = tmp_path_factory.mktemp("page") / "reproduce.html"
    reproduction(manifest=manifest).to_html(path)
    return path


@pytest.fixture(params=["light", "dark"])
def seen(request: pytest.FixtureRequest, opened: Opened) -> Seen:
    return opened(request.param, WIDE).drawn(request.param)


@pytest.fixture
def phone(opened: Opened) -> Seen:
    return opened(viewport=PHONE).drawn("light")


@pytest.mark.slow
@pytest.mark.quick(1)
def test_opens_from_disk_without_an_error_or_a_request(seen: Seen) -> None:
    page = seen.page
    seen.printed().quiet()
    assert not page.get_by_text("The charts need JavaScript").is_visible()
    assert page.title() == "abbe reproduce: gpt2-like"
    for chart in page.locator(".chart:not(.print) svg.marks").all():
        box = chart.bounding_box()
        assert box["width"] > 500
        assert box["height"] > 200
    assert page.locator(".chart:not(.print) svg.marks").count() == CHARTS


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_point_has_a_tooltip(seen: Seen) -> None:
    seen.page.locator("[data-chart='2a']:not(.print) .mark-symbol.role-mark path").first.hover()
    tooltip = seen.page.locator("#vg-tooltip-element.visible")
    tooltip.wait_for()
    for words in ("selected: N largest weights", "length L (tokens)", "32"):
        assert words in tooltip.inner_text()


@pytest.mark.slow
def test_a_chart_can_be_saved(seen: Seen) -> None:
    chart = seen.page.locator("[data-chart='2a']:not(.print)")
    chart.locator("summary").click()
    for words, start in (("PNG", b"\x89PNG"), ("SVG", b"<svg")):
        with seen.page.expect_download() as waiting:
            chart.get_by_text(f"Save as {words}").click()
        assert waiting.value.suggested_filename == f"figure-2a.{words.lower()}"
        assert Path(waiting.value.path()).read_bytes().startswith(start)
    assert seen.messages == []


@pytest.mark.slow
def test_a_phone_does_not_scroll_sideways(phone: Seen) -> None:
    phone.fits()
    phone.open_details()
    phone.fits()
    for chart in phone.page.locator(".chart:not(.print) svg.marks").all():
        assert chart.bounding_box()["width"] <= PHONE["width"]
        texts = chart.locator("text").all()
        assert all(text.bounding_box()["height"] >= 9 for text in texts[:12] if text.is_visible())
    assert phone.messages == []


@pytest.mark.slow
def test_charts_are_drawn_anew_for_another_width(phone: Seen) -> None:
    chart = phone.page.locator("[data-chart='2a']:not(.print) svg.marks")
    narrow = chart.bounding_box()
    phone.page.set_viewport_size(WIDE)
    phone.page.wait_for_timeout(1500)
    broad = chart.bounding_box()
    assert broad["width"] > 2 * narrow["width"]
    assert broad["height"] < narrow["height"]  # side by side, no longer one below the other
