"""The page of `abbe report` as text: self-contained, escaped, complete, small."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from importlib.resources import files
from itertools import pairwise
from typing import Any

import made_up_report as made
import polars as pl
import pytest
from markupsafe import escape
from parsed_page import HOSTILE, Page, check_inert, unpacked, unpacked_table

from abbe.studies import HeadVerdict, Report
from abbe.views import page as page_of
from abbe.views.html import packed, script
from abbe.words.finding import Finding, KeyNumber

SECTIONS = ["answer", "heads", "tokens", "growth", "gradients", "advice", "everything", "glossary"]
LIMIT = 5_000_000
SCRIPTS = sorted(path.name for path in (files("abbe.views") / "scripts").iterdir())  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def report() -> Report:
    return made.report(made.grid(2, 3))


@pytest.fixture(scope="module")
def page(text: str) -> Page:
    return Page(text)


# -- The file ---------------------------------------------------------------------------------------------------------


def test_the_page_names_no_address(text: str) -> None:
    for forbidden in ("http:", "https:"):
        assert forbidden not in re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL)


def test_links_lead_to_the_sections_in_order(text: str, page: Page) -> None:
    inner = [value[1:] for _, _, value in page.asks if value]
    assert [name for name in inner if name in SECTIONS][-len(SECTIONS) :] == SECTIONS
    places = [text.index(f'<section id="{name}"') for name in SECTIONS]
    assert places == sorted(places)


def test_labels_and_headings_in_order(text: str, page: Page) -> None:
    body = re.sub(r"<(script|style).*?</\1>", "", text, flags=re.DOTALL)
    levels = [int(level) for level in re.findall(r"<h(\d)", body)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    selects = re.findall(r'<select id="([^"]+)">', body)
    assert len(selects) == body.count("<select") == 13
    assert re.findall(r'<label for="([^"]+)">[^<]+</label>', body) == selects


def test_the_policy_allows_the_scripts_of_the_page_and_nothing_else(page: Page) -> None:
    rules = dict(rule.strip().partition(" ")[::2] for rule in page.policy.split(";"))
    run = [code for kind, code in page.scripts if kind is None]
    hashes = [base64.b64encode(hashlib.sha256(code.encode()).digest()).decode() for code in run]
    assert rules["default-src"] == "'none'"
    assert rules["script-src"].split() == [f"'sha256-{digest}'" for digest in hashes]
    assert [code for code in run if script("report.js") in code]


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_are_strict_and_set_no_markup(name: str) -> None:
    code = script(name)
    assert code.startswith('"use strict";\n')
    for forbidden in (
        "</script",
        "<!--",
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "fetch(",
    ):
        assert forbidden not in code


@pytest.mark.slow
def test_the_page_of_a_large_model_stays_below_its_limit() -> None:
    places = made.grid(12, 12)
    large = made.report(
        places, lengths=(32, 64, 128, 256, 512, 1024), sizes=(1, 2, 5, 10, 20, 50, 100, 200, 500),
        temperatures=(0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0), sample=made.sample(places, queries=8),
    )  # fmt: skip
    assert large.table.height > 130_000
    text = page_of(large)
    assert 2_000_000 < len(text.encode()) < LIMIT


@pytest.mark.slow
def test_the_same_report_gives_the_same_page() -> None:
    one = made.small()
    assert page_of(one) == page_of(one)
    assert packed(b"abbe") == packed(b"abbe")
    assert base64.b64decode(packed(b"abbe"))[4:8] == bytes(4)  # no time in it


# -- Its text ---------------------------------------------------------------------------------------------------------


def test_findings_are_shown_without_scripts(page: Page) -> None:
    words = [
        "How selective is the attention of gpt2-like?",
        "6 heads in 2 layers, windows of 64, 256 and 1,024 tokens",
        "8 of each length",
    ]
    for number in made.NUMBERS:
        words += [number.name, number.shown, number.meaning]
    for finding in (*made.VERDICTS, *made.ADVICE):
        words += [finding.topic, finding.sentence, finding.rule, *finding.numbers]
    words += ["interval 7.1 to 8.8", "limit 512", "control 44 %", "0.854", "NaN"]
    words += ["Head 2 of layer 1 is fading.", "0.5 (0.45 to 0.55)", "∞", "1,024"]
    words += ["fragile below T", "would fall below 0.1", "farther than the logits themselves"]
    words += ["This is an estimate", "length 2048: the model's context has 1024 tokens", '"torch": "2.13.0"']
    words += ["Works offline; makes no network requests.", "heads.parquet"]
    words += ["within 3.1e-06", "3,200,000 characters", "High means that the weight is spread over many keys"]
    for expected in words:
        assert expected in page.text, expected


def test_where_the_model_lies_on_this_machine_stays_out_of_it(text: str) -> None:
    hidden = made.MANIFEST | {"model": {"name": "/home/ada/models/secret", "source": "/home/ada/models/secret"}}
    heads = made.table([(0, 0)], name="/home/ada/models/secret")
    other = page_of(made.small(manifest=hidden, table=heads))
    for content in (text, other):
        assert "/home/ada" not in content
        assert b"/home/ada" not in unpacked(content, "about") + unpacked(content, "table") + unpacked(content, "chart")
    assert "How selective is the attention of <bdi>secret</bdi>?" in other
    assert set(unpacked_table(unpacked(other, "table"))["model"]) == {"secret"}


def test_heads_are_named_by_buttons_and_many_are_folded() -> None:
    places = tuple(made.grid(3, 6))
    text = page_of(
        made.small(verdicts=(Finding("t", "few", "r", {}, places[:12]), Finding("t", "many", "r", {}, places)))
    )
    assert text.count('class="place"') == 12 + 18 + 1  # and one of the advice
    assert "the 18 heads" in text
    assert "the 12 heads" not in text
    assert 'data-layer="2" data-head="5" aria-label="layer 2, head 5">2.5<' in text


def test_hostile_text_is_inert() -> None:
    finding = Finding(HOSTILE, HOSTILE, HOSTILE, {HOSTILE: HOSTILE}, ((0, 0),))
    manifest = made.MANIFEST | {
        "model": {"name": HOSTILE, "about": HOSTILE}, "text": {"name": HOSTILE}, "skipped": [HOSTILE], HOSTILE: HOSTILE,
    }  # fmt: skip
    number = KeyNumber(HOSTILE, HOSTILE, 1.0, None, None, None, None, HOSTILE, HOSTILE)
    verdict = HeadVerdict(0, 0, HOSTILE, HOSTILE, HOSTILE, {HOSTILE: HOSTILE})
    heads = made.table([(0, 0)], name=HOSTILE).with_columns(pl.col("measure").replace({"recall": HOSTILE}))
    parts: dict[str, Any] = {"verdicts": (finding,), "advice": (finding,), "numbers": (number,), "heads": (verdict,)}
    odd = made.small(**parts, manifest=manifest, table=heads, sample=made.sample([(0, 0)], [HOSTILE] * 40))
    check_inert(page_of(odd), page_of(made.small(sample=made.sample([(0, 0)]))), 20)
    assert f"<bdi>from “{escape(HOSTILE)}”</bdi>, " in page_of(odd)  # whose direction of writing ends with it


@pytest.mark.slow
def test_half_a_character_does_not_break_the_file() -> None:
    half = "a\ud800b"
    manifest = made.MANIFEST | {"model": {"name": half}, "text": {"name": half}}
    heads = made.table([(0, 0)], name=half)
    text = page_of(made.small(manifest=manifest, table=heads, sample=made.sample([(0, 0)], [half] * 30)))
    assert text.encode("utf-8")
    assert "a?b" in text
    assert json.loads(unpacked(text, "sample"))["tokens"][0] == "a?b"


NO_ROWS = made.report([(0, 0)], sample=None)


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    "changes",
    [
        {"manifest": {}},
        {"manifest": {"model": None, "text": 3, "settings": {}, "skipped": None}},
        {"numbers": (), "verdicts": (), "advice": (), "heads": ()},
        {"growth": NO_ROWS.growth.clear(), "floors": NO_ROWS.floors.clear()},
        {"alternatives": NO_ROWS.alternatives.clear()},
        {"table": NO_ROWS.table.with_columns(pl.lit(None, pl.Float64).alias("value"))},
    ],
    ids=["no manifest", "odd manifest", "no words", "no growth", "no alternatives", "no values"],
)
def test_a_part_may_be_missing(changes: dict[str, Any]) -> None:
    page = Page(page_of(made.small(**changes)))
    assert "How selective is" in page.text
    sentences = {
        "verdicts": "Nothing could be judged.", "advice": "There is nothing to advise.",
        "manifest": "Nothing was skipped.", "growth": "No growth could be measured",
        "floors": "No temperature floor was measured.", "alternatives": "No alternative was tried.",
    }  # fmt: skip
    for part, words in sentences.items():
        assert (words in page.text) == (part in changes), words
    assert "No window was kept for inspection." in page.text


def test_the_line_and_the_facts() -> None:
    bare, whole = Page(page_of(made.small(manifest={}))).text, Page(page_of(made.small())).text
    assert "1 head in 1 layer, windows of 64 tokens." in bare
    assert "intervals" not in bare.partition("what was measured, and how")[2].partition("Verdict")[0]
    assert "95%, by resampling windows; few" in whole
