"""The page of `abbe reproduce` as text: self-contained, escaped, complete; and the figures as files."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from made_up import CLAIMS, MANIFEST, figures, reproduction
from parsed_page import HOSTILE, Page

from abbe import AbbeError
from abbe.studies import Claim
from abbe.views import figures as save_figures
from abbe.views.html import as_json
from abbe.words.numbers import duration


@pytest.fixture(scope="module")
def text() -> str:
    return reproduction().to_html()


@pytest.fixture(scope="module")
def page(text: str) -> Page:
    return Page(text)


def test_the_page_asks_for_nothing(text: str, page: Page) -> None:
    assert text.startswith("<!doctype html>")
    assert len(text.encode()) < 2_500_000
    links = [(tag, value) for tag, _, value in page.asks]
    assert {tag for tag, _ in links} == {"a"}
    assert {value for _, value in links if not (value or "").startswith("#")} == {"https://arxiv.org/abs/2508.17821"}
    assert not {"link", "iframe", "img", "object", "embed", "base", "form"} & set(page.tags)
    assert all(f'id="{value[1:]}"' in text for _, value in links if value and value.startswith("#"))
    for forbidden in ("@import", "url("):
        assert forbidden not in re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL)


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


def test_hostile_text_is_inert() -> None:
    claim = Claim("2a", HOSTILE, HOSTILE, HOSTILE, HOSTILE, "holds", {HOSTILE: 1.5})
    manifest = MANIFEST | {
        "model": {"name": HOSTILE, "about": HOSTILE},
        "text": {"name": HOSTILE},
        "skipped": [HOSTILE],
        HOSTILE: HOSTILE,
    }
    odd = reproduction(manifest=manifest, claims=(claim,), figures={"4": figures()["4"]})
    text = odd.to_html()
    plain = Page(reproduction(claims=(claim,), figures={"4": figures()["4"]}).to_html())
    parsed = Page(text)
    assert "<script>alert" not in text
    assert "<img src=x" not in text
    assert "onerror" not in parsed.attributes
    assert parsed.tags.count("script") == plain.tags.count("script") == 4
    assert set(parsed.tags) == set(plain.tags)
    assert parsed.text.count("alert(1)") >= 10  # as text: title, heading, facts, statement, skipped, manifest
    assert "{{ 7*7 }}" in parsed.text
    assert "49" not in parsed.text
    assert parsed.policy == plain.policy


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


def test_figures_are_saved_in_both_themes(tmp_path: Path) -> None:
    few = reproduction(figures={"drift": figures()["drift"], "2a": figures()["2a"]})
    written = save_figures(few, tmp_path / "new" / "folder")
    assert [path.name for path in written] == [
        f"figure-{name}{theme}.{ending}"
        for name in ("2a", "drift")
        for theme in ("", "-dark")
        for ending in ("png", "svg", "pdf")
    ]
    for path in written:
        content = path.read_bytes()
        assert content.startswith({".png": b"\x89PNG", ".svg": b"<svg", ".pdf": b"%PDF"}[path.suffix])
        assert len(content) > 8000
    assert b"#12161c" in (tmp_path / "new/folder/figure-2a-dark.svg").read_bytes()
    width = int.from_bytes((tmp_path / "new/folder/figure-2a.png").read_bytes()[16:20])
    assert 1200 < width < 1600  # twice the width on a page
    assert save_figures(few, str(tmp_path / "new" / "folder")) == written


def test_a_file_is_no_folder_for_figures(tmp_path: Path) -> None:
    (tmp_path / "here").write_text("x")
    for target in (tmp_path / "here", tmp_path / "here" / "below"):
        with pytest.raises(AbbeError, match="is a file: give a folder for the figures"):
            save_figures(reproduction(), target)
