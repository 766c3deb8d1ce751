"""The page of `abbe compare` in a real browser, from disk and without a network."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import made_up_compare as made
import pytest
from page_in_browser import Seen, needs_browser, opener

pytestmark = needs_browser


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "compare.html"
    made.comparison().to_html(path)
    return path


@pytest.fixture(scope="module")
def light(browser: Any, file: Path) -> Iterator[Seen]:
    """One page for tests that hold however another has sorted its table."""
    with opener(browser, file) as open_page:
        yield open_page().drawn("light")


def losses(seen: Seen) -> Any:
    return seen.page.get_by_role("region", name="Loss", exact=True)


def column(seen: Seen, number: int) -> list[str]:
    cells = losses(seen).locator(f"tbody td:nth-child({number})").all_inner_texts()
    return [text.partition(" ")[0] for text in cells]


def test_a_header_sorts_by_numbers_in_both_directions(light: Seen) -> None:
    button = losses(light).locator("th button").nth(1)
    button.click()
    assert column(light, 2) == ["3.2", "3.21", "3.21", "4.9", "6.1"]
    assert column(light, 1)[-1] == "sparsemax"
    button.focus()
    light.page.keyboard.press("Enter")
    assert column(light, 2) == ["6.1", "4.9", "3.21", "3.21", "3.2"]
    change = losses(light).locator("th button").nth(3)  # +0.0050, +0.01, 0, +1.7, +2.9
    change.click()
    assert column(light, 1) == ["baseline", "topp:p=0.9", "topk:k=32", "entmax:alpha=1.5", "sparsemax"]
    assert light.messages == []


@pytest.mark.slow
def test_the_rule_opens_by_keyboard(light: Seen) -> None:
    details = light.page.locator(".findings details").first
    details.locator("summary").focus()
    light.page.keyboard.press("Enter")
    assert light.page.get_by_text("An alternative helps if").is_visible()
