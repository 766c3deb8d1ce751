"""The page, the terminal and the figures of a comparison: all numbers are there, all text is escaped."""

from __future__ import annotations

import json
import re
from typing import Any

import made_up_compare as made
from chart_parts import charts_on, printed

from abbe.studies import Comparison
from abbe.views import TextTable
from abbe.words.names import BASELINE

LONG = ("layers.0=topk:k=8; layers.3.heads.0,1=sparsemax", "layers.0=topk:k=8; layers.5.heads.0,1=sparsemax")
THEMES = ("light", "dark")


def table(comparison: Comparison, title: str, medium: str = "page") -> TextTable:
    return next(one for one in comparison.view().tables if one.title == title and medium in one.on)


def cell(comparison: Comparison, title: str, name: str, column: str) -> str:
    found = table(comparison, title)
    (row,) = (row for row in found.rows if row[0] == name)
    return row[list(found.columns).index(column)]


def test_the_page_tells_recommendation_rule_and_numbers() -> None:
    comparison = made.comparison()
    page = comparison.to_html()
    assert page.startswith("<!doctype html>")
    sentence = comparison.recommendation.sentence.replace(" %", "\u00a0%")  # a number keeps its unit
    assert f"<bdi>{sentence}</bdi>" in page
    assert comparison.recommendation.rule.replace("'", "&#39;") in page
    columns = [column for column in Comparison.frame().columns if column.name not in ("normalizer", "jumps")]
    glossary = table(comparison, "Glossary")
    assert [row[:2] for row in glossary.rows] == [[column.label, column.name] for column in columns]
    on_page = [name for one in comparison.view().tables if "page" in one.on for name in one.columns]
    assert {column.label for column in columns} <= set(on_page)  # no number is left out
    assert made.MANIFEST["skipped"][0] in page
    assert "right in 1 of 4 prompts of the second kind" in page
    assert "loss of 5 %, on all windows, between powers of 2." in page
    assert "/home/u" not in page  # where the model lies on this machine
    exact = made.comparison(settings=made.MANIFEST["settings"] | {"grid": "exact"})
    assert "loss of 5 %, on all windows." in exact.to_html()


def test_the_terminal_starts_with_the_answer_and_leaves_the_rule_to_the_page() -> None:
    rows = [made.row(BASELINE), made.row("sparsemax"), made.row("topk:k=32")]
    comparison = made.comparison(rows)
    text = printed(comparison)
    start = " ".join(text.split())
    assert start.index("helps this model") < start.index("By the rule") < start.index("Loss and time")
    for words in ("(softmax)", "sparsemax", "+90.6 %", "-20 %", "smaller capacity", "skipped: length 512"):
        assert words in text
    assert "An alternative helps if" not in text


def test_numbers_and_intervals_as_a_person_reads_them() -> None:
    gain = {"needle_gain": 0.062, "needle_gain_low": 0.011, "needle_gain_high": 0.071, "perplexity": 12345.6}
    small = {"loss_rise": 0.00312, "loss_rise_low": -0.01, "loss_rise_high": 0.008, "extra_megabytes": 9.175}
    comparison = made.comparison([made.row(BASELINE), made.row("topk:k=32", **gain, **small, loss_high=None)])
    for title, column, expected in (
        ("Needles", "needle gain", "+6.2 % (+1.1 to +7.1 %)"),
        ("Loss", "change of the loss", "+0.31 % (-1 to +0.8 %)"),
        ("Loss", "loss (nats)", "3.21"),  # an interval has two ends
        ("Loss", "perplexity", "12,346 (24.3 to 25.3)"),
        ("Equal selectivity, time and memory", "extra memory (MB)", "+9.18"),
        ("Sensitivity", "sensitivity over baseline", "0.77 † (0.75 to 0.79)"),
        ("Sensitivity", "sensitivity, proved", "–"),
    ):
        assert cell(comparison, title, "topk:k=32", column) == expected
    assert "topk:k=32 helps this model: it has a smaller capacity and finds more needles" in comparison.to_html()


def test_the_baseline_has_no_interval_against_itself() -> None:
    """Its change is 0 by definition: "0 to 0 %" would look like something that was measured."""
    comparison = made.comparison([made.row(BASELINE), made.row("sparsemax", needle_gain_low=-0.2)])
    for title, column in (
        ("Loss", "change of the loss (nats)"), ("Loss", "change of the loss"), ("Needles", "needle gain"),
        ("Separability", "gain in separable weight"), ("Sparsity", "capacity over baseline"),
        ("Sensitivity", "sensitivity over baseline"), ("Sparsity", "exact zeros"),
    ):  # fmt: skip
        assert "to" not in cell(comparison, title, "baseline (softmax)", column)
        assert "to" in cell(comparison, title, "sparsemax", column)
    assert cell(comparison, "Loss", "baseline (softmax)", "loss (nats)") == "3.2 (3.14 to 3.26)"


def test_sensitivities_between_jumps_are_marked() -> None:
    comparison = made.comparison()
    assert "†" not in cell(comparison, "Sensitivity", "entmax:alpha=1.5", "sensitivity over baseline")
    assert table(comparison, "Sensitivity").note.startswith("† excludes jumps")
    assert "0.77 †" in printed(comparison)
    rows = [row for rows in charts_on(comparison.to_html())["costs"]["datasets"].values() for row in rows]
    counted = {row["normalizer"]: row["counted"] for row in rows if "counted" in row}
    assert counted == {
        name: "only between its jumps" if name.startswith("top") else "everywhere" for name in made.NAMES
    }
    assert '"field": "counted"' in json.dumps(comparison.view().charts("light")["costs"]["concat"][1])
    calm = made.comparison([made.row(BASELINE), made.row("sparsemax")])
    assert "†" not in re.sub(r"<script.*?</script>", "", calm.to_html(), flags=re.S)


def test_needles_by_kind_and_by_length() -> None:
    comparison = made.comparison()
    by_kind, by_length = (table(comparison, title) for title in ("Needle test", "Needle test by length"))
    assert [
        "topk:k=32",
        "needle",
        "20",
        "45 % (25.8 to 65.8 %)",
        "-15 % (-25 to +7 %)",
        "+0.25 (-0.15 to +0.55)",
        "5 %",
    ] in (by_kind.rows)
    assert by_length.choose == "normalizer"
    assert {row[2] for row in by_length.rows} == {"128", "256", "512"}
    without = made.comparison(needles=comparison.needle.clear(), skipped=[])
    assert set(without.view().charts("light")) == {"costs"}
    assert "Needle test" not in without.to_html()
    assert "Nothing was skipped." in without.to_html()


def test_charts_hold_every_normalizer_in_both_themes() -> None:
    charts = charts_on(made.comparison().to_html())
    assert set(charts) == {"costs", "needles"}
    assert all({"light", "dark", "datasets"} <= set(chart) for chart in charts.values())
    rows = [row for rows in charts["costs"]["datasets"].values() for row in rows]
    assert {row["full"] for row in rows} == {"baseline (softmax)", *made.NAMES[1:]}
    assert {row["shown"] for row in rows if "at_x" in row} == set(made.NAMES)  # names beside the points
    assert [len(charts[name]["light"]["concat"]) for name in ("costs", "needles")] == [2, 4]


def layers_of(comparison: Comparison, panel: int = 0) -> list[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Each layer of a panel of the first chart, and its data."""
    chart = comparison.view().charts("light")["costs"]
    return [(one, chart["datasets"][one["data"]["name"]]) for one in chart["concat"][panel]["layer"]]


def test_the_dashed_line_joins_those_that_none_beats() -> None:
    points = {BASELINE: (3, 5.0), "a": (1, 9.0), "b": (2, 6.0), "c": (4, 5.5), "d": (5, 4.0), "e": (2, 7.0)}
    rows = [made.row(name, active=float(x), loss=loss) for name, (x, loss) in points.items()]
    (joined,) = (data for layer, data in layers_of(made.comparison(rows)) if layer["mark"]["type"] == "line")
    assert [row["normalizer"] for row in joined] == ["a", "b", BASELINE, "d"]


def test_calibrated_ones_share_the_hue_and_are_dashed() -> None:
    rows = [made.row(name) for name in (BASELINE, "sparsemax", "sparsemax, calibrated", "topk:k=32")]
    layer, _ = next(one for one in layers_of(made.comparison(rows)) if one[0]["mark"]["type"] == "point")
    scale = layer["encoding"]["color"]["scale"]
    hues = dict(zip(scale["domain"], scale["range"], strict=True))
    assert hues["sparsemax"] == hues["sparsemax, calibrated"] != hues["topk:k=32"]
    needles = json.dumps(made.comparison(rows).view().charts("light")["needles"])
    assert "[6, 3]" in needles


def test_what_is_missing_is_a_dash_and_leaves_the_charts_whole() -> None:
    bare = dict.fromkeys(made.row("sparsemax")) | {"normalizer": "sparsemax"}
    alone = made.row(BASELINE) | {"loss_low": None, "loss_high": None, "active_low": None, "active_high": None}
    for rows in ([made.row(BASELINE), bare], [alone, bare], [alone]):
        comparison = made.comparison(rows)
        assert "–" in comparison.to_html()
        assert all(comparison.view().charts(theme)["costs"]["concat"] for theme in THEMES)
    page = re.sub(r"<script.*?</script>", "", made.comparison([alone]).to_html(), flags=re.S)
    assert "None" not in page.replace("None of these", "")


def test_long_names_are_short_in_charts_and_whole_in_tooltips_and_tables() -> None:
    comparison = made.comparison([made.row(name) for name in (BASELINE, *LONG)])
    page = comparison.to_html()
    assert all(f"<td>{name}</td>" in page for name in LONG)
    for chart in charts_on(page).values():
        rows = [row for rows in chart["datasets"].values() for row in rows]
        assert {row["full"] for row in rows if "full" in row} == {"baseline (softmax)", *LONG}
        assert {row["shown"] for row in rows if "shown" in row} - {"chance", "baseline"} == {
            "layers.0=topk…0,1=sparsemax", "layers.0=topk…0,1=sparsemax (2)"
        }  # fmt: skip
        assert '"field": "full"' in json.dumps(chart["light"])
    text = printed(comparison)
    assert re.search(r"^ ?layers\.0=topk:k=8; +3\.21 +\+0\.31 % ", text, re.M)  # numbers keep their room
    assert re.search(r"^ ?layers\.3\.heads\.0,1", text, re.M)
