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
from inside import WAYS, CapacitySettings, Curve, capacity_rows, correlation_table, curve_table, findings, growth_table
from inside import capacity_table as make_table
from markupsafe import escape
from rich.console import Console

from abbe import AbbeError
from abbe.studies import Capacity
from abbe.views import capacity_chart, capacity_table, save_figures

LENGTHS, LAYERS = (128, 256, 512, 1024), 6
SIZES = tuple(2**k for k in range(10))
SIZE_OF = {"deletion": 20, "renormalised": 12}


def settings_of(**changed: Any) -> CapacitySettings:
    given: dict[str, Any] = {
        "lengths": LENGTHS, "taus": (0.01, 0.05), "ways": WAYS, "windows": 4, "layers": True, "layer_windows": 4,
        "queries": 8, "seed": 0, "level": 0.95, "resamples": 100,
    } | changed  # fmt: skip
    return CapacitySettings(**({"layer_lengths": given["lengths"] if given["layers"] else ()} | given))


def curve_of(length: int, way: str, layer: int | None, windows: int) -> Curve:
    sizes = tuple(n for n in SIZES if n < length)
    fall = 1.0 if way == "renormalised" else 1.6
    height = fall * 0.12 * (length / 1024) ** 0.4 * (1 if layer is None else 0.03 * (layer + 1))
    spread = 1 + 0.2 * torch.arange(windows).double() / windows
    rises = height / torch.tensor(sizes).double().unsqueeze(-1) ** 0.7 * spread
    baseline = torch.full((windows,), 4.0, dtype=torch.float64)
    return Curve(length, way, layer, length, layer is None, sizes, baseline, baseline, baseline * (1 + rises))


def made_up(settings: CapacitySettings, name: str = "made-up", layers: int = LAYERS) -> Capacity:
    curves = [curve_of(length, way, None, settings.windows) for length in settings.lengths for way in settings.ways]
    curves += [
        curve_of(length, way, layer, settings.windows)
        for length in settings.layer_lengths
        for way in settings.ways
        for layer in range(layers)
    ]
    rows = capacity_rows(curves, layers, settings)
    shares = {None: 0.8} | {i: 0.9 - 0.6 * i / layers for i in range(layers)}
    rows = [
        row | {"separability_n": SIZE_OF[row["way"]], "separability": shares[row["layer"]], "control": 0.4}
        for row in rows
    ]
    table, growth = make_table(rows), growth_table(curves, layers, settings)
    correlation = correlation_table(rows, settings)
    manifest = {
        "model": {"name": name}, "text": {"name": "some\x1b[31m text"}, "settings": settings.as_json(),
        "skipped": ["length 1024: 3 of 4 windows"],
    }  # fmt: skip
    return Capacity(
        table=table, curve=curve_table(curves, settings), growth=growth, correlation=correlation,
        findings=findings(table, growth, correlation, settings), manifest=manifest,
    )  # fmt: skip


def printed(capacity: Capacity, columns: int = 100) -> str:
    console = Console(width=columns, no_color=True, record=True, file=io.StringIO())
    console.print(capacity_table(capacity))
    return console.export_text()


def test_the_table_holds_every_row() -> None:
    capacity = made_up(settings_of())
    shown = printed(capacity)
    assert "How many tokens does made-up need?" in shown
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
    assert "g: growth at 0.17 %; layers at 128, 256, 512 tokens: --json, or table.csv of --out" in shown
    assert "skipped: length 1024: 3 of 4 windows" in shown
    for finding in capacity.findings:
        assert finding.sentence[:30] in shown


def test_growth_of_the_model_and_of_its_layers_are_distinguished() -> None:
    capacity = made_up(settings_of())
    growth, of_layers = printed(capacity).split("Growth, N* ~ L^g")[1].split("Each layer alone, deletion")
    assert growth.count("deletion") == growth.count("renormalised") == 2
    table = of_layers.split("Each layer alone")[0]
    exponents = capacity.growth.filter(
        pl.col("layer").is_not_null(), pl.col("way") == "deletion", pl.col("allowed") == 0.01 / LAYERS
    )
    lines = [line.split() for line in table.splitlines() if line.strip()[:1].isdigit()]
    assert [line[5] for line in lines] == [f"{value:.2f}" for value in exponents["exponent"]]
    alone = printed(made_up(settings_of(layer_lengths=(256,))))
    assert "Each layer alone, deletion, 256 tokens" in alone
    assert "g: growth" not in alone


def test_large_numbers_are_written_out() -> None:
    capacity = made_up(settings_of())
    large = capacity.table.with_columns(capacity=pl.lit(1234.5))
    shown = printed(replace(capacity, table=large))
    assert "e+03" not in shown
    of_layers = [line for line in shown.split("Each layer alone, deletion")[1].splitlines() if "1,235" in line]
    assert len(of_layers) == 2 * LAYERS


def test_no_word_is_cut_off_in_80_columns() -> None:
    shown = printed(made_up(settings_of()), 80)
    assert "\N{HORIZONTAL ELLIPSIS}" not in shown
    assert max(len(line.rstrip()) for line in shown.splitlines()) <= 80


def test_a_narrow_terminal_and_few_numbers() -> None:
    capacity = made_up(settings_of(windows=1, layers=False, lengths=(128,), ways=("deletion",), taus=(0.05,)))
    shown = printed(capacity, 80)
    assert "Growth" not in shown
    assert "Each layer" not in shown
    assert max(len(line.rstrip()) for line in shown.splitlines()) <= 80


def test_the_page_holds_findings_charts_in_both_themes_and_tables() -> None:
    study = made_up(settings_of(), "<script>alert(1)</script>")
    page = study.to_html()
    assert "<script>alert(1)</script>" not in page
    for finding in study.findings:
        assert escape(finding.sentence.replace(" %", "\u00a0%")) in page
    charts = json.loads(page.split('<script type="application/json" id="charts">')[1].split("</script>")[0])
    assert set(charts["capacity"]) == {"light", "dark", "datasets"}
    assert "<h3>Whole model</h3>" in page
    assert page.count("<td>renormalised</td>") >= study.table.filter(pl.col("layer").is_null()).height / 2


def test_a_capacity_with_a_hole_is_marked() -> None:
    capacity = made_up(settings_of())
    last = (pl.col("length") == 1024) & (pl.col("way") == "deletion") & (pl.col("allowed") == pl.col("allowed").max())
    odd = capacity.table.with_columns(monotone=~last, first=pl.when(last).then(3).otherwise(pl.col("first")))
    changed = replace(capacity, table=odd)
    shown = printed(changed, 120)
    needed = odd.filter(last)["capacity"].to_list()
    assert f" {needed[0]:,.0f}? (first 3) " in shown
    assert shown.count("? (first 3)") == 1 + LAYERS  # the model's row, and one in each row of layers
    assert "?" not in printed(capacity).split("What it means")[0].split("need?")[1]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_chart_has_a_panel_for_each_part(theme: Any) -> None:
    chart = capacity_chart(made_up(settings_of()), theme)
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
    assert "made-up on some" in text
    assert "L = 1,024" in text
    assert chart["title"]["subtitle"][1] == "single layers at L = 1,024, on 4 of the windows"


def titles_of(**changed: Any) -> list[str]:
    return [panel["title"] for panel in capacity_chart(made_up(settings_of(**changed)))["concat"]]


@pytest.mark.slow
def test_growth_comes_last_where_layers_have_one_length() -> None:
    """So that the two ways stay side by side."""
    titles = titles_of(layer_lengths=(256,))
    assert titles[2:4] == ["each layer alone, deletion", "each layer alone, renormalised"]
    assert titles[-1] == "growth with the length"
    assert not any("over the length" in title for title in titles)
    one = titles_of(ways=("deletion",))
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
    chart = capacity_chart(capacity)
    levels = {row["rise"] for row in drawn_rows(chart, 0) if row.get("shown") in ("1 %", "5 %")}
    assert levels == {1.0, 5.0}
    paper = {row["length"]: row["capacity"] for row in drawn_rows(chart, 2) if "paper" in row["shown"]}
    assert paper == pytest.approx({length: 0.06 * length for length in LENGTHS})
    for place, way in enumerate(WAYS):
        of_layer = capacity.table.filter(
            pl.col("layer") == 3, pl.col("allowed") == 0.01 / LAYERS, pl.col("way") == way
        ).sort("length")
        for panel in (4, 8):
            drawn = [row["capacity"] for row in drawn_rows(chart, panel + place) if row["layer"] == 3]
            assert drawn == pytest.approx([of_layer["capacity"][-1]] * 2, rel=1e-5)  # point, and interval or number
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
        {"lengths": (128,), "ways": ("renormalised",), "taus": (0.05,)},
        {"layer_lengths": (256,)},
        {"windows": 1, "layers": False, "lengths": (1024,), "ways": ("deletion",), "taus": (1e-9, 0.5)},
    ],
)
def test_charts_of_odd_studies_can_be_drawn(changed: dict[str, Any], tmp_path: Path) -> None:
    written = save_figures(made_up(settings_of(**changed), "<script>alert(1)</script>"), tmp_path)
    assert [path.name for path in written] == [
        "capacity.png", "capacity.svg", "capacity.pdf",
        "capacity-dark.png", "capacity-dark.svg", "capacity-dark.pdf",
    ]  # fmt: skip
    assert all(path.stat().st_size > 3000 for path in written)
    assert "<script>" not in (tmp_path / "capacity.svg").read_text()


@pytest.mark.slow
def test_many_layers_have_a_legend_in_place_of_numbers(tmp_path: Path) -> None:
    few, many = (capacity_chart(made_up(settings_of(), layers=layers))["concat"] for layers in (12, 13))
    for panel in (3, 8, 9):
        assert any(layer["mark"]["type"] == "text" for layer in few[panel]["layer"])
        assert few[panel]["layer"][0]["encoding"]["color"]["legend"] is None
        assert not any(layer["mark"]["type"] == "text" for layer in many[panel]["layer"])
        assert many[panel]["layer"][0]["encoding"]["color"]["legend"]["columns"] == 6
    assert len(save_figures(made_up(settings_of(), layers=30), tmp_path)) == 4


@pytest.mark.slow
def test_losses_that_never_rise_can_be_drawn(tmp_path: Path) -> None:
    study = made_up(settings_of())
    flat = study.curve.with_columns(rise=-pl.col("rise"), low=pl.lit(None, pl.Float64), high=pl.lit(None, pl.Float64))
    changed = replace(study, curve=flat)
    assert len(save_figures(changed, tmp_path / "deep" / "folder")) == 4


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    with pytest.raises(AbbeError, match="taken is a file: give a folder for the figures"):
        save_figures(made_up(settings_of()), tmp_path / "taken")
