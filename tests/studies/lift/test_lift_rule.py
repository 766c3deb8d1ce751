"""The rule of a search: what lifts, what does not, and how often chance alone would."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import pytest
from inside import lift_rules

CONTROL, PLAN, Judged = lift_rules.CONTROL, lift_rules.PLAN, lift_rules.Judged

SETTINGS = lift_rules.LiftSettings(
    goal="sparse", max_loss=0.005, budget=None, candidates=("sparsemax",), length=32, windows=8, queries=4, steps=0,
    needle_lengths=(128,), lengths=(), prompts=4, seed=0, level=0.95, resamples=200,
)  # fmt: skip
BASE = [3.1, 3.4, 2.9, 3.3, 3.0, 3.2, 3.5, 2.8]
WIDE = [loss + 0.1 * (-1) ** place for place, loss in enumerate(BASE)]  # as low on average; the interval tells


def for_goal(goal: str) -> Any:
    return dataclasses.replace(SETTINGS, goal=goal, lengths=(256,) if goal == "retrieval" else ())


def judged(plan: list[float] | None = None, control: list[float] | None = None, zeros: float = 0.9, **more: Any) -> Any:
    """By default a plan with the baseline's losses and 90 % of zeros."""
    longer = more.pop("longer", {})
    losses = {"baseline": BASE, CONTROL: control or BASE, PLAN: plan or BASE}
    sparse = {"baseline": [0.0] * 8, CONTROL: [0.0] * 8, PLAN: [zeros + place / 1000 for place in range(8)]}
    right = {name: [True, False] * 10 for name in losses}
    return dataclasses.replace(Judged({32: losses} | longer, sparse, right, dict.fromkeys(losses, ())), **more)


def shifted(by: float) -> list[float]:
    return [loss + by + (place - 3.5) * 1e-4 for place, loss in enumerate(BASE)]


def test_zeros_at_no_loss_lift() -> None:
    decision = lift_rules.decide(judged(), SETTINGS)
    assert decision.lifted
    assert [changes["rise"].value for changes in decision.changes.values()] == [0, 0]
    assert decision.changes["baseline"]["zeros_gain"].value == pytest.approx(0.9035)


@pytest.mark.parametrize(
    ("case", "failed"),
    [
        (judged(plan=shifted(0.03)), "the loss may rise by more than 0.5 % over the baseline"),
        (judged(plan=WIDE), "the loss may rise by more than 0.5 % over the baseline"),
        (judged(control=shifted(-0.03)), f"the loss may rise by more than 0.5 % over {CONTROL}"),
        (judged(zeros=0.03), "no clear gain over the baseline"),
        (
            judged(needles={"baseline": [True] * 20, CONTROL: [True] * 20, PLAN: [False] * 20}),
            "fewer needles are found",
        ),
    ],
)
def test_each_part_of_the_rule_can_fail(case: Any, failed: str) -> None:
    decision = lift_rules.decide(case, SETTINGS)
    assert not decision.lifted
    assert failed in decision.failed


def test_zeros_that_cost_more_than_is_allowed_of_a_tuned_softmax_do_not_lift() -> None:
    """The loss falls for both, since tuning suits the text; what the normalizer costs shows beside the control only."""
    decision = lift_rules.decide(judged(plan=shifted(-0.08), control=shifted(-0.12)), SETTINGS)
    assert decision.changes["baseline"]["rise"].below(0)
    assert decision.changes[CONTROL]["rise"].value == pytest.approx(0.04 / 3.03, rel=1e-6)
    assert decision.failed == (f"the loss may rise by more than 0.5 % over {CONTROL}",)
    assert lift_rules.decide(judged(plan=shifted(-0.08), control=shifted(-0.085)), SETTINGS).lifted
    alone = judged(plan=shifted(-0.08))
    del alone.losses[32][CONTROL]  # the plan is softmax itself
    assert lift_rules.decide(alone, SETTINGS).lifted


def test_too_few_windows_never_lift() -> None:
    few = judged()
    losses, zeros = ({who: values[:5] for who, values in of.items()} for of in (few.losses[32], few.zeros))
    assert lift_rules.decide(dataclasses.replace(few, losses={32: losses}, zeros=zeros), SETTINGS).failed == (
        "fewer than 6 windows",
    )


def test_a_lower_loss_must_be_lower_than_that_of_softmax_tuned_alike() -> None:
    lower = shifted(-0.05)
    assert lift_rules.decide(judged(plan=lower), for_goal("loss")).lifted
    decision = lift_rules.decide(judged(plan=lower, control=lower), for_goal("loss"))
    assert decision.failed == (f"no clear gain over {CONTROL}",)


def test_pass_keys_count_in_pairs() -> None:
    keys = {"baseline": [False] * 20, CONTROL: [False] * 20, PLAN: [True] * 8 + [False] * 12}
    assert lift_rules.decide(judged(keys=keys), for_goal("retrieval")).lifted
    keys[PLAN] = [True] * 3 + [False] * 17
    assert not lift_rules.decide(judged(keys=keys), for_goal("retrieval")).lifted


def test_the_loss_is_bounded_at_each_length() -> None:
    keys = {"baseline": [False] * 20, CONTROL: [False] * 20, PLAN: [True] * 8 + [False] * 12}

    def at_2048(plan: list[float], control: float = 0.0) -> Any:
        losses = {"baseline": BASE[: len(plan)], CONTROL: shifted(control)[: len(plan)], PLAN: plan}
        return judged(keys=keys, longer={2048: losses})

    fine = lift_rules.decide(at_2048(shifted(-0.01)), for_goal("retrieval"))
    assert fine.lifted
    assert fine.changes["baseline"]["rise at 2,048 tokens"].value == pytest.approx(-0.01 / 3.15, rel=1e-6)
    start = "the loss at 2,048 tokens may rise by more than 0.5 % over"
    worse = lift_rules.decide(at_2048(shifted(0.03), control=0.03), for_goal("retrieval"))
    assert worse.failed == (f"{start} the baseline",)
    assert lift_rules.decide(at_2048(BASE, control=-0.03), for_goal("retrieval")).failed == (f"{start} {CONTROL}",)
    for few in (BASE[:5], []):
        assert lift_rules.decide(at_2048(few), for_goal("retrieval")).failed == (
            "fewer than 6 windows of 2,048 tokens",
        )


def test_a_gain_in_sentences_does_not_make_up_for_lists() -> None:
    """Both together find as many as before, by pairs that cancel out."""
    needles = {"baseline": [True] * 20 + [False] * 20, CONTROL: [True] * 40, PLAN: [False] * 20 + [True] * 20}
    swapped = judged(needles=needles, kinds=["lists"] * 20 + ["sentences"] * 20)
    decision = lift_rules.decide(swapped, SETTINGS)
    assert decision.changes["baseline"]["needle_gain"].value == 0
    assert decision.changes["baseline"]["lists_gain"].value == -1
    assert decision.failed == ("fewer lists are answered",)


def permuted(seed: int) -> Any:
    """A null model: plan, baseline and control swap roles at random for every window and prompt."""
    chance = random.Random(seed)

    def shuffled(columns: list[list[Any]]) -> dict[str, list[Any]]:
        rows = [chance.sample(row, 3) for row in zip(*columns, strict=True)]
        return {name: [row[place] for row in rows] for place, name in enumerate(("baseline", CONTROL, PLAN))}

    losses = [[loss + chance.gauss(0, 0.02) for loss in BASE] for _ in range(3)]
    zeros = [[share] * 8 for share in (0.0, 0.0, 0.9)]
    answers = [[chance.random() < share for _ in range(80)] for share in (0.3, 0.3, 0.5)]
    return Judged({32: shuffled(losses)}, shuffled(zeros), shuffled(answers), shuffled(answers))


@pytest.mark.parametrize("goal", ["sparse", "loss", "retrieval"])
def test_null_models_are_called_lifted_in_less_than_a_twentieth_of_cases(goal: str) -> None:
    settings = dataclasses.replace(for_goal(goal), max_loss=0.5)  # the loss is no hindrance here
    assert sum(lift_rules.decide(permuted(seed), settings).lifted for seed in range(100)) < 5
