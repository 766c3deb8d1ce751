"""A study of capacity as table, chart and files, from made-up numbers."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import polars as pl
import pytest
from capacity_runs import WAYS
from chart_parts import charts_of, charts_on, printed
from chart_parts import drawn as drawn_by_vega
from made_up_capacity import LAYERS, LENGTHS, SIZE_OF, made_up
from markupsafe import escape

from abbe.studies import Capacity


def drawn(capacity: Capacity, theme: Any = "light") -> dict[str, Any]:
    return dict(charts_of(capacity, theme)["capacity"])


def test_the_table_holds_every_row() -> None:
    capacity = made_up()
    shown = printed(capacity, 100)
    assert "How many keys per query does made-up need?" in shown
    assert "\x1b" not in shown
    for row in capacity.table.filter(pl.col("layer").is_null()).iter_rows(named=True):
        assert any(
            f"{row['length']:,}" in line and row["way"] in line and f" {row['capacity']:,.0f} " in line
            for line in shown.splitlines()
        )
    assert "80 % of 20" in shown
    assert "0.17 %" in shown  # the equal share of 1 % among six layers
    for way in WAYS:
        assert f"Each layer alone, {way}, 1,024 tokens: keys for a rise of at most" in shown
    assert "g: growth at 0.17 %; layers at 128, 256, 512 tokens are in table.csv and --json" in shown
    assert "skipped: length 1024: 3 of 4 windows" in shown
    for finding in capacity.findings:
        assert finding.sentence[:30] in shown


def test_growth_of_the_model_and_of_its_layers_are_distinguished() -> None:
    capacity = made_up()
    growth, of_layers = (
        printed(capacity, 100).split("Growth with the length: N* ~ L^g")[1].split("Each layer alone, deletion")
    )
    assert growth.count("deletion") == growth.count("renormalised") == 2
    table = of_layers.split("Each layer alone")[0]
    exponents = capacity.growth.filter(
        pl.col("layer").is_not_null(), pl.col("way") == "deletion", pl.col("allowed") == 0.01 / LAYERS
    )
    lines = [line.split() for line in table.splitlines() if line.strip()[:1].isdigit()]
    assert [line[5] for line in lines] == [f"{value:.2f}" for value in exponents["exponent"]]
    alone = printed(made_up(layer_lengths=[256]), 100)
    assert "Each layer alone, deletion, 256 tokens" in alone
    assert "g: growth" not in alone


def test_large_numbers_are_written_out_and_ends_are_whole() -> None:
    capacity = made_up()
    large = capacity.table.with_columns(capacity=pl.lit(1234.5), low=pl.lit(6.2), high=pl.lit(18.4))
    shown = printed(replace(capacity, table=large), 100)
    assert "e+03" not in shown
    assert " 6 to 19 " in shown  # no half keys
    of_layers = [line for line in shown.split("Each layer alone, deletion")[1].splitlines() if "1,235" in line]
    assert len(of_layers) == 2 * LAYERS


def test_the_page_holds_findings_charts_in_both_themes_and_tables() -> None:
    study = made_up()
    page = study.to_html()
    for finding in study.findings:
        assert escape(finding.sentence.replace(" %", "\u00a0%")) in page
    charts = charts_on(page)
    assert set(charts["capacity"]) == {"light", "dark", "datasets"}
    assert "<h3>Whole model</h3>" in page
    assert page.count(">renormalised</td>") >= study.table.filter(pl.col("layer").is_null()).height / 2


def test_a_capacity_with_a_hole_is_marked() -> None:
    capacity = made_up()
    last = (pl.col("length") == 1024) & (pl.col("way") == "deletion") & (pl.col("allowed") == pl.col("allowed").max())
    odd = capacity.table.with_columns(monotone=~last, first=pl.when(last).then(3).otherwise(pl.col("first")))
    changed = replace(capacity, table=odd)
    shown = printed(changed, 120)
    needed = odd.filter(last)["capacity"].to_list()
    assert f" {needed[0]:,.0f}? (first 3) " in shown
    assert shown.count("? (first 3)") == 1 + LAYERS  # the model's row, and one in each row of layers
    assert "?" not in printed(capacity, 100).split("Whole model")[1]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_chart_has_a_panel_for_each_part(theme: Any) -> None:
    chart = drawn(made_up(), theme)
    titles = [panel["title"] for panel in chart["concat"]]
    assert titles == [
        "truncated, deletion", "truncated, renormalised",
        "growth with the length", "layers over the length, renormalised",
        "each layer alone, deletion", "each layer alone, renormalised",
        "separability, deletion", "separability, renormalised",
        "keys by separability, deletion", "keys by separability, renormalised",
    ]  # fmt: skip
    text = json.dumps(chart, allow_nan=False)
    assert "6 % of L, the paper's" in text
    assert "does made-up need" in text
    assert "L = 1,024" in text
    assert chart["title"]["subtitle"][-1] == "single layers at L = 1,024, on 4 of the windows"


def titles_of(**changed: Any) -> list[str]:
    return [panel["title"] for panel in drawn(made_up(**changed))["concat"]]


@pytest.mark.slow
def test_growth_comes_last_where_layers_have_one_length() -> None:
    """So that the two ways stay side by side."""
    titles = titles_of(layer_lengths=[256])
    assert titles[2:4] == ["each layer alone, deletion", "each layer alone, renormalised"]
    assert titles[-1] == "growth with the length"
    assert not any("over the length" in title for title in titles)
    one = titles_of(way="deletion")
    assert one[2] == "layers over the length, deletion"
    assert len(one) == 6
    assert len(titles_of(layers=False)) == 3


def drawn_rows(chart: dict[str, Any], panel: int) -> list[dict[str, Any]]:
    layers = chart["concat"][panel]["layer"]
    rows = []
    for layer in layers:
        source = layer["data"]
        rows += source.get("values") or chart["datasets"][source["name"]]
    return rows


def test_the_chart_draws_the_numbers() -> None:
    capacity = made_up()
    chart = drawn(capacity)
    levels = {row["rise"] for row in drawn_rows(chart, 0) if row.get("name") in ("1 %", "5 %")}
    assert levels == {1.0, 5.0}
    paper = {row["length"]: row["capacity"] for row in drawn_rows(chart, 2) if "paper" in row["shown"]}
    assert paper == pytest.approx({length: 0.06 * length for length in LENGTHS})
    for place, way in enumerate(WAYS):
        of_layer = capacity.table.filter(
            pl.col("layer") == 3, pl.col("allowed") == 0.01 / LAYERS, pl.col("way") == way
        ).sort("length")
        for panel in (4, 8):
            keys = [row["capacity"] for row in drawn_rows(chart, panel + place) if row["layer"] == 3]
            assert keys == pytest.approx([of_layer["capacity"][-1]] * 2, rel=1e-5)  # point, and interval or number
        assert {row["separability_n"] for row in drawn_rows(chart, 6 + place)} == {SIZE_OF[way]}
        assert f"share of {SIZE_OF[way]} tokens" in json.dumps(chart["concat"][6 + place])
    lines = {row["length"]: row["capacity"] for row in drawn_rows(chart, 3) if row["layer"] == 3}
    assert lines == pytest.approx(dict(of_layer.select("length", "capacity").iter_rows()), rel=1e-5)
    rises = {row["n"]: row["rise"] for row in drawn_rows(chart, 0) if row.get("length") == 1024}
    curve = capacity.curve.filter(
        pl.col("layer").is_null() & (pl.col("length") == 1024) & (pl.col("way") == "deletion") & (pl.col("n") == 16)
    )
    assert rises[16] == pytest.approx(100 * curve["rise"][0], rel=1e-5)


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    "changed",
    [
        {"windows": 1},
        {"layers": False},
        {"lengths": [128], "way": "renormalised", "tau": 0.05},
        {"layer_lengths": [256]},
        {"windows": 1, "layers": False, "lengths": [1024], "way": "deletion", "tau": [1e-9, 0.5]},
    ],
)
def test_charts_of_odd_studies_can_be_drawn(changed: dict[str, Any], capfd: pytest.CaptureFixture[str]) -> None:
    drawn_by_vega(drawn(made_up(**changed)), capfd)


@pytest.mark.slow
def test_many_layers_have_a_legend_in_place_of_numbers(capfd: pytest.CaptureFixture[str]) -> None:
    few, many = (drawn(made_up(layers=layers))["concat"] for layers in (12, 13))
    for panel in (3, 8, 9):
        assert any(layer["mark"]["type"] == "text" for layer in few[panel]["layer"])
        assert few[panel]["layer"][0]["encoding"]["color"]["legend"] is None
        assert not any(layer["mark"]["type"] == "text" for layer in many[panel]["layer"])
        assert many[panel]["layer"][0]["encoding"]["color"]["legend"]["columns"] == 6
    drawn_by_vega(drawn(made_up(layers=30)), capfd)


@pytest.mark.slow
def test_losses_that_never_rise_can_be_drawn(capfd: pytest.CaptureFixture[str]) -> None:
    study = made_up()
    flat = study.curve.with_columns(rise=-pl.col("rise"), low=pl.lit(None, pl.Float64), high=pl.lit(None, pl.Float64))
    drawn_by_vega(drawn(replace(study, curve=flat)), capfd)
