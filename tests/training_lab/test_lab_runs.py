"""Runs: a compensated temperature is a re-parametrisation, temperatures follow their words, seeds stay apart."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import pytest
import torch
from lab_cases import WIDTHS, choice, small, untrained
from torch import nn

import abbe
from abbe.lab.network import Temperature, temperature
from abbe.lab.run import _generator, one_thread, reading_steps, train, train_all
from abbe.lab.tasks import make_task, stacked

LONG, CLOSE = 200, 1e-5
RATES = {"sgd": 0.5, "adamw": 0.02, "muon": 0.02}


@cache
def curves(**changed: Any) -> tuple[list[float], list[float], float]:
    run = choice(steps=LONG, precision="float64", readings=8, **changed)
    seed = train(small("recall"), run)["seeds"][0]
    return seed["losses"], seed["quantities"]["max_logit"], seed["accuracy"]


@pytest.mark.quick(4)
@pytest.mark.parametrize(
    ("optimizer", "decay", "low"),
    [
        *(("sgd", 0.0, "0.1"), ("sgd", 0.0, "0.01"), ("adamw", 0.1, "0.1"), ("muon", 0.1, "0.1")),
        *(("adamw", 0.1, "0.01"), ("muon", 0.1, "0.01"), ("sgd", 0.002, "0.01")),
    ],
)
def test_control_is_the_run_at_temperature_one(optimizer: str, decay: float, low: str) -> None:
    """Losses are means over all steps since the last reading, so that every step counts."""
    same = {"optimizer": optimizer, "rate": RATES[optimizer], "decay": decay}
    losses, logits, accuracy = curves(**same)
    control = curves(**same, temperature=low, compensated=True)
    assert losses[-1] < 0.7 * losses[0]  # it has learned something
    assert control[0] == pytest.approx(losses, rel=CLOSE)
    assert control[1] == pytest.approx(logits, rel=CLOSE)
    assert control[2] == accuracy


def test_without_the_control_low_temperature_is_another_run() -> None:
    losses, _, _ = curves(optimizer="sgd", rate=0.5, decay=0.0)
    low, _, _ = curves(optimizer="sgd", rate=0.5, decay=0.0, temperature="0.1")
    assert abs(low[-1] / losses[-1] - 1) > 100 * CLOSE


# -- Temperatures and rates -------------------------------------------------------------------------------------------


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


def test_a_schedule_ends_where_it_should_and_is_the_fixed_temperature_where_both_agree() -> None:
    words = ("geometric:1:0.1", "0.5", "linear:0.5:0.5")
    falling, fixed, scheduled = (train(small("recall"), choice(temperature=one))["seeds"][0] for one in words)
    assert falling["temperature"] == pytest.approx([0.1])
    assert fixed["losses"] == scheduled["losses"]
    assert fixed["accuracy"] == scheduled["accuracy"]


def test_a_learned_temperature_moves_and_each_seed_has_its_own() -> None:
    assert temperature("learned") == Temperature(learned=True)
    assert temperature(str(temperature("learned:0.1"))) == Temperature(0.1, learned=True)
    assert (temperature("learned").fixed, temperature(1).fixed) == (False, True)
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


# -- Seeds ------------------------------------------------------------------------------------------------------------


LEARNS = "entmax:alpha=1.5,learn=true"


def numbers(seed: dict[str, Any]) -> list[float]:
    quantities = [x for some in seed["quantities"].values() for x in some]
    some = [seed["start"], *seed["losses"], *quantities, *seed["temperature"], seed["accuracy"], seed["loss"]]
    return [math.nan if x is None else x for x in some]


@pytest.mark.parametrize("name", WIDTHS)
@pytest.mark.parametrize("normalizer", ["softmax", LEARNS])
@pytest.mark.quick(5)
def test_seeds_trained_together_give_what_each_gives_alone(normalizer: str, name: str) -> None:
    task, same = small(name), {"normalizer": normalizer, "precision": "float64", "steps": 15}
    together = train(task, choice(name, seeds=(3, 4, 5), **same))["seeds"]
    alone = train(task, choice(name, seeds=(4,), **same))["seeds"][0]
    assert [one["seed"] for one in together] == [3, 4, 5]
    assert numbers(together[1]) == pytest.approx(numbers(alone), rel=1e-5, abs=1e-12, nan_ok=True)
    assert together[1]["lengths"] == alone["lengths"]
    assert together[0]["losses"] != together[1]["losses"]


@pytest.mark.parametrize("name", WIDTHS)
@pytest.mark.parametrize("learned", [False, True])
def test_no_gradient_crosses_seeds(name: str, learned: bool) -> None:
    more = {"normalizer": LEARNS, "temperature": temperature("learned:0.5")} if learned else {}
    task = small(name)
    network = untrained(task, 16, seeds=3, heads=2, **more)
    batch = stacked([task.sample(_generator(seed, "data"), 4, None, held_out=False) for seed in range(3)])
    scores = network(*(x.double() if x.is_floating_point() else x for x in batch.inputs))
    targets = batch.targets[0].flatten()
    nn.functional.cross_entropy(scores[0].flatten(0, -2), targets).backward()
    own = {id(p) for module in network.modules() for p in getattr(module, "normalizers", [None])[:1] for p in _all(p)}
    of_normalizers = {id(p) for m in network.modules() for one in getattr(m, "normalizers", []) for p in _all(one)}
    for parameter in network.parameters():
        gradient = parameter.grad
        if id(parameter) in of_normalizers:
            assert (gradient is not None and bool(gradient.any())) is (id(parameter) in own)
        else:
            assert gradient is not None
            assert not bool(gradient[1:].any())
            assert bool(gradient[0].any())


def _all(module: nn.Module | None) -> list[nn.Parameter]:
    return [] if module is None else list(module.parameters())


@pytest.mark.slow
def test_same_seed_gives_the_same_numbers_here_and_in_a_worker() -> None:
    """Bit for bit, here and in a process of its own."""
    task, run = small("maximum"), choice("maximum", normalizer=LEARNS, seeds=(0, 1))
    with one_thread():
        first, second = (train(task, run)["seeds"] for _ in range(2))
    assert first == second
    made: list[dict[str, Any]] = []
    other = choice("maximum", seeds=(0, 1))
    train_all(task, [run, other], 2, lambda one, content: made.append(content) if one == run else None)
    assert [content["seeds"] for content in made] == [first]


def test_what_is_read_does_not_change_the_run() -> None:
    few, many = (train(small("recall"), choice(readings=readings))["seeds"][0] for readings in (2, 20))
    assert few["accuracy"] == many["accuracy"]
    assert few["loss"] == many["loss"]


def test_long_tests_fold_the_maps_of_keys_and_values() -> None:
    """The short way without gradients gives what the long one does, also for weights that do not sum to 1."""
    task = small("maximum")
    for normalizer in ("softmax", "sigmoid", LEARNS):
        for heads in (1, 2):
            network = untrained(
                task, 16, seeds=2, heads=heads, normalizer=normalizer, temperature=temperature("learned:0.5")
            )
            for parameter in network.parameters():
                parameter.data += 0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
            items = torch.rand(2, 3, 40, 11, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
            long = network(items)
            with torch.no_grad():
                assert torch.allclose(network(items), long, rtol=1e-10, atol=1e-10)


def test_every_use_of_a_seed_has_a_stream_of_its_own() -> None:
    """torch's generator knows 32 bits of a seed only: streams that differ above them would be one."""
    draws = [torch.rand(4, generator=_generator(seed, use)) for seed in (0, 1) for use in ("weights", "data", "test")]
    assert len({tuple(draw.tolist()) for draw in draws}) == len(draws)
    task = make_task("recall")
    trained = task.sample(_generator(0, "data"), 8, held_out=False)
    tested = task.sample(_generator(0, "test"), 8, held_out=True)
    assert not torch.equal(trained.inputs[1], tested.inputs[1])
