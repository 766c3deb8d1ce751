"""A study of capacity as table, chart and files, from made-up numbers."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from rich.console import Console

from abbe import AbbeError
from abbe.studies import Capacity
from abbe.studies._capacity_curves import Curve
from abbe.studies._capacity_findings import findings
from abbe.studies._capacity_geometry import correlation_table
from abbe.studies._capacity_parts import WAYS
from abbe.studies._capacity_settings import CapacitySettings
from abbe.studies._capacity_tables import capacity_table as make_table
from abbe.studies._capacity_tables import curve_table, growth_table, layer_rows, model_row
from abbe.views import capacity_chart, capacity_table, save_capacity_figures

LENGTHS, LAYERS = (128, 256, 512, 1024), 6
SIZES = tuple(2**k for k in range(10))


def settings_of(**changed: Any) -> CapacitySettings:
    given: dict[str, Any] = {
        "lengths": LENGTHS, "taus": (0.01, 0.05), "ways": WAYS, "windows": 4, "layers": True, "layer_windows": 4,
        "queries": 8, "seed": 0, "level": 0.95, "resamples": 100,
    }  # fmt: skip
    return CapacitySettings(**(given | changed))


def curve_of(length: int, way: str, layer: int | None, windows: int) -> Curve:
    sizes = tuple(n for n in SIZES if n < length)
    fall = 1.0 if way == "renormalised" else 1.6
    height = fall * 0.12 * (length / 1024) ** 0.4 * (1 if layer is None else 0.03 * (layer + 1))
    spread = 1 + 0.2 * torch.arange(windows).double() / windows
    rises = height / torch.tensor(sizes).double().unsqueeze(-1) ** 0.7 * spread
    own = torch.full((windows,), 4.0, dtype=torch.float64)
    return Curve(length, way, layer, length, sizes, own, own * (1 + rises))


def made_up(settings: CapacitySettings, name: str = "made-up") -> Capacity:
    curves = [curve_of(length, way, None, settings.windows) for length in settings.lengths for way in settings.ways]
    rows = [model_row(curve, tau, settings) for curve in curves for tau in settings.taus]
    if settings.layers:
        of_layers = [curve_of(settings.lengths[-1], settings.layer_way, i, settings.windows) for i in range(LAYERS)]
        curves += of_layers
        rows += [row for curve in of_layers for row in layer_rows(curve, LAYERS, settings)]
    shares = {None: 0.8} | {i: 0.9 - 0.1 * i for i in range(LAYERS)}
    rows = [row | {"separability_n": 20, "separability": shares[row["layer"]], "control": 0.4} for row in rows]
    table, growth = make_table(rows), growth_table(curves, settings)
    correlation = correlation_table(rows, settings)
    manifest = {
        "model": {"name": name}, "text": {"name": "some\x1b[31m text"}, "settings": settings.as_json(),
        "skipped": ["length 1024: 3 of 4 windows"],
    }  # fmt: skip
    told = findings(table, growth, correlation, settings)
    return Capacity(table, curve_table(curves, settings), growth, correlation, told, manifest)


def printed(found: Capacity, columns: int = 100) -> str:
    console = Console(width=columns, no_color=True, record=True, file=io.StringIO())
    console.print(capacity_table(found))
    return console.export_text()


def test_the_table_holds_every_row() -> None:
    found = made_up(settings_of())
    shown = printed(found)
    assert "How many tokens does made-up need?" in shown
    assert "\x1b" not in shown
    for row in found.table.filter(pl.col("layer").is_null()).iter_rows(named=True):
        assert any(
            f"{row['length']:,}" in line and row["way"] in line and f" {row['capacity']:,.0f} " in line
            for line in shown.splitlines()
        )
    assert "80 % of 20" in shown
    assert "0.17 %" in shown  # the equal share of 1 % among six layers
    assert "skipped: length 1024: 3 of 4 windows" in shown
    for finding in found.findings:
        assert finding.sentence[:30] in shown


def test_a_narrow_terminal_and_few_numbers() -> None:
    found = made_up(settings_of(windows=1, layers=False, lengths=(128,), ways=("deletion",), taus=(0.05,)))
    shown = printed(found, 80)
    assert "Growth" not in shown
    assert "Each layer" not in shown
    assert max(len(line.rstrip()) for line in shown.splitlines()) <= 80


def test_a_capacity_with_a_hole_is_marked() -> None:
    found = made_up(settings_of(layers=False))
    odd = found.table.with_columns(monotone=pl.lit(False))
    changed = Capacity(odd, found.curve, found.growth, found.correlation, found.findings, found.manifest)
    assert " ?" in printed(changed)
    assert " ?" not in printed(found)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_chart_has_a_panel_for_each_part(theme: Any) -> None:
    chart = capacity_chart(made_up(settings_of()), theme)
    titles = [panel["title"] for panel in chart["concat"]]
    assert titles == [
        "truncated by deletion", "truncated by renormalised", "growth with the length",
        "layers: needed keys and separability", "each layer truncated alone", "separability; ticks: random sets",
    ]  # fmt: skip
    text = json.dumps(chart, allow_nan=False)
    assert "6% of L, the paper's" in text
    assert "made-up on some" in text
    assert "L = 1,024" in text


def drawn_rows(chart: dict[str, Any], panel: int) -> list[dict[str, Any]]:
    layers = chart["concat"][panel]["layer"]
    found = []
    for layer in layers:
        source = layer["data"]
        found += source.get("values") or chart["datasets"][source["name"]]
    return found


def test_the_chart_draws_the_numbers() -> None:
    found = made_up(settings_of())
    chart = capacity_chart(found)
    levels = {row["rise"] for row in drawn_rows(chart, 0) if row.get("shown") in ("1 %", "5 %")}
    assert levels == {1.0, 5.0}
    paper = {row["length"]: row["capacity"] for row in drawn_rows(chart, 2) if "paper" in row["shown"]}
    assert paper == pytest.approx({length: 0.06 * length for length in LENGTHS})
    bars = {row["layer"]: row["capacity"] for row in drawn_rows(chart, 4)}
    table = found.table.filter((pl.col("layer") == 3) & (pl.col("allowed") == 0.01 / LAYERS))
    assert bars[3] == pytest.approx(table["capacity"][0], rel=1e-5)
    rises = {row["n"]: row["rise"] for row in drawn_rows(chart, 0) if row.get("length") == 1024}
    curve = found.curve.filter(
        pl.col("layer").is_null() & (pl.col("length") == 1024) & (pl.col("way") == "deletion") & (pl.col("n") == 16)
    )
    assert rises[16] == pytest.approx(100 * curve["rise"][0], rel=1e-5)


@pytest.mark.parametrize(
    "changed",
    [
        {"windows": 1},
        {"layers": False},
        {"lengths": (128,), "ways": ("renormalised",), "taus": (0.05,)},
        {"windows": 1, "layers": False, "lengths": (1024,), "ways": ("deletion",), "taus": (1e-9, 0.5)},
    ],
)
def test_charts_of_odd_studies_can_be_drawn(changed: dict[str, Any], tmp_path: Path) -> None:
    written = save_capacity_figures(made_up(settings_of(**changed), "<script>alert(1)</script>"), tmp_path)
    assert [path.name for path in written] == [
        "capacity.png", "capacity.svg", "capacity-dark.png", "capacity-dark.svg",
    ]  # fmt: skip
    assert all(path.stat().st_size > 3000 for path in written)
    assert "<script>" not in (tmp_path / "capacity.svg").read_text()


def test_losses_that_never_rise_can_be_drawn(tmp_path: Path) -> None:
    found = made_up(settings_of())
    flat = found.curve.with_columns(rise=-pl.col("rise"), low=pl.lit(None, pl.Float64), high=pl.lit(None, pl.Float64))
    changed = Capacity(found.table, flat, found.growth, found.correlation, found.findings, found.manifest)
    assert len(save_capacity_figures(changed, tmp_path / "deep" / "folder")) == 4


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    with pytest.raises(AbbeError, match="taken is a file: give a folder for the figures"):
        save_capacity_figures(made_up(settings_of()), tmp_path / "taken")
