"""The map, the chosen head and its tokens on the page of `abbe report`: every control, by mouse and by keyboard."""

from __future__ import annotations

import math
import re

import made_up_report as made
import polars as pl
import pytest
from page_in_browser import Seen, needs_browser
from report_in_browser import PLACES, rows_given, value_of

from abbe.studies import Report

pytestmark = needs_browser


# -- The map ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_map_has_a_named_cell_for_every_head(seen: Seen, report: Report) -> None:
    assert seen.page.get_by_role("grid", name="layers and heads").get_by_role("row").count() == 1 + 3
    assert seen.page.locator("#map button.cell").count() == len(PLACES)
    value = value_of(report, "effective_tokens", 2, 1)
    (number,) = re.fullmatch(
        r"layer 2, head 1: (\S+) tokens", str(seen.cell(2, 1).get_attribute("aria-label"))
    ).groups()  # type: ignore[union-attr]
    assert float(number) == pytest.approx(value, rel=1e-3)
    assert seen.cell(2, 1).get_attribute("title") == seen.cell(2, 1).get_attribute("aria-label")


@pytest.mark.slow
def test_colours_follow_the_values(seen: Seen, report: Report) -> None:
    def darkness(layer: int, head: int) -> float:
        return -sum(int(part) for part in re.findall(r"\d+", seen.colour(seen.cell(layer, head))))

    by_value = sorted(PLACES, key=lambda place: value_of(report, "effective_tokens", *place))
    by_colour = sorted(PLACES, key=lambda place: darkness(*place))
    assert by_value == by_colour
    values = [value_of(report, "effective_tokens", *place) for place in PLACES]
    ends = [float(text) for text in re.findall(r"[\d.]+", seen.text("#legend"))[:2]]
    assert ends == pytest.approx([min(values), max(values)], rel=1e-3)


@pytest.mark.slow
def test_the_numbers_in_the_cells_can_be_read(seen: Seen) -> None:
    def luminance(colour: str) -> float:
        parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    for _ in ("light", "dark"):
        cells = seen.page.locator("#map button.cell").all()
        assert cells
        for cell in cells:
            low, high = sorted((luminance(seen.colour(cell)), luminance(seen.colour(cell, "color"))))
            assert (high + 0.05) / (low + 0.05) >= 4.5
        seen.page.locator("#theme").click()
        seen.page.wait_for_timeout(250)


@pytest.mark.slow
def test_measure_length_size_and_what_is_shown(seen: Seen, report: Report) -> None:
    assert not seen.page.locator("#map-size-field").is_visible()
    seen.choose("length", "64")
    assert float(seen.cell(1, 2).inner_text()) == pytest.approx(
        value_of(report, "effective_tokens", 1, 2, length=64), rel=0.06
    )
    seen.choose("measure", "separability")
    seen.choose("selected tokens N", "5")
    label = str(seen.cell(1, 2).get_attribute("aria-label"))
    value, control = (value_of(report, "separability", 1, 2, column, length=64, n=5) for column in ("value", "control"))
    assert float(label.split()[-1]) == pytest.approx(value, rel=1e-3)
    assert "High (1) means that a ball" in seen.text("#meaning")
    assert "Control: random set." in seen.text("#meaning")
    seen.choose("shown as", "control")
    assert float(seen.cell(1, 2).inner_text()) == pytest.approx(value / control, rel=0.06)
    assert seen.page.locator("#map-what option").all_inner_texts() == ["value", "value over control"]
    seen.choose("measure", "max_weight")
    seen.choose("shown as", "headroom")
    value, limit = (value_of(report, "max_weight", 1, 2, column, length=64) for column in ("value", "limit"))
    assert str(seen.cell(1, 2).get_attribute("aria-label")).startswith("layer 1, head 2: headroom 0.")
    assert float(seen.cell(1, 2).inner_text()) == pytest.approx(1 - value / limit, rel=0.06)
    seen.choose("measure", "entropy_floor")  # which has no limit
    assert seen.page.locator("#map-what").input_value() == "value"
    seen.choose("measure", "decay_exponent")
    assert seen.page.locator("#map-length").is_disabled()
    assert float(seen.cell(1, 2).inner_text()) == pytest.approx(
        value_of(report, "decay_exponent", 1, 2, length=None), rel=0.06
    )
    seen.quiet()


@pytest.mark.slow
def test_measures_are_grouped_and_those_without_heads_are_left_out(seen: Seen) -> None:
    groups = seen.page.locator("#map-measure optgroup").evaluate_all("all => all.map(e => e.label)")
    assert groups == [
        "Dispersion of the weights", "Attention patterns", "Weight of the selected set", "Distance from the rest",
        "Separability", "Sensitivity",
    ]  # fmt: skip
    assert seen.page.locator("#map-measure option[value=ks_statistic]").count() == 0
    assert seen.page.locator("#filter-measure option[value=ks_statistic]").count() == 1


@pytest.mark.slow
def test_what_is_no_number_is_shown_as_such(seen: Seen) -> None:
    seen.choose("measure", "logit_range")
    cells = [seen.cell(0, head) for head in range(4)]
    assert [cell.inner_text() for cell in cells] == ["", "NaN", "∞", "-∞"]
    assert [cell.get_attribute("aria-label").split(": ")[1] for cell in cells] == [
        "no value",
        "NaN logits",
        "∞ logits",
        "-∞ logits",
    ]
    assert "repeating-linear-gradient" in seen.colour(cells[0], "backgroundImage")
    assert "no value" in seen.text("#legend")
    assert "infinite or NaN" in seen.text("#legend")
    seen.choose("length", "64")
    assert "no value" not in seen.text("#legend")


@pytest.mark.slow
def test_the_map_by_keyboard(seen: Seen) -> None:
    inside = seen.page.locator("#map button[tabindex='0']")
    assert inside.count() == 1
    seen.cell(0, 0).click()
    seen.cell(0, 0).focus()

    def at(key: str) -> tuple[int, int]:
        seen.page.keyboard.press(key)
        layer, head = seen.page.evaluate("[document.activeElement.dataset.layer, document.activeElement.dataset.head]")
        return int(layer), int(head)

    steps = [
        "ArrowRight",
        "ArrowDown",
        "ArrowLeft",
        "ArrowLeft",
        "End",
        "ArrowRight",
        "ArrowUp",
        "ArrowUp",
        "Home",
        "Shift+End",
    ]
    assert [at(key) for key in steps] == [
        (0, 1), (1, 1), (1, 0), (1, 0), (1, 3), (1, 3), (0, 3), (0, 3), (0, 0), (2, 3),
    ]  # fmt: skip
    assert inside.count() == 1
    assert seen.text("#head-name") == "Layer 0, head 0"
    seen.page.keyboard.press("Enter")
    assert seen.text("#head-name") == "Layer 2, head 3"
    assert seen.page.evaluate("document.activeElement.dataset.head") == "3"
    assert seen.page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"


@pytest.mark.slow
def test_kinds_stand_out(seen: Seen) -> None:
    kinds = seen.page.get_by_role("group", name="kinds of heads").get_by_role("button")
    assert kinds.all_inner_texts()[0] == "sharp 2"
    kinds.filter(has_text="sink").click()
    aside = seen.page.locator("#map .cell.aside")
    assert aside.count() == len(PLACES) - 2
    assert "aside" not in str(seen.cell(0, 2).get_attribute("class"))
    kinds.filter(has_text="sharp").click()
    assert seen.page.locator("#kinds [aria-pressed=true]").count() == 1
    kinds.filter(has_text="sharp").click()
    assert aside.count() == 0


# -- The chosen head --------------------------------------------------------------------------------------------------


def test_a_chosen_head_fills_verdict_charts_and_table(shared: Seen, report: Report) -> None:
    seen = shared
    seen.cell(0, 0).click()
    assert seen.text("#head-sentence") == "Head 0 of layer 0 is selective."
    assert seen.text("#head-kind") == "selective"
    assert seen.page.locator(".chosen-head").first.inner_text() == "layer 0, head 0"
    seen.page.locator("#head-details summary").click()
    assert "a rule of thumb" in seen.text("#head-details")
    assert "∞" in seen.text("#head-details")
    rows = seen.page.locator("#alternatives-table tbody tr")
    assert rows.count() == len(made.ALTERNATIVES)
    separable = report.alternatives.filter((pl.col("layer") == 0) & (pl.col("head") == 0))["separable"]
    assert [float(row.locator("td").nth(1).inner_text().split()[0]) for row in rows.all()] == pytest.approx(
        list(separable), rel=1e-2
    )
    seen.page.locator("#head-after").click()
    assert seen.text("#head-name") == "Layer 0, head 1"
    seen.page.locator("#head-before").click()
    seen.page.locator("#head-before").click()
    assert seen.text("#head-name") == "Layer 2, head 3"
    seen.quiet()


@pytest.mark.slow
def test_the_rows_of_the_charts(seen: Seen, report: Report) -> None:
    seen.cell(0, 0).click()
    sizes = rows_given(seen, "sizes", seen.cell(1, 3).click)["rows"]
    of_head = report.table.filter((pl.col("layer") == 1) & (pl.col("head") == 3))
    sized = of_head.filter((pl.col("length") == 1024) & pl.col("n").is_not_null())
    assert {(row["measure"], row["n"]) for row in sizes} == set(sized.select("measure", "n").iter_rows())
    assert len(sizes) == sized.height
    assert {row["length"] for row in sizes} == {1024}
    lengths = rows_given(seen, "lengths", seen.cell(0, 1).click)["rows"]
    assert {(row["measure"], row["n"]) for row in lengths} == {
        ("effective_tokens", None), ("effective_tokens_floor", None), ("max_weight", None), ("entropy", None),
        ("separability", 20), ("top_mass", 20),
    }  # fmt: skip
    assert len(lengths) == 6 * 3
    warm = rows_given(seen, "gradient", seen.cell(1, 1).click)["chosen"]
    assert sorted({row["temperature"] for row in warm}) == list(made.TEMPERATURES)
    (one,) = [row for row in warm if row["part"] == "p95" and row["temperature"] == 0.5]
    assert one["value"] == pytest.approx(value_of(report, "sensitivity_worst_p95@T=0.5", 1, 1), rel=1e-4)
    assert set(one) == {"temperature", "part", "value", "low", "high", "limit"}
    (plain,) = [row for row in warm if row["part"] == "mean" and row["temperature"] == 1]
    assert plain["limit"] == pytest.approx(value_of(report, "sensitivity_worst_mean", 1, 1, "limit"), rel=1e-4)
    shorter = rows_given(seen, "sizes", lambda: seen.choose("length", "64"))["rows"]
    assert {row["length"] for row in shorter} == {64}
    others = rows_given(seen, "alternatives", seen.cell(2, 2).click)["chosen"]
    assert [row["normalizer"] for row in others] == list(made.ALTERNATIVES)
    assert {(row["layer"], row["head"]) for row in others} == {(2, 2)}


# -- Tokens -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_text_of_the_window_is_whole_and_whitespace_is_seen(seen: Seen, report: Report) -> None:
    assert report.sample is not None
    tokens = seen.page.locator("#token-text .token")
    assert tokens.count() == len(report.sample.tokens)
    text = str(seen.page.locator("#token-text").evaluate("e => e.textContent"))
    expected = "".join(report.sample.tokens).replace("\r\n", "\n").replace("\n", "↵\n").replace("\t", "⇥\t")
    assert text == expected
    assert seen.page.locator("#token-text bdi").count() == tokens.count()


@pytest.mark.slow
def test_selected_tokens_are_marked_and_listed(seen: Seen, report: Report) -> None:
    seen.cell(1, 2).click()
    sample = report.sample
    assert sample is not None
    (row,) = [row for row in sample.rows if (row.layer, row.head, row.query) == (1, 2, sample.queries[-1])]
    ball = row.balls[-1]
    listed = seen.page.locator("#token-list tr")
    assert listed.count() == 20
    cells = [entry.locator("td").all_inner_texts() for entry in listed.all()]
    assert [int(cell[2]) for cell in cells] == list(row.keys)
    assert [float(cell[3]) for cell in cells] == pytest.approx(list(row.weights), rel=6e-3)
    assert [float(cell[4]) for cell in cells] == pytest.approx(list(ball.distances), abs=0.012)
    assert [cell[5] == "yes" for cell in cells] == list(ball.inside)
    for rank, key in enumerate(row.keys):
        token = seen.page.locator(f"[data-token='{key}']")
        kind = "inside" if ball.inside[rank] else "outside"
        assert {"selected", kind} <= set(str(token.get_attribute("class")).split())
        assert f"place {rank + 1} of 20" in str(token.get_attribute("title"))
        assert seen.colour(token, "textDecorationStyle") == ("solid" if ball.inside[rank] else "dashed")
    assert seen.page.locator("#token-text .selected").count() == 20
    sentence = f"{sum(ball.inside)} of 20 selected tokens lie in the ball; {ball.intruders} unselected ones lie "
    sentence += "no farther out than the farthest selected."
    assert seen.text("#token-words") == sentence


@pytest.mark.slow
def test_query_and_size_are_chosen_in_every_way(seen: Seen, report: Report) -> None:
    assert report.sample is not None
    first, middle, last = report.sample.queries
    query = seen.page.locator("#query-select")
    assert query.input_value() == str(last)
    query.select_option(str(middle))
    chosen = seen.page.locator("#token-text [aria-pressed=true]")
    assert chosen.get_attribute("data-token") == str(middle)
    seen.page.locator("#query-after").click()
    assert query.input_value() == str(last)
    seen.page.locator("#query-after").click()
    assert query.input_value() == str(first)
    assert seen.text("#token-words") == "This query sees too few tokens for a selected set of 20."
    assert seen.page.locator("#token-list tr").count() == first + 1
    seen.page.locator("#ball-select").select_option("5")
    assert "of 5 selected tokens" in seen.text("#token-words")
    assert seen.page.locator("#token-text .selected").count() == 5
    seen.page.locator("#query-before").click()
    assert query.input_value() == str(last)
    seen.page.locator(f"button[data-token='{middle}']").focus()
    seen.page.keyboard.press("Enter")
    assert query.input_value() == str(middle)
    assert seen.page.evaluate("document.activeElement.dataset.token") == str(middle)
    seen.quiet()


@pytest.mark.slow
def test_the_picture_of_the_ball(seen: Seen, report: Report) -> None:
    assert report.sample is not None
    query = report.sample.queries[-1]
    seen.cell(0, 0).click()
    given = rows_given(seen, "ball", seen.cell(2, 0).click)
    rows = report.sample.as_json()["rows"]
    (row,) = [row for row in rows if (row["layer"], row["head"], row["query"]) == (2, 0, query)]
    (ball,) = [ball for ball in row["balls"] if ball["size"] == 20]
    largest = max(ball["radius"], *ball["distances"], *ball["other_distances"])
    assert len(given["circle"]) == 72
    assert [math.hypot(p["x"], p["y"]) for p in given["circle"]] == pytest.approx([ball["radius"] / largest] * 72)
    assert [p["order"] for p in given["circle"]] == list(range(72))
    assert given["circle"][18]["y"] == pytest.approx(ball["radius"] / largest)  # a quarter of the way round
    points = given["points"]
    selected = [p for p in points if p["kind"].startswith("selected")]
    assert [math.hypot(p["x"], p["y"]) for p in selected] == pytest.approx([d / largest for d in ball["distances"]])
    assert [p["kind"] == "selected, inside" for p in selected] == ball["inside"]
    others = [p for p in points if p not in selected]
    near = [p["kind"] == "unselected, nearer than a selected one" for p in others]
    assert near == [d <= max(ball["distances"]) for d in ball["other_distances"]]
    assert max(math.hypot(p["x"], p["y"]) for p in points) == pytest.approx(1)
    angle = math.degrees(math.atan2(selected[0]["y"], selected[0]["x"])) % 360
    assert angle == pytest.approx(ball["angles"][0], abs=1e-6)
    assert selected[0]["distance"] == pytest.approx(ball["distances"][0])
