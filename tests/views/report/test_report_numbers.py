"""The charts of a report: every number at its place, under its name."""

from __future__ import annotations

import math
import re
from collections import Counter
from typing import Any

import polars as pl
import pytest
import vl_convert
from chart_parts import PANELS, drawn, filled, layer_rows, one_panel, series, with_column, y_domain
from inside import (
    FAINT_HEADS,
    ThemeName,
    chart_specifications,
    mean_over_heads,
    sensitivities,
    vega_lite_version,
)
from inside import report_KINDS as KINDS
from made_up_report import LENGTHS, SIZES, TEMPERATURES, alternatives, floors, grid, report, table

from abbe.studies import Report
from abbe.words.thresholds import FRAGILE


def short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.6g}")


@pytest.mark.parametrize(
    ("title", "measure", "size"),
    [
        ("largest weight", "max_weight", None),
        ("dispersion", "effective_tokens", None),
        ("separability, N = 20", "separability", 20),
    ],
)
def test_growth_shows_means_and_heads(
    title: str, measure: str, size: int | None, whole: Report, specs: dict[ThemeName, dict[str, Any]]
) -> None:
    spec = specs["light"]["growth"]
    rows = whole.run.table.filter((pl.col("measure") == measure) & pl.col("n").eq_missing(pl.lit(size, pl.Int32)))
    means = {row["length"]: row for row in rows.filter(pl.col("head").is_null()).iter_rows(named=True)}
    line, dots = series(spec, title, "mean over heads, with 95 % interval")
    assert (line["mark"]["type"], dots["mark"]["type"]) == ("line", "point")
    shown = {row["length"]: row for row in layer_rows(spec, line)}
    assert set(shown) == set(LENGTHS)
    for length, row in shown.items():
        for column in ("value", "low", "high", "limit", "control"):
            assert row[column] == short(means[length][column])
    (faint,) = series(spec, title, "single heads")
    there = {(row["layer"], row["head"], row["length"]): row["value"] for row in layer_rows(spec, faint)}
    heads = rows.filter(pl.col("head").is_not_null())
    assert len(there) == heads.height == 48 * 3
    assert there == {(r["layer"], r["head"], r["length"]): short(r["value"]) for r in heads.iter_rows(named=True)}
    for label, column in (
        ("limit, where one is proved, mean", "limit"),
        ("control: random sets or equal weights", "control"),
    ):
        (line,) = series(spec, title, label)
        assert line["encoding"]["y"]["field"] == column
    (line, _) = series(spec, title, "the chosen head")
    assert line["data"]["name"] == "chosen"
    assert {"field": "measure", "equal": measure} in [step.get("filter") for step in line["transform"]]


def test_the_floor_of_dispersion_is_drawn(whole: Report, specs: dict[ThemeName, dict[str, Any]]) -> None:
    spec = specs["light"]["growth"]
    (line,) = series(spec, "dispersion", "floor that is proved, mean")
    measure = (pl.col("measure") == "effective_tokens_floor") & pl.col("head").is_null()
    rows = whole.run.table.filter(measure)
    assert {row["length"]: row["value"] for row in layer_rows(spec, line)} == {
        row["length"]: short(row["value"]) for row in rows.iter_rows(named=True)
    }


def test_all_weight_on_one_token_is_the_limit_of_the_divergence(specs: dict[ThemeName, dict[str, Any]]) -> None:
    (line,) = series(specs["light"]["sizes"], "weights within the selected", "limit, where one is proved")
    assert {"calculate": "log(datum.n)", "as": "limit"} in line["transform"]
    low = with_column(report(grid(1, 2)), **dict.fromkeys(("value", "low", "high", "control"), pl.lit(0.01)))
    spec = chart_specifications(low, "light")["sizes"]
    assert y_domain(one_panel(spec, "weights within the selected"))[1] >= math.log(max(SIZES))


def test_bars_count_every_head(whole: Report, specs: dict[ThemeName, dict[str, Any]]) -> None:
    spec = specs["light"]["growth"]
    bars = layer_rows(spec, one_panel(spec, "how fast the largest weight fades")["layer"][0])
    values = whole.run.table.filter(pl.col("measure") == "decay_exponent")["value"].to_list()
    for bar in bars:
        assert bar["heads"] == sum(bar["value"] <= value < bar["end"] for value in values)
    assert sum(bar["heads"] for bar in bars) == len(values) == 48


def test_sensitivities_by_temperature(whole: Report) -> None:
    rows = sensitivities(whole.run)
    heads = rows.filter(pl.col("head").is_not_null())
    assert Counter(heads["temperature"]) == dict.fromkeys(TEMPERATURES, 48 * 3)
    assert set(heads["part"]) == {"mean", "p95", "max"}
    for row in heads.filter((pl.col("layer") == 2) & (pl.col("head") == 3)).iter_rows(named=True):
        tail = "" if row["temperature"] == 1 else f"@T={row['temperature']:g}"
        (given,) = whole.run.table.filter(
            (pl.col("measure") == f"sensitivity_worst_{row['part']}{tail}") & (pl.col("length") == 1024)
            & (pl.col("layer") == 2) & (pl.col("head") == 3)
        ).iter_rows(named=True)  # fmt: skip
        assert (row["value"], row["limit"]) == (given["value"], given["limit"])


def test_gradient_shows_the_largest_the_ceiling_and_the_threshold(
    whole: Report, specs: dict[ThemeName, dict[str, Any]]
) -> None:
    spec, title, rows = specs["light"]["gradient"], PANELS["gradient"][0], sensitivities(whole.run)
    (ceiling,) = series(spec, title, "ceiling that is proved, 1/(2T) for softmax")
    assert {row["temperature"]: row["limit"] for row in layer_rows(spec, ceiling)} == {
        t: short(rows.filter(pl.col("temperature") == t)["limit"].max())
        for t in TEMPERATURES  # type: ignore[arg-type]
    }
    (largest,) = series(spec, title, "largest query of all heads")
    tops = rows.filter(pl.col("part") == "max")
    assert {row["temperature"]: row["value"] for row in layer_rows(spec, largest)} == {
        t: short(tops.filter(pl.col("temperature") == t)["value"].max())
        for t in TEMPERATURES  # type: ignore[arg-type]
    }
    (threshold,) = series(spec, title, "fragile: the 95th percentile lies above")
    assert layer_rows(spec, threshold) == [{"value": FRAGILE}]
    for part, words in (("mean", "mean"), ("p95", "95th percentile"), ("max", "largest query")):
        (line, _) = series(spec, title, f"the chosen head: {words}")
        assert {"filter": {"field": "part", "equal": part}} in line["transform"]


def test_heads_that_are_not_fragile_stand_apart(specs: dict[ThemeName, dict[str, Any]]) -> None:
    spec = specs["light"]["gradient"]
    (bars,) = one_panel(spec, PANELS["gradient"][1])["layer"]
    rows = layer_rows(spec, bars)
    apart = [row for row in rows if row["shown"] == "not fragile at the lowest temperature"]
    floor = floors(grid())["floor"]
    assert [row["heads"] for row in apart] == [floor.is_null().sum()]
    assert apart[0]["end"] < min(row["value"] for row in rows if row not in apart)
    assert sum(row["heads"] for row in rows) == 48


def test_alternatives_show_the_mean_over_heads(whole: Report, specs: dict[ThemeName, dict[str, Any]]) -> None:
    spec, given = specs["light"]["alternatives"], whole.alternatives
    (means,) = [
        layer
        for layer in series(spec, PANELS["alternatives"][0], "mean over heads, with the mean of their intervals")
        if layer["mark"]["type"] == "point"
    ]
    rows = {row["normalizer"]: row for row in layer_rows(spec, means)}
    assert set(rows) == {"entmax:alpha=1.5", "sparsemax", "topk:k=32"}
    for name, row in rows.items():
        of = given.filter(pl.col("normalizer") == name)
        for column in ("separable", "gain", "gain_low", "gain_high", "output_change"):
            assert row[column] == pytest.approx(sum(of[column]) / of.height, rel=1e-5)
    own = given.filter(pl.col("normalizer") == "baseline")["separable"].mean()
    held = [rows for rows in spec["datasets"].values() if len(rows) == 1 and set(rows[0]) == {"separable"}]
    assert [rows[0]["separable"] for rows in held] == [pytest.approx(own)]


def test_a_row_of_all_heads_stands_for_their_mean() -> None:
    heads = alternatives(grid(1, 2))
    together = heads[1:2].with_columns(layer=pl.lit(None, pl.Int32), head=pl.lit(None, pl.Int32), gain=pl.lit(0.125))
    means = mean_over_heads(pl.concat([heads, together]))
    assert means.filter(pl.col("normalizer") == heads["normalizer"][1])["gain"].to_list() == [0.125]
    assert means.height == 4


def test_the_map_marks_what_is_missing(capfd: pytest.CaptureFixture[str]) -> None:
    gone = (pl.col("layer") == 1) & (pl.col("head") == 2)
    odd = table(grid(3, 4)).with_columns(value=pl.when(gone).then(math.nan).otherwise(pl.col("value")))
    spec = chart_specifications(report(grid(3, 4), table=odd), "dark")["map"]
    for title in PANELS["map"]:
        layers = one_panel(spec, title)["layer"]
        texts = [row for layer in layers if layer["mark"]["type"] == "text" for row in layer_rows(spec, layer)]
        assert [(row["layer"], row["head"]) for row in texts if row["words"] == "–"] == [(1, 2)]
        assert len(texts) == 12
        assert len(layer_rows(spec, layers[0])) == 11
    assert drawn(spec, capfd).count(">–<") == 2


@pytest.mark.slow
def test_many_heads_are_thinned_and_said_so() -> None:
    heads = FAINT_HEADS + 40
    spec = chart_specifications(report(grid(1, heads), sample=None), "light")["growth"]
    (faint,) = series(spec, "largest weight", f"single heads ({FAINT_HEADS} of {heads})")
    shown = {row["head"] for row in layer_rows(spec, faint)}
    assert len(shown) == FAINT_HEADS
    assert {0, heads - 1} <= shown


def test_a_missing_number_is_not_shown_as_zero(specs: dict[ThemeName, dict[str, Any]]) -> None:
    """A format would write null as 0: what may be missing is put into words first."""
    names, seen = ("sizes", "lengths", "growth", "gradient"), set()
    for name in names:
        for layer in (layer for one in specs["light"][name]["concat"] for layer in one["layer"]):
            drawn_by = {channel.get("field") for key, channel in layer["encoding"].items() if key in ("x", "y", "y2")}
            tips = layer["encoding"].get("tooltip", [])
            for tip in tips if isinstance(tips, list) else []:
                assert tip["field"] not in {"low", "high", "limit", "control"} - drawn_by
                seen.add(name)
    assert seen == set(names)


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"low": 0.25, "high": 0.5, "limit": 2, "control": 0.125}, ["0.25 to 0.5", "2", "0.125"]),
        ({"low": None, "high": 0.5, "limit": None, "control": None}, ["none", "none", "none"]),
        ({}, ["none", "none", "none"]),
    ],
)
def test_words_of_a_tooltip(row: dict[str, Any], expected: list[str], specs: dict[ThemeName, dict[str, Any]]) -> None:
    (line, _) = series(specs["light"]["growth"], "largest weight", "the chosen head")
    for field, words in zip(("interval_words", "limit_words", "control_words"), expected, strict=True):
        spec = {
            "data": {"values": [row]},
            "transform": [step for step in line["transform"] if "calculate" in step],
            "mark": "text",
            "encoding": {"text": {"field": field}},
        }
        assert f">{words}</text>" in vl_convert.vegalite_to_svg(spec, vl_version=vega_lite_version())


def test_points_without_a_weight_are_drawn(
    whole: Report, specs: dict[ThemeName, dict[str, Any]], capfd: pytest.CaptureFixture[str]
) -> None:
    spec = filled(specs["light"]["ball"], "ball", whole)
    points = spec["datasets"]["points"]
    assert {point["weight"] is None for point in points} == {True, False}
    kinds = re.findall(r'kind: ([^;"]+);[^>]*roledescription="point"', drawn(spec, capfd))
    assert Counter(kinds) == Counter(point["kind"] for point in points)


def test_the_ball_is_round_and_tells_kinds_by_shape_and_colour(specs: dict[ThemeName, dict[str, Any]]) -> None:
    (picture,) = specs["light"]["ball"]["concat"]
    assert picture["width"] == picture["height"]
    for layer in picture["layer"]:
        for axis in ("x", "y"):
            assert layer["encoding"][axis]["scale"]["domain"] == [-1.1, 1.1]
            assert layer["encoding"][axis]["axis"] is None
    (points,) = [layer for layer in picture["layer"] if layer["data"]["name"] == "points"]
    for channel in ("color", "shape"):
        scale = points["encoding"][channel]["scale"]
        assert scale["domain"] == list(KINDS)
        assert len(set(scale["range"])) == 4
    assert points["encoding"]["size"]["scale"]["domain"] == [0, 1]
