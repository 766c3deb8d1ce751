"""Taps and swaps on a model that is swapped, was loaded with its plan, or names its normalizer."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
import torch
from swap_reference import reference_output
from tiny_models import FAMILIES, gpt2, gpt_oss, llama, main_output, relative_error, t5, text_pair, tokens
from torch import Tensor
from transformers import AttentionInterface

import abbe
from abbe import AbbeError, swap, tap
from abbe.models import AttentionCall

pytestmark = pytest.mark.usefixtures("no_grad")

RULES = {
    "one": "entmax:alpha=1.5",
    "learned": "entmax:alpha=1.5,learn=true",
    "mixed": {"*.heads.1": "sparsemax", "layers.0.heads.0": "topk:k=3"},
}
KINDS = pytest.mark.parametrize("what", RULES.values(), ids=RULES)


def captured(network: Any, inputs: dict[str, Tensor]) -> list[AttentionCall]:
    calls: list[AttentionCall] = []
    with tap(network) as t:
        assert t.check(**inputs) < 2e-5
        t.listen(calls.append)
        network(**inputs)
    return calls


@KINDS
@pytest.mark.parametrize("name", FAMILIES)
def test_a_tap_sees_the_weights_of_the_swap_below(name: str, what: Any) -> None:
    network = FAMILIES[name].build()
    inputs = {key: tensor[:1] for key, tensor in FAMILIES[name].inputs().items()}
    heard: list[Tensor] = []
    with swap(network, what) as swapped:
        wanted = main_output(network(**inputs))
        swapped.listen(lambda call, weights_of: heard.append(weights_of(torch.arange(call.query.shape[-2]))))
        network(**inputs)
        swapped.check(**inputs)
        with tap(network):
            assert torch.equal(main_output(network(**inputs)), wanted)
        calls = captured(network, inputs)
        assert torch.equal(main_output(network(**inputs)), wanted)
    for call, weights in zip(calls, heard, strict=False):
        assert torch.equal(call.weights()[0], weights)
    assert all(call.rule is not None for call in calls)


def test_a_named_model_is_tapped_and_swapped_like_a_swapped_one() -> None:
    network, inputs = gpt2(), {"input_ids": tokens()}
    with swap(network, "sparsemax"):
        wanted, calls = network(**inputs).logits, captured(network, inputs)
        with swap(network, "layers.0=softmax") as upper:
            stacked = network(**inputs).logits
            assert upper.check(**inputs) == 0
    network.set_attn_implementation("abbe:sparsemax")
    before = network.config._attn_implementation
    for one, other in zip(captured(network, inputs), calls, strict=True):
        assert torch.equal(one.weights(), other.weights())
    with swap(network, "layers.0=softmax") as upper:
        assert torch.equal(network(**inputs).logits, stacked)
        assert [str(groups[0].normalizer) for groups in upper.normalizers.values()] == ["softmax", "sparsemax"]
    assert network.config._attn_implementation == before
    assert torch.equal(network(**inputs).logits, wanted)


def test_eager_models_and_sinks() -> None:
    for network, inputs in (
        (gpt2(attn_implementation="eager"), {"input_ids": tokens()}),
        (gpt_oss(), {"input_ids": tokens()}),
        (t5(attn_implementation="eager"), text_pair()),
    ):
        wanted = reference_output(network, "sparsemax", **inputs)
        with swap(network, "sparsemax"):
            assert all(call.rule for call in captured(network, inputs))
            assert relative_error(wanted, main_output(network(**inputs))) < 2e-5


def test_heads_that_are_not_named_keep_what_they_have() -> None:
    network, inputs = llama(), {"input_ids": tokens()}
    with swap(network, {"*.heads.0-1": "sparsemax", "*": "topk:k=3"}):
        both = network(**inputs).logits
    with swap(network, "topk:k=3") as below:
        plain = network(**inputs).logits
        parameters = set(network.state_dict())
        with swap(network, "*.heads.0-1=sparsemax") as upper:
            assert torch.equal(network(**inputs).logits, both)
            groups = next(iter(upper.normalizers.values()))
            assert [(group.heads, str(group.normalizer)) for group in groups] == [
                ((0, 1), "sparsemax"),
                ((2, 3), "topk:k=3"),
            ]
            assert str(abbe.plan(network, "layers.1=softmax")).count("sparsemax") == 1
            assert upper.check(**inputs) == 0
        assert torch.equal(network(**inputs).logits, plain)
        assert set(network.state_dict()) == parameters
        below.check(**inputs)


def test_values_per_head_are_not_torn_apart() -> None:
    network = llama()
    with swap(network, "entmax:alpha=1.5,learn=true"):
        with pytest.raises(AbbeError, match=r"already computes with entmax.* has a value for each of its 4 heads"):
            swap(network, "*.heads.0=softmax")
        with swap(network, "layers.0=softmax") as upper:
            assert len(list(upper.parameters())) == 1
            assert "abbe_normalizers.1.0.learned.alpha.raw" in network.state_dict()


def test_saved_with_the_plan_of_the_uppermost_swap() -> None:
    network, inputs, before = llama(), {"input_ids": tokens()}, set(AttentionInterface._global_mapping)
    with swap(network, "sparsemax"), swap(network, "layers.1=topk:k=3"), tap(network):
        wanted, file = network(**inputs).logits, io.BytesIO()
        torch.save(network, file)
    file.seek(0)
    read = torch.load(file, weights_only=False)
    assert read.config._attn_implementation == "abbe:plan"
    assert torch.equal(read(**inputs).logits, wanted)
    assert set(AttentionInterface._global_mapping) <= before
    with swap(network, "sparsemax"):
        copied = copy.deepcopy(network)
    with pytest.raises(AbbeError, match="is a copy that was made during a swap"):
        swap(copied, "sparsemax")


def test_another_normalizer_can_be_asked_for() -> None:
    network, inputs = llama(), {"input_ids": tokens()}
    plain = captured(network, inputs)
    with swap(network, "sparsemax"):
        first = captured(network, inputs)[0]
    assert torch.equal(first.weights(normalizer="softmax"), plain[0].weights())
    part = first.of_heads([1, 2])
    assert torch.equal(part.weights(), first.weights()[:, 1:3])
    assert [group.heads for group in part.rule or ()] == [(0, 1)]


def test_a_learned_value_that_moves_is_seen_at_once() -> None:
    network, inputs = llama(), {"input_ids": tokens()}
    with swap(network, "entmax:alpha=1.5,learn=true") as swapped, tap(network) as t:
        seen: list[Tensor] = []
        t.listen(lambda call: seen.append(call.weights()))
        network(**inputs)
        for parameter in swapped.parameters():
            parameter.add_(1.0)
        network(**inputs)
    assert not torch.equal(seen[0], seen[2])
