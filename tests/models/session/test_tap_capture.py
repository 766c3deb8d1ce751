"""What the tap captures, for every family: the eager model's own attention weights are the oracle."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tiny_models import FAMILIES, Family, albert, bart, eager_twin, gpt2, llama, main_output, t5, text_pair, tokens
from torch import Tensor, nn

from abbe import normalizer, swap, tap
from abbe.models import AttentionCall

pytestmark = pytest.mark.usefixtures("no_grad")
CASES = pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)


def listen(network: nn.Module, inputs: dict[str, Any]) -> tuple[list[AttentionCall], Tensor]:
    """All calls of one forward pass, and its output."""
    calls: list[AttentionCall] = []
    with tap(network) as t:
        assert 0 <= t.check(**inputs) < 1e-4
        t.listen(calls.append)
        output = main_output(network(**inputs))
    assert calls  # or every loop over them would pass
    return calls, output


def eager_weights(network: nn.Module, inputs: dict[str, Any]) -> dict[tuple[str, int], Tensor]:
    """Weights by kind and layer, from the eager model's own output."""
    result = eager_twin(network)(**inputs, output_attentions=True)
    own = result.get("attentions") or (*result.encoder_attentions, *result.decoder_attentions)
    layers = {("self", i): table for i, table in enumerate(own)}
    return layers | {("cross", i): table for i, table in enumerate(result.get("cross_attentions") or ())}


def listen_as_eager(network: nn.Module, inputs: dict[str, Any]) -> list[AttentionCall]:
    """All calls of one forward pass, whose weights are those of the eager model."""
    oracle, (calls, _) = eager_weights(network, inputs), listen(network, inputs)
    for call in calls:
        torch.testing.assert_close(call.weights(), oracle[call.kind, call.layer], atol=5e-6, rtol=0)
    return calls


@CASES
def test_captured_calls_give_the_eager_weights_and_the_output_stays(family: Family) -> None:
    network = family.build()
    before = main_output(network(**family.inputs()))
    calls, under_tap = listen(network, family.inputs())
    assert torch.equal(before, main_output(network(**family.inputs())))
    torch.testing.assert_close(under_tap, before, atol=2e-5, rtol=0)
    oracle, order = eager_weights(network, family.inputs()), list(dict(network.named_modules()))
    assert sorted((call.kind, call.layer) for call in calls) == sorted(oracle)
    for kind in ("self", "cross"):
        own = [call for call in calls if call.kind == kind]
        assert [call.layer for call in own] == list(range(len(own)))
        places = [order.index(call.name) for call in own]
        assert places == sorted(places)
    for call in calls:
        weights, wanted = call.weights(), oracle[call.kind, call.layer]
        assert wanted.std() > 0.02  # uniform weights would prove nothing
        torch.testing.assert_close(weights, wanted, atol=5e-6, rtol=0)
        some = torch.tensor([3, 0])
        torch.testing.assert_close(call.weights(some), wanted[:, :, some], atol=5e-6, rtol=0)


@CASES
def test_hidden_projection_and_value_are_those_of_the_module(family: Family) -> None:
    """The module's own input, and with the weights its output."""
    network, seen, produced = family.build(), [], []
    calls, _ = listen(network, family.inputs())
    modules = dict(network.named_modules())
    hooks = [
        modules[call.name].register_forward_pre_hook(
            lambda module, args, kwargs: seen.append(args[0] if args else kwargs["hidden_states"]), with_kwargs=True
        )
        for call in calls
    ]
    hooks += [
        call.projection.register_forward_hook(lambda module, args, output: produced.append(output)) for call in calls
    ]
    network(**family.inputs())
    for hook in hooks:
        hook.remove()
    for call, states, wanted in zip(calls, seen, produced, strict=True):
        torch.testing.assert_close(call.hidden, states, atol=2e-5, rtol=0)
        groups = call.query.shape[1] // call.value.shape[1]
        vectors = call.value.repeat_interleave(groups, 1) @ call.value_to_output()
        bias = getattr(call.projection, "bias", None)
        summed = (call.weights() @ vectors).sum(1) + (0 if bias is None else bias)
        torch.testing.assert_close(summed, wanted, atol=3e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma2", "gpt-oss"])
def test_weights_by_another_normalizer_are_those_of_a_swap(name: str) -> None:
    """The same logits and sink: what the layer would use with that normalizer swapped in."""
    network, inputs = FAMILIES[name].build(), FAMILIES[name].inputs()
    some, layers = torch.tensor([0, 7, 18]), []

    def compare(call: AttentionCall, weights_of: Callable[[Tensor], Tensor]) -> None:
        layers.append(call.layer)
        wanted = weights_of(some)
        torch.testing.assert_close(call.weights(some, "entmax:alpha=1.5")[0], wanted, atol=1e-6, rtol=0)
        made = normalizer("entmax:alpha=1.5")
        torch.testing.assert_close(call.weights(normalizer=made)[0, :, some], wanted, atol=1e-6, rtol=0)
        assert not torch.allclose(call.weights(some, "softmax")[0], wanted, atol=1e-2)
        assert torch.equal(call.weights(some)[0], wanted)

    with swap(network, "entmax:alpha=1.5") as swapped:
        swapped.listen(compare)
        network(**inputs)
    assert layers == list(range(len(swapped.layers)))


def test_options_are_captured_by_name() -> None:
    gemma, _ = listen(FAMILIES["gemma2"].build(), {"input_ids": tokens()})
    assert [(call.softcap, call.window, call.scale) for call in gemma] == [
        (2.0, 5, 1 / 3), (2.0, None, 1 / 3), (2.0, 5, 1 / 3)
    ]  # fmt: skip
    oss = FAMILIES["gpt-oss"].build()
    calls, _ = listen(oss, {"input_ids": tokens()})
    for call, layer in zip(calls, oss.model.layers, strict=True):
        assert call.sink is not None
        assert torch.equal(call.sink, layer.self_attn.sinks)
    pair, _ = listen(t5(), text_pair())
    assert all(call.scale == 1 and call.position_bias is not None for call in pair)
    scaled, _ = listen(gpt2(scale_attn_by_inverse_layer_idx=True), {"input_ids": tokens()})
    assert [call.scale for call in scaled] == [8**-0.5, 8**-0.5 / 2]  # another one in every layer
    grouped, _ = listen(llama(), {"input_ids": tokens()})  # heads are not repeated
    assert all(call.query.shape[1] == 4 and call.key.shape[1] == call.value.shape[1] == 2 for call in grouped)


def test_a_module_that_is_called_twice_is_two_layers() -> None:
    calls = listen_as_eager(albert(), {"input_ids": tokens()})
    assert [call.layer for call in calls] == [0, 1, 2]
    assert len({call.name for call in calls}) == 1


def test_cross_attention_of_a_bart() -> None:
    assert sum(call.kind == "cross" for call in listen_as_eager(bart(), text_pair())) == 2


@pytest.mark.parametrize("factor", [None, 2], ids=["reads the same", "reads another"])
def test_a_projection_that_is_not_alone_is_not_claimed(factor: int | None) -> None:
    class Adapter(nn.Module):
        def __init__(self, base: nn.Linear) -> None:
            super().__init__()
            self.base_layer, self.more = base, nn.Linear(base.in_features, base.out_features)

        def forward(self, x: Tensor) -> Tensor:
            return self.more(x if factor is None else factor * x) + self.base_layer(x)

    network = llama()
    network.model.layers[0].self_attn.o_proj = Adapter(network.model.layers[0].self_attn.o_proj).eval()
    calls, _ = listen(network, {"input_ids": tokens()})
    assert calls[0].projection is None
    assert calls[1].projection is network.model.layers[1].self_attn.o_proj
    with pytest.raises(ValueError, match=r"model\.layers\.0\.self_attn: its output projection was not found"):
        calls[0].value_to_output()


def test_gradients_flow_as_without_the_tap() -> None:
    for name in ("llama", "gpt-oss", "t5"):
        network, inputs = FAMILIES[name].build(), FAMILIES[name].inputs()
        with torch.enable_grad():
            main = network(**inputs).logits.square().mean()
            wanted = torch.autograd.grad(main, list(network.parameters()), allow_unused=True)
            with tap(network) as t:
                t.listen(lambda call: None)
                main = network(**inputs).logits.square().mean()
                gradients = torch.autograd.grad(main, list(network.parameters()), allow_unused=True)
        for one, other in zip(gradients, wanted, strict=True):
            assert (one is None) == (other is None)
            if one is not None:
                torch.testing.assert_close(one, other, atol=1e-4 * float(other.abs().max()), rtol=0)
