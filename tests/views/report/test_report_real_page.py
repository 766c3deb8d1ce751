"""The real page of the embedded model, on hostile text, in a browser: from `abbe.report` to what a reader can do."""

from __future__ import annotations

from pathlib import Path

import made_up_report as made
import polars as pl
import pytest
from page_in_browser import PHONE, Opened, needs_browser
from polars.testing import assert_frame_equal
from report_in_browser import CHARTS

import abbe
from abbe.studies import Report

pytestmark = [needs_browser, pytest.mark.slow]  # 10 MB of text
LENGTHS = (64, 200)
HOSTILE = (
    "<script>document.title='x'</script> & \"quoted\" 'once' </script> <img src=x onerror=alert(1)> "
    "שלום עולם \u202eturned\u202c مرحبا 👩‍🔬🇩🇪 e\u0301 \t tab\n\n"
)


@pytest.fixture(scope="module")
def report() -> Report:
    """Hostile text in every window, in one line of 10 MB."""
    once = HOSTILE.replace("\n", " ")
    line = once * (10_000_000 // len(once.encode()) + 1)
    text = abbe.Text(f"{HOSTILE}book", line)
    return abbe.report(
        "embedded", text, lengths=LENGTHS, windows=2, queries=16, resamples=50, temperatures=(0.2, 1.0), progress=False
    )


@pytest.fixture(scope="module")
def file(report: Report, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made.page_file(report, tmp_path_factory.mktemp("page"))


def test_small_and_without_a_word_of_the_text_as_markup(file: Path) -> None:
    page = file.read_text(encoding="utf-8")
    assert len(page.encode()) < 5_000_000
    assert "<script>document.title" not in page
    assert "onerror=alert(1)>" not in page


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_chart_is_drawn_in_silence(opened: Opened, scheme: str) -> None:
    seen = opened(scheme).ready().drawn(scheme).printed()
    assert seen.page.title().startswith("abbe report: abbe-gpt2-5M")
    seen.quiet()


def test_verdicts_and_advice_are_those_of_the_study(opened: Opened, report: Report) -> None:
    seen = opened().ready()
    words = " ".join(seen.text("main").split())
    for finding in (*report.verdicts, *report.advice):
        assert finding.sentence in words
    for number in report.numbers:
        assert number.shown in words


def test_a_reader_chooses_measure_length_head_query_and_size(opened: Opened, report: Report) -> None:
    seen = opened().ready().drawn("light")
    seen.choose("measure", "separability")
    seen.choose("length", str(LENGTHS[0]))
    seen.cell(4, 3).click()
    assert "Layer 4, head 3" in seen.text("#head")
    verdict = next(head for head in report.heads if (head.layer, head.head) == (4, 3))
    assert verdict.sentence in " ".join(seen.text("#head").split())
    seen.page.keyboard.press("ArrowRight")
    seen.page.keyboard.press("Enter")
    assert "Layer 4, head 4" in seen.text("#head")
    assert report.sample is not None
    names = []
    for size in report.sample.sizes:
        seen.choose("selected tokens N", str(size), "#tokens")
        names.append(seen.text("#token-words"))
    assert f"of {report.sample.sizes[-1]} selected tokens" in names[-1]
    assert len(set(names)) == len(report.sample.sizes)
    before = seen.text("#token-words"), seen.page.locator("#tokens button.token[aria-pressed=true]").inner_text()
    seen.page.get_by_role("button", name="previous query").click()
    after = seen.text("#token-words"), seen.page.locator("#tokens button.token[aria-pressed=true]").inner_text()
    assert before != after
    seen.quiet()


def test_the_text_of_the_window_is_shown_as_it_is(opened: Opened, report: Report) -> None:
    seen = opened().ready()
    assert report.sample is not None
    shown = seen.page.locator("#token-text").evaluate("e => e.textContent")
    assert "<script>document.title='x'</script>" in shown
    assert "<img src=x onerror=alert(1)>" in shown
    assert "שלום עולם" in shown.replace("·", "")  # letters of two tokens are marked
    assert seen.page.locator("#token-text script, #token-text img").count() == 0


def test_the_whole_table_can_be_saved(opened: Opened, report: Report, tmp_path: Path) -> None:
    seen = opened().ready()
    with seen.page.expect_download() as waiting:
        seen.page.locator("#everything").get_by_role("button", name="CSV").click()
    waiting.value.save_as(tmp_path / "table")
    schema = pl.Schema(dict(report.run.table.schema) | {"verdict": pl.String})
    saved = pl.read_csv(tmp_path / "table", schema=schema)
    assert_frame_equal(saved.drop("verdict"), report.run.table, rel_tol=1e-4, abs_tol=1e-12, check_dtypes=False)


def test_no_sideways_scrolling_on_a_phone(opened: Opened) -> None:
    seen = opened(viewport=PHONE).ready().drawn("light", CHARTS)
    assert seen.page.evaluate("() => document.documentElement.scrollWidth <= window.innerWidth")
    seen.quiet()
