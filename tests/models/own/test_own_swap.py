"""Swaps in networks that are not from transformers."""

from __future__ import annotations

import copy
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from own_networks import (
    HEADS,
    WIDTH,
    CausalAttention,
    NamedAttention,
    Patches,
    as_written,
    by_abbe,
    by_hand,
    by_sdpa,
    decoder,
    encoder,
    ids,
    states,
)
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import abbe
from abbe import AbbeError, plan, swap, tap


@pytest.mark.parametrize("spec", ["entmax:alpha=1.5", "sparsemax", "topk:k=3", "softmax:temperature=0.5"])
def test_a_swap_is_the_network_with_abbe_attention_written_in(spec: str) -> None:
    """Bit for bit, also of the gradients: both call the same function with the same tensors."""
    network = decoder()
    written = as_written(network, by_abbe(spec))
    with swap(network, spec) as swapped:
        assert swapped.check(ids()) < 2e-5
        output = network(ids())
        output.square().sum().backward()
    expected = written(ids())
    expected.square().sum().backward()
    assert torch.equal(output, expected)
    for (name, ours), theirs in zip(network.named_parameters(), written.parameters(), strict=True):
        assert torch.equal(ours.grad, theirs.grad), name


def test_softmax_is_the_plain_output() -> None:
    network, x = decoder(), ids()
    plain = network(x)
    with swap(network, "softmax") as swapped:
        torch.testing.assert_close(network(x), plain, rtol=1e-5, atol=1e-5)
        assert swapped.check(x) < 2e-5
    assert torch.equal(network(x), plain)


def test_heads_that_are_not_named_keep_their_attention() -> None:
    network, x = decoder(), ids()
    plain, calls = network(x), []
    with swap(network, {"layers.1.heads.0,2": "sparsemax"}) as swapped:
        swapped.check(x)
        swapped.listen(lambda call, weights_of: calls.append(weights_of(torch.arange(24))))
        assert not torch.equal(network(x), plain)
    zeros = [[bool((head.tril() == 0).sum() > 24 * 23 / 2) for head in weights] for weights in calls]
    assert zeros == [[False] * 4, [True, False, True, False], [False] * 4]


def test_a_swap_replaces_the_normalizer_of_abbe_attention() -> None:
    network = as_written(decoder(), by_abbe("entmax:alpha=1.5"))
    inputs = (ids(),)
    with swap(network, "sparsemax", inputs=inputs) as swapped:
        assert swapped.check(*inputs) < 2e-5  # the check puts entmax there
        output = network(*inputs)
    assert torch.equal(output, as_written(network, by_abbe("sparsemax"))(*inputs))
    plain, own, calls = network(*inputs), [], []
    with tap(network) as t:
        t.listen(own.append)
        network(*inputs)
    with swap(network, {"layers.1.heads.0": "sparsemax"}, inputs=inputs) as swapped:
        swapped.check(*inputs)
        swapped.listen(lambda call, weights_of: calls.append(weights_of(torch.arange(24))))
        assert not torch.equal(network(*inputs), plain)
    torch.testing.assert_close(calls[0], own[0].weights()[0])  # a head that is not named keeps entmax
    torch.testing.assert_close(calls[1][1:], own[1].weights()[0, 1:], rtol=1e-3, atol=1e-4)


def test_multihead_attention_gives_the_weights_that_it_uses() -> None:
    torch.manual_seed(0)
    module, x = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True).eval(), 4 * states()
    causal = torch.ones(9, 9, dtype=torch.bool).triu(1)
    with swap(module, "sparsemax") as swapped:
        assert swapped.check(x, x, x, attn_mask=causal) < 2e-5
        output, weights = module(x, x, x, attn_mask=causal, average_attn_weights=False)
        mean = module(x, x, x, attn_mask=causal)[1]
        without, none = module(x, x, x, attn_mask=causal, need_weights=False)
    assert none is None
    torch.testing.assert_close(output, without)
    torch.testing.assert_close(weights.mean(1), mean)
    q, k, v = (
        part.unflatten(-1, (HEADS, -1)).transpose(1, 2)
        for part in F.linear(x, module.in_proj_weight, module.in_proj_bias).chunk(3, -1)
    )
    attended, expected = abbe.attention(q, k, v, "sparsemax", mask=~causal, return_weights=True)
    torch.testing.assert_close(weights, expected, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(output, module.out_proj(attended.transpose(1, 2).flatten(2)), rtol=1e-4, atol=1e-5)
    assert bool((weights == 0).sum() > (expected.tril() == 0).sum() * 0.9)


@pytest.mark.parametrize("make", [encoder, Patches])
def test_encoders(make: Any) -> None:
    network = make().eval()
    given = torch.randn(2, 3, 16, 16) if make is Patches else states()
    plain = network(given)
    with swap(network, "entmax:alpha=1.5") as swapped:
        assert swapped.check(given) < 2e-5
        assert not torch.equal(network(given), plain)
    with pytest.raises(AbbeError, match="stick-breaking needs keys in causal order"), swap(network, "stick-breaking"):
        network(given)


def test_a_sequence_of_modules() -> None:
    network, x = nn.Sequential(*decoder().blocks).eval(), states()
    plain = network(x)
    with swap(network, "entmax:alpha=1.5,learn=true") as swapped:
        assert swapped.check(x) < 2e-5
        assert not torch.equal(network(x), plain)
        assert network.abbe_normalizers in network.children()
    assert torch.equal(network(x), plain)


# -- Layers -----------------------------------------------------------------------------------------------------------


def test_the_plan_of_a_network() -> None:
    assert repr(plan(decoder(), {"layers.1": "sparsemax", "*.heads.0": "topk:k=8"})).splitlines() == [
        "Plan for Decoder, 3 layers",
        "layers  heads  normalizer  pattern",
        "0       0      topk:k=8    *.heads.0",
        "0       1-3    unchanged",
        "1       0-3    sparsemax   layers.1",
        "2       0      topk:k=8    *.heads.0",
        "2       1-3    unchanged",
    ]
    assert plan(encoder(), "*layers.1*=sparsemax").layers == ["layers.0.self_attn", "layers.1.self_attn"]


class Unstated(CausalAttention):
    """Does not say how many heads it has."""

    def __init__(self) -> None:
        super().__init__()
        del self.n_head

    def forward(self, x: Tensor) -> Tensor:
        y = F.scaled_dot_product_attention(*self.heads(x), is_causal=True)
        return self.proj(y.transpose(1, 2).flatten(2))


def test_inputs_show_layers_that_classes_do_not() -> None:
    network, x = decoder(Unstated), ids()
    with pytest.raises(
        AbbeError, match=r"Decoder \(blocks\.0\.attn\) does not say how many heads it has: give inputs="
    ):
        swap(network, "sparsemax")
    for inputs in (x, (x,), {"ids": x}):
        with swap(network, "sparsemax", inputs=inputs) as swapped:
            assert swapped.layers == [f"blocks.{i}.attn" for i in range(3)]
            output = network(x)
    assert torch.equal(output, as_written(decoder(Unstated), by_abbe("sparsemax"))(x))


def test_a_call_that_no_class_names_is_never_left_as_it_is() -> None:
    network = decoder()
    network.blocks[1].attn = CausalAttention(by_sdpa)
    with swap(network, "sparsemax") as swapped:
        assert swapped.layers == ["blocks.0.attn", "blocks.2.attn"]
        with pytest.raises(AbbeError, match=r"blocks\.1\.attn\) attends, which its class does not show: give inputs="):
            network(ids())
    with swap(network, "sparsemax", inputs=ids()) as swapped:
        assert len(swapped.layers) == 3
        network(ids())


class Unused(NamedAttention):
    """Names torch's function, but computes by hand."""

    def forward(self, x: Tensor) -> Tensor:
        attend = F.scaled_dot_product_attention if self.training else by_hand
        return self.proj(attend(*self.heads(x)).transpose(1, 2).flatten(2))


def test_a_layer_in_which_the_swap_has_no_effect_is_refused() -> None:
    network = decoder()
    network.blocks[1].attn = Unused().eval()
    with swap(network, "sparsemax"), pytest.raises(AbbeError, match=r"did not attend in blocks\.1\.attn, as its class"):
        network(ids())
    with pytest.raises(AbbeError, match="Decoder calls none of"):
        swap(as_written(decoder(), by_hand), "sparsemax")
    with pytest.raises(AbbeError, match="inputs= is for networks that are not from transformers"):
        swap(abbe.load("embedded"), "sparsemax", inputs=ids())


def test_heads_other_than_stated_are_refused() -> None:
    network = decoder()
    network.blocks[0].attn.n_head = 2
    with swap(network, "sparsemax"), pytest.raises(AbbeError, match="says that it has 2 heads, but attends with 4"):
        network(ids())


# -- Training and scope -----------------------------------------------------------------------------------------------


def test_learned_parameters_live_in_the_network(tmp_path: Path) -> None:
    network, x = decoder().train(), ids()
    before = set(network.state_dict())
    with swap(network, "entmax:alpha=1.5,learn=true") as swapped:
        optimizer = torch.optim.SGD(network.parameters(), lr=0.5)
        start = [parameter.detach().clone() for parameter in swapped.parameters()]
        F.cross_entropy(network(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten()).backward()
        optimizer.step()
        assert all(not torch.equal(a, b) for a, b in zip(start, swapped.parameters(), strict=True))
        assert sum(parameter.numel() for parameter in swapped.parameters()) == 3 * HEADS
        swapped.save(tmp_path / "swap.safetensors")
        output = network(x)
    assert set(network.state_dict()) == before
    with swap(network, f"file:{tmp_path / 'swap.safetensors'}"):
        assert torch.equal(network(x), output)


@pytest.mark.parametrize("reentrant", [True, False])
def test_gradient_checkpointing_computes_with_the_swap(reentrant: bool) -> None:
    def gradients(checkpointed: bool) -> list[Tensor]:
        network = decoder().train()
        with swap(network, "sparsemax"):
            x = network.symbols(ids())
            for block in network.blocks:
                x = checkpoint(block, x, use_reentrant=reentrant) if checkpointed else block(x)
            network.logits(x).square().sum().backward()
        return [parameter.grad for parameter in network.parameters() if parameter.grad is not None]

    for plain, recomputed in zip(gradients(False), gradients(True), strict=True):
        assert torch.equal(plain, recomputed)


def test_checkpointing_of_a_function_is_refused() -> None:
    """Its recomputation would not be seen, and its gradients would be those of softmax."""

    class Checkpointed(NamedAttention):
        def forward(self, x: Tensor) -> Tensor:
            return checkpoint(super().forward, x, use_reentrant=True)

    network = decoder(Checkpointed).train()
    with swap(network, "sparsemax"), pytest.raises(AbbeError, match=r"blocks\.0\.attn\) checkpoints a function"):
        network(ids())


def test_only_this_network_and_its_passes() -> None:
    network, other, x = decoder(), decoder(seed=1), ids()
    plain, outputs = other(x), []
    with swap(network, "sparsemax"), swap(other, "topk:k=2"):
        both = network(x), other(x)
        thread = threading.Thread(target=lambda: outputs.append(network(x)))
        thread.start()
        thread.join()
        assert torch.equal(outputs[0], both[0])
    assert torch.equal(other(x), plain)
    assert torch.equal(both[0], as_written(network, by_abbe("sparsemax"))(x))
    assert torch.equal(both[1], as_written(other, by_abbe("topk:k=2"))(x))


def test_a_tap_lies_on_a_swap() -> None:
    network, x, calls = decoder(), ids(), []
    with swap(network, "sparsemax") as swapped:
        output = network(x)
        with tap(network) as t:
            assert t.check(x) < 2e-5
            t.listen(calls.append)
            assert torch.equal(network(x), output)
            with pytest.raises(AbbeError, match="opened later"):
                swapped.restore()
        assert torch.equal(network(x), output)
    assert all(bool((call.weights().tril() == 0).sum() > 24 * 23) for call in calls)


def test_a_copy_made_during_a_swap_is_refused() -> None:
    network, x = decoder(), ids()
    plain = network(x)
    with swap(network, "sparsemax"):
        twin = copy.deepcopy(network)
        with pytest.raises(AbbeError, match="a copy that was made during a swap"):
            twin(x)
    assert torch.equal(network(x), plain)


def test_another_network_after_an_interrupted_pass() -> None:
    class Interrupted(BaseException):
        pass

    def interrupt(*args: object) -> None:
        raise Interrupted

    network, other, x = decoder(), as_written(decoder(seed=1), by_abbe("topk:k=2")), ids()
    plain = other(x), F.scaled_dot_product_attention(*[states()[:, None]] * 3)
    wanted = as_written(network, by_abbe("sparsemax"))(x)
    handle = network.blocks[1].attn.proj.register_forward_pre_hook(interrupt)
    with swap(network, "sparsemax"):
        with pytest.raises(Interrupted):
            network(x)
        assert torch.equal(other(x), plain[0])
        assert torch.equal(F.scaled_dot_product_attention(*[states()[:, None]] * 3), plain[1])
        handle.remove()
        assert torch.equal(network(x), wanted)


def test_an_exception_restores_everything() -> None:
    network, x = decoder(), ids()
    plain = network(x)
    with pytest.raises(RuntimeError), swap(network, "sparsemax"):
        network(x.float())
    assert torch.equal(network(x), plain)
    with pytest.raises(AbbeError, match="sparsmax"):
        swap(network, "sparsmax")
    assert torch.equal(network(x), plain)
