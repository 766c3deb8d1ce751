"""Seeds trained together give what each gives alone; nothing leaks between them; the same seed, the same numbers."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from lab_cases import WIDTHS, choice, small, untrained, without_times
from torch import nn

from abbe.lab import running
from abbe.lab.network import temperature
from abbe.lab.run import _generator, train
from abbe.lab.tasks import make_task, stacked

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
    with running.one_thread():
        first, second = (without_times(train(task, run)) for _ in range(2))
    assert first == second
    made: list[dict[str, Any]] = []
    other = choice("maximum", seeds=(0, 1))
    running.train_all(task, [run, other], 2, lambda one, content: made.append(content) if one == run else None)
    assert [without_times(content) for content in made] == [first]


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
