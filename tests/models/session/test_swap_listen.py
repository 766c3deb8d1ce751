"""What listeners of a swap hear, and what its check proves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from test_tap_capture import listen as tapped
from tiny_models import FAMILIES, LENGTH, gpt_oss, llama, t5, text_pair, tokens
from torch import Tensor
from transformers import AttentionInterface

from abbe import AbbeError, normalizer, swap
from abbe.models import AttentionCall

pytestmark = pytest.mark.usefixtures("no_grad")
RULES = {"*.heads.0,3": "entmax:alpha=1.5", "layers.1.heads.1": "topk:k=2"}
Heard = list[tuple[AttentionCall, Tensor]]


def heard(network: Any, what: Any, check: bool = False, outputs: list[Tensor] | None = None, **inputs: Any) -> Heard:
    """Calls and the weights of all their queries; the outputs of the layers are added to `outputs`."""
    calls: Heard = []

    def listener(call: AttentionCall, weights_of: Callable[[Tensor], Tensor]) -> None:
        calls.append((call, weights_of(torch.arange(call.query.shape[-2]))))

    with swap(network, what) as swapped, pytest.MonkeyPatch.context() as patch:
        if check:
            swapped.check(**inputs)
        if outputs is not None:
            wrap_attention(network, patch, lambda function, *args: outputs.append(function(*args)) or outputs[-1])
        swapped.listen(listener)
        network(**inputs)
    assert calls  # or every loop over them would pass
    return calls


def wrap_attention(network: Any, patch: pytest.MonkeyPatch, wrapper: Callable[..., Tensor]) -> None:
    """Put a function between the model and its attention function."""
    names, name = AttentionInterface._global_mapping, network.config._attn_implementation
    function = names[name]

    def wrapped(module: Any, *states: Any, **keywords: Any) -> tuple[Tensor, None]:
        return wrapper(lambda *given: function(module, *given, **keywords)[0], *states), None

    patch.setitem(names, name, wrapped)


@pytest.mark.parametrize("what", ["sparsemax", RULES], ids=["one", "groups"])
@pytest.mark.parametrize("name", FAMILIES)
def test_the_weights_are_those_that_the_layer_uses(name: str, what: Any) -> None:
    outputs: list[Tensor] = []
    calls = heard(FAMILIES[name].build(), what, outputs=outputs, **FAMILIES[name].inputs())
    assert len(calls) == len(outputs) > 1
    for (call, weights), output in zip(calls, outputs, strict=True):
        assert weights.shape == (4, call.query.shape[-2], call.key.shape[-2])
        values = call.value[0].repeat_interleave(4 // call.value.shape[1], 0)
        torch.testing.assert_close((weights @ values).transpose(0, 1), output[0], atol=2e-5, rtol=0)


def test_each_group_has_its_own_weights() -> None:
    for call, weights in heard(gpt_oss(), RULES, input_ids=tokens()):
        logits = call.logits(torch.arange(LENGTH))[0]
        logits = torch.cat([call.sink[:, None, None].expand(4, LENGTH, 1), logits], -1)
        other = "topk:k=2" if call.layer == 1 else "softmax"
        for head, spec in enumerate(("entmax:alpha=1.5", other, "softmax", "entmax:alpha=1.5")):
            wanted = normalizer(spec)(logits[head].double())[..., 1:]
            torch.testing.assert_close(weights[head].double(), wanted, atol=1e-5, rtol=0)


def test_calls_are_those_of_the_tap() -> None:
    network = t5()
    wanted, _ = tapped(network, text_pair())
    calls = heard(network, "softmax", check=True, **text_pair())
    for (call, _), other in zip(calls, wanted, strict=True):
        assert (call.layer, call.name, call.kind, call.causal) == (other.layer, other.name, other.kind, other.causal)
        assert call.projection is other.projection is not None
        torch.testing.assert_close(call.query, other.query, atol=1e-4, rtol=1e-4)


def test_some_queries_of_the_first_text() -> None:
    network, rows, weights = llama(), torch.tensor([3, 11]), []
    with swap(network, "sparsemax") as swapped:
        swapped.listen(lambda call, weights_of: weights.append(weights_of(rows)))
        network(input_ids=tokens())
        network(input_ids=tokens()[:1])
    for some, alone, (_, whole) in zip(
        weights[:2], weights[2:], heard(network, "sparsemax", input_ids=tokens()), strict=True
    ):
        torch.testing.assert_close(some, whole[:, rows])
        torch.testing.assert_close(some, alone)


@pytest.mark.parametrize("name", FAMILIES)
def test_check_finds_rounding_alone(name: str) -> None:
    network, inputs = FAMILIES[name].build(), FAMILIES[name].inputs()
    with swap(network, "sparsemax") as swapped:
        assert swapped.error is None
        wanted = network(**inputs)[0]
        error = swapped.check(**inputs)
        assert 0 < error < 1e-5  # by another path than the model's own
        assert swapped.error == error
        assert torch.equal(network(**inputs)[0], wanted)


def test_check_finds_what_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    network = llama()
    expected = "check failed: softmax swapped in changes the output of LlamaForCausalLM"
    with swap(network, "sparsemax") as swapped:
        wrap_attention(network, monkeypatch, lambda function, query, *rest: function(1.1 * query, *rest))
        with pytest.raises(AbbeError, match=expected):
            swapped.check(input_ids=tokens())
