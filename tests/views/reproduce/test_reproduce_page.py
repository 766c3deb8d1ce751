"""The page of `abbe reproduce` as text: self-contained, escaped, complete; and the figures as files."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from made_up import CLAIMS, figures, reproduction
from parsed_page import Page

from abbe.views.html import as_json
from abbe.words.numbers import duration


@pytest.fixture(scope="module")
def text() -> str:
    return reproduction().to_html()


@pytest.fixture(scope="module")
def page(text: str) -> Page:
    return Page(text)


def test_the_page_is_small_and_names_the_paper(text: str, page: Page) -> None:
    assert len(text.encode()) < 2_500_000
    links = [value or "" for _, _, value in page.asks]
    assert {value for value in links if not value.startswith("#")} == {"https://arxiv.org/abs/2508.17821"}


def test_every_figure_is_there_in_both_themes_with_its_data_once(page: Page) -> None:
    (charts,) = [json.loads(code) for kind, code in page.scripts if kind == "application/json"]
    assert list(charts) == ["2a", "2b", "2c", "3", "4", "drift"]
    for chart in charts.values():
        assert set(chart) == {"light", "dark", "datasets"}
        assert "datasets" not in chart["light"] | chart["dark"]
        named = set(re.findall(r'"data": \{"name": "([^"]+)"', json.dumps(chart["light"])))
        assert named == set(chart["datasets"])
    for name in ("2a", "2b", "2c", "3", "4"):
        assert f"Figure {name}." in page.text


def test_what_was_measured_is_reported(page: Page) -> None:
    for words in (
        "gpt2-like, 6 layers, 8 heads, 512 wide", "War and Peace, 3,200,000 characters", "48", "within 3.1e-06",
        "32, 64, 128, 256, 512, 1024 tokens, 8 of each length",
        "1 of 3 statements hold, 1 does not, 1 cannot be judged.",
        "length 2048: the model's context has 1024 tokens", '"torch": "2.13.0"', "7 min 11 s",
    ):  # fmt: skip
        assert words in page.text, words
    for claim in CLAIMS:
        for words in (claim.topic, claim.paper, claim.measured, claim.rule, claim.answer, *claim.numbers):
            assert words in page.text
    for ours, paper in (("1 min 32 s", "24 min"), ("1 min 1 s", "37 min"), ("4 min 22 s", "17 h"), ("48.9 s", "1 min")):
        assert ours in page.text
        assert paper in page.text


def test_embedded_json_cannot_be_read_as_markup() -> None:
    hostile = {"a": "</script><script>alert(1)</script>", "b": "<!--", "c": "\u2028\u2029&amp;"}
    text = as_json(hostile)
    assert not set("<>&\u2028\u2029") & set(text)
    assert json.loads(text) == hostile
    with pytest.raises(ValueError, match="JSON"):
        as_json(float("nan"))


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    "changes",
    [
        {"manifest": {}},
        {"claims": ()},
        {"figures": {}},
        {"seconds": {}},
        {"manifest": {"model": None, "self_check": {}, "seconds": 3.5, "windows": [{}, {}]}},
        {"manifest": {}, "claims": (), "figures": {}, "seconds": {}},
    ],
    ids=["no manifest", "no claims", "no figures", "no seconds", "odd manifest", "nothing"],
)
def test_a_part_may_be_missing(changes: dict[str, Any]) -> None:
    small = {"figures": {"2a": figures()["2a"]}}
    page = Page(reproduction(**(small | changes)).to_html())
    assert "The figures of the paper" in page.text
    if changes.get("claims") == ():
        assert "No statement was judged." in page.text
    if changes.get("seconds") == {}:
        assert "time here" not in page.text


@pytest.mark.slow
def test_a_claim_on_a_figure_that_is_not_there_has_no_link() -> None:
    page = Page(reproduction(figures={"2a": figures()["2a"]}).to_html())
    assert {value for _, _, value in page.asks if value and value.startswith("#")} == {"#figure-2a"}


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (None, ""), (float("nan"), ""), (0.0, "0 s"), (0.01234, "0.0123 s"), (48.94, "48.9 s"), (60, "1 min"),
        (59.99, "60 s"), (92.4, "1 min 32 s"), (3599.6, "1 h"), (61200, "17 h"), (3661, "1 h 1 min"), (90000, "25 h"),
    ],
)  # fmt: skip
def test_duration(seconds: float | None, shown: str) -> None:
    assert duration(seconds) == shown
