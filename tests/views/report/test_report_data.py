"""The data inside the page of `abbe report`: that of the run and the report, with five digits."""

from __future__ import annotations

import base64
import gzip
import json
import math
import re

import made_up_report as made
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from parsed_page import unpacked, unpacked_table
from polars.testing import assert_frame_equal

from abbe.results import SCHEMA
from abbe.studies import Report
from abbe.views import page
from abbe.views.html import both_themes, packed_table


def five_digits(table: pl.DataFrame) -> pl.DataFrame:
    floats = [name for name, kind in table.schema.items() if kind == pl.Float64]
    return table.with_columns(
        pl.Series(name, [None if v is None else float(f"{v:.5g}") for v in table[name]], pl.Float64) for name in floats
    )


@pytest.fixture(scope="module")
def report() -> Report:
    return made.report(made.grid(2, 3))


def test_the_table_is_that_of_the_run_with_five_digits(text: str, report: Report) -> None:
    read = unpacked_table(unpacked(text, "table"))
    assert_frame_equal(read, five_digits(report.table), check_exact=True)


def test_the_sample_is_that_of_the_report(text: str, report: Report) -> None:
    assert report.sample is not None
    assert json.loads(unpacked(text, "sample")) == json.loads(json.dumps(report.sample.as_json()))
    assert json.loads(unpacked(page(made.small()), "sample")) is None


def test_the_words_for_the_scripts(text: str, report: Report) -> None:
    about = json.loads(unpacked(text, "about"))
    assert about["model"] == "gpt2-like"
    assert about["shown_size"] == 20
    assert {measure["name"] for measure in about["measures"]} == set(report.table["measure"])
    assert [(head["layer"], head["head"], head["kind"]) for head in about["heads"]] == [
        (verdict.layer, verdict.head, verdict.kind) for verdict in report.heads
    ]
    assert about["heads"][0]["numbers"] == [["effective tokens", "7.9"], ["ceiling", "∞"]]
    assert len(about["alternatives"]) == report.alternatives.height
    assert about["alternatives"][1]["separable"] == pytest.approx(report.alternatives["separable"][1], rel=1e-4)
    assert set(about["columns"]) == {
        name for name in report.alternatives.columns if not name.endswith(("_low", "_high"))
    }


def test_the_charts_are_there_in_both_themes_with_their_data_once(text: str) -> None:
    charts = json.loads(unpacked(text, "chart"))
    assert set(charts) == {"sizes", "lengths", "growth", "gradient", "ball", "alternatives"}
    assert set(re.findall(r'data-chart="([a-z]+)"', text)) == set(charts)
    for name, wanted in (("sizes", "rows"), ("growth", "chosen"), ("gradient", "chosen"), ("ball", "circle")):
        assert charts[name]["datasets"][wanted] == []
    for chart in charts.values():
        assert set(chart) == {"light", "dark", "datasets"}
        assert "datasets" not in chart["light"] | chart["dark"]


def test_data_of_both_themes_is_kept_where_it_differs() -> None:
    given = {"light": {"a": {"x": 1, "datasets": {"k": [1]}}}, "dark": {"a": {"x": 2, "datasets": {"m": [2]}}}}
    assert both_themes(given) == {"a": {"light": {"x": 1}, "dark": {"x": 2}, "datasets": {"k": [1], "m": [2]}}}


numbers = st.one_of(st.none(), st.floats(allow_subnormal=False), st.sampled_from([0.0, -0.0, 9.999996, -0.00099999951]))


@given(st.lists(numbers, max_size=30))
def test_numbers_keep_five_digits_and_what_is_not_finite(values: list[float | None]) -> None:
    table = pl.DataFrame({"value": values}, schema={"value": pl.Float64})
    read = unpacked_table(gzip.decompress(base64.b64decode(packed_table(table))))["value"].to_list()
    for value, back in zip(values, read, strict=True):
        if value is None or not math.isfinite(value):
            assert str(back) == str(value)
        elif abs(value) < 1e-299:
            assert back == pytest.approx(0, abs=1e-299)
        else:
            assert back == pytest.approx(value, rel=5.001e-5, abs=0)
            assert len(f"{back:.15g}".lower().split("e")[0].replace(".", "").strip("-0")) <= 5


@pytest.mark.parametrize("number", [1, 255, 256, 300, 70_000])
def test_codes_of_many_values(number: int) -> None:
    table = pl.DataFrame({"n": [*range(number), None]}, schema={"n": pl.Int32})
    content = gzip.decompress(base64.b64decode(packed_table(table)))
    assert unpacked_table(content)["n"].to_list() == [*range(number), None]


def test_empty_tables_and_columns() -> None:
    empty = pl.DataFrame(schema=SCHEMA)
    assert_frame_equal(unpacked_table(gzip.decompress(base64.b64decode(packed_table(empty)))), empty)
