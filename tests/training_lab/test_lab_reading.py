"""What is read of a network in the lab is what the measures give on the same logits, seed by seed."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from lab_cases import choice, small, untrained

import abbe
from abbe.lab.network import Seen
from abbe.lab.run import SIZE, Configuration, attentions, measure_seeds, reduced, snapshot, train, watch
from abbe.lab.tasks import Batch, stacked
from abbe.measures import Rows, choose_sets, dispersion, geometry, sensitivity, summarize
from abbe.training import Alerts, LayerRows, measure_layers


def batch_of(name: str, seeds: int, size: int = 3) -> Batch:
    task = small(name)
    return stacked([task.sample(torch.Generator().manual_seed(i), size, None, held_out=False) for i in range(seeds)])


def seen(name: str, seeds: int, heads: int, **more: Any) -> tuple[Any, Any]:
    network = untrained(small(name), 16, seeds=seeds, heads=heads, **more).float()
    for part in attentions(network):
        part.query.weight.data *= 4  # far from uniform
        for number, one in enumerate(part.normalizers):
            for parameter in one.parameters():
                parameter.data += 0.3 * number  # every seed has learned something else
    watch(network, True)
    network(*batch_of(name, seeds).inputs).sum().backward()
    return network, snapshot(network)


def read(network: Any, seeds: int, before: list[Seen], after: list[Seen] | None = None) -> list[dict[str, Any]]:
    return [reduced(x) for x in measure_seeds(attentions(network), range(seeds), 1, before, after or before)]


@pytest.mark.parametrize("normalizer", ["softmax", "sparsemax", "entmax:alpha=1.5,learn=true"])
def test_readings_are_those_of_the_measures(normalizer: str) -> None:
    network, before = seen("recall", seeds=2, heads=2, normalizer=normalizer)
    for seed, values in enumerate(read(network, 2, before)):
        logits = before[0].logits[seed]
        made = attentions(network)[0].normalizer_of(seed)
        expected: dict[str, list[float]] = {}
        for sequence in range(3):  # every row of every sequence but the first, which the reader leaves out
            rows = logits[sequence][:, 1:]
            weights = made(rows)
            some = Rows(rows, weights, before[0].value[seed, sequence].detach(), softmax=normalizer == "softmax")
            sets = choose_sets(some, (SIZE,), torch.Generator().manual_seed(0))
            with torch.no_grad():
                parts = dispersion(some) | geometry(some, sets)
                parts |= sensitivity(some, made, (1.0,), torch.Generator().manual_seed(0))
            means = summarize(parts)
            entropy = means["entropy"].value / means["entropy"].limit
            for name, grid in (
                ("entropy_share", entropy), ("max_weight", means["max_weight"].value),
                ("separability", means["separability"].value[:, 0]),
                ("sensitivity", means["sensitivity_worst_mean"].value),
            ):  # fmt: skip
                expected.setdefault(name, []).append(float(grid.mean()))
        for name, each in expected.items():
            assert values[name] == pytest.approx(sum(each) / len(each), rel=2e-4), name
        assert values["max_logit"] == pytest.approx(float(logits[:, :, 1:].max()), rel=1e-5)
        assert values["logit_change"] == 0.0
        assert values["nonfinite"] == 0.0


def test_gradients_are_those_of_autograd() -> None:
    network, before = seen("recall", seeds=2, heads=2)
    for seed, values in enumerate(read(network, 2, before)):
        norms = before[0].query.grad[seed].transpose(0, 1).flatten(1).norm(dim=1)
        assert values["query_gradient"] == pytest.approx(float(norms.mean()), rel=1e-5)


def test_logit_change_is_that_of_a_second_pass() -> None:
    network, before = seen("recall", seeds=2, heads=1)
    moved = [type(one)(one.query, one.key, one.value, one.logits.clone()) for one in before]
    moved[0].logits[1, 2, 0, 3, 4] += 5.0
    first, second = read(network, 2, before, moved)
    assert first["logit_change"] == 0.0
    # The root of the mean square over what was read of this seed's head: 3 sequences, 7 rows, 8 keys.
    assert second["logit_change"] == pytest.approx(5.0 / math.sqrt(3 * 7 * 8), rel=1e-5)


def test_heads_of_several_seeds_are_kept_apart() -> None:
    network, before = seen("mqar", seeds=3, heads=2)
    before[0].logits[1] *= 30
    largest = [values["max_logit"] for values in read(network, 3, before)]
    assert largest[1] > 10 * max(largest[0], largest[2])


def test_measure_layers_counts_what_is_not_finite() -> None:
    logits = torch.zeros(1, 1, 2, 4)
    logits[0, 0, 0, 1] = math.nan
    layer = LayerRows(logits, torch.randn(1, 1, 4, 3), abbe.normalizer("softmax"))
    values = measure_layers([layer], sizes=(2,))
    assert values["nonfinite"].value == [[0.5]]
    assert values["entropy"].value == [[pytest.approx(math.log(4))]]


def test_one_seed_that_overflows_leaves_the_others_readings() -> None:
    network, before = seen("recall", seeds=2, heads=1)
    before[0].logits[0] = math.nan
    before[0].value.data[0] = math.inf
    broken, healthy = measure_seeds(attentions(network), range(2), 1, before, before)
    assert reduced(broken)["nonfinite"] == 1.0
    assert "non_finite" in {alert.rule for alert in Alerts().check(1, broken, math.nan)}
    assert reduced(healthy)["nonfinite"] == 0.0
    assert reduced(healthy)["max_logit"] is not None


def test_a_planted_collapse_is_alerted_in_its_step() -> None:
    """At T = 1e-4 almost every row is one key from the first step on."""
    run: Configuration = choice(temperature="0.0001", steps=10, optimizer="sgd", rate=1e-6)
    seed = train(small("recall"), run)["seeds"][0]
    assert seed["alerts"]["entropy_collapse"] == 1
    assert seed["alerts"]["logit_growth_1000"] == 1
    assert seed["quantities"]["max_weight"][0] > 0.99
