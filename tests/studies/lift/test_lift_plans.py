"""From the scan to plans, and what a budget leaves of the search: pure functions."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from inside import lift_search, lift_study

import abbe

SETTINGS = lift_study.LiftSettings(
    goal="sparse", max_loss=0.005, budget=None, candidates=("sparsemax",), length=32, windows=8, queries=4, steps=0,
    needle_lengths=(128,), lengths=(), prompts=4, seed=0, level=0.95, resamples=200,
)  # fmt: skip
LOAD = lift_study.Load(30, 4, 8, 48, 8, 0.0, 150.0)


def test_groups_are_neighbours_and_hold_every_layer_once() -> None:
    assert lift_search.layer_groups(6, 12) == [(0,), (1,), (2,), (3,), (4,), (5,)]
    groups = lift_search.layer_groups(30, 12)
    assert len(groups) == 12
    assert [layer for group in groups for layer in group] == list(range(30))
    assert {len(group) for group in groups} == {2, 3}


def cell(layer: int, spec: str, harm: float, gain: float) -> dict[str, Any]:
    return {"first": layer, "last": layer, "normalizer": spec, "harm": harm, "gain": gain}


def test_plans_are_nested_in_the_order_of_harm_per_gain() -> None:
    cells = [
        cell(layer, spec, harm, gain)
        for spec, pairs in (
            ("a", ((0.04, 0.5), (0.01, 0.5), (0.01, 0.9))),
            ("b", ((0.02, 0.8), (0.09, 0.1), (0.05, 0.0))),
        )
        for layer, (harm, gain) in enumerate(pairs)
    ]
    names = [lift_search.Plan(0, recipe).name for recipe in lift_search.nested_recipes(cells, "sparse")]
    assert names[:3] == ["layers.2=a", "layers.1-2=a", "layers.0-2=a"]
    assert names[3:5] == ["layers.0=b", "layers.0-1=b"]  # a layer without gain is never taken
    assert names[5:] == ["layers.0=b; layers.1-2=a"]  # the mixed ones; smaller ones were there already


def test_for_the_loss_harm_alone_orders() -> None:
    cells = [cell(layer, "a", harm, -harm) for layer, harm in enumerate((0.01, -0.02, 0.0))]
    assert [lift_search.Plan(0, one).name for one in lift_search.nested_recipes(cells, "loss")] == [
        "layers.1=a",
        "layers.1-2=a",
        "layers.0-2=a",
    ]


def test_thinned_keeps_both_ends_of_the_list_in_view() -> None:
    some = [{place: "a"} for place in range(20)]
    assert lift_search.thinned(some, 30) == some
    kept = [next(iter(one)) for one in lift_search.thinned(some, 5)]
    assert len(set(kept)) == 5
    assert kept[0] < 4
    assert kept[-1] > 15


def tried(name: str, rise: float, gain: float, high: float | None = None) -> Any:
    plan = lift_search.Plan(0, {0: name})
    return lift_search.Tried(plan, 0, rise, rise + 0.001 if high is None else high, gain)


def names(plans: list[Any]) -> list[str]:
    return [one.plan.recipe[0] for one in plans]


def test_the_ladder_keeps_a_plan_that_is_affordable_now_and_one_that_may_become_so() -> None:
    plans = [tried("safe", 0.003, 0.3), tried("bold", 0.04, 0.9), tried("bad", 0.5, 0.95), tried("small", 0.0, 0.1)]
    assert names(lift_search.for_next_round(plans, 2, SETTINGS, 16.0)) == ["safe", "bold"]


def test_for_the_loss_large_plans_come_into_the_first_round_of_tuning() -> None:
    recipes = ({0: "one"}, {0: "two", 1: "a"}, {0: "both", 1: "b"})
    plans = [
        lift_search.Tried(lift_search.Plan(0, recipe), 0, rise, rise, -rise)
        for recipe, rise in zip(recipes, (0, 2, 1), strict=True)
    ]
    settings = dataclasses.replace(SETTINGS, goal="loss")
    assert names(lift_search.for_next_round(plans, 2, settings, 16.0)) == [
        "both",
        "one",
    ]
    tuned = [dataclasses.replace(plan, steps=8) for plan in plans]
    assert names(lift_search.for_next_round(tuned, 2, settings, 4.0)) == [
        "one",
        "both",
    ]


def test_chosen_is_the_largest_gain_within_the_loss_else_the_nearest() -> None:
    sure, likely, bad = tried("sure", 0.001, 0.3), tried("likely", 0.004, 0.6, high=0.02), tried("bad", 0.2, 0.9)
    edge = tried("edge", 0.004, 0.8, high=0.0049)
    cases = {"sure": ([sure, likely, bad], [sure, edge]), "edge": ([likely, edge],), "likely": ([likely, bad],)}
    cases["nearer"] = ([bad, tried("nearer", 0.1, 0.5)],)
    for name, lists in cases.items():  # of the first, the one at the edge of what is allowed leaves no margin
        assert [names([lift_search.best(plans, SETTINGS)]) for plans in lists] == [[name]] * len(lists)


def test_without_a_budget_everything_is_done_and_nothing_cut() -> None:
    schedule = lift_study.fitting(LOAD, 100.0, None)
    assert schedule == lift_study.full(LOAD)
    assert lift_study.what_was_cut(schedule, LOAD) == []


def test_a_budget_makes_the_search_smaller_until_it_fits_and_says_so() -> None:
    schedule = lift_study.fitting(LOAD, 1.0, 1200.0)
    assert lift_study.passes(schedule, LOAD) * 1.0 <= 1200.0
    said = lift_study.what_was_cut(schedule, LOAD)
    assert any(line.startswith("plans: ") and "instead of 60" in line for line in said)
    larger = lift_study.fitting(LOAD, 1.0, 2400.0)
    assert lift_study.passes(larger, LOAD) > lift_study.passes(schedule, LOAD)


def test_a_budget_without_room_for_one_candidate_is_refused() -> None:
    with pytest.raises(abbe.AbbeError, match=r"the budget of 10 s is too small for one candidate: about .* are needed"):
        lift_study.fitting(LOAD, 1.0, 10.0)


@given(
    st.floats(1e-6, 1e6),
    st.floats(1e-3, 1e6),
    st.builds(lift_study.Load, *[st.integers(1, 40)] * 5, *[st.floats(0, 1e4)] * 3),
)
def test_what_is_kept_for_later_is_a_bounded_share_of_the_budget(a_pass: float, budget: float, load: Any) -> None:
    """However slow the timed passes were, a stage is cut only after half of the budget, plans after two thirds."""
    kept = lift_study.reserves(lift_study.full(load), load, a_pass, budget)
    shares = {"learning": 1 / 2, "scan": 2 / 5, "plans": 1 / 3}
    assert all(kept[stage] <= share * budget for stage, share in shares.items())
    assert kept["plans"] <= load.judged_passes * a_pass
    assert kept["plans"] <= kept["scan"] + 1 / 3 * budget


def test_the_best_of_several_passes_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter([0.0, 90.0, 90.0, 160.0, 160.0, 160.5, 200.0, 290.0, 300.0, 301.0])
    monkeypatch.setattr(time, "thread_time", lambda: next(ticks))
    passed: list[None] = []
    assert lift_study.seconds_of_a_pass(lambda: passed.append(None), on_cpu=True) == 0.5
    assert len(passed) == 5


def test_waiting_for_other_programs_is_no_part_of_a_pass() -> None:
    """On another device, waiting for it is."""
    assert lift_study.seconds_of_a_pass(lambda: time.sleep(0.03), on_cpu=True) < 0.03
    assert lift_study.seconds_of_a_pass(lambda: time.sleep(0.03), on_cpu=False) >= 0.03


def test_the_parts_of_a_text_share_nothing_and_draw_apart() -> None:
    text = abbe.Text("words", " ".join(f"word{place}" for place in range(1000)))
    parts = lift_study.cut(text, seed=5)
    assert "".join(part.text.content for part in parts.values()) == text.content
    shares = [part.start / len(text.content) for part in parts.values()]
    assert shares == pytest.approx([0, 0.5, 0.75], abs=0.002)
    assert all(part.text.content.startswith(" ") for part in list(parts.values())[1:])
    others = lift_study.cut(text, seed=6)
    assert len({part.seed for part in (*parts.values(), *others.values())}) == 6


def test_the_test_text_opens_once() -> None:
    sealed = lift_study.Sealed(lift_study.cut(abbe.Text("words", "a b c d " * 50), 0)["test"])
    assert sealed.open().text.content
    with pytest.raises(abbe.AbbeError, match="it can be read only once"):
        sealed.open()
