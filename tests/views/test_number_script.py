"""The script of the pages and `abbe.words.numbers` show the same number with the same text."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
from page_in_browser import needs_browser

from abbe.views.html import script
from abbe.words.numbers import number

pytestmark = needs_browser

TABLE = [
    *(None, 0, 1, -1, 20, 256, 999, 1000, 1024, 12_345, 1_234_567, 999_999_999, 1_000_000_000, 2**40, -48_000),
    *(0.0, -0.0, 0.5, 0.1, 0.05, 0.123456, 0.99996, 0.9999499, -0.123456, 1.0, 1.5, 9.9996, 12.34, 100.04, 123.456),
    *(999.4, 999.96, 999.5, 1000.4, 1234.5, -1234.5, 37754.3, 999_999_999.4, 999_999_999.6, 3e12, 1e300, -2.5e15),
    *(1e-3, 9.9996e-4, 1e-4, 9.9999e-5, 9.99996e-5, 1.23456e-5, 2.5e-9, -7.7e-12, 1e-300),
    *(1.0625, 2.5, 0.375, 1.03125, 10.125, 0.0625, -1.0625, 1000.5, 2047.5),  # ties that are exact in binary
]


@pytest.fixture(scope="module")
def page(browser: Any) -> Iterator[Any]:
    """An empty page that has read the script."""
    opened = browser.new_page()
    opened.evaluate(f"() => {{ {script('data.js')} }}")
    yield opened
    opened.close()


@pytest.mark.parametrize("digits", [2, 3, 4, 6])
def test_script_and_python_show_the_same(page: Any, digits: int) -> None:
    draw = random.Random(digits)
    values = [*TABLE, *(draw.uniform(-1, 1) * 10 ** draw.uniform(-7, 11) for _ in range(2000))]
    call = "([values, digits]) => values.map((x) => window.abbe.number(x, digits))"
    shown = page.evaluate(call, [values, digits])
    wrong = {value: (text, number(value, digits)) for value, text in zip(values, shown, strict=True)
             if text != number(value, digits)}  # fmt: skip
    assert not wrong


def test_what_json_cannot_hold(page: Any) -> None:
    odd = "[NaN, Infinity, -Infinity, undefined, 'Infinity', 'word'].map((x) => window.abbe.number(x))"
    assert page.evaluate(f"() => {odd}") == ["NaN", "∞", "-∞", "–", "∞", "word"]
    assert [number(x) for x in (float("nan"), float("inf"), -float("inf"), None, "word")] == [
        *("NaN", "∞", "-∞", "–", "word"),
    ]
