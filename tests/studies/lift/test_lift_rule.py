"""The rule of a search: what lifts, what does not, and how often chance alone would."""

from __future__ import annotations

import random
from typing import Any

import polars as pl
import pytest
from planted_lift import BASE, BASELINE, CONTROL, KEYS, PLAN, lifted, shifted

import abbe

WIDE = [loss + 0.1 * (-1) ** place for place, loss in enumerate(BASE)]  # as low on average; the interval tells
ALL, NO_KEYS, KEYS_FOUND = [True] * 20, [False] * KEYS, [True] * 8 + [False] * (KEYS - 8)
RETRIEVAL: dict[str, Any] = {"goal": "retrieval", "keys": (NO_KEYS, NO_KEYS, KEYS_FOUND)}
RISE = "the loss may rise by more than 0.5 % over"


def failed(result: abbe.Lift) -> str:
    """The conditions that the plan does not meet."""
    words = result.findings[0].sentence
    assert words.startswith("Lifted: " if result.lifted else "Nothing tried here helps this model. Nearest came ")
    return "" if result.lifted else words.rpartition(": ")[2].removesuffix(".")


def numbers(result: abbe.Lift, name: str) -> tuple[float, float, float]:
    facts = result.findings[0].numbers
    return facts[name], facts[f"{name}, from"], facts[f"{name}, to"]


def row_of(result: abbe.Lift) -> dict[str, Any]:
    return result.table.row(by_predicate=pl.col("contender") == PLAN, named=True)


def test_zeros_at_no_loss_lift() -> None:
    result = lifted()
    assert result.lifted
    assert [row_of(result)[name] for name in ("rise", "control_rise")] == [0, 0]
    assert row_of(result)["zeros_gain"] == pytest.approx(0.9035)


@pytest.mark.parametrize(
    ("case", "wanted"),
    [
        ({"plan": shifted(0.03)}, f"{RISE} the baseline, {RISE} {CONTROL}"),
        ({"plan": WIDE, "control": WIDE}, f"{RISE} the baseline"),
        ({"control": shifted(-0.03)}, f"{RISE} {CONTROL}"),
        ({"zeros": 0.03}, f"no clear gain over the baseline, no clear gain over {CONTROL}"),
        ({"zeros": [[0.88] * 8, [0.0] * 8, [0.9] * 8]}, "no clear gain over the baseline"),
        ({"needles": (ALL, ALL, ([False] * 4 + [True] * 6) * 2)}, "fewer needles are found"),
    ],
)
def test_each_part_of_the_rule_can_fail(case: Any, wanted: str) -> None:
    assert failed(lifted(**case)) == wanted


def test_zeros_that_cost_more_than_is_allowed_of_a_tuned_softmax_do_not_lift() -> None:
    """The loss falls for both, since tuning suits the text; what the normalizer costs shows beside the control only."""
    result = lifted(plan=shifted(-0.08), control=shifted(-0.12))
    assert row_of(result)["rise_high"] < 0
    assert row_of(result)["control_rise"] == pytest.approx(0.04 / 3.03, rel=1e-6)
    assert failed(result) == f"{RISE} {CONTROL}"
    assert lifted(plan=shifted(-0.08), control=shifted(-0.085)).lifted
    alone = lifted(plan=shifted(-0.08), normalizers="softmax")
    assert alone.table["contender"].to_list() == [BASELINE, PLAN]
    assert alone.lifted


def test_too_few_windows_never_lift() -> None:
    assert failed(lifted(**dict.fromkeys(("plan", "control", "baseline"), BASE[:5]))) == "fewer than 6 windows"


def test_a_lower_loss_must_be_lower_than_that_of_softmax_tuned_alike() -> None:
    lower = shifted(-0.05)
    result = lifted(plan=lower, goal="loss")
    assert result.lifted
    assert numbers(result, "gain over baseline")[0] == pytest.approx(0.05)
    assert failed(lifted(plan=lower, control=lower, goal="loss")) == f"no clear gain over {CONTROL}"


def test_pass_keys_count_in_pairs() -> None:
    assert lifted(**RETRIEVAL).lifted
    few = [True] * 3 + [False] * (KEYS - 3)
    wanted = f"no clear gain over the baseline, no clear gain over {CONTROL}"
    assert failed(lifted(goal="retrieval", keys=(NO_KEYS, NO_KEYS, few))) == wanted


def test_the_loss_is_bounded_at_each_length() -> None:
    def at_64(plan: list[float], control: float = 0.0) -> abbe.Lift:
        return lifted(**RETRIEVAL, longer=(BASE[: len(plan)], shifted(control)[: len(plan)], plan))

    fine = at_64(shifted(-0.01))
    assert fine.lifted
    assert row_of(fine)["longer_rise"] == pytest.approx(-0.01 / 3.15, rel=1e-6)
    assert numbers(fine, "rise of the loss at 64 tokens over baseline")[0] == row_of(fine)["longer_rise"]
    start = "the loss at 64 tokens may rise by more than 0.5 % over"
    assert failed(at_64(shifted(0.03), control=0.03)) == f"{start} the baseline"
    assert failed(at_64(BASE, control=-0.03)) == f"{start} {CONTROL}"
    for few in (BASE[:5], []):
        assert failed(at_64(few)) == "fewer than 6 windows of 64 tokens"


def test_a_gain_in_sentences_does_not_make_up_for_lists() -> None:
    """Both together find as many as before, by pairs that cancel out."""
    result = lifted(needles=(ALL[:10] + [False] * 10, ALL, [False] * 10 + ALL[:10]))
    assert row_of(result)["needle_gain"] == 0
    assert row_of(result)["lists_gain"] == -1
    assert failed(result) == "fewer lists are answered"


def permuted(seed: int) -> dict[str, Any]:
    """A null model: plan, baseline and control swap roles at random for every window and prompt."""
    chance = random.Random(seed)

    def shuffled(columns: list[list[Any]]) -> list[list[Any]]:
        rows = [chance.sample(row, 3) for row in zip(*columns, strict=True)]
        return [list(column) for column in zip(*rows, strict=True)]

    losses = shuffled([[loss + chance.gauss(0, 0.02) for loss in BASE] for _ in range(3)])
    zeros = shuffled([[share] * 8 for share in (0.0, 0.0, 0.9)])
    needles, keys = (
        shuffled([[chance.random() < share for _ in range(count)] for share in (0.3, 0.3, 0.5)]) for count in (20, KEYS)
    )
    return dict(zip(("baseline", "control", "plan"), losses, strict=True)) | {
        "zeros": zeros, "needles": needles, "keys": keys, "longer": losses
    }  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("goal", ["sparse", "loss", "retrieval"])
def test_null_models_are_called_lifted_in_less_than_a_twentieth_of_cases(goal: str) -> None:
    """The loss is no hindrance here."""
    assert sum(lifted(**permuted(seed), goal=goal, max_loss=0.5).lifted for seed in range(100)) < 5
