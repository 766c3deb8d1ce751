"""The charts of a report: what they wait for, axes that hold all heads, and what may be missing."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import polars as pl
import pytest
import vl_convert
from chart_parts import FILLED, PANELS, drawn, filled, one_panel, only, parts, series, with_column, y_domain
from inside import THEMES, ThemeName, chart_specifications, vega_lite_version
from inside import report_shown_size as shown_size
from made_up_report import SIZES, alternatives, floors, grid, report, table

from abbe.results import Run
from abbe.studies import Report


def test_every_chart_has_its_panels_and_waits_for_its_data(specs: dict[ThemeName, dict[str, Any]]) -> None:
    for theme in THEMES:
        assert list(specs[theme]) == list(FILLED)
        for name, spec in specs[theme].items():
            assert [part["title"] for part in spec["concat"]] == PANELS[name]
            waiting = {data for data in spec["datasets"] if not data.startswith("data-")}
            assert waiting == set(FILLED[name])
            assert all(spec["datasets"][data] == [] for data in waiting)
            assert spec["title"]["text"].endswith("?")
            assert spec["title"]["subtitle"][0] == "gpt2-like on War and Peace"
            json.dumps(spec, allow_nan=False)


def test_data_is_the_same_in_both_themes_and_small(specs: dict[ThemeName, dict[str, Any]]) -> None:
    for name in FILLED:
        light, dark = specs["light"][name], specs["dark"][name]
        if name != "map":  # its numbers are grouped by their ink
            assert light["datasets"] == dark["datasets"]
        assert light["config"]["background"] != dark["config"]["background"]
    big = report(grid(12, 12), lengths=[32, 64, 128, 256, 512, 1024], temperatures=[0.05 * 2**i for i in range(8)])
    assert sum(len(json.dumps(spec)) for spec in chart_specifications(big, "light").values()) < 1_200_000


def test_filled_datasets_are_there_to_be_filled(specs: dict[ThemeName, dict[str, Any]]) -> None:
    for name, spec in specs["light"].items():
        vega = vl_convert.vegalite_to_vega(spec, vl_version=vega_lite_version())
        assert set(FILLED[name]) <= {data["name"] for data in vega["data"]}


@pytest.mark.quick(3)
@pytest.mark.parametrize("name", list(FILLED))
def test_drawn_empty_and_filled(
    name: str, whole: Report, specs: dict[ThemeName, dict[str, Any]], capfd: pytest.CaptureFixture[str]
) -> None:
    empty, full = drawn(specs["light"][name], capfd), drawn(filled(specs["dark"][name], name, whole), capfd)
    for theme, drawing in (("light", empty), ("dark", full)):
        assert THEMES[theme].background in drawing  # type: ignore[index]
        for words in (specs["light"][name]["title"]["text"], *PANELS[name]):
            assert words in drawing
    if FILLED[name]:
        assert full.count("<path") > empty.count("<path")


def test_fields_are_columns_of_the_rows(specs: dict[ThemeName, dict[str, Any]], whole: Report) -> None:
    made = {"shown", "interval_words", "limit_words", "control_words", "drawn_weight", "weight_words"}
    known = {
        "rows": set(whole.run.table.columns),
        "chosen": set(whole.run.table.columns) | {"temperature", "part"} | set(whole.alternatives.columns),
        "points": {"x", "y", "kind", "token", "weight", "distance"},
        "circle": {"x", "y", "order"},
    }
    seen = set()
    for spec in specs["light"].values():
        for layer in (layer for one in spec["concat"] for layer in one["layer"]):
            name = layer["data"]["name"]
            if (columns := known.get(name)) is not None:
                fields = {part["field"] for part in parts(layer) if isinstance(part.get("field"), str)}
                assert fields <= columns | made
                seen |= {name} if fields else set()
    assert seen == set(known)


# -- Axes that are the same for all heads -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "title", "measure", "size"),
    [
        ("sizes", "separability", "separability", "any"),
        ("sizes", "weight of the selected", "top_mass", "any"),
        ("sizes", "distance from the rest", "distance_per_token", "any"),
        ("sizes", "weights within the selected", "selected_divergence", "any"),
        ("lengths", "dispersion", "effective_tokens", None),
        ("lengths", "largest weight", "max_weight", None),
        ("lengths", "entropy", "entropy", None),
        ("growth", "largest weight", "max_weight", None),
        ("growth", "dispersion", "effective_tokens", None),
    ],
)
def test_axes_hold_all_heads(
    name: str, title: str, measure: str, size: Any, whole: Report, specs: dict[ThemeName, dict[str, Any]]
) -> None:
    low, high = y_domain(one_panel(specs["light"][name], title))
    rows = whole.run.table.filter(pl.col("measure") == measure)
    values = [v for column in ("value", "low", "high") for v in rows[column].drop_nulls()]
    if not title.startswith(("separability", "weight of")):  # a share has the fixed axis from 0 to 1
        values += [v for column in ("limit", "control") for v in rows[column].drop_nulls()]
        assert low <= min(values)
        assert high >= max(values)
        assert high < 4 * max(*values, math.log(SIZES[-1]))
    else:
        assert (low, high) == (0, 1.04)


def test_what_is_tiny_or_zero_is_drawn_at_the_edge() -> None:
    odd = table(grid(2, 2)).with_columns(
        value=pl.when((pl.col("measure") == "max_weight") & (pl.col("head") == 1)).then(0.0).otherwise(pl.col("value")),
        low=pl.when(pl.col("measure") == "max_weight").then(-1e-9).otherwise(pl.col("low")),
        control=pl.when(pl.col("measure") == "max_weight").then(1e-30).otherwise(pl.col("control")),
    )
    spec = chart_specifications(report(grid(2, 2), table=odd), "light")["growth"]
    one = one_panel(spec, "largest weight")
    low, high = y_domain(one)
    assert 0 < low < high < 1e7 * low
    assert all(layer["encoding"]["y"]["scale"]["clamp"] for layer in one["layer"])


# -- What may be missing ----------------------------------------------------------------------------------------------


SMALL = grid(2, 3)
NOTHING = pl.lit(None, pl.Float64)
ODD: dict[str, Callable[[], Report]] = {
    "one head": lambda: report(grid(1, 1)),
    "one length": lambda: report(SMALL, lengths=[64]),
    "one size": lambda: report(SMALL, sizes=[5]),
    "one temperature": lambda: report(SMALL, temperatures=[1.0]),
    "one of each": lambda: report(grid(1, 1), lengths=[8], sizes=[1], temperatures=[0.5]),
    "no limits": lambda: with_column(report(SMALL), limit=NOTHING, control=NOTHING),
    "no intervals": lambda: with_column(report(SMALL), low=NOTHING, high=NOTHING),
    "all null": lambda: with_column(
        report(SMALL), value=NOTHING, low=NOTHING, high=NOTHING, limit=NOTHING, control=NOTHING
    ),
    "not finite": lambda: with_column(report(SMALL), value=pl.lit(math.nan), limit=pl.lit(math.inf)),
    "zeros": lambda: with_column(report(SMALL), value=pl.lit(0.0), low=pl.lit(0.0), high=pl.lit(0.0)),
    "all the same": lambda: with_column(report(SMALL), value=pl.lit(0.5), limit=pl.lit(0.5), control=pl.lit(0.5)),
    "no rows of all heads": lambda: only(report(SMALL), pl.col("head").is_not_null()),
    "only all heads": lambda: only(report(SMALL), pl.col("head").is_null()),
    "one measure": lambda: only(report(SMALL), pl.col("measure") == "entropy"),
    "no rows": lambda: only(report(SMALL), pl.lit(False)),
    "no sensitivities": lambda: only(report(SMALL), ~pl.col("measure").str.starts_with("sensitivity")),
    "empty parts": lambda: report(
        SMALL, alternatives=alternatives([]), floors=floors([]), growth=pl.DataFrame(), sample=None
    ),
    "parts without columns": lambda: report(SMALL, alternatives=pl.DataFrame(), floors=pl.DataFrame()),
    "alternatives all null": lambda: report(SMALL, alternatives=_emptied(alternatives(SMALL))),
    "own alone": lambda: report(SMALL, alternatives=alternatives(SMALL).filter(pl.col("normalizer") == "baseline")),
    "no floor reached": lambda: report(SMALL, floors=floors(SMALL).with_columns(floor=NOTHING)),
    "no manifest": lambda: report(SMALL, manifest={"model": None, "settings": {"queries": None}}),
}


def _emptied(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.with_columns(pl.lit(None, pl.Float64).alias(name) for name in frame.columns[3:])


@pytest.mark.quick(1)
@pytest.mark.parametrize("odd", list(ODD))
def test_what_is_missing_stops_no_chart(odd: str, capfd: pytest.CaptureFixture[str]) -> None:
    of = ODD[odd]()
    for name, spec in chart_specifications(of, "light").items():
        drawn(filled(spec, name, of), capfd)
        used = {layer["data"]["name"] for one in spec["concat"] for layer in one["layer"]}
        assert set(FILLED[name]) <= used, name  # what no layer uses would not be there for the page to fill


def test_nothing_measured_is_said(capfd: pytest.CaptureFixture[str]) -> None:
    specs = chart_specifications(ODD["no rows"](), "light")
    for name in ("map", "sizes", "lengths", "growth"):
        assert "nothing was measured" in drawn(specs[name], capfd)


def test_one_place_shows_points_and_bars_instead_of_lines() -> None:
    spec = chart_specifications(ODD["one length"](), "light")["growth"]
    (band,) = [
        layer for layer in one_panel(spec, "largest weight")["layer"]
        if layer["encoding"].get("y2") and layer["data"]["name"] != "chosen"
    ]  # fmt: skip
    assert band["mark"]["type"] == "rule"
    (faint,) = series(spec, "largest weight", "single heads")
    assert faint["mark"]["type"] == "point"
    assert len(series(spec, "largest weight", "limit, where one is proved, mean")) == 2


@pytest.mark.parametrize(
    ("sizes", "lengths", "expected"),
    [((1, 5, 20, 50), (64, 256), 20), ((1, 5, 50), (256,), 5), ((15, 25), (256,), 15), ((100,), (256,), 100),
     ((2, 20, 30), (16, 25), 20), ((3, 20), (16,), 3)],
)  # fmt: skip
def test_shown_size_is_twenty_or_the_nearest(sizes: tuple[int, ...], lengths: tuple[int, ...], expected: int) -> None:
    assert shown_size(report(grid(1, 2), sizes=sizes, lengths=lengths, sample=None).run) == expected


def test_shown_size_is_that_of_the_longest_length() -> None:
    heads = table(grid(1, 2)).filter(~((pl.col("length") == 1024) & (pl.col("n") == 20)))
    assert shown_size(Run(heads, {})) == 5


def test_shown_size_of_nothing() -> None:
    assert shown_size(ODD["no rows"]().run) == 20
