"""The charts: they hold the data they are given, and are drawn without a browser, whatever is missing."""

from __future__ import annotations

import io
import json
import math
import struct
from collections.abc import Callable
from typing import Any

import altair as alt
import polars as pl
import pytest
from chart_parts import parts
from inside import DARK, LIGHT, THEMES, WORDS, Theme, _ticks, drawings, for_xml, rows_of, settings_line
from made_up import LENGTHS, SIZES, TEMPERATURES, distances, drift, figure_2c, figure_3, figure_4, figures

from abbe import AbbeError
from abbe.studies import Figure
from abbe.views import figure_chart

NAMES = list(figures())


def png(chart: alt.ConcatChart) -> bytes:
    buffer = io.BytesIO()
    chart.save(buffer, format="png")
    return buffer.getvalue()


def svg(chart: alt.ConcatChart) -> str:
    buffer = io.StringIO()
    chart.save(buffer, format="svg")
    return buffer.getvalue()


def rows(chart: alt.ConcatChart) -> list[dict[str, Any]]:
    return [row for table in chart.to_dict()["datasets"].values() for row in table]


def panels(chart: alt.ConcatChart) -> list[str]:
    return [part["title"] for part in parts(chart.to_dict()) if "layer" in part]


def short(value: Any) -> Any:
    return float(f"{value:.6g}") if isinstance(value, float) else value


@pytest.mark.quick(4)
@pytest.mark.parametrize("theme", list(THEMES))
@pytest.mark.parametrize("name", NAMES)
def test_a_figure_is_drawn_without_a_browser(name: str, theme: Any) -> None:
    chart = figure_chart(figures()[name], theme)
    picture = png(chart)
    assert picture.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", picture[16:24])
    assert 500 < width < 800
    assert 200 < height < 900
    assert len(picture) > 10_000
    drawing = svg(chart)
    assert drawing.startswith("<svg")
    assert "NaN" not in drawing
    assert "Infinity" not in drawing
    assert WORDS[name].question in drawing
    assert THEMES[theme].background in drawing


@pytest.mark.quick(2)
@pytest.mark.parametrize("name", NAMES)
def test_the_data_is_all_there_and_the_same_in_both_themes(name: str) -> None:
    figure = figures()[name]
    light, dark = (figure_chart(figure, theme).to_dict() for theme in ("light", "dark"))
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
    drawn = rows(figure_chart(figures()[name]))
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
    assert panels(figure_chart(figures()["2a"])) == ["token embeddings", "value vectors"]
    one = Figure("2a", {"distance": distances("length", LENGTHS, ["value"])})
    assert panels(figure_chart(one)) == ["value vectors"]
    other = Figure("2b", {"distance": distances("n", SIZES, ["output"])})
    assert panels(figure_chart(other)) == ["output vectors"]
    assert panels(figure_chart(figures()["4"])) == ["step 0.001", "step 0.1", "step 10", "derivative"]
    assert panels(figure_chart(figure_2c(vectors=["embedding"]))) == [
        "critical N, token embeddings",
        "test by heads, token embeddings",
    ]
    assert len(panels(figure_chart(figures()["2c"]))) == 4


def axes(chart: alt.ConcatChart, title: str) -> list[dict[str, Any]]:
    return [part["scale"] for part in parts(chart.to_dict()) if part.get("title") == title and "scale" in part]


def test_distances_have_a_logarithmic_axis_unless_one_is_zero() -> None:
    table = distances("length", LENGTHS)
    for scale in axes(figure_chart(Figure("2a", {"distance": table})), "distance to the selected"):
        assert scale["type"] == "log"
    zero = table.with_columns(value=pl.when(pl.col("length") == 32).then(0.0).otherwise("value"))
    chart = figure_chart(Figure("2a", {"distance": zero}))
    axis = axes(chart, "distance to the selected")
    assert axis
    assert all("type" not in scale and scale["domain"][0] == 0 for scale in axis)
    assert "NaN" not in svg(chart)


def test_an_interval_below_zero_ends_at_the_edge_of_a_logarithmic_axis() -> None:
    table = distances("length", LENGTHS).with_columns(low=pl.when(pl.col("low").is_not_null()).then(-1.0))
    chart = figure_chart(Figure("2a", {"distance": table}))
    assert "NaN" not in svg(chart)
    with_interval = [row for row in rows(chart) if row.get("low") is not None and row["low"] > 0]
    assert with_interval


def arrows(chart: alt.ConcatChart) -> list[dict[str, Any]]:
    spec = chart.to_dict()
    heads = [
        part for part in parts(spec) if isinstance(part.get("mark"), dict) and part["mark"].get("shape") == "arrow"
    ]
    return [row for part in heads for row in spec["datasets"][part["data"]["name"]]]


@pytest.mark.slow
def test_an_arrow_stands_where_every_test_rejects() -> None:
    chart = figure_chart(figures()["2c"])
    shown = arrows(chart)
    assert {(row["vectors"], row["level"]) for row in shown} == {
        (kind, level) for kind in ("embedding", "value") for level in (0.01, 0.05)
    }
    assert all(row["length"] == 1024 and row["largest_n"] == 500 and row["critical_n"] is None for row in shown)
    assert {row["label"] for row in rows(chart) if "label" in row} == {"> 500"}
    assert arrows(figure_chart(figure_2c(LENGTHS[:-1]))) == []


def test_an_arrow_has_its_number_when_only_the_higher_level_rejects_throughout() -> None:
    figure = figure_2c(vectors=["value"])
    critical = figure.tables["critical"].with_columns(
        critical_n=pl.when(pl.col("level") == 0.01).then(pl.col("critical_n").fill_null(77)).otherwise("critical_n")
    )
    chart = figure_chart(Figure("2c", {"critical": critical, "tests": figure.tables["tests"]}))
    assert {row["level"] for row in arrows(chart)} == {0.05}
    assert {row["label"] for row in rows(chart) if "label" in row} == {"> 500"}
    assert "> 500" in svg(chart).replace("&gt;", ">")


def test_the_line_of_the_paper_is_at_six_percent() -> None:
    drawn = [row for row in rows(figure_chart(figures()["2c"])) if set(row) == {"length", "critical_n"}]
    assert {row["length"] for row in drawn} >= {32, 1024}
    assert all(row["critical_n"] == pytest.approx(0.06 * row["length"]) for row in drawn)


def test_the_band_of_the_paper_is_drawn() -> None:
    bands = [row for row in rows(figure_chart(figures()["3"])) if "paper" in row.get("shown", "")]
    assert bands
    assert all((row["low"], row["high"]) == (0.70, 0.85) for row in bands)


def test_heads_stand_under_their_name() -> None:
    figure = figure_3(vectors=["value"])
    values = {
        (r["layer"], r["head"], r["n"], r["shown"]): r["value"] for r in rows(figure_chart(figure)) if "layer" in r
    }
    heads = figure.tables["heads"]
    assert len(values) == 2 * heads.height
    for row in heads.iter_rows(named=True):
        place = (row["layer"], row["head"], row["n"])
        assert values[*place, "selected: one value per head"] == short(row["value"])
        assert values[*place, "random sets of N"] == short(row["control"])


@pytest.mark.parametrize("name", ["2a", "2c", "3", "4"])
def test_every_channel_reads_a_field_that_the_data_has(name: str) -> None:
    chart = figure_chart(figures()[name])
    known = {field for row in rows(chart) for field in row}
    encoded = [part["encoding"] for part in parts(chart.to_dict()) if isinstance(part.get("encoding"), dict)]
    read = {part["field"] for encoding in encoded for part in parts(encoding) if isinstance(part.get("field"), str)}
    assert read
    assert not read - known


def test_directions_and_statistics_stand_under_their_name() -> None:
    directions = {"random": "random direction", "pair": "second key past the first", "worst": "worst direction"}
    statistics = {"paper": "largest head", "mean": "queries and heads", "max": "largest row"}
    drawn = [row for row in rows(figure_chart(figures()["4"])) if "direction" in row]
    assert len(drawn) == figures()["4"].tables["sensitivity"].height
    for row in drawn:
        assert row["shown"] == directions[row["direction"]]
        assert statistics[row["statistic"]] in row["reading"]
    for row in rows(figure_chart(drift())):
        assert row["shown"].startswith(row.get("series", "all weight"))


def test_steps_do_not_mix() -> None:
    spec = figure_chart(figures()["4"]).to_dict()
    for one in spec["concat"]:
        names = {part["data"]["name"] for part in parts(one) if "data" in part}
        steps = {row["step"] for name in names for row in spec["datasets"][name] if "step" in row}
        assert steps == {None if one["title"] == "derivative" else float(one["title"].removeprefix("step "))}
        ceilings = [row for name in names for row in spec["datasets"][name] if "step" not in row]
        assert sum("true" in row["shown"] for row in ceilings) == len(ceilings) / 2 == len(TEMPERATURES)


def test_the_ceiling_of_the_divergence_is_ln_n() -> None:
    ceilings = [row for row in rows(figure_chart(drift())) if "ln N" in row["shown"]]
    assert {row["n"] for row in ceilings if "n" in row} == set(SIZES) - {1}
    for row in ceilings:
        assert row["value"] == pytest.approx(math.log(row.get("n", 5)), rel=1e-4)


def emptied(figure: Figure, *columns: str) -> Figure:
    tables = {
        name: table.with_columns(pl.lit(None).alias(column) for column in columns if column in table.columns)
        for name, table in figure.tables.items()
    }
    return Figure(figure.name, tables, figure.about)


def with_holes(figure: Figure) -> Figure:
    """Every third number of every measured column is missing, every fifth is NaN."""
    measured = ("value", "low", "high", "control", "critical_n", "statistic", "p_value", "share", "true", "paper")
    tables = {}
    for name, table in figure.tables.items():
        holes = [
            pl.when(pl.int_range(pl.len()) % 3 == 0)
            .then(None)
            .when(pl.int_range(pl.len()) % 5 == 0)
            .then(math.nan)
            .otherwise(pl.col(column).cast(pl.Float64))
            .alias(column)
            for column in measured
            if column in table.columns and table[column].dtype.is_numeric()
        ]
        tables[name] = table.with_columns(holes)
    return Figure(figure.name, tables, figure.about)


def without_rows(figure: Figure) -> Figure:
    return Figure(figure.name, {name: table.clear() for name, table in figure.tables.items()})


ODD: dict[str, Callable[[Figure], Figure]] = {
    "no intervals": lambda figure: emptied(figure, "low", "high"),
    "no values": lambda figure: emptied(
        figure, "value", "control", "critical_n", "statistic", "share", "true", "paper"
    ),
    "holes": with_holes,
    "nothing known about it": lambda figure: Figure(figure.name, figure.tables),
    "no rows": without_rows,
}


@pytest.mark.quick(3)
@pytest.mark.parametrize("odd", list(ODD))
@pytest.mark.parametrize("name", NAMES)
def test_what_is_missing_does_not_stop_a_figure(name: str, odd: str) -> None:
    drawing = svg(figure_chart(ODD[odd](figures()[name]), "dark"))
    assert "NaN" not in drawing
    assert "undefined" not in drawing


def test_a_figure_without_rows_says_so() -> None:
    assert "nothing was measured" in svg(figure_chart(without_rows(figures()["3"])))


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
    drawing = svg(figure_chart(SINGLE[name]))
    assert "NaN" not in drawing
    assert len(drawing) > 3000


def test_one_place_shows_its_interval_as_a_bar() -> None:
    marks = {
        part["mark"]["type"]
        for part in parts(figure_chart(SINGLE["2a"]).to_dict())
        if isinstance(part.get("mark"), dict)
    }
    assert {"rule", "bar"} <= marks
    assert "area" not in marks


def test_settings_in_one_line() -> None:
    assert settings_line(figures()["2a"]) == "L = 32 to 1024, N = 5, 48 heads, 8 windows, at most 32 queries per window"
    assert settings_line(SINGLE["2a"]) == "L = 64, 1 head"
    assert settings_line(SINGLE["2b"]) == "N = 5, 1 query per window"
    assert settings_line(Figure("3", {}, {"length": 64, "queries": "all"})) == "L = 64, all queries per window"
    assert settings_line(Figure("3", {})) == ""


def test_an_unknown_figure_is_refused() -> None:
    with pytest.raises(AbbeError, match=r"no chart for figure '9z'; there are charts for 2a, 2b"):
        figure_chart(Figure("9z", {}))


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


def test_rows_hold_six_digits_and_nothing_that_json_cannot() -> None:
    table = pl.DataFrame({"a": [math.nan, math.inf, -math.inf, None, 1.23456789, 0.0], "b": [1, 2, 3, 4, 5, None]})
    drawn = rows_of(table)
    assert [row["a"] for row in drawn] == [None, None, None, None, 1.23457, 0.0]
    assert [row["b"] for row in drawn] == [1, 2, 3, 4, 5, None]


def test_ticks_are_round_and_inside() -> None:
    assert _ticks(1, 100) == [1, 2, 5, 10, 20, 50]
    assert _ticks(0.0009, 20) == [0.001, 0.01, 0.1, 1, 10]
    for low, high in ((1e-12, 1e12), (3, 4), (0.5, 0.50001)):
        ticks = _ticks(low, high)
        assert len(ticks) <= 9
        assert all(low <= tick <= high for tick in ticks)


@pytest.mark.parametrize("name", ["a\x1b[31mb", "\x00", "\ud83d", "\ufffe", "tab\tand\nline", "שלום 👩‍🔬 <b>&"])
def test_no_name_stops_the_drawing(name: str) -> None:
    spec = {"data": {"values": [{name: 1}]}, "mark": "point", "title": name, "encoding": {}}
    assert drawings(spec)["svg"].startswith(b"<svg")


def test_what_xml_allows_is_kept() -> None:
    assert for_xml({"a\t": ["é👩‍🔬\n", 1, None, ("\x1b",)]}) == {"a\t": ["é👩‍🔬\n", 1, None, ["\ufffd"]]}
