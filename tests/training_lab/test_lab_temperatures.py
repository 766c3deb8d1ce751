"""Temperatures: fixed, scheduled over the run, and learned; rates that cool down."""

from __future__ import annotations

import math

import pytest
from lab_cases import choice, small

import abbe
from abbe.lab.network import Temperature, temperature
from abbe.lab.run import reading_steps, train


@pytest.mark.parametrize(
    ("words", "start", "half", "end"),
    [
        ("0.5", 0.5, 0.5, 0.5),
        ("linear:1:0.1", 1.0, 0.55, 0.1),
        ("geometric:1:0.01", 1.0, 0.1, 0.01),
        ("cosine:2:1", 2.0, 1.5, 1.0),
    ],
)
def test_schedules_by_hand(words: str, start: float, half: float, end: float) -> None:
    made = temperature(words)
    assert [made.at(done) for done in (0.0, 0.5, 1.0, 1.5)] == pytest.approx([start, half, end, end])
    assert str(made) == words
    assert temperature(str(made)) == made


def test_learned_temperatures() -> None:
    assert temperature("learned") == Temperature(learned=True)
    assert temperature("learned:0.1") == Temperature(0.1, learned=True)
    assert str(temperature("learned:0.1")) == "learned:0.1"
    assert not temperature("learned").fixed
    assert temperature(1).fixed


def test_a_schedule_ends_where_it_should() -> None:
    seed = train(small("recall"), choice(temperature="geometric:1:0.1"))["seeds"][0]
    assert seed["temperature"] == pytest.approx([0.1])


def test_a_schedule_is_the_fixed_temperature_where_both_agree() -> None:
    fixed, scheduled = (
        train(small("recall"), choice(temperature=words))["seeds"][0] for words in ("0.5", "linear:0.5:0.5")
    )
    assert fixed["losses"] == scheduled["losses"]
    assert fixed["accuracy"] == scheduled["accuracy"]


def test_a_learned_temperature_moves_and_each_seed_has_its_own() -> None:
    seeds = train(small("recall"), choice(temperature="learned:0.5", seeds=(0, 1), rate=0.05))["seeds"]
    ends = [seed["temperature"][0] for seed in seeds]
    assert len({0.5, *ends}) == 3
    assert all(0.05 < end < 5 for end in ends)


def test_learned_normalizers_say_what_they_learned() -> None:
    seeds = train(small("recall"), choice(normalizer="ssmax:learn=true", seeds=(0, 1), rate=0.05))["seeds"]
    specs = [seed["learned"][0] for seed in seeds]
    learned = [abbe.normalizer(spec).s for spec in specs]  # type: ignore[attr-defined]
    assert len({1.0, *(float(x) for x in learned)}) == 3


def test_a_normalizer_for_inference_changes_the_test_alone() -> None:
    task = small("maximum")
    plain = train(task, choice("maximum", steps=40))["seeds"][0]
    swapped = train(task, choice("maximum", steps=40, normalizer="topk:k=1", trained_with="softmax"))["seeds"][0]
    assert swapped["losses"] == plain["losses"]
    assert swapped["quantities"] == plain["quantities"]
    assert swapped["loss"] != plain["loss"]


def test_rates_cool_down_linearly() -> None:
    run = choice(rate=2.0, steps=10, cooldown=0.5)
    rates = [run.rate_at(step) for step in range(1, 11)]
    assert rates[:5] == [2.0] * 5
    assert rates[5:] == pytest.approx([2.0 * left / 6 for left in (5, 4, 3, 2, 1)])
    assert {choice(rate=2.0).rate_at(step) for step in (1, 20)} == {2.0}


@pytest.mark.parametrize(("steps", "readings"), [(10, 40), (150, 20), (3000, 40), (17, 2)])
def test_steps_that_are_read(steps: int, readings: int) -> None:
    chosen = sorted(reading_steps(steps, readings))
    assert chosen[0] == 1
    assert chosen[-1] == steps
    assert len(chosen) <= readings + 2
    if steps > 10 * readings:
        early = sum(step <= math.ceil(steps / 10) for step in chosen)
        assert abs(early - len(chosen) / 2) <= 2


@pytest.mark.parametrize("wrong", ["0", "-1", "nan", "inf", "1e-40", "hot", "linear:1", "geometric:1:0", "learned:1:2"])
def test_what_is_no_temperature_is_refused(wrong: str) -> None:
    with pytest.raises(abbe.AbbeError, match=r"must be a number > 0, learned.*linear, geometric, cosine") as refused:
        temperature(wrong)
    assert "\n" not in str(refused.value)
