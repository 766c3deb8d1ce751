"""A search in the terminal, on its page and in figures, from made-up numbers."""

from __future__ import annotations

import io
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from rich.console import Console

from abbe.studies import Lift
from abbe.views import figures, terminal
from abbe.words.finding import Finding

JUDGED = {"loss": 3.0, "zeros": 0.0, "active": 128.0, "effective_tokens": 12.0, "lists": 0.1, "sentences": 0.8}


def made_up(goal: str = "sparse") -> Lift:
    """Two layers under two candidates; a plan and a mixed one, the first tuned and judged."""
    spec = "entmax:alpha=1.5"
    scan = [
        {"layers": str(layer), "first": layer, "last": layer, "normalizer": one, "harm": harm, "gain": 0.5,
         "zeros": 0.9, "effective_tokens": 5.0, "effective_tokens_baseline": 8.0, "sensitivity_ratio": 0.5}
        for one, harms in ((spec, (0.012, -0.004)), ("topk:k=4", (0.002, None)))
        for layer, harm in enumerate(harms)
    ]  # fmt: skip
    plans = [
        {"plan": plan, "layers": 2, "steps": steps, "loss": 3.1, "rise": 0.003, "rise_low": 0.001, "rise_high": 0.004,
         "gain": 0.7, "zeros": 0.7, "active": 30.0, "effective_tokens": 9.0, "chosen": chosen}
        for plan, steps, chosen in ((f"layers.0-1={spec}", 8, True), (f"layers.0={spec}; layers.1=topk:k=4", 0, False))
    ]  # fmt: skip
    rise = {"rise": 0.0021, "rise_low": -0.0009, "rise_high": 0.0049}
    rise |= {"lists_gain": 0.12, "lists_gain_low": 0.06, "lists_gain_high": 0.14, "sentences_gain": 0.0}
    table = [{"contender": "baseline"} | JUDGED | {"time_ratio": 1.0, "seconds": 0.1}]
    table.append({"contender": "plan"} | JUDGED | {"zeros": 0.74, "time_ratio": 1.2, "seconds": 0.12} | rise)
    keys = [
        {"contender": name, "length": 256, "depth": depth, "prompts": 4, "right": 0.25, "right_low": 0.0,
         "right_high": 0.6, "log_probability": -7.5}
        for name in ("baseline", "plan") for depth in (0.0, 1.0)
    ] if goal == "retrieval" else []  # fmt: skip
    manifest = {
        "model": {"name": "made-up", "source": "made-up"}, "text": {"name": "book.txt"}, "skipped": [],
        "settings": {"goal": goal, "max_loss": 0.005, "steps": 8, "seed": 3, "length": 64},
        "loss_lengths": [64, 256] if goal == "retrieval" else [64],
        "call": {"absent": [], "arguments": {
            "model": "/home/u/made-up", "text": ["book.txt"], "normalizers": [spec, "topk:k=4"], "queries": 8,
            "lengths": [64, 256], "budget": None, "max_loss": "0.5%",
        }},
    }  # fmt: skip
    if goal == "retrieval":
        for row, more in zip(table, ({}, {"longer_rise": 0.001, "longer_rise_low": 0.0, "longer_rise_high": 0.002}),
                             strict=True):  # fmt: skip
            row |= {"longer_loss": 2.5, "pass_keys": 0.5} | more
    frames = {"table": table, "scan": scan, "plans": plans, "keys": keys}
    tables = {name: Lift.frame(name).of(rows) for name, rows in frames.items()}
    said = (Finding("lifted", "Lifted: it is so.", "the rule"),)
    plan, file = f"layers.0-1={spec}", Path("lifted/plan.safetensors")
    return Lift(lifted=True, plan=plan, **tables, findings=said, manifest=manifest, file=file)


def shown(result: Lift, columns: int = 80) -> str:
    console = Console(width=columns, no_color=True, record=True, file=io.StringIO())
    console.print(terminal(result))
    return console.export_text()


@pytest.mark.parametrize("goal", ["sparse", "retrieval"])
def test_the_terminal_shows_what_was_tested_the_answer_first(goal: str) -> None:
    text = shown(made_up(goal))
    assert "\N{HORIZONTAL ELLIPSIS}" not in text
    assert max(map(len, text.splitlines())) <= 80
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


@pytest.mark.slow
@pytest.mark.parametrize("goal", ["sparse", "loss", "retrieval"])
def test_charts_can_be_drawn(goal: str, tmp_path: Path) -> None:
    files = figures(made_up(goal), tmp_path)
    assert all(file.stat().st_size > 1000 for file in files)
    assert len(files) == 6 * (3 if goal == "retrieval" else 2)  # light and dark, as PNG, SVG and PDF


def test_a_search_in_which_everything_was_learned_has_no_scan() -> None:
    result = made_up("retrieval")
    learned = replace(result, scan=result.scan.clear())
    assert set(learned.view().charts("light")) == {"plans", "keys"}
    assert "Each group of layers alone" not in learned.to_html()
    assert "plan" in shown(learned)


def test_hostile_words_are_escaped() -> None:
    evil = "<script>alert(1)</script>"
    finding = Finding(evil, evil, evil, {evil: evil})
    settings = dict(made_up().manifest["settings"]) | {"goal": evil}
    manifest = {
        "model": {"name": evil, "source": evil},
        "text": {"name": evil},
        "settings": settings,
        "skipped": [evil],
    }
    plans = made_up().plans.with_columns(plan=pl.lit(f"layers.0={evil}"))
    hostile = replace(made_up(), plan=evil, findings=(finding,), manifest=manifest, plans=plans)
    assert evil not in hostile.to_html()
    assert evil not in hostile._repr_html_()
