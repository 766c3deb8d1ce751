"""Monitors of models whose normalizers were swapped, before or after the monitor began, or come with the model."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from training_cases import HEADS, batches, gpt2, hooks, llama, same, train

import abbe
from abbe.measures import Rows, sensitivity

LEARNED = "entmax:alpha=1.5,learn=true"
MIXED = {"layers.0.heads.1-2": LEARNED, "layers.1": "sparsemax"}
WHATS = pytest.mark.parametrize("what", [LEARNED, "sparsemax", MIXED], ids=["learned", "one", "mixed"])


def every_other(network: Any) -> abbe.Monitor:
    return abbe.Monitor(network, every=2)


def values_of(table: pl.DataFrame, measure: str, layer: int, part: str = "value") -> list[float | None]:
    of_heads = dict(table.filter(measure=measure, layer=layer).select("head", part).iter_rows())
    return [of_heads.get(head) for head in range(HEADS)]


def steps_of(network: Any, monitor: abbe.Monitor, count: int, optimizer: Any = None) -> None:
    for inputs in batches(count):
        network(**inputs).loss.backward()
        if optimizer is not None:
            optimizer.step()
        network.zero_grad()
        monitor.step()
    assert monitor.silent is None


@WHATS
@pytest.mark.parametrize("build", [gpt2, llama])
@pytest.mark.parametrize("options", [{}, {"parts": 2, "padded": True}, {"half": True}])
def test_weights_are_the_same_with_and_without_a_monitor(what: Any, build: Any, options: dict[str, Any]) -> None:
    def swapped() -> Any:
        network = build()
        abbe.swap(network, what)
        return network

    plain, _ = train(swapped(), **options)
    read, monitor = train(swapped(), monitor=every_other, **options)
    assert same(plain, read)
    assert monitor is not None
    assert monitor.silent is None
    assert [record["step"] for record in monitor.result().records] == [1, 2, 4]


@WHATS
def test_what_it_measures_is_what_a_tap_sees(what: Any) -> None:
    network = llama()
    inputs = next(batches(1))
    with abbe.swap(network, what), abbe.Monitor(network, every=1, rows=64, sizes=(5,)) as monitor:
        network(**inputs).loss.backward()
        monitor.step()
        monitor.close()
        calls: list[Any] = []
        network.eval()
        with torch.no_grad(), abbe.tap(network) as t:
            t.listen(calls.append)
            network(**inputs)
    assert monitor.silent is None
    table = monitor.result().table
    assert monitor.result().manifest["self_check"]["error"] < 1e-4
    for layer, call in enumerate(calls):
        weights = call.weights().double()[:, :, 1:]  # a monitor leaves out the first query
        entropy = -torch.xlogy(weights, weights).sum(-1).mean((0, 2))
        assert values_of(table, "entropy", layer) == pytest.approx(entropy.tolist(), rel=1e-4)
        for group in call.rule:
            normalizer = group.normalizer or abbe.normalizer("softmax")
            worst = []
            for one in call.of_heads(group.heads).logits(torch.arange(1, weights.shape[2] + 1)):
                rows = Rows(one, normalizer(one).detach(), torch.zeros(1, one.shape[-1], 1))
                reading = sensitivity(rows, normalizer, (1.0,), torch.Generator())["sensitivity_worst"]
                worst.append(reading.value)
            wanted = torch.stack(worst).mean((0, 2)).tolist()
            values = values_of(table, "sensitivity_worst_mean", layer)
            assert [values[head] for head in group.heads] == pytest.approx(wanted, rel=1e-3)
            limits = values_of(table, "max_weight", layer, "limit")
            assert all((limits[head] is None) == (group.normalizer is not None) for head in group.heads)


def test_learned_values_are_among_the_curves(tmp_path: Path) -> None:
    network = llama()
    with abbe.swap(network, {"layers.0": LEARNED, "layers.1.heads.0": "learned-temperature"}):
        optimizer = torch.optim.SGD(network.parameters(), lr=1.0)
        with abbe.Monitor(network, every=1, folder=tmp_path / "run") as monitor:
            steps_of(network, monitor, 3, optimizer)
    table = monitor.result().table
    first, last = (table.filter(step=step) for step in (1, 3))
    assert values_of(first, "learned@alpha", 0) == [1.5] * HEADS
    assert values_of(last, "learned@alpha", 0) != [1.5] * HEADS
    assert values_of(first, "learned@alpha", 1) == [None] * HEADS
    assert [x is None for x in values_of(first, "learned@t", 1)] == [False, True, True, True]
    opened: Any = abbe.open(tmp_path / "run")
    assert "learned@alpha" in set(opened.table["measure"])
    assert math.isfinite(monitor.result().records[-1]["model"]["learned_alpha_mean"])


def test_a_swap_that_begins_and_ends_between_two_steps_is_noticed() -> None:
    network = llama()
    with abbe.Monitor(network, every=1) as monitor:
        steps_of(network, monitor, 1)
        swapped = abbe.swap(network, LEARNED)
        steps_of(network, monitor, 1)
        swapped.restore()
        steps_of(network, monitor, 1)
    records = monitor.result().records
    assert ["learned@alpha" in record["heads"] for record in records] == [False, True, False]
    assert ["limit" in record["heads"]["max_weight"] for record in records] == [True, False, True]
    assert hooks(network) == 0
    assert network.config._attn_implementation == "sdpa"
    assert type(network.config._attn_implementation) is str


def test_a_named_model_is_monitored() -> None:
    network = llama("abbe:sparsemax")
    with abbe.Monitor(network, every=1) as monitor:
        steps_of(network, monitor, 1)
    assert "limit" not in monitor.result().records[0]["heads"]["max_weight"]
