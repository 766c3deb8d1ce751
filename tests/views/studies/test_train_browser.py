"""The page of an experiment in a real browser, from disk and without a network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from made_up_train import made_up
from page_in_browser import PHONE, WIDE, needs_browser, opener

pytestmark = needs_browser


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("experiment", "viewport", "theme"),
    [("temperature", PHONE, "dark"), ("temperature", WIDE, "light"), ("length", PHONE, "light")],
)
def test_all_charts_are_drawn_and_a_rule_is_one_click_away(
    experiment: str, viewport: dict[str, int], theme: str, browser: Any, tmp_path: Path
) -> None:
    file = tmp_path / "train.html"
    made_up(experiment, temperatures=("1", "0.1"), optimizers=("sgd",), text="a <b>task</b>").to_html(file)
    with opener(browser, file) as open_page:
        seen = open_page(theme, viewport).drawn(theme)
        page = seen.page
        assert len(seen.charts()) == 5
        last = "sensitivity" if experiment == "temperature" else "curves"
        page.get_by_role("navigation").get_by_role("link", name=last.capitalize()).click()
        page.wait_for_function("() => window.scrollY > 0")  # it scrolls smoothly
        rule = page.get_by_text("holds if accuracy falls by 10 %")
        assert not rule.is_visible()
        page.get_by_text("rule and numbers").first.click()
        assert rule.is_visible()
        assert page.get_by_text("small transformers; task: a <b>task</b>").is_visible()
        seen.fits()
        seen.quiet()
