"""A search in the terminal, on its page and in figures, from made-up numbers."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from chart_parts import printed
from made_up_lift import made_up


@pytest.mark.parametrize("goal", ["sparse", "retrieval"])
def test_the_terminal_shows_what_was_tested_the_answer_first(goal: str) -> None:
    text = printed(made_up(goal))
    words = " ".join(text.split())
    wanted = "be made sparse" if goal == "sparse" else "find more pass keys"
    assert words.startswith(f"Can made-up {wanted} with another normalizer?")
    assert words.index("Lifted: it is so.") < words.index("What to do next") < words.index("Tested once")
    assert ("rise, 256" in words) is (goal == "retrieval")
    assert "(+12 %: +6 to +14 %)" in words
    assert "74 %" in words


def test_commands_run_as_printed_and_pages_do_not_tell_where_files_lie() -> None:
    compare, export, again = (step.command for step in made_up().view().steps)
    model = ["/home/u/made-up", "--text", "book.txt", "--queries", "8"]
    assert shlex.split(again) == [
        *("abbe", "lift", *model, "--with", "entmax:alpha=1.5", "--with", "topk:k=4"),
        *("--lengths", "64,256", "--budget", "none", "--max-loss", "0.5%"),
    ]
    plan = "lifted/plan.safetensors"
    assert shlex.split(compare) == ["abbe", "compare", model[0], "--with", f"file:{plan}", *model[1:]]
    assert shlex.split(export) == ["abbe", "export", model[0], "--plan", plan, "--out", "made-up-lifted"]
    page = replace(made_up(), file=Path("/home/u/lifted/plan.safetensors")).to_html()
    assert "/home/u" not in page
    assert "file:plan.safetensors" in page
    memory = made_up().manifest | {"call": {"absent": ["model"], "arguments": {}}}
    assert replace(made_up(), manifest=memory).view().steps == []  # nobody could type such a model


def rows_of_panel(chart: dict[str, Any], title: str) -> list[dict[str, Any]]:
    (one,) = [one for one in chart["concat"] if one["title"] == title]
    return [row for layer in one["layer"] for row in chart["datasets"][layer["data"]["name"]]]


def test_the_map_has_a_cell_for_each_layer_and_normalizer_that_was_measured() -> None:
    cells = rows_of_panel(made_up().view().charts("light")["scan"], "rise of the loss (%)")
    values = {(row["layers"], row["normalizer"]): row["value"] for row in cells}
    expected = {("0", "entmax:alpha=1.5"): 1.2, ("1", "entmax:alpha=1.5"): -0.4, ("0", "topk:k=4"): 0.2}
    assert values == pytest.approx(expected)


def test_the_picture_of_plans_marks_the_tested_one_and_what_is_allowed() -> None:
    rows = rows_of_panel(made_up().view().charts("light")["plans"], "loss against weights of exactly 0")
    assert rows[0] == {"cost": 0.5}
    assert {row["kind"] for row in rows[1:]} == {"entmax:alpha=1.5", "mixed"}
    assert rows[-1]["chosen"]


@pytest.mark.parametrize("goal", ["sparse", "retrieval"])
def test_the_page_holds_sentences_tables_and_commands(goal: str) -> None:
    page = made_up(goal).to_html()
    assert "<td>plan</td><td>3.000</td><td>+0.21 % (-0.09 to +0.49 %)</td>" in page
    assert ("<td>2.500</td><td>+0.10 % (+0.00 to +0.20 %)</td>" in page) is (goal == "retrieval")
    assert "<td>10 % (+12 %: +6 to +14 %)</td><td>80 % (+0 %)</td>" in page
    assert "What to do next" in page
    assert ("Pass keys by length and depth" in page) is (goal == "retrieval")


def test_a_search_in_which_everything_was_learned_has_no_scan() -> None:
    result = made_up("retrieval")
    learned = replace(result, scan=result.scan.clear())
    assert set(learned.view().charts("light")) == {"plans", "keys"}
    assert "Each group of layers alone" not in learned.to_html()
    assert "plan" in printed(learned)
