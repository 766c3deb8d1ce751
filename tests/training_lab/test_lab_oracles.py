"""Every task has a solution that can be written down, and none that chance, or training on noise, would give."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from lab_cases import ORDERED, WIDTHS, accuracy, choice, put, small, untrained
from torch import nn

from abbe.lab.run import train
from abbe.lab.tasks import Batch, Recall, make_task
from abbe.models import Text

SHARP = 200.0
one = torch.eye


def test_recall_by_matching_symbols() -> None:
    task = small("recall")
    network: Any = untrained(task, 16)
    for table in (network.keys, network.values, network.symbols):
        put(table.weight, one(16))
    for part in (network.attention.key, network.attention.value, network.attention.out):
        put(part.weight, one(16))
    put(network.attention.query.weight, SHARP * one(16))
    assert accuracy(task, network) == 1.0


@pytest.mark.parametrize("length", [8, 1024])
def test_maximum_by_the_largest_priority(length: int) -> None:
    task = small("maximum")
    network: Any = untrained(task, 16)
    for parameter in network.parameters():
        parameter.data.zero_()
    # gelu(40 x) is 40 x but for small x, where it is still increasing
    put(network.items.first.weight, 40 * one(11))
    put(network.items.second.weight, one(11) / 40)
    put(network.question.weight, one(1))
    put(network.attention.query.weight, 1e7 * one(1))
    for part in (network.attention.key, network.attention.value, network.attention.out):
        put(part.weight, one(16))
    put(network.answer.first.weight, 40 * one(16)[:, 1:11])
    put(network.answer.second.weight, one(10) / 40)
    assert accuracy(task, network, length) == 1.0


def test_mqar_by_an_induction_circuit() -> None:
    """Layer 1 copies the token before; layer 2 finds the place whose copy is the key, and reads its token."""
    symbols, length = 16, 16
    task = small("mqar")
    token, place, before, read, width = 0, symbols, symbols + length, 2 * symbols + length, 3 * symbols + length
    network: Any = untrained(task, width)
    for parameter in network.parameters():
        parameter.data.zero_()
    with torch.no_grad():
        network.tokens.weight[0, :, token:place] = one(symbols)
        network.positions.weight[0, :, place:before] = one(length)
        first, second = (layer.attention for layer in network.layers)
        for i in range(1, length):
            first.query.weight[0, place + i, i - 1] = SHARP
        first.key.weight[0, place:before, :length] = one(length)
        first.value.weight[0, token:place, before:read] = one(symbols)
        second.query.weight[0, token:place, :symbols] = SHARP * one(symbols)
        second.key.weight[0, before:read, :symbols] = one(symbols)
        # The first place has no token before it and copies itself: no query may look there.
        second.query.weight[0, place:before, symbols] = SHARP
        second.key.weight[0, place, symbols] = -10.0
        second.value.weight[0, token:place, read:] = one(symbols)
        for attention in (first, second):
            attention.out.weight[0] = one(width)
        network.scores.weight[0, read:] = one(symbols)
    assert accuracy(task, network) == 1.0


def test_text_by_a_table_of_next_characters() -> None:
    task = make_task("text", {"length": 16}, Text("ordered", ORDERED))
    network: Any = untrained(task, 16)
    for parameter in network.parameters():
        parameter.data.zero_()
    put(network.tokens.weight, one(9))
    following = torch.zeros(9, 9)
    following[range(1, 9), [*range(2, 9), 1]] = 1.0
    put(network.scores.weight, following)
    assert accuracy(task, network) == 1.0


@pytest.mark.slow
def test_mqar_at_the_smallest_setting_of_zoology() -> None:
    """8,192 symbols, 64 tokens, 4 pairs, width 64 (arXiv 2312.04927): layout, answers, scores and chance."""
    pairs, symbols, length, size = 4, 8192, 64, 256
    task = make_task("mqar", {"pairs": pairs, "symbols": symbols, "length": length})
    batch = task.sample(torch.Generator().manual_seed(1), size, held_out=True)
    (tokens, asked), blank, kinds = batch.inputs, symbols - 1, (symbols - 1) // 2
    assert (tokens.shape, asked.shape, batch.targets.shape) == ((size, length), (size, pairs), (size, pairs))
    for row, places, answers in zip(tokens.tolist(), asked.tolist(), batch.targets.tolist(), strict=True):
        table = dict(zip(row[0 : 2 * pairs : 2], row[1 : 2 * pairs : 2], strict=True))
        assert len(table) == pairs
        assert max(table) < kinds <= min(table.values()) <= max(table.values()) < 2 * kinds < blank
        assert [table[row[place]] for place in places] == answers
        others = [token for place, token in enumerate(row) if place >= 2 * pairs and place not in places]
        assert others == [blank] * (length - 3 * pairs)
    network: Any = untrained(task, 64)
    with torch.no_grad():
        scores = network(tokens[None], asked[None])
        everywhere = network(tokens[None])
    assert scores.shape == (1, size, pairs, symbols)
    torch.testing.assert_close(scores, everywhere.gather(2, asked[None, ..., None].expand(scores.shape)))
    right = (scores.argmax(-1)[0] == batch.targets).sum()
    assert right <= 3  # 1,024 guesses among 8,192 symbols
    copied = (tokens[:, 1:2] == batch.targets).double().mean()
    assert float(copied) == pytest.approx(task.chance, abs=0.01) == 0.25


@pytest.mark.parametrize("name", WIDTHS)
def test_untrained_networks_are_near_chance(name: str) -> None:
    task = small(name)
    scores = []
    for seed in range(4):
        network = untrained(task, 16, seeds=seed + 1)
        for parameter in network.parameters():
            parameter.data = parameter.data[-1:] if len(parameter) == seed + 1 else parameter.data
        scores.append(accuracy(task, network, size=128))
    assert sum(scores) / len(scores) < task.chance + 0.12


class Shuffled(Recall):
    """Answers belong to other questions of the batch."""

    def sample(self, generator: torch.Generator, size: int, length: int | None = None, *, held_out: bool) -> Batch:
        batch = super().sample(generator, size, length, held_out=held_out)
        order = torch.randperm(batch.targets.numel(), generator=generator)
        return Batch(batch.inputs, batch.targets.flatten()[order].view(batch.targets.shape))


@pytest.mark.parametrize(("task", "solved"), [(Recall(8, 16), True), (Shuffled(8, 16), False)])
def test_recall_is_learned_and_its_shuffled_control_is_not(task: Recall, solved: bool) -> None:
    content = train(task, choice(width=16, steps=150, batch=32, rate=0.03, test_size=128))["seeds"][0]
    assert (content["accuracy"] > 0.95) is solved
    assert solved or abs(content["accuracy"] - task.chance) < 0.05
    assert solved or content["losses"][-1] > 0.9 * content["start"]


def test_chance_is_what_a_constant_answer_gets() -> None:
    for name in ("recall", "maximum", "text"):
        task = small(name)
        targets = task.sample(torch.Generator().manual_seed(0), 512, held_out=True).targets.flatten()
        most = float(torch.bincount(targets).max() / len(targets))
        assert most == pytest.approx(task.chance, abs=0.05)
    mqar = small("mqar")
    batch = mqar.sample(torch.Generator().manual_seed(0), 512, held_out=True)
    first_value = batch.inputs[0][:, 1:2].expand_as(batch.targets)
    assert float((first_value == batch.targets).double().mean()) == pytest.approx(mqar.chance, abs=0.1)


def test_held_out_text_is_never_trained_on() -> None:
    content = "".join(chr(0x4E00 + i) for i in range(2000))  # no character twice
    task: Any = make_task("text", {"length": 16}, Text("all different", content))
    assert len(task.parts[False]) + len(task.parts[True]) == 2000
    seen = task.sample(torch.Generator().manual_seed(0), 400, held_out=False).inputs[0]
    assert isinstance(seen, torch.Tensor)
    assert torch.equal(torch.cat([task.parts[False], task.parts[True]])[:1800], task.parts[False])
    assert nn.functional.one_hot(seen.flatten(), task.symbols).shape[-1] == task.symbols
