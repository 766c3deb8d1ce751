"""A study of capacity as table, chart and files, from made-up numbers."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from capacity_runs import WAYS, asked
from inside import Curve, capacity_rules
from markupsafe import escape
from rich.console import Console

from abbe.studies import Capacity
from abbe.views import figures, terminal

LENGTHS, LAYERS = [128, 256, 512, 1024], 6
SIZES = tuple(2**k for k in range(10))
SIZE_OF = {"deletion": 20, "renormalised": 12}


def settings_of(**changed: Any) -> dict[str, Any]:
    return asked(**({"lengths": LENGTHS, "windows": 4, "layer_windows": 4, "resamples": 100} | changed))


def curve_of(length: int, way: str, layer: int | None, windows: int) -> Curve:
    sizes = tuple(n for n in SIZES if n < length)
    fall = 1.0 if way == "renormalised" else 1.6
    height = fall * 0.12 * (length / 1024) ** 0.4 * (1 if layer is None else 0.03 * (layer + 1))
    spread = 1 + 0.2 * torch.arange(windows).double() / windows
    rises = height / torch.tensor(sizes).double().unsqueeze(-1) ** 0.7 * spread
    baseline = torch.full((windows,), 4.0, dtype=torch.float64)
    return Curve(length, way, layer, length, layer is None, sizes, baseline, baseline, baseline * (1 + rises))


def made_up(settings: dict[str, Any], name: str = "made-up", layers: int = LAYERS) -> Capacity:
    plan = [(length, None) for length in settings["lengths"]]
    plan += [(length, layer) for length in settings["layer_lengths"] for layer in range(layers)]
    curves = [curve_of(length, way, layer, settings["windows"]) for length, layer in plan for way in settings["ways"]]
    shares = {None: 0.8} | {i: 0.9 - 0.6 * i / layers for i in range(layers)}
    rows = [
        row | {"separability_n": SIZE_OF[row["way"]], "separability": shares[row["layer"]], "control": 0.4}
        for row in capacity_rules.capacity_rows(curves, layers, settings)
    ]
    tables = capacity_rules.tables(curves, rows, layers, settings)
    text = {"name": "some\x1b[31m text"}
    manifest = {"model": {"name": name}, "text": text, "settings": settings, "skipped": ["length 1024: 3 of 4 windows"]}
    return Capacity(**tables, findings=capacity_rules.findings(tables, settings), manifest=manifest)


def drawn(capacity: Capacity, theme: Any = "light") -> dict[str, Any]:
    charts = capacity.view().charts
    assert charts is not None
    return dict(charts(theme)["capacity"])


def printed(capacity: Capacity, columns: int = 100) -> str:
    console = Console(width=columns, no_color=True, record=True, file=io.StringIO())
    console.print(terminal(capacity))
    return console.export_text()


def test_the_table_holds_every_row() -> None:
    capacity = made_up(settings_of())
    shown = printed(capacity)
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
    capacity = made_up(settings_of())
    growth, of_layers = (
        printed(capacity).split("Growth with the length: N* ~ L^g")[1].split("Each layer alone, deletion")
    )
    assert growth.count("deletion") == growth.count("renormalised") == 2
    table = of_layers.split("Each layer alone")[0]
    exponents = capacity.growth.filter(
        pl.col("layer").is_not_null(), pl.col("way") == "deletion", pl.col("allowed") == 0.01 / LAYERS
    )
    lines = [line.split() for line in table.splitlines() if line.strip()[:1].isdigit()]
    assert [line[5] for line in lines] == [f"{value:.2f}" for value in exponents["exponent"]]
    alone = printed(made_up(settings_of(layer_lengths=[256])))
    assert "Each layer alone, deletion, 256 tokens" in alone
    assert "g: growth" not in alone


def test_large_numbers_are_written_out_and_ends_are_whole() -> None:
    capacity = made_up(settings_of())
    large = capacity.table.with_columns(capacity=pl.lit(1234.5), low=pl.lit(6.2), high=pl.lit(18.4))
    shown = printed(replace(capacity, table=large))
    assert "e+03" not in shown
    assert " 6 to 19 " in shown  # no half keys
    of_layers = [line for line in shown.split("Each layer alone, deletion")[1].splitlines() if "1,235" in line]
    assert len(of_layers) == 2 * LAYERS


@pytest.mark.parametrize(
    ("changed", "tables"),
    [({}, 4), ({"windows": 1, "layers": False, "lengths": [128], "ways": ["deletion"], "taus": [0.05]}, 1)],
)
def test_no_word_is_cut_off_in_80_columns(changed: dict[str, Any], tables: int) -> None:
    shown = printed(made_up(settings_of(**changed)), 80)
    assert "\N{HORIZONTAL ELLIPSIS}" not in shown
    assert max(len(line.rstrip()) for line in shown.splitlines()) <= 80
    assert (
        shown.count("\N{BOX DRAWINGS LIGHT HORIZONTAL}\n") + shown.count("\N{BOX DRAWINGS LIGHT HORIZONTAL} ") == tables
    )


def test_the_page_holds_findings_charts_in_both_themes_and_tables() -> None:
    study = made_up(settings_of(), "<script>alert(1)</script>")
    page = study.to_html()
    assert "<script>alert(1)</script>" not in page
    for finding in study.findings:
        assert escape(finding.sentence.replace(" %", "\u00a0%")) in page
    charts = json.loads(page.split('<script type="application/json" id="charts">')[1].split("</script>")[0])
    assert set(charts["capacity"]) == {"light", "dark", "datasets"}
    assert "<h3>Whole model</h3>" in page
    assert page.count(">renormalised</td>") >= study.table.filter(pl.col("layer").is_null()).height / 2


def test_a_capacity_with_a_hole_is_marked() -> None:
    capacity = made_up(settings_of())
    last = (pl.col("length") == 1024) & (pl.col("way") == "deletion") & (pl.col("allowed") == pl.col("allowed").max())
    odd = capacity.table.with_columns(monotone=~last, first=pl.when(last).then(3).otherwise(pl.col("first")))
    changed = replace(capacity, table=odd)
    shown = printed(changed, 120)
    needed = odd.filter(last)["capacity"].to_list()
    assert f" {needed[0]:,.0f}? (first 3) " in shown
    assert shown.count("? (first 3)") == 1 + LAYERS  # the model's row, and one in each row of layers
    assert "?" not in printed(capacity).split("Whole model")[1]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_chart_has_a_panel_for_each_part(theme: Any) -> None:
    chart = drawn(made_up(settings_of()), theme)
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
    return [panel["title"] for panel in drawn(made_up(settings_of(**changed)))["concat"]]


@pytest.mark.slow
def test_growth_comes_last_where_layers_have_one_length() -> None:
    """So that the two ways stay side by side."""
    titles = titles_of(layer_lengths=[256])
    assert titles[2:4] == ["each layer alone, deletion", "each layer alone, renormalised"]
    assert titles[-1] == "growth with the length"
    assert not any("over the length" in title for title in titles)
    one = titles_of(ways=["deletion"])
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
    capacity = made_up(settings_of())
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
        {"lengths": [128], "ways": ["renormalised"], "taus": [0.05]},
        {"layer_lengths": [256]},
        {"windows": 1, "layers": False, "lengths": [1024], "ways": ["deletion"], "taus": [1e-9, 0.5]},
    ],
)
def test_charts_of_odd_studies_can_be_drawn(changed: dict[str, Any], tmp_path: Path) -> None:
    written = figures(made_up(settings_of(**changed), "<script>alert(1)</script>"), tmp_path)
    assert [path.name for path in written] == [
        "capacity.png", "capacity.svg", "capacity.pdf",
        "capacity-dark.png", "capacity-dark.svg", "capacity-dark.pdf",
    ]  # fmt: skip
    assert all(path.stat().st_size > 3000 for path in written)
    assert "<script>" not in (tmp_path / "capacity.svg").read_text()


@pytest.mark.slow
def test_many_layers_have_a_legend_in_place_of_numbers(tmp_path: Path) -> None:
    few, many = (drawn(made_up(settings_of(), layers=layers))["concat"] for layers in (12, 13))
    for panel in (3, 8, 9):
        assert any(layer["mark"]["type"] == "text" for layer in few[panel]["layer"])
        assert few[panel]["layer"][0]["encoding"]["color"]["legend"] is None
        assert not any(layer["mark"]["type"] == "text" for layer in many[panel]["layer"])
        assert many[panel]["layer"][0]["encoding"]["color"]["legend"]["columns"] == 6
    assert len(figures(made_up(settings_of(), layers=30), tmp_path)) == 6


@pytest.mark.slow
def test_losses_that_never_rise_can_be_drawn(tmp_path: Path) -> None:
    study = made_up(settings_of())
    flat = study.curve.with_columns(rise=-pl.col("rise"), low=pl.lit(None, pl.Float64), high=pl.lit(None, pl.Float64))
    changed = replace(study, curve=flat)
    assert len(figures(changed, tmp_path / "deep" / "folder")) == 6
