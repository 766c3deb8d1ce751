"""The tables on the page of `abbe report`: sorted, filtered, paged, and saved as files that polars reads."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import polars as pl
import pytest
from page_in_browser import Seen, needs_browser
from polars.testing import assert_frame_equal
from report_in_browser import PLACES, value_of

from abbe.results import SCHEMA
from abbe.studies import Report

pytestmark = needs_browser


# -- Tables and files -------------------------------------------------------------------------------------------------


def column(seen: Seen, place: str, number: int) -> list[str]:
    return [str(text) for text in seen.page.locator(f"{place} tbody tr td:nth-child({number})").all_inner_texts()]


@pytest.mark.slow
def test_growth_is_sorted_with_what_is_absent_last(seen: Seen) -> None:
    header = seen.page.locator("#growth th", has_text="uniform from length")
    assert header.get_attribute("aria-sort") == "none"
    button = header.get_by_role("button")
    button.focus()
    seen.page.keyboard.press("Enter")
    assert header.get_attribute("aria-sort") == "ascending"
    assert column(seen, "#growth", 4) == ["1,024"] * 4 + ["–"] * 8
    header = seen.page.locator("#growth th", has_text="keys among which")
    header.get_by_role("button").click()
    header.get_by_role("button").click()
    assert header.get_attribute("aria-sort") == "descending"
    assert column(seen, "#growth", 8) == ["∞"] * 2 + ["1,000,000"] * 10
    seen.page.locator("#growth th", has_text="decay").get_by_role("button").click()
    values = [float(text.split()[0]) for text in column(seen, "#growth", 3)]
    assert values == sorted(values)
    assert seen.page.locator("#growth th[aria-sort=none]").count() == 7


@pytest.mark.slow
def test_the_table_is_filtered_sorted_and_paged(seen: Seen, report: Report) -> None:
    everything = "#everything"
    total = f"{report.table.height:,}"
    assert seen.text("#rows-words") == f"rows 1 to 50 of {total}"
    seen.choose("measure", "separability", everything)
    wanted = report.table.filter(pl.col("measure") == "separability")
    assert seen.text("#rows-words") == f"rows 1 to 50 of {wanted.height}"
    before, after = seen.page.locator("#page-before"), seen.page.locator("#page-after")
    assert before.is_disabled()
    after.click()
    assert seen.text("#rows-words") == f"rows 51 to 100 of {wanted.height}"
    before.click()
    seen.page.get_by_role("button", name="last page").click()
    assert after.is_disabled()
    assert seen.text("#rows-words").endswith(f"to {wanted.height} of {wanted.height}")
    seen.page.get_by_role("button", name="first page").click()
    header = seen.page.locator("#row-headers th", has_text="value")
    header.get_by_role("button").click()
    header.get_by_role("button").click()
    assert header.get_attribute("aria-sort") == "descending"
    shown = [float(text) for text in column(seen, everything, 6)]
    assert shown == pytest.approx(sorted(wanted["value"], reverse=True)[:50], rel=1e-4)
    after.click()
    for name, value in (("length", "256"), ("N", "20"), ("layer", "1"), ("head", "3")):
        seen.choose(name, value, everything)
    assert seen.text("#rows-words") == "rows 1 to 1 of 1"
    assert column(seen, everything, 5) == ["separability"]
    assert column(seen, everything, 11) == [report.heads[PLACES.index((1, 3))].kind]
    assert float(column(seen, everything, 6)[0]) == pytest.approx(
        value_of(report, "separability", 1, 3, length=256, n=20), rel=1e-4
    )
    seen.choose("head", "none", everything)
    assert seen.text("#rows-words") == "no row fits these filters"
    seen.choose("layer", "none", everything)
    assert seen.text("#rows-words") == "rows 1 to 1 of 1"
    seen.page.get_by_role("button", name="Clear filters").click()
    seen.choose("measure", "sensitivity_worst_p95", everything)
    seen.choose("temperature T", "0.5", everything)
    assert set(column(seen, everything, 5)) == {"sensitivity_worst_p95@T=0.5"}
    seen.choose("temperature T", "1", everything)
    assert set(column(seen, everything, 5)) == {"sensitivity_worst_p95"}
    seen.page.get_by_role("button", name="Clear filters").click()
    assert seen.text("#rows-words") == f"rows 1 to 50 of {total}"
    assert seen.page.locator(f"{everything} tbody tr").count() == 50
    seen.quiet()


def saved(seen: Seen, kind: str) -> tuple[str, Path]:
    with seen.page.expect_download() as waiting:
        seen.page.get_by_role("button", name=f"Download {kind}").click()
    return str(waiting.value.suggested_filename), Path(waiting.value.path())


def read(path: Path, kind: str) -> pl.DataFrame:
    """A file of the page with words of JSON for what is not finite, which CSV has as numbers."""
    schema = pl.Schema(SCHEMA | {"verdict": pl.String})
    if kind == "CSV":
        return pl.read_csv(path, schema=schema)
    words = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
    numbers = [name for name, dtype in schema.items() if dtype.is_float()]
    rows = json.loads(path.read_text(encoding="utf-8"))
    return pl.DataFrame([row | {name: words.get(row[name], row[name]) for name in numbers} for row in rows], schema)


@pytest.mark.quick(1)
@pytest.mark.parametrize("kind", ["CSV", "JSON"])
def test_downloads_hold_what_the_run_holds(shared: Seen, report: Report, kind: str) -> None:
    name, path = saved(shared, kind)
    assert re.fullmatch(rf"abbe-[\w.-]+-heads\.{kind.lower()}", name)
    back = read(path, kind)
    assert back.columns == [*SCHEMA, "verdict"]
    assert_frame_equal(back.drop("model", "verdict"), report.table.drop("model"), rel_tol=5.001e-5, abs_tol=0)
    kinds = {(head.layer, head.head): head.kind for head in report.heads}
    assert all(kinds.get((layer, head)) == kind for layer, head, kind in back["layer", "head", "verdict"].iter_rows())
    assert set(back["model"]) == {"gpt2-like"}
    shared.quiet()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["CSV", "JSON"])
def test_downloads_hold_the_filtered_rows_in_their_order(seen: Seen, report: Report, kind: str) -> None:
    seen.choose("measure", "logit_range", "#everything")
    seen.choose("length", "1024", "#everything")
    seen.page.locator("#row-headers th", has_text="value").get_by_role("button").click()
    back = read(saved(seen, kind)[1], kind)
    wanted = report.table.filter((pl.col("measure") == "logit_range") & (pl.col("length") == 1024))
    assert back.height == wanted.height == len(PLACES) + 1
    values = back["value"].to_list()
    assert values[0] == -math.inf
    assert math.inf in values
    assert sum(value is not None and math.isnan(value) for value in values) == 1
    assert values.count(None) == 1
    finite = [value for value in values if value is not None and math.isfinite(value)]
    assert finite == sorted(finite)
    seen.choose("head", "0", "#everything")
    seen.choose("layer", "none", "#everything")
    empty = read(saved(seen, kind)[1], kind)
    assert empty.height == 0
    assert empty.columns == [*SCHEMA, "verdict"]
