"""The charts: they hold the data they are given, and are drawn without a browser, whatever is missing."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable
from typing import Any

import polars as pl
import pytest
from chart_parts import parts
from made_up import LENGTHS, SIZES, TEMPERATURES, chart, distances, drift, figure_2c, figure_3, figure_4, figures

from abbe.studies import Figure
from abbe.views.charts import as_svg, drawings, for_xml, round_ticks
from abbe.views.theme import DARK, LIGHT, THEMES, Theme

NAMES = list(figures())
Spec = dict[str, Any]


def rows(spec: Spec) -> list[dict[str, Any]]:
    return [row for table in spec["datasets"].values() for row in table]


def panels(spec: Spec) -> list[str]:
    return [panel["title"] for panel in spec["concat"]]


def short(value: Any) -> Any:
    return float(f"{value:.6g}") if isinstance(value, float) else value


@pytest.mark.quick(4)
@pytest.mark.parametrize("theme", list(THEMES))
@pytest.mark.parametrize("name", NAMES)
def test_a_figure_is_drawn_without_a_browser(name: str, theme: Any) -> None:
    spec = chart(figures()[name], theme)
    drawn = drawings(spec)
    assert drawn["png"].startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", drawn["png"][16:24])
    assert 1000 < width < 1600  # twice the width on a page
    assert 400 < height < 1800
    assert len(drawn["png"]) > 10_000
    drawing = drawn["svg"].decode()
    assert not {"NaN", "Infinity", "undefined"} & set(drawing.split())
    assert all(words in drawing for words in ("<svg", spec["title"]["text"], THEMES[theme].background))


@pytest.mark.quick(2)
@pytest.mark.parametrize("name", NAMES)
def test_the_data_is_all_there_and_the_same_in_both_themes(name: str) -> None:
    figure = figures()[name]
    light, dark = (chart(figure, theme) for theme in ("light", "dark"))
    assert light["datasets"] == dark["datasets"]
    assert light != dark
    held = {value for table in light["datasets"].values() for row in table for value in row.values()}
    for table in figure.tables.values():
        for column in table.select(pl.selectors.numeric()).iter_columns():
            if (table.columns, column.name) == (["temperature", "step", "true", "paper"], "step"):
                continue
            missing = {short(value) for value in column if value is not None and math.isfinite(value)} - held
            assert not missing, (name, column.name, missing)
    assert len(json.dumps(light)) < 400_000


@pytest.mark.parametrize(("name", "axis"), [("2a", "length"), ("2b", "n")])
def test_every_distance_stands_at_its_place_under_its_name(name: str, axis: str) -> None:
    labels = {"selected": "selected", "random": "random sets", "bound": "Theorem 1"}
    drawn = rows(chart(figures()[name]))
    for row in figures()[name].tables["distance"].iter_rows(named=True):
        if row["series"] in labels:
            (match,) = [
                other for other in drawn
                if other.get("vectors") == row["vectors"] and other[axis] == row[axis] and "top" not in other
                and other["series"] == row["series"] and other["value"] == short(row["value"])
            ][:1]  # fmt: skip
            assert labels[row["series"]] in match["shown"]
        else:
            column = "value" if row["series"] == "expected low" else "top"
            assert any("top" in o and o[axis] == row[axis] and o[column] == short(row["value"]) for o in drawn)


@pytest.mark.slow
def test_panels_are_those_of_the_data() -> None:
    assert panels(chart(figures()["2a"])) == ["token embeddings", "value vectors"]
    one = Figure("2a", {"distance": distances("length", LENGTHS, ["value"])})
    assert panels(chart(one)) == ["value vectors"]
    other = Figure("2b", {"distance": distances("n", SIZES, ["output"])})
    assert panels(chart(other)) == ["output vectors"]
    assert panels(chart(figures()["4"])) == ["step 0.001", "step 0.1", "step 10", "derivative"]
    assert panels(chart(figure_2c(vectors=["embedding"]))) == [
        "critical N, token embeddings",
        "test by heads, token embeddings",
    ]
    assert len(panels(chart(figures()["2c"]))) == 4


def axes(spec: Spec, title: str) -> list[dict[str, Any]]:
    return [part["scale"] for part in parts(spec) if part.get("title") == title and "scale" in part]


def test_distances_have_a_logarithmic_axis_unless_one_is_zero() -> None:
    table = distances("length", LENGTHS)
    for scale in axes(chart(Figure("2a", {"distance": table})), "distance to the selected"):
        assert scale["type"] == "log"
    zero = table.with_columns(value=pl.when(pl.col("length") == 32).then(0.0).otherwise("value"))
    spec = chart(Figure("2a", {"distance": zero}))
    axis = axes(spec, "distance to the selected")
    assert axis
    assert all("type" not in scale and scale["domain"][0] == 0 for scale in axis)
    assert "NaN" not in as_svg(spec)


def test_an_interval_below_zero_ends_at_the_edge_of_a_logarithmic_axis() -> None:
    table = distances("length", LENGTHS).with_columns(low=pl.when(pl.col("low").is_not_null()).then(-1.0))
    spec = chart(Figure("2a", {"distance": table}))
    assert "NaN" not in as_svg(spec)
    scales = axes(spec, "distance to the selected")
    assert {(scale["type"], scale["clamp"]) for scale in scales} == {("log", True)}
    assert min(scale["domain"][0] for scale in scales) > 0.5 * (table["value"].min() or 0)  # no room is lost below


def arrows(spec: Spec) -> list[dict[str, Any]]:
    heads = [
        part for part in parts(spec) if isinstance(part.get("mark"), dict) and part["mark"].get("shape") == "arrow"
    ]
    return [row for part in heads for row in spec["datasets"][part["data"]["name"]]]


@pytest.mark.slow
def test_an_arrow_stands_where_every_test_rejects() -> None:
    spec = chart(figures()["2c"])
    shown = arrows(spec)
    assert {(row["vectors"], row["level"]) for row in shown} == {
        (kind, level) for kind in ("embedding", "value") for level in (0.01, 0.05)
    }
    assert all(row["length"] == 1024 and row["largest_n"] == 500 and row["critical_n"] is None for row in shown)
    assert {row["label"] for row in rows(spec) if "largest_n" in row and "label" in row} == {"> 500"}
    assert arrows(chart(figure_2c(LENGTHS[:-1]))) == []


def test_an_arrow_has_its_number_when_only_the_higher_level_rejects_throughout() -> None:
    figure = figure_2c(vectors=["value"])
    critical = figure.tables["critical"].with_columns(
        critical_n=pl.when(pl.col("level") == 0.01).then(pl.col("critical_n").fill_null(77)).otherwise("critical_n")
    )
    spec = chart(Figure("2c", {"critical": critical, "tests": figure.tables["tests"]}))
    assert {row["level"] for row in arrows(spec)} == {0.05}
    assert {row["label"] for row in rows(spec) if "largest_n" in row and "label" in row} == {"> 500"}
    assert "> 500" in as_svg(spec).replace("&gt;", ">")


def test_what_the_paper_states_is_drawn() -> None:
    line = [row for row in rows(chart(figures()["2c"])) if set(row) == {"length", "critical_n"}]
    assert {row["length"] for row in line} >= {32, 1024}
    assert all(row["critical_n"] == pytest.approx(0.06 * row["length"]) for row in line)
    bands = [row for row in rows(chart(figures()["3"])) if "paper" in row.get("shown", "")]
    assert {(row["low"], row["high"]) for row in bands} == {(0.70, 0.85)}


def test_heads_stand_under_their_name() -> None:
    figure = figure_3(vectors=["value"])
    values = {(r["layer"], r["head"], r["n"], r["shown"]): r["value"] for r in rows(chart(figure)) if "layer" in r}
    heads = figure.tables["heads"]
    assert len(values) == 2 * heads.height
    for row in heads.iter_rows(named=True):
        place = (row["layer"], row["head"], row["n"])
        assert values[*place, "selected: one value per head"] == short(row["value"])
        assert values[*place, "random sets of N"] == short(row["control"])


@pytest.mark.parametrize("name", ["2a", "2c", "3", "4"])
def test_every_channel_reads_a_field_that_the_data_has(name: str) -> None:
    spec = chart(figures()[name])
    known = {field for row in rows(spec) for field in row}
    encoded = [part["encoding"] for part in parts(spec) if isinstance(part.get("encoding"), dict)]
    read = {part["field"] for encoding in encoded for part in parts(encoding) if isinstance(part.get("field"), str)}
    assert read
    assert not read - known


def test_directions_and_statistics_stand_under_their_name() -> None:
    directions = {"random": "random direction", "pair": "second key past the first", "worst": "worst direction"}
    statistics = {"paper": "largest head", "mean": "queries and heads", "max": "largest row"}
    drawn = [row for row in rows(chart(figures()["4"])) if "direction" in row]
    assert len(drawn) == figures()["4"].tables["sensitivity"].height
    for row in drawn:
        assert row["shown"] == directions[row["direction"]]
        assert statistics[row["statistic"]] in row["reading"]
    for row in rows(chart(drift())):
        assert row["shown"].startswith(row["series"].replace("ceiling", "all weight"))


def test_steps_do_not_mix() -> None:
    spec = chart(figures()["4"])
    for one in spec["concat"]:
        names = {part["data"]["name"] for part in parts(one) if "data" in part}
        steps = {row["step"] for name in names for row in spec["datasets"][name] if "step" in row}
        assert steps == {None if one["title"] == "derivative" else float(one["title"].removeprefix("step "))}
        ceilings = [row for name in names for row in spec["datasets"][name] if "step" not in row]
        assert sum("true" in row["shown"] for row in ceilings) == len(ceilings) / 2 == len(TEMPERATURES)


def test_the_ceiling_of_the_divergence_is_ln_n() -> None:
    ceilings = [row for row in rows(chart(drift())) if "ln N" in row["shown"]]
    assert {row["n"] for row in ceilings if "n" in row} == set(SIZES) - {1}
    for row in ceilings:
        assert row["value"] == pytest.approx(math.log(row.get("n", 5)), rel=1e-4)


MEASURED = ("value", "low", "high", "control", "critical_n", "statistic", "p_value", "share", "true", "paper")


def changed(figure: Figure, change: Callable[[str], pl.Expr], *columns: str) -> Figure:
    """With other numbers in these columns."""
    tables = {
        name: table.with_columns(
            change(one).alias(one) for one in columns if one in table.columns and table[one].dtype.is_numeric()
        )
        for name, table in figure.tables.items()
    }
    return Figure(figure.name, tables, figure.about)


def holes(column: str) -> pl.Expr:
    """Every third number is missing, every fifth is NaN."""
    row = pl.int_range(pl.len())
    return pl.when(row % 3 == 0).then(None).when(row % 5 == 0).then(math.nan).otherwise(pl.col(column).cast(pl.Float64))


ODD: dict[str, Callable[[Figure], Figure]] = {
    "no intervals": lambda figure: changed(figure, lambda _: pl.lit(None), "low", "high"),
    "no values": lambda figure: changed(figure, lambda _: pl.lit(None), *MEASURED),
    "holes": lambda figure: changed(figure, holes, *MEASURED),
    "nothing known about it": lambda figure: Figure(figure.name, figure.tables),
    "no rows": lambda figure: Figure(figure.name, {name: table.clear() for name, table in figure.tables.items()}),
}


@pytest.mark.quick(3)
@pytest.mark.parametrize("odd", list(ODD))
@pytest.mark.parametrize("name", NAMES)
def test_what_is_missing_does_not_stop_a_figure(name: str, odd: str) -> None:
    drawing = as_svg(chart(ODD[odd](figures()[name]), "dark"))
    assert "NaN" not in drawing
    assert "undefined" not in drawing
    assert ("nothing was measured" in drawing) == (odd == "no rows" and name != "drift")


SINGLE = {
    "2a": Figure("2a", {"distance": distances("length", [64], ["value"])}, {"lengths": [64], "heads": 1}),
    "2b": Figure("2b", {"distance": distances("n", [5], ["value"])}, {"sizes": [5], "queries": 1}),
    "2c": figure_2c([64], ["value"]),
    "2c above": figure_2c([1024], ["value"]),
    "3": figure_3([8], ["value"]),
    "4": Figure("4", {name: table.filter(temperature=1.0, step=0.1) for name, table in figure_4().tables.items()}),
    "drift": Figure("drift", {"by_size": drift().tables["by_size"][:2], "by_length": drift().tables["by_length"][:2]}),
}


@pytest.mark.quick(3)
@pytest.mark.parametrize("name", list(SINGLE))
def test_one_place_only(name: str) -> None:
    drawing = as_svg(chart(SINGLE[name]))
    assert "NaN" not in drawing
    assert len(drawing) > 3000


def test_settings_in_one_line() -> None:
    assert figures()["2a"].settings == "L = 32 to 1024, N = 5, 48 heads, 8 windows, at most 32 queries per window"
    assert SINGLE["2a"].settings == "L = 64, 1 head"
    assert SINGLE["2b"].settings == "N = 5, 1 query per window"
    assert Figure("3", {}, {"length": 64, "queries": "all"}).settings == "L = 64, all queries per window"
    assert Figure("3", {}).settings == ""


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_contrast(theme: Theme) -> None:
    for colour in (theme.ink, theme.soft, theme.good, theme.bad, theme.alarm, theme.selected):
        for ground in (theme.background, theme.raised):
            assert contrast(colour, ground) >= 4.5  # text
    for colour in (theme.control, theme.claim, theme.proved, theme.third, theme.fourth, *theme.ramp):
        assert contrast(colour, theme.background) >= 3  # lines and points


def test_ticks_are_round_and_inside() -> None:
    assert round_ticks(1, 100) == [1, 2, 5, 10, 20, 50]
    assert round_ticks(0.0009, 20) == [0.001, 0.01, 0.1, 1, 10]
    for low, high in ((1e-12, 1e12), (3, 4), (0.5, 0.50001)):
        ticks = round_ticks(low, high)
        assert len(ticks) <= 9
        assert all(low <= tick <= high for tick in ticks)


def test_what_xml_allows_is_kept() -> None:
    assert for_xml({"a\t": ["é👩‍🔬\n", 1, None, ("\x1b",)]}) == {"a\t": ["é👩‍🔬\n", 1, None, ["\ufffd"]]}
