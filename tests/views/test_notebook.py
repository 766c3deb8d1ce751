"""What a notebook shows of a run and of a report: charts without a script, all text escaped, whatever is missing."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

import polars as pl
import pytest
from made_up_report import ADVICE, MANIFEST, NUMBERS, VERDICTS, grid, report

import abbe.views
from abbe.results import Run
from abbe.views import card_of
from abbe.words.finding import Finding, KeyNumber

HOSTILE = "<script>alert(1)</script> <img src=x onerror=alert(2)> \"'&amp; ]]> שלום \u202eabc {{ 7*7 }}"
PLACES = grid(2, 3)


class Seen(HTMLParser):
    """Tags, attributes and text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.words: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attributes

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attributes)

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(self.words)


@pytest.fixture(scope="module")
def of_run() -> str:
    return card_of(report(PLACES).run)


@pytest.fixture(scope="module")
def of_report() -> str:
    return card_of(report(PLACES))


def test_a_run_shows_what_where_and_what_was_skipped(of_run: str) -> None:
    text = Seen(of_run).text
    for words in (
        "gpt2-like on War and Peace", "6 heads", "8 windows of 64 to 1024 tokens", "self-check error 3.1e-06",
        "Which heads select, and which disperse?", "Do the heads give out as the text grows?", "Skipped",
        "length 2048: the model's context has 1024 tokens",
    ):  # fmt: skip
        assert words in text, words


def test_a_report_begins_with_its_answer(of_report: str) -> None:
    seen = Seen(of_report)
    words = [part for part in seen.words if part.strip()]
    answer = report(PLACES).answer
    assert words[0] == answer.sentence
    assert ("title", answer.rule) in seen.attributes


def test_the_table_holds_means_over_heads_at_the_size_of_the_charts(of_run: str) -> None:
    heads = report(PLACES).run.table.filter(pl.col("head").is_not_null() & (pl.col("length") == 1024))
    rows = re.findall(r"<tr[^>]*>(.*?)</tr>", of_run)
    cells = [re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row) for row in rows]
    assert cells[0] == ["mean over heads", "N", "value", "limit", "control"]
    (separability,) = [row for row in cells if row[0] == "separability"]
    of = heads.filter((pl.col("measure") == "separability") & (pl.col("n") == 20))
    assert separability[1] == "20"
    assert float(separability[2]) == pytest.approx(sum(of["value"]) / 6, rel=1e-3)
    assert separability[3] == "–"
    assert float(separability[4]) == pytest.approx(sum(of["control"]) / 6, rel=1e-3)
    (dispersion,) = [row for row in cells if row[0] == "effective tokens"]
    of = heads.filter(pl.col("measure") == "effective_tokens")
    assert float(dispersion[2]) == pytest.approx(sum(of["value"]) / 6, rel=1e-3)
    assert len(cells) == 11


def test_a_report_shows_numbers_verdicts_and_advice(of_report: str) -> None:
    text = Seen(of_report).text
    for number in NUMBERS:
        for words in (number.name, number.shown, number.meaning):
            assert words in text
    for finding in (*VERDICTS, *ADVICE):
        assert finding.sentence in text
        assert finding.rule in of_report
    assert "7.1 to 8.8" in text
    assert "Do the heads give out as the text grows?" in text


@pytest.mark.parametrize("shown", ["of_run", "of_report"])
def test_static_and_readable_on_any_background(shown: str, request: pytest.FixtureRequest) -> None:
    page: str = request.getfixturevalue(shown)
    seen = Seen(page)
    assert seen.tags.count("svg") == 2
    assert not {"script", "style", "img", "iframe", "object", "link", "foreignobject"} & set(seen.tags)
    assert not [name for name, _ in seen.attributes if name.startswith("on")]
    asked = [value for name, value in seen.attributes if name in ("src", "href", "xlink:href")]
    assert not [value for value in asked if not (value or "").startswith("#")]
    assert page.startswith('<div style="background:#ffffff;color:#1c2430;')
    assert page.count("<div") == page.count("</div>") == 1
    assert len(page) < 400_000


def test_names_inside_drawings_do_not_meet() -> None:
    """Many charts stand in one notebook: a name that two of them use would draw one with the colours of the other."""
    pages = [card_of(report(places).run) for places in (grid(2, 3), grid(3, 3))]
    used = []
    for page in pages:
        names = re.findall(r'\bid="([^"]+)"', page)
        assert names
        assert set(re.findall(r"url\(#([^)]+)\)", page)) == set(names)
        used += names
    assert len(set(used)) == len(used)


def hostile() -> Any:
    manifest = MANIFEST | {
        "model": {"name": HOSTILE, "about": HOSTILE},
        "text": {"name": HOSTILE},
        "skipped": [HOSTILE],
        "settings": {"vectors": HOSTILE, "windows": 2, "queries": HOSTILE},
    }
    number = KeyNumber(HOSTILE, HOSTILE, 1.0, 0.5, 1.5, None, None, HOSTILE, HOSTILE)
    finding = Finding(HOSTILE, HOSTILE, HOSTILE, {HOSTILE: 1})
    return report(PLACES, manifest=manifest, numbers=(number,), verdicts=(finding,), advice=(finding,))


def test_hostile_text_is_inert(of_run: str, of_report: str) -> None:
    odd = hostile()
    for page, plain in ((card_of(odd.run), of_run), (card_of(odd), of_report)):
        seen = Seen(page)
        assert set(seen.tags) == set(Seen(plain).tags)
        assert not [name for name, _ in seen.attributes if name.startswith("on")]
        assert "<script" not in page
        assert "<img" not in page
        assert seen.text.count("alert(1)") >= 4
        assert "{{ 7*7 }}" in seen.text


def test_measures_with_hostile_names() -> None:
    heads = report(PLACES).run.table.with_columns(measure=pl.lit(HOSTILE), model=pl.lit(HOSTILE))
    page = card_of(Run(heads, MANIFEST))
    assert "<script" not in page
    assert "&lt;script&gt;" in page


def test_a_run_and_a_report_render_themselves(of_run: str, of_report: str) -> None:
    of = report(PLACES)
    assert of.run._repr_html_() == of_run
    assert of._repr_html_() == of_report


def test_a_run_that_cannot_be_drawn_is_a_plain_table(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> str:
        raise ValueError("no drawing today")

    monkeypatch.setattr(abbe.views, "card_of", broken)
    of = hostile()
    manifest = dict(of.run.manifest) | {"self_check": {"error": 1e-6}}
    page = Run(of.run.table, manifest)._repr_html_()
    assert "<svg" not in page
    assert "<table" in page
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    assert report(PLACES)._repr_html_() == report(PLACES).run._repr_html_()


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    "run",
    [
        Run(report(PLACES).run.table, {}),
        Run(report(PLACES).run.table, {"model": None, "text": None, "self_check": None, "skipped": None}),
        Run(report(PLACES).run.table.clear(), MANIFEST),
        Run(report(PLACES).run.table.with_columns(value=pl.lit(None, pl.Float64)), MANIFEST),
    ],
    ids=["no manifest", "odd manifest", "no rows", "no values"],
)
def test_a_part_may_be_missing(run: Run) -> None:
    assert card_of(run).count("<svg") == 2
    assert card_of(report(PLACES, run=run, numbers=(), verdicts=(), advice=())).count("<svg") == 2
