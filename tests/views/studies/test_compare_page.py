"""The page, the table in the terminal and the figures of a comparison: all numbers are there, all text is escaped."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import made_up_compare as made
import polars as pl
import pytest
from inside import (
    BY_NAME,
    COLUMNS,
    LIGHT,
    THEMES,
    compare_charts,
    compare_page,
    frontier,
    looks_of,
    schema_of,
    short_names,
    value_text,
)
from inside import compare_interval as interval
from rich.console import Console

from abbe import AbbeError
from abbe.views import compare_table, save_figures
from abbe.words.names import BASELINE

EVIL = "<script>document.title='x'</script>\"' &amp; שלום \u202eabc 👩‍🔬"


def charts_of(page: str) -> dict[str, Any]:
    match = re.search(r'<script type="application/json" id="charts">(.*?)</script>', page, re.S)
    assert match is not None
    return json.loads(match.group(1))


def test_the_page_tells_recommendation_rule_and_numbers() -> None:
    comparison = made.comparison()
    page = compare_page(comparison)
    assert page.startswith("<!doctype html>")
    sentence = comparison.recommendation.sentence.replace(" %", "\u00a0%")  # a number keeps its unit
    assert f"<bdi>{sentence}</bdi>" in page
    assert comparison.recommendation.rule.replace("'", "&#39;") in page
    for name in made.NAMES[1:]:
        assert f'<td class="name"><bdi>{name}</bdi></td>' in page
    for column in COLUMNS:
        assert f"{column.label}<code>{column.name}</code>" in page
    assert made.MANIFEST["skipped"][0] in page
    assert "Chance over all prompts: 2\u00a0%" in page
    assert "+53.1 %" in page
    assert "{tau}" not in page
    assert "/home/u" not in page  # where the model lies on this machine


def test_the_page_tells_gains_on_the_same_prompts() -> None:
    better = {"needle_gain": 0.062, "needle_gain_low": 0.011, "needle_gain_high": 0.071}
    page = compare_page(made.comparison([made.row(BASELINE), made.row("topk:k=32", **better)]))
    assert '<td data-sort="0.062"><span>+6.2 %</span><small>+1.1 to +7.1\u00a0%</small></td>' in page
    assert '<td data-sort="-0.05"><span>-5 %</span><small>-15 to +7\u00a0%</small></td>' in page  # of the needle table
    assert '<td data-sort=""><span>–</span></td>' in page  # own has none
    assert '<th scope="col">needle gain</th>' in page[: page.index("more numbers</summary>")]
    assert "topk:k=32 helps this model: it has a smaller capacity and finds more needles" in page


def visible_needles(page: str) -> str:
    section = page[page.index('<section id="needle"') :]
    return section[: section.index("<details>")]


@pytest.mark.slow
def test_gains_by_kind_are_in_sight_and_those_by_length_are_folded() -> None:
    seen = visible_needles(compare_page(made.comparison()))
    for kind in ("key-value", "needle"):
        assert f"<bdi>topk:k=32</bdi></td><td>{kind}</td><td>all</td><td>20</td>" in seen
    assert '<td data-sort="-0.15"><span>-15 %</span><small>-25 to +7\u00a0%</small></td>' in seen
    assert "<td>512</td>" not in seen
    assert "<td>512</td>" in compare_page(made.comparison())
    assert "is right in 1 of 4 prompts of the second kind" in seen


@pytest.mark.slow
def test_sensitivities_between_jumps_are_marked_everywhere() -> None:
    comparison = made.comparison()
    page = compare_page(comparison)
    assert '<td data-sort="0.77"><span>0.77 †</span>' in page
    assert '<td data-sort="0.48"><span>0.48</span>' in page  # of entmax, which is continuous
    assert page.count("† excludes jumps") == 1
    rows = [row for rows in charts_of(page)["pareto"]["datasets"].values() for row in rows if "counted" in row]
    assert {row["normalizer"]: row["counted"] for row in rows} == {
        name: "only between its jumps" if name.startswith("top") else "everywhere" for name in made.NAMES
    }
    tips = json.dumps(compare_charts(comparison, "light")["pareto"]["concat"][1])
    assert '"field": "counted"' in tips
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(compare_table(comparison))
    text = console.export_text()
    assert "0.77 †" in text
    assert "† excludes jumps" in text
    calm = made.comparison([made.row(BASELINE), made.row("sparsemax")])
    assert "†" not in re.sub(r"<script.*?</script>", "", compare_page(calm), flags=re.S)


@pytest.mark.slow
def test_the_page_says_when_windows_are_too_few() -> None:
    page = compare_page(made.comparison(windows=made.MANIFEST["windows"][:4]))
    words = "Too few windows to judge: from 4 windows an interval of nominal 95 % contains the true value in 84 to 87 %"
    assert words.replace(" %", "\u00a0%") in page
    assert "helps this model" not in re.sub(r"<script.*?</script>", "", page, flags=re.S)


def test_the_capacity_says_its_windows_and_its_grid() -> None:
    shown = "<dt>capacity</dt><dd><bdi>loss rise of 5 %, on all windows"
    assert f"{shown}, between powers of 2</bdi></dd>" in compare_page(made.comparison())
    exact = compare_page(made.comparison(settings=made.MANIFEST["settings"] | {"grid": "exact"}))
    assert f"{shown}</bdi></dd>" in exact


def test_cells_are_sorted_by_their_numbers() -> None:
    page = compare_page(made.comparison())
    losses = re.findall(r'<td data-sort="([\d.]+)"><span>[\d.]+</span><small>', page)
    assert {str(made.NUMBERS[name][0]) for name in made.NAMES} <= set(losses)


def test_charts_hold_every_normalizer_in_both_themes() -> None:
    comparison = made.comparison()
    charts = charts_of(compare_page(comparison))
    assert set(charts) == {"pareto", "needle"}
    for chart in charts.values():
        assert {"light", "dark", "datasets"} <= set(chart)
    rows = [row for rows in charts["pareto"]["datasets"].values() for row in rows]
    assert {row["normalizer"] for row in rows if "normalizer" in row} == {*made.NAMES, "baseline (softmax)"}
    assert {row["label"] for row in rows if "label" in row} == {"baseline", *made.NAMES[1:]}
    assert len(charts["pareto"]["light"]["concat"]) == 2
    assert len(charts["needle"]["light"]["concat"]) == 4


def test_hostile_words_are_escaped() -> None:
    rows = [made.row(BASELINE), made.row(EVIL)]
    manifest = {"model": {"name": EVIL, "about": EVIL}, "text": {"name": EVIL, "characters": 4}, "skipped": [EVIL]}
    page = compare_page(made.comparison(rows, **manifest))
    assert "<script>document" not in page
    assert page.count("&lt;script&gt;document") >= 6
    assert charts_of(page)["pareto"]
    half = compare_page(made.comparison(text={"name": "half \ud800 of one"}))
    assert "half ? of one" in half


def test_without_needles_there_is_one_chart_less() -> None:
    page = compare_page(made.comparison(needles=pl.DataFrame(schema=schema_of("compare", "needle")), skipped=[]))
    assert set(charts_of(page)) == {"pareto"}
    assert "No prompt could be made" in page
    assert "Nothing was skipped." in page


def test_what_is_missing_is_a_dash_and_leaves_the_charts_whole() -> None:
    bare = dict.fromkeys(made.row("sparsemax")) | {"normalizer": "sparsemax"}
    alone = made.row(BASELINE) | {"loss_low": None, "loss_high": None, "active_low": None, "active_high": None}
    for rows in ([made.row(BASELINE), bare], [alone, bare], [alone]):
        comparison = made.comparison(rows)
        page = compare_page(comparison)
        assert "–" in page
        for theme in THEMES:
            assert compare_charts(comparison, theme)["pareto"]["concat"]
    assert "None" not in re.sub(r"<script.*?</script>", "", compare_page(made.comparison([alone])), flags=re.S).replace(
        "None of these", ""
    )


def test_calibrated_ones_share_the_hue_and_are_dashed() -> None:
    rows = [made.row(name) for name in (BASELINE, "sparsemax", "sparsemax, calibrated", "topk:k=32")]
    looks = looks_of(made.comparison(rows), LIGHT)
    assert looks["sparsemax"].colour == looks["sparsemax, calibrated"].colour != looks["topk:k=32"].colour
    assert looks["sparsemax, calibrated"].dash != looks["sparsemax"].dash
    assert looks[BASELINE].colour == LIGHT.proved


def test_frontier_holds_those_that_none_beats() -> None:
    rows = [{"x": x, "loss": y} for x, y in ((3, 5.0), (1, 9.0), (2, 6.0), (4, 5.5), (5, 4.0), (2, 7.0))]
    assert [(row["x"], row["loss"]) for row in frontier(rows, "x")] == [(1, 9.0), (2, 6.0), (3, 5.0), (5, 4.0)]


@pytest.mark.parametrize(
    ("column", "value", "expected"),
    [
        ("loss", 3.21456, "3.21"),
        ("loss", None, "–"),
        ("loss_rise", 0.00312, "+0.31 %"),
        ("loss_rise", -0.25, "-25 %"),
        ("zeros", 0.0, "0 %"),
        ("perplexity", 12345.6, "12,346"),
        ("extra_megabytes", 9.175, "+9.18"),
    ],
)
def test_numbers_as_a_person_reads_them(column: str, value: float | None, expected: str) -> None:
    assert value_text(BY_NAME[column], value) == expected


def test_intervals_as_a_person_reads_them() -> None:
    row = {"loss_rise_low": -0.01, "loss_rise_high": 0.02, "loss_low": 3.0, "loss_high": None}
    assert interval(BY_NAME["loss_rise"], row) == "-1 to +2 %"
    assert interval(BY_NAME["loss"], row) == ""


def test_the_baseline_has_no_interval_against_itself() -> None:
    """Its change is 0 by definition: "0 to 0 %" would look like something that was measured."""
    gain = {"needle_gain": -0.1, "needle_gain_low": -0.2, "needle_gain_high": 0.1}
    comparison = made.comparison([made.row(BASELINE), made.row("sparsemax", **gain)])
    console = Console(width=120, file=io.StringIO(), record=True)
    console.print(compare_table(comparison))
    for shown in (compare_page(comparison), console.export_text()):
        assert "0 to 0" not in shown
    own, other = (comparison.table.row(place, named=True) for place in (0, 1))
    relative = ("loss_change", "loss_rise", "separable_gain", "capacity_ratio", "sensitivity_ratio", "needle_gain")
    for name in relative:
        assert own["normalizer"] == BASELINE
        assert interval(BY_NAME[name], own) == ""
        assert interval(BY_NAME[name], other) != ""
    assert interval(BY_NAME["zeros"], own) == ""  # softmax gives none: 0 % in every window
    assert interval(BY_NAME["loss"], own) == "3.14 to 3.26"


def test_the_terminal_shows_all_rows_without_steering_it() -> None:
    console = Console(width=80, record=True, file=io.StringIO())
    rows = [made.row(BASELINE), made.row("sparsemax"), made.row("evil\x1b[31m")]
    console.print(compare_table(made.comparison(rows)))
    text = console.export_text()
    wanted = ("baseline (softmax)", "sparsemax", "+90.6 %", "-20 %", "An alternative helps if", "skipped: length 512")
    for words in wanted:
        assert words in text
    assert "\x1b" not in text


def test_figures_are_written_light_and_dark(tmp_path: Path) -> None:
    written = save_figures(made.comparison(), tmp_path / "figures")
    names = {f"compare-{chart}{dark}.{ending}" for chart in ("pareto", "needle") for dark in ("", "-dark")
             for ending in ("png", "svg", "pdf")}  # fmt: skip
    assert {path.name for path in written} == names
    assert "What does each normalizer cost" in (tmp_path / "figures" / "compare-pareto.svg").read_text()
    assert (tmp_path / "figures" / "compare-needle.png").read_bytes().startswith(b"\x89PNG")
    (tmp_path / "file").write_text("")
    with pytest.raises(AbbeError, match="is a file: give a folder"):
        save_figures(made.comparison(), tmp_path / "file")


LONG = ("layers.0=topk:k=8; layers.3.heads.0,1=sparsemax", "layers.0=topk:k=8; layers.5.heads.0,1=sparsemax")


def test_long_names_are_short_in_charts_and_whole_in_tooltips_and_tables() -> None:
    assert short_names(["sparsemax", *LONG]) == {
        "sparsemax": "sparsemax", LONG[0]: "layers.0=topk…0,1=sparsemax", LONG[1]: "layers.0=topk…0,1=sparsemax (2)"
    }  # fmt: skip
    comparison = made.comparison([made.row(name) for name in (BASELINE, *LONG)])
    page = compare_page(comparison)
    for name in LONG:
        assert f'<td class="name"><bdi>{name}</bdi></td>' in page
    for chart in charts_of(page).values():
        rows = [row for rows in chart["datasets"].values() for row in rows]
        assert {row["full"] for row in rows if "full" in row} == {"baseline (softmax)", *LONG}
        assert {row["shown"] for row in rows if "shown" in row} - {"chance", "baseline"} == {
            "layers.0=topk…0,1=sparsemax", "layers.0=topk…0,1=sparsemax (2)"
        }  # fmt: skip
        assert '"field": "full"' in json.dumps(chart["light"])


def test_a_long_name_leaves_room_for_numbers_in_the_terminal() -> None:
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(compare_table(made.comparison([made.row(BASELINE), made.row(LONG[0])])))
    text = console.export_text()
    assert re.search(r"^layers\.0=topk:k=8; +3\.21 +\+0\.31 % ", text, re.M)
    assert re.search(r"^layers\.3\.heads\.0,1", text, re.M)
