"""The charts of a report: every number at its place, axes that hold all heads, what may be missing, and the files."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import polars as pl
import pytest
import vl_convert
from chart_parts import FILLED, PANELS, charts_of, drawn, layer_rows, one_panel, parts, series, y_domain
from made_up_report import LENGTHS, SIZES, TEMPERATURES, alternatives, floors, grid, page_charts, report, sample, table

from abbe.studies import Ball, Report, SampleRow
from abbe.views.charts import place_names
from abbe.views.html import vega_lite_version
from abbe.views.theme import THEMES, ThemeName

Specs = dict[ThemeName, dict[str, Any]]
NAMES = ("map", "growth", "gradient", "alternatives", "sizes", "lengths", "ball")
SMALL = grid(2, 3)
NOTHING = pl.lit(None, pl.Float64)


def short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.6g}")


def with_column(**columns: Any) -> Report:
    return report(SMALL, table=table(SMALL).with_columns(**columns))


def only(keep: pl.Expr) -> Report:
    return report(SMALL, table=table(SMALL).filter(keep))


def test_every_chart_of_the_page_has_its_panels_and_waits_for_its_data(specs: Specs) -> None:
    for theme in THEMES:
        assert list(specs[theme]) == list(FILLED)
        for name, spec in specs[theme].items():
            assert [part["title"] for part in spec["concat"]] == PANELS[name]
            waiting = {data for data in spec["datasets"] if not data.startswith("data-")}
            assert waiting == set(FILLED[name])
            assert all(spec["datasets"][data] == [] for data in waiting)
            assert spec["title"]["text"].endswith("?")
            assert spec["title"]["subtitle"][0] == "gpt2-like on War and Peace"
            vega = vl_convert.vegalite_to_vega(spec, vl_version=vega_lite_version())
            assert waiting <= {data["name"] for data in vega["data"]}  # there to be filled
    assert specs["light"]["growth"]["config"]["background"] != specs["dark"]["growth"]["config"]["background"]


@pytest.mark.slow
def test_charts_of_many_heads_are_small_and_thinned() -> None:
    big = report(grid(12, 12), lengths=[32, 64, 128, 256, 512, 1024], temperatures=[0.05 * 2**i for i in range(8)])
    assert sum(len(json.dumps(spec)) for spec in page_charts(big)["light"].values()) < 1_200_000
    spec = charts_of(report(grid(1, 200), sample=None))["growth"]
    (faint,) = series(spec, "largest weight", "single heads (160 of 200)")
    shown = {row["head"] for row in layer_rows(spec, faint)}
    assert len(shown) == 160
    assert {0, 199} <= shown


@pytest.mark.quick(3)
@pytest.mark.parametrize("name", list(FILLED))
def test_drawn_empty_and_filled(name: str, whole: Report, specs: Specs, capfd: pytest.CaptureFixture[str]) -> None:
    empty, full = drawn(specs["light"][name], capfd), drawn(charts_of(whole, "dark")[name], capfd)
    assert THEMES["light"].background in empty
    assert THEMES["dark"].background in full
    for words in PANELS[name]:
        assert words in empty
        assert words in full
    if name in ("sizes", "lengths", "ball"):
        assert full.count("<path") > empty.count("<path")


def test_fields_are_columns_of_the_rows(specs: Specs, whole: Report) -> None:
    made = {"shown", "interval_words", "limit_words", "control_words", "drawn_weight", "weight_words"}
    known = {
        "rows": set(whole.table.columns),
        "chosen": set(whole.table.columns) | {"temperature", "part"} | set(whole.alternatives.columns),
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


# -- Numbers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("title", "measure", "size"),
    [
        ("largest weight", "max_weight", None),
        ("dispersion", "effective_tokens", None),
        ("separability, N = 20", "separability", 20),
    ],
)
def test_growth_shows_means_and_heads(title: str, measure: str, size: int | None, whole: Report, specs: Specs) -> None:
    spec = specs["light"]["growth"]
    rows = whole.table.filter((pl.col("measure") == measure) & pl.col("n").eq_missing(pl.lit(size, pl.Int32)))
    means = {row["length"]: row for row in rows.filter(pl.col("head").is_null()).iter_rows(named=True)}
    line, _ = series(spec, title, "mean over heads, with 95 % interval")
    shown = {row["length"]: row for row in layer_rows(spec, line)}
    assert set(shown) == set(LENGTHS)
    for length, row in shown.items():
        for column in ("value", "low", "high", "limit", "control"):
            assert row[column] == short(means[length][column])
    (faint,) = series(spec, title, "single heads")
    there = {(row["layer"], row["head"], row["length"]): row["value"] for row in layer_rows(spec, faint)}
    heads = rows.filter(pl.col("head").is_not_null())
    assert there == {(r["layer"], r["head"], r["length"]): short(r["value"]) for r in heads.iter_rows(named=True)}
    for label, column in (
        ("limit, where one is proved, mean", "limit"),
        ("control: random sets or equal weights", "control"),
    ):
        (line,) = series(spec, title, label)
        assert line["encoding"]["y"]["field"] == column
    (line, _) = series(spec, title, "the chosen head")
    assert {"field": "measure", "equal": measure} in [step.get("filter") for step in line["transform"]]
    if measure == "effective_tokens":
        (line,) = series(spec, title, "floor that is proved, mean")
        floor = whole.table.filter((pl.col("measure") == "effective_tokens_floor") & pl.col("head").is_null())
        assert {row["value"] for row in layer_rows(spec, line)} == set(map(short, floor["value"]))


def test_all_weight_on_one_token_is_the_limit_of_the_divergence(specs: Specs) -> None:
    (line,) = series(specs["light"]["sizes"], "weights within the selected", "limit, where one is proved")
    assert {"calculate": "log(datum.n)", "as": "limit"} in line["transform"]
    low = with_column(**dict.fromkeys(("value", "low", "high", "control"), pl.lit(0.01)))
    assert y_domain(one_panel(charts_of(low)["sizes"], "weights within the selected"))[1] >= math.log(max(SIZES))


def test_bars_count_every_head(whole: Report, specs: Specs) -> None:
    spec = specs["light"]["growth"]
    bars = layer_rows(spec, one_panel(spec, "how fast the largest weight fades")["layer"][0])
    values = whole.table.filter(pl.col("measure") == "decay_exponent")["value"].to_list()
    for bar in bars:
        assert bar["heads"] == sum(bar["value"] <= value < bar["end"] for value in values)
    assert sum(bar["heads"] for bar in bars) == len(values) == 48
    spec = specs["light"]["gradient"]
    rows = layer_rows(spec, one_panel(spec, PANELS["gradient"][1])["layer"][0])
    apart = [row for row in rows if row["shown"] == "not fragile at the lowest temperature"]
    floor = floors(grid())["floor"].drop_nulls()
    assert [row["heads"] for row in apart] == [48 - len(floor)]
    assert apart[0]["end"] < min(row["value"] for row in rows if row not in apart)
    for row in rows:
        inside = floor.filter((floor >= row["value"] * (1 - 1e-5)) & (floor <= row["end"] * (1 + 1e-5)))
        assert row in apart or len(inside) >= row["heads"]
    assert sum(row["heads"] for row in rows) == 48


@pytest.mark.parametrize("values", [[0.3], [0.0, 1.0], [-5.0, 12.0, 3.3], [0.2] * 7, [1e-9, 2e-9], [400.0, 1e5]])
def test_bars_of_any_values(values: list[float]) -> None:
    of = table(grid(1, len(values))).filter(pl.col("measure") == "decay_exponent").with_columns(value=pl.Series(values))
    spec = charts_of(report(grid(1, len(values)), table=of, sample=None))["growth"]
    (one,) = spec["concat"]
    bars = layer_rows(spec, one["layer"][0])
    assert sum(bar["heads"] for bar in bars) == len(values)
    widths = [bar["end"] - bar["value"] for bar in bars]
    assert max(widths) == pytest.approx(min(widths), rel=1e-3)
    for bar in bars:
        some = 1e-5 * widths[0]  # bars are written with six digits
        assert bar["heads"] == sum(bar["value"] - some <= value < bar["end"] - some for value in values)


def test_gradient_shows_the_largest_the_ceiling_and_the_threshold(whole: Report, specs: Specs) -> None:
    spec, title = specs["light"]["gradient"], PANELS["gradient"][0]
    at = whole.table.filter(pl.col("length") == 1024)

    def largest(column: str, part: str) -> dict[float, float | None]:
        names = {t: f"sensitivity_worst_{part}" + ("" if t == 1 else f"@T={t:g}") for t in TEMPERATURES}
        return {t: short(at.filter(pl.col("measure") == name)[column].max()) for t, name in names.items()}  # type: ignore[arg-type]

    (line,) = series(spec, title, "largest query of all heads")
    assert {row["temperature"]: row["value"] for row in layer_rows(spec, line)} == largest("value", "max")
    (ceiling,) = series(spec, title, "ceiling that is proved, 1/(2T) for softmax")
    limits = [largest("limit", part) for part in ("mean", "p95", "max")]
    assert {row["temperature"]: row["limit"] for row in layer_rows(spec, ceiling)} == {
        t: max(of[t] or 0 for of in limits) for t in TEMPERATURES
    }
    (threshold,) = series(spec, title, "fragile: the 95th percentile lies above")
    assert layer_rows(spec, threshold) == [{"value": 1.0}]
    for part, words in (("mean", "mean"), ("p95", "95th percentile"), ("max", "largest query")):
        (line, _) = series(spec, title, f"the chosen head: {words}")
        assert {"filter": {"field": "part", "equal": part}} in line["transform"]


def test_alternatives_show_the_mean_over_heads(whole: Report, specs: Specs) -> None:
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


def test_names_hide_nothing() -> None:
    points = [(60.0, 40.0), (64.0, 46.0), (58.0, 52.0), (200.0, 44.0), (262.0, 100.0), (4.0, 210.0)]
    names = ["entmax:alpha=1.5", "sparsemax", "topk:k=32", "topp:p=0.9", "entmax:alpha=1.25", "baseline"]
    places = place_names(points, names)
    boxes = [name.box(point, len(text)) for name, point, text in zip(places, points, names, strict=True)]
    for i, (left, top, right, bottom) in enumerate(boxes):
        assert min(left, top) >= 0
        assert right <= 268
        assert bottom <= 216
        assert not any(left < x < right and top < y < bottom for x, y in points)
        for other in boxes[:i]:
            assert right <= other[0] or other[2] <= left or bottom <= other[1] or other[3] <= top
    (alone,) = place_names([(50.0, 50.0)], ["baseline"])
    assert not alone.far


def test_the_map_marks_what_is_missing(capfd: pytest.CaptureFixture[str]) -> None:
    gone = (pl.col("layer") == 1) & (pl.col("head") == 2)
    odd = table(grid(3, 4)).with_columns(value=pl.when(gone).then(math.nan).otherwise(pl.col("value")))
    spec = charts_of(report(grid(3, 4), table=odd), "dark")["map"]
    for title in PANELS["map"]:
        layers = one_panel(spec, title)["layer"]
        texts = [row for layer in layers if layer["mark"]["type"] == "text" for row in layer_rows(spec, layer)]
        assert [(row["layer"], row["head"]) for row in texts if row["words"] == "–"] == [(1, 2)]
        assert len(texts) == 12
        assert len(layer_rows(spec, layers[0])) == 11
    assert drawn(spec, capfd).count(">–<") == 2


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"low": 0.25, "high": 0.5, "limit": 2, "control": 0.125}, ["0.25 to 0.5", "2", "0.125"]),
        ({"low": None, "high": 0.5, "limit": None, "control": None}, ["none", "none", "none"]),
        ({}, ["none", "none", "none"]),
    ],
)
def test_a_missing_number_is_not_shown_as_zero(row: dict[str, Any], expected: list[str], specs: Specs) -> None:
    """A format would write null as 0: what may be missing is put into words first."""
    (line, _) = series(specs["light"]["growth"], "largest weight", "the chosen head")
    tips = {tip["field"] for tip in line["encoding"]["tooltip"]}
    for field, words in zip(("interval_words", "limit_words", "control_words"), expected, strict=True):
        assert field in tips
        spec = {
            "data": {"values": [row]},
            "transform": [step for step in line["transform"] if "calculate" in step],
            "mark": "text",
            "encoding": {"text": {"field": field}},
        }
        assert f">{words}</text>" in vl_convert.vegalite_to_svg(spec, vl_version=vega_lite_version())


# -- Axes that are the same for all heads -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "title", "measure"),
    [
        ("sizes", "separability", "separability"),
        ("sizes", "weight of the selected", "top_mass"),
        ("sizes", "distance from the rest", "distance_per_token"),
        ("sizes", "weights within the selected", "selected_divergence"),
        ("lengths", "dispersion", "effective_tokens"),
        ("lengths", "entropy", "entropy"),
        ("growth", "largest weight", "max_weight"),
    ],
)
def test_axes_hold_all_heads(name: str, title: str, measure: str, whole: Report, specs: Specs) -> None:
    low, high = y_domain(one_panel(specs["light"][name], title))
    rows = whole.table.filter(pl.col("measure") == measure)
    if title.startswith(("separability", "weight of")):  # a share has the fixed axis from 0 to 1
        assert (low, high) == (0, 1.04)
        return
    values = [v for column in ("value", "low", "high", "limit", "control") for v in rows[column].drop_nulls()]
    assert low <= min(values)
    assert max(values) <= high < 4 * max(*values, math.log(SIZES[-1]))


def test_what_is_tiny_or_zero_is_drawn_at_the_edge() -> None:
    largest = pl.col("measure") == "max_weight"
    odd = with_column(
        value=pl.when(largest & (pl.col("head") == 1)).then(0.0).otherwise(pl.col("value")),
        low=pl.when(largest).then(-1e-9).otherwise(pl.col("low")),
        control=pl.when(largest).then(1e-30).otherwise(pl.col("control")),
    )
    one = one_panel(charts_of(odd)["growth"], "largest weight")
    low, high = y_domain(one)
    assert 0 < low < high < 1e7 * low
    assert all(layer["encoding"]["y"]["scale"]["clamp"] for layer in one["layer"])


# -- What may be missing ----------------------------------------------------------------------------------------------


ODD: dict[str, Callable[[], Report]] = {
    "one head": lambda: report(grid(1, 1)),
    "one length": lambda: report(SMALL, lengths=[64]),
    "one size": lambda: report(SMALL, sizes=[5]),
    "one temperature": lambda: report(SMALL, temperatures=[1.0]),
    "one of each": lambda: report(grid(1, 1), lengths=[8], sizes=[1], temperatures=[0.5]),
    "no limits": lambda: with_column(limit=NOTHING, control=NOTHING),
    "no intervals": lambda: with_column(low=NOTHING, high=NOTHING),
    "all null": lambda: with_column(value=NOTHING, low=NOTHING, high=NOTHING, limit=NOTHING, control=NOTHING),
    "not finite": lambda: with_column(value=pl.lit(math.nan), limit=pl.lit(math.inf)),
    "zeros": lambda: with_column(value=pl.lit(0.0), low=pl.lit(0.0), high=pl.lit(0.0)),
    "all the same": lambda: with_column(value=pl.lit(0.5), limit=pl.lit(0.5), control=pl.lit(0.5)),
    "no rows of all heads": lambda: only(pl.col("head").is_not_null()),
    "only all heads": lambda: only(pl.col("head").is_null()),
    "one measure": lambda: only(pl.col("measure") == "entropy"),
    "no rows": lambda: only(pl.lit(False)),
    "no sensitivities": lambda: only(~pl.col("measure").str.starts_with("sensitivity")),
    "empty parts": lambda: report(SMALL, alternatives=alternatives([]), floors=floors([]), sample=None),
    "alternatives all null": lambda: report(
        SMALL, alternatives=alternatives(SMALL).with_columns(pl.selectors.float() * None)
    ),
    "own alone": lambda: report(SMALL, alternatives=alternatives(SMALL).filter(pl.col("normalizer") == "baseline")),
    "no floor reached": lambda: report(SMALL, floors=floors(SMALL).with_columns(floor=NOTHING)),
    "no manifest": lambda: report(SMALL, manifest={"model": None, "settings": {"queries": None}}),
}


@pytest.mark.quick(1)
@pytest.mark.parametrize("odd", list(ODD))
def test_what_is_missing_stops_no_chart(odd: str, capfd: pytest.CaptureFixture[str]) -> None:
    of = ODD[odd]()
    said = {name: drawn(spec, capfd) for name, spec in charts_of(of).items()}
    for name, spec in page_charts(of)["light"].items():
        used = {layer["data"]["name"] for one in spec["concat"] for layer in one["layer"]}
        assert set(FILLED[name]) <= used, name  # what no layer uses would not be there for the page to fill
    if odd == "no rows":
        assert list(said) == list(NAMES[:4])  # no head to show
        assert all("nothing was measured" in said[name] for name in ("map", "growth"))


def test_one_place_shows_points_and_bars_instead_of_lines() -> None:
    spec = page_charts(ODD["one length"]())["light"]["growth"]
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
    spec = charts_of(report(grid(1, 2), sizes=sizes, lengths=lengths, sample=None))["growth"]
    assert spec["concat"][2]["title"] == f"separability, N = {expected}"


# -- Figures of a typical head ----------------------------------------------------------------------------------------


def test_the_typical_head_has_the_median_separability_and_its_own_rows() -> None:
    of = report(grid(3, 5))
    at = of.table.filter(
        (pl.col("measure") == "separability") & (pl.col("n") == 20) & (pl.col("length") == 1024)
        & pl.col("head").is_not_null()
    ).sort("value")  # fmt: skip
    layer, head = at.select("layer", "head").row(7)
    drawn_charts = charts_of(of)
    assert drawn_charts["sizes"]["title"]["text"].startswith(f"Layer {layer}, head {head}, L = 1024")
    mine = of.table.filter((pl.col("layer") == layer) & (pl.col("head") == head))
    rows = drawn_charts["sizes"]["datasets"]["rows"]
    assert len(rows) == mine.filter((pl.col("length") == 1024) & pl.col("n").is_not_null()).height
    assert {row["length"] for row in rows} == {1024}
    rows = drawn_charts["lengths"]["datasets"]["rows"]
    assert {(row["layer"], row["head"], row["n"]) for row in rows} == {(layer, head, None), (layer, head, 20)}
    assert not any("the chosen head" in json.dumps(chart) for chart in drawn_charts.values())


def test_without_separability_dispersion_tells() -> None:
    heads = table(grid(1, 3)).filter(pl.col("measure") != "separability")
    of = heads.filter(
        (pl.col("measure") == "effective_tokens") & (pl.col("length") == 1024) & pl.col("head").is_not_null()
    )
    assert (
        f"Layer 0, head {of.sort('value')['head'][1]}"
        in charts_of(report(grid(1, 3), table=heads))["sizes"]["title"]["text"]
    )


def test_points_lie_at_their_distance_and_angle() -> None:
    """Of the largest ball of the last query of the typical head."""
    window = sample(grid(1, 1))
    parts_of: dict[str, Any] = {
        "size": 2, "radius": 2.0, "inside": (True, False), "distances": (1.0, 3.0), "angles": (0.0, 90.0),
        "other_keys": (4, 5, 6), "other_distances": (2.0, 3.0, 4.0), "other_angles": (180.0, 270.0, 45.0),
        "intruders": 2,
    }  # fmt: skip
    small = Ball(**parts_of | {"size": 1})
    rows = (
        SampleRow(0, 0, 3, (1, 2, 3), (0.5, 0.25, 0.125), (small,)),
        SampleRow(0, 0, 7, (1, 2, 3), (0.5, 0.25, 0.125), (small, Ball(**parts_of))),
    )
    spec = charts_of(report(grid(1, 1), sample=window.__class__(256, 0, window.tokens, (1, 2), (3, 7), rows)))["ball"]
    assert "query 7: 1 of 2 selected tokens lie in the ball" in spec["title"]["subtitle"][-2]
    points, circle = spec["datasets"]["points"], spec["datasets"]["circle"]
    kinds = ("selected, inside", "selected, outside", "unselected, nearer than a selected one", "unselected")
    assert [point["kind"] for point in points] == [kinds[0], kinds[1], kinds[2], kinds[2], kinds[3]]
    assert [point["weight"] for point in points] == [0.5, 0.25, None, None, None]
    assert [point["token"] for point in points] == [window.tokens[key] for key in (1, 2, 4, 5, 6)]
    assert [point["distance"] for point in points] == [1, 3, 2, 3, 4]
    for point, angle in zip(points, (0, 90, 180, 270, 45), strict=True):
        assert math.hypot(point["x"], point["y"]) == pytest.approx(point["distance"] / 4)
        assert math.degrees(math.atan2(point["y"], point["x"])) % 360 == pytest.approx(angle)
    assert [corner["order"] for corner in circle] == list(range(72))
    assert all(math.hypot(corner["x"], corner["y"]) == pytest.approx(0.5) for corner in circle)
    (points_layer,) = [layer for layer in spec["concat"][0]["layer"] if layer["data"]["name"] == "points"]
    for channel in ("color", "shape"):  # readable without colours
        assert len(set(points_layer["encoding"][channel]["scale"]["range"])) == 4


@pytest.mark.parametrize("changes", [{"sample": None}, {"sample": sample(grid(1, 1), tokens=["a"] * 3, queries=1)}])
def test_without_a_ball_there_is_no_picture_of_it(changes: dict[str, Any]) -> None:
    assert list(charts_of(report(grid(2, 2), **changes))) == list(NAMES[:-1])
