"""The page of `abbe report` in a real browser, from disk and without a network: for every kind of reader."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import made_up_report as made
import polars as pl
import pytest
from page_in_browser import PHONE, WIDE, Opened, Seen, needs_browser
from report_in_browser import CHARTS, EVIL, PLACES, PRINTED

from abbe.studies import Ball, Report

pytestmark = needs_browser


# -- The whole --------------------------------------------------------------------------------------------------------


def test_opens_from_disk_without_a_message_or_a_request(shared: Seen) -> None:
    seen = shared
    seen.quiet()
    assert seen.page.title() == f"abbe report: {EVIL}"
    assert not seen.page.locator("#trouble").is_visible()
    assert not seen.page.locator(".without-script").is_visible()
    for name in CHARTS:
        box = seen.page.locator(f".chart:not(.print)[data-chart={name}] svg.marks").bounding_box()
        assert box["width"] > 250
        assert box["height"] > 200
    assert seen.marks("sizes") > 8
    assert seen.marks("ball") >= 20


@pytest.mark.slow
def test_the_button_changes_the_theme_of_page_map_and_charts(opened: Opened) -> None:
    seen = opened().ready().drawn("light")
    body, cell = seen.page.locator("body"), seen.cell(1, 1)
    before = seen.colour(body), seen.colour(cell)
    seen.page.get_by_role("button", name="Dark theme").click()
    seen.drawn("dark")
    assert seen.page.get_by_role("button", name="Light theme").count() == 1  # what the next click gives
    assert seen.page.get_by_role("button", name="Dark theme").count() == 0
    assert seen.colour(body) == "rgb(18, 22, 28)"
    assert seen.colour(body) != before[0]
    assert seen.colour(cell) != before[1]
    seen.quiet()


@pytest.mark.slow
def test_the_navigation_leads_to_every_section(seen: Seen) -> None:
    links = seen.page.locator("nav ul a")
    assert links.all_inner_texts() == [
        "Answer",
        "Heads",
        "Tokens",
        "Growth",
        "Gradients",
        "Advice",
        "Table",
        "Glossary",
    ]
    seen.page.emulate_media(reduced_motion="reduce")
    for link in links.all():
        link.click()
        section = seen.page.locator(str(link.get_attribute("href")))
        seen.page.wait_for_timeout(60)
        top = section.bounding_box()["y"]
        assert top < WIDE["height"] / 2
        assert seen.page.locator("nav").bounding_box()["y"] <= 1 or top > 0
    assert seen.page.locator("nav").bounding_box()["y"] == pytest.approx(0, abs=1)  # it stays in view
    seen.page.locator("nav a", has_text="Growth").click()
    seen.page.locator("nav a[aria-current]", has_text="Growth").wait_for()


def test_hostile_text_stays_text(shared: Seen) -> None:
    seen = shared
    assert seen.page.locator("h1").inner_text() == f"How selective is the attention of {EVIL}?"
    assert seen.page.locator("main script, main b, main img").count() == 0
    assert EVIL in seen.text("#answer")
    assert seen.page.locator("#token-text .token").nth(0).inner_text() == EVIL
    seen.quiet()


@pytest.mark.slow
def test_without_scripts_the_text_is_there(opened: Opened, report: Report) -> None:
    page = opened(java_script_enabled=False).page
    assert page.locator(".without-script").is_visible()
    assert not page.locator("#map").is_visible()
    assert not page.locator("#theme").is_visible()
    assert page.locator(".cards").get_by_text("7.9 tokens").is_visible()
    page.locator("#answer .findings summary").first.click()
    assert page.get_by_text("entropy at least 95 %").is_visible()
    assert page.locator("#growth tbody tr").count() == len(PLACES)
    assert page.locator("#glossary").get_by_text("High means that few of the N selected").is_visible()


# -- The answer -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_verdict_shows_its_rule_and_chooses_its_heads(seen: Seen) -> None:
    finding = seen.page.locator("#answer .findings > li").first
    assert not finding.get_by_text("0.854").is_visible()
    finding.locator("summary").focus()
    seen.page.keyboard.press("Enter")
    assert finding.get_by_text("0.854").is_visible()
    finding.get_by_role("button", name="layer 2, head 3").click()
    assert seen.text("#head-name") == "Layer 2, head 3"
    assert seen.cell(2, 3).get_attribute("aria-selected") == "true"
    assert seen.page.evaluate("document.activeElement.id") == "head-name"
    seen.page.wait_for_function("() => document.getElementById('head').getBoundingClientRect().top < innerHeight / 2")


# -- Other readers ----------------------------------------------------------------------------------------------------


def test_a_phone_does_not_scroll_sideways(opened: Opened) -> None:
    phone = opened("light", PHONE).ready().drawn("light").printed()
    wide = "() => [document.documentElement.scrollWidth, document.body.scrollWidth]"
    assert max(phone.page.evaluate(wide)) <= PHONE["width"]
    for details in phone.page.locator("details:not(.vega-embed details)").all():
        if details.get_attribute("open") is None and details.is_visible():
            details.locator("summary").click()
    phone.choose("measure", "sensitivity_worst_p95")
    phone.choose("temperature T", "0.5")
    assert max(phone.page.evaluate(wide)) <= PHONE["width"]
    for name in CHARTS:
        assert (
            phone.page.locator(f".chart:not(.print)[data-chart={name}] svg.marks").bounding_box()["width"]
            <= PHONE["width"]
        )
    phone.quiet()


@pytest.mark.slow
def test_the_map_of_many_heads_scrolls_in_its_box(opened: Opened, tmp_path: Path) -> None:
    many = made.report(made.grid(2, 40), lengths=(64,), sizes=(5,), temperatures=(1.0,), sample=None)
    phone = opened("light", PHONE, made.page_file(many, tmp_path)).ready()
    assert phone.page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    assert phone.page.evaluate("(b => b.scrollWidth > b.clientWidth)(document.querySelector('.map-box'))")
    phone.cell(1, 39).click()
    assert phone.text("#head-name") == "Layer 1, head 39"


@pytest.mark.slow
def test_print_is_light_short_and_without_controls(opened: Opened) -> None:
    seen = opened("dark").ready().drawn("dark").printed()
    dark = seen.colour(seen.cell(1, 1))
    seen.page.emulate_media(media="print")
    assert seen.colour(seen.page.locator("body")) == "rgb(255, 255, 255)"
    assert seen.colour(seen.cell(1, 1)) != dark
    for name in PRINTED:
        assert seen.page.locator(f".chart.print[data-chart={name}] svg.marks").is_visible()
    assert seen.page.locator(".chart:not(.print):visible").count() == 0
    assert seen.page.locator("select:visible").count() == 0
    for name in ("#theme", "nav", "#save-csv", "#page-after", "#query-after", "#filters-clear"):
        assert not seen.page.locator(name).is_visible()
    for name in ("#answer-sentence", ".steps code", ".cards .value", "#map", "#advice .findings"):
        assert seen.page.locator(name).first.is_visible(), name
    for name in ("#head", "#tokens", "#everything", "#glossary", "#growth table"):
        assert not seen.page.locator(name).is_visible(), name
    folded = seen.page.locator(".answer details")
    assert not folded.locator("p").is_visible()
    seen.page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert folded.locator("p").first.is_visible()
    seen.page.evaluate("window.dispatchEvent(new Event('afterprint'))")
    assert folded.get_attribute("open") is None


@pytest.mark.slow
def test_paper_needs_few_pages(opened: Opened, tmp_path: Path) -> None:
    seen = opened().ready().drawn("light").printed()
    seen.page.pdf(path=tmp_path / "page.pdf", format="A4")
    assert 3 <= len(re.findall(rb"/Type\s*/Page\b", (tmp_path / "page.pdf").read_bytes())) <= 5


@pytest.mark.slow
def test_every_control_has_a_name(seen: Seen) -> None:
    nameless = seen.page.evaluate("""() => [...document.querySelectorAll("button, select, a, summary")].filter((e) =>
      !(e.getAttribute("aria-label") || e.textContent.trim() || e.labels?.length || e.title))
      .map((e) => e.outerHTML)""")
    assert nameless == []
    assert seen.page.get_by_role("heading", level=1).count() == 1


# -- Reports that lack something --------------------------------------------------------------------------------------

ONE: dict[str, Any] = {"lengths": (64,), "sizes": (5,), "temperatures": (1.0,)}
LONELY = made.report([(0, 0)], **ONE)
NOTHING = LONELY.table.with_columns(
    pl.lit(None, pl.Float64).alias(name) for name in ("value", "low", "high", "limit", "control")
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "absent"),
    [
        ({"sample": None}, ("ball",)),
        ({"alternatives": LONELY.alternatives.clear()}, ("alternatives",)),
        ({"sample": made.sample([(5, 5)])}, ()),
        ({"table": NOTHING, "sample": None}, ("ball",)),
        (
            {
                "heads": (),
                "numbers": (),
                "verdicts": (),
                "growth": LONELY.growth.clear(),
                "floors": LONELY.floors.clear(),
            },
            (),
        ),
        ({"table": LONELY.table.filter(pl.col("measure") == "entropy")}, ()),
    ],
    ids=["no sample", "no alternatives", "another head's sample", "no values", "no words", "one measure"],
)
def test_one_head_at_one_length(
    opened: Opened, tmp_path: Path, changes: dict[str, Any], absent: tuple[str, ...]
) -> None:
    there = tuple(name for name in CHARTS if name not in absent)
    on_paper = tuple(name for name in PRINTED if name not in absent)
    seen = (
        opened(other=made.page_file(made.report([(0, 0)], **(ONE | changes)), tmp_path)).ready().drawn("light", there)
    )
    seen.printed(on_paper)
    for name in absent:
        assert seen.page.locator(f"[data-chart={name}]").count() == 0
    assert seen.text("#head-name") == "Layer 0, head 0"
    if "table" in changes and changes["table"] is NOTHING:
        assert "No head has a value here." in seen.text("#legend")
    if changes.get("sample"):
        assert seen.text("#token-words") == "This head has no rows for this query."
    if changes.get("heads") == ():
        assert seen.text("#head-sentence") == "There is no verdict on this head."
    seen.quiet()


@pytest.mark.slow
def test_layers_of_different_width(opened: Opened, tmp_path: Path) -> None:
    ragged = made.report([(0, 0), (0, 1), (2, 0)], **ONE, sample=None)
    seen = opened(other=made.page_file(ragged, tmp_path)).ready()
    assert seen.page.locator("#map button.cell").count() == 3
    seen.cell(2, 0).click()
    seen.page.keyboard.press("ArrowRight")
    assert seen.page.evaluate("document.activeElement.dataset.layer") == "2"
    seen.page.keyboard.press("ArrowUp")
    seen.page.keyboard.press("ArrowRight")
    seen.page.keyboard.press("ArrowDown")  # there is no head 1 below
    assert seen.page.evaluate("[document.activeElement.dataset.layer, document.activeElement.dataset.head]") == [
        "0",
        "1",
    ]
    seen.quiet()


def test_broken_data_is_reported(opened: Opened, file: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.html"
    text = file.read_text(encoding="utf-8")
    broken.write_text(re.sub(r'(id="table-data">)[^<]{40}', r"\1AAAA", text), encoding="utf-8")
    seen = opened(other=broken)
    seen.page.locator("#trouble:not([hidden])").wait_for()
    assert "could not show the interactive parts" in seen.text("#trouble")
    assert seen.page.locator(".cards").is_visible()


@pytest.mark.slow
def test_degenerate_balls(opened: Opened, tmp_path: Path) -> None:
    ball = Ball(1, 0.0, (True,), (0.0,), (0.0,), (1,), (0.0,), (0.0,), 1)
    sample = made.sample([(0, 0)], ["a", "b", "c"], queries=1, sizes=(1,))
    row = sample.rows[0].__class__(0, 0, sample.queries[0], (0,), (0.0,), (ball,))
    flat = sample.__class__(3, 0, sample.tokens, (1,), sample.queries, (row,))
    seen = opened(other=made.page_file(made.report([(0, 0)], **ONE, sample=flat), tmp_path)).ready().drawn("light")
    assert seen.text("#token-words") == (
        "1 of 1 selected tokens lie in the ball; 1 unselected one lies no farther out than the farthest selected."
    )
    assert json.loads(seen.page.evaluate("JSON.stringify(window.abbe.choice.ball)")) == 1
    seen.quiet()
