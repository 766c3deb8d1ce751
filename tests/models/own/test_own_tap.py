"""A tap on networks that are not from transformers: what it captures, and that it leaves nothing behind."""

from __future__ import annotations

import copy
import io
import pickle
import threading
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from own_networks import (
    HEADS,
    WIDTH,
    CausalAttention,
    Patches,
    as_written,
    by_abbe,
    by_hand,
    by_sdpa,
    causal_weights,
    decoder,
    encoder,
    ids,
    states,
)
from torch import Tensor, nn
from torch.overrides import _get_current_function_mode_stack as active_modes

import abbe
from abbe import AbbeError, swap, tap
from abbe.models import AttentionCall


def captured(network: nn.Module, *args: Any, **kwargs: Any) -> tuple[Any, list[AttentionCall]]:
    """The output under a checked tap, and the calls."""
    calls: list[AttentionCall] = []
    with tap(network) as t:
        assert t.check(*args, **kwargs) < 2e-5
        t.listen(calls.append)
        output = network(*args, **kwargs)
        assert [call.name for call in calls] == t.layers
    return output, calls


def marks(network: nn.Module) -> list[Any]:
    """Everything of a network that a tap or swap could leave behind."""
    return [
        (name, sorted(vars(module)), len(module._forward_hooks), len(module._forward_pre_hooks), list(module._modules))
        for name, module in network.named_modules()
    ]


def test_weights_are_those_of_a_network_that_returns_them() -> None:
    network, x = decoder(), ids()
    plain, before = network(x), marks(network)
    output, calls = captured(network, x)
    assert torch.equal(output, plain)
    assert [call.name for call in calls] == [f"blocks.{i}.attn" for i in range(3)]
    assert [(call.place, call.kind, call.causal) for call in calls] == [(i, "self", True) for i in range(3)]
    hidden = network.symbols(x) + network.places(torch.arange(24))
    for call, block in zip(calls, network.blocks, strict=True):
        q, k, v = block.attn.heads(block.norm(hidden))
        torch.testing.assert_close(call.weights(), causal_weights(q, k), rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(call.value, v)
        torch.testing.assert_close(call.hidden, block.norm(hidden))
        assert call.projection is block.attn.proj
        assert call.value_to_output().shape == (HEADS, WIDTH // HEADS, WIDTH)
        hidden = block(hidden)
    assert marks(network) == before
    assert not active_modes()


@pytest.mark.parametrize("spec", ["softmax", "softmax:temperature=0.5", "entmax:alpha=1.5", "topk:k=3"])
def test_abbe_attention_is_captured_with_its_own_normalizer(spec: str) -> None:
    network, x = as_written(decoder(), by_abbe(spec)), ids()
    plain = network(x)
    output, calls = captured(network, x)
    assert torch.equal(output, plain)
    first = network.blocks[0]
    q, k, v = first.attn.heads(first.norm(network.symbols(x) + network.places(torch.arange(24))))
    expected = abbe.attention(q, k, v, spec, causal=True, return_weights=True)[1]
    torch.testing.assert_close(calls[0].weights(), expected, rtol=1e-5, atol=1e-6)


class Options(nn.Module):
    """One call with options, as it would be written in a module."""

    def __init__(self, call: Any) -> None:
        super().__init__()
        self.heads, self.call = 4, call

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return self.call(q, k, v)


def _bool(*shape: int) -> Tensor:
    kept = torch.rand(shape, generator=torch.Generator().manual_seed(3)) < 0.6
    return kept | torch.eye(shape[-2], shape[-1], dtype=torch.bool)


def _float(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(3))


SDPA = F.scaled_dot_product_attention
FORMS: dict[str, tuple[Any, tuple[int, ...], tuple[int, ...]]] = {
    "plain": (lambda q, k, v: SDPA(q, k, v), (2, 4, 7, 8), (2, 4, 7, 8)),
    "scale": (lambda q, k, v: SDPA(q, k, v, scale=0.7), (2, 4, 7, 8), (2, 4, 7, 8)),
    "bool": (lambda q, k, v: SDPA(q, k, v, _bool(7, 9)), (2, 4, 7, 8), (2, 4, 9, 8)),
    "bool of four dims": (lambda q, k, v: SDPA(q, k, v, attn_mask=_bool(2, 1, 7, 9)), (2, 4, 7, 8), (2, 4, 9, 8)),
    "float": (lambda q, k, v: SDPA(q, k, v, _float(4, 7, 9)), (2, 4, 7, 8), (2, 4, 9, 8)),
    "grouped": (lambda q, k, v: SDPA(q, k, v, is_causal=True, enable_gqa=True), (2, 4, 7, 8), (2, 2, 7, 8)),
    "causal, more keys": (lambda q, k, v: SDPA(q, k, v, is_causal=True), (2, 4, 5, 8), (2, 4, 9, 8)),
    "causal, fewer keys": (lambda q, k, v: SDPA(q, k, v, is_causal=True), (2, 4, 9, 8), (2, 4, 5, 8)),
    "causal, one query": (lambda q, k, v: SDPA(q, k, v, is_causal=True), (2, 4, 1, 8), (2, 4, 5, 8)),
    "two dims": (lambda q, k, v: SDPA(q, k, v, _bool(7, 9)), (7, 8), (9, 8)),
    "three dims": (lambda q, k, v: SDPA(q, k, v, is_causal=True), (3, 7, 8), (3, 7, 8)),
    "batch x heads": (lambda q, k, v: SDPA(q, k, v, _float(8, 7, 9)), (8, 7, 8), (8, 9, 8)),
    "five dims": (lambda q, k, v: SDPA(q, k, v, _bool(3, 1, 7, 9)), (2, 3, 4, 7, 8), (2, 3, 4, 9, 8)),
    "ours, plain": (lambda q, k, v: abbe.attention(q, k, v), (2, 4, 7, 8), (2, 4, 7, 8)),  # which calls torch's
    "ours, causal": (lambda q, k, v: abbe.attention(q, k, v, causal=True), (2, 4, 5, 8), (2, 2, 9, 8)),
    "ours, window": (lambda q, k, v: abbe.attention(q, k, v, "sparsemax", window=3), (2, 4, 7, 8), (2, 4, 7, 8)),
    "ours, all": (
        lambda q, k, v: abbe.attention(
            q,
            k,
            v,
            "entmax:alpha=1.3",
            mask=_bool(7, 9),
            causal=True,
            window=6,
            scale=0.5,
            softcap=3.0,
            sink=0.2,
            position_bias=_float(4, 7, 9),
        ),
        (2, 4, 7, 8),
        (2, 2, 9, 8),
    ),
    "ours, three dims": (lambda q, k, v: abbe.attention(q, k, v, "sparsemax", causal=True), (4, 7, 8), (2, 7, 8)),
}


@pytest.mark.parametrize("name", FORMS)
def test_every_form_of_a_call(name: str) -> None:
    """The tap changes nothing, and what it captured gives the output again: weights times values."""
    call, queries, keys = FORMS[name]
    q, k, v = _float(*queries), 2 * _float(*keys), _float(*keys).flip(-1)
    network = Options(call).eval()
    plain = call(q, k, v)
    output, calls = captured(network, q, k, v)
    assert torch.equal(output, plain)
    assert output.stride() == plain.stride()
    (seen,) = calls
    assert seen.query.dim() == seen.key.dim() == seen.value.dim() == 4
    values = seen.value.repeat_interleave(seen.query.shape[1] // seen.value.shape[1], 1)
    torch.testing.assert_close((seen.weights() @ values).reshape(plain.shape), plain, rtol=1e-4, atol=1e-5)
    with swap(network, "sparsemax", inputs=(q, k, v)) as swapped, torch.no_grad():
        assert swapped.check(q, k, v) < 2e-5
        expected = (seen.weights(normalizer="sparsemax") @ values).reshape(plain.shape)
        torch.testing.assert_close(network(q, k, v), expected, rtol=1e-4, atol=1e-5)


def test_heads_that_a_module_states_split_the_first_of_three_dims() -> None:
    call, queries, keys = FORMS["batch x heads"]
    _, (seen,) = captured(Options(call).eval(), _float(*queries), _float(*keys), _float(*keys))
    assert seen.query.shape == (2, 4, 7, 8)
    call, queries, keys = FORMS["three dims"]
    _, (seen,) = captured(Options(call).eval(), _float(*queries), _float(*keys), _float(*keys))
    assert seen.query.shape == (3, 1, 7, 8)


# -- torch's own modules ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("averaged", [True, False])
def test_multihead_attention_gives_its_own_weights(batch_first: bool, averaged: bool) -> None:
    torch.manual_seed(0)
    module, x = nn.MultiheadAttention(WIDTH, HEADS, batch_first=batch_first).eval(), 3 * states()
    given, hidden = x if batch_first else x.transpose(0, 1), ~_bool(9, 9)
    options = {"attn_mask": hidden, "average_attn_weights": averaged}
    plain = module(given, given, given, **options)
    output, (call,) = captured(module, given, given, given, **options)
    assert all(torch.equal(a, b) for a, b in zip(output, plain, strict=True))
    weights = call.weights().mean(1) if averaged else call.weights()
    torch.testing.assert_close(weights, plain[1], rtol=1e-4, atol=1e-6)
    assert torch.equal(call.hidden, x)
    assert call.projection is module.out_proj


MULTI_HEAD = {
    "bias of keys": {"add_bias_kv": True},
    "a zero": {"add_zero_attn": True},
    "other widths": {"kdim": 16, "vdim": 24},
    "no bias": {"bias": False},
}


@pytest.mark.parametrize("weights", [True, False])
@pytest.mark.parametrize("name", MULTI_HEAD)
def test_options_of_multihead_attention(name: str, weights: bool) -> None:
    torch.manual_seed(0)
    module = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True, **MULTI_HEAD[name]).eval()  # type: ignore[arg-type]
    x = 3 * states()
    k, v = (x[..., :16], x[..., :24]) if name == "other widths" else (x, x)
    padding = torch.zeros(2, 9, dtype=torch.bool)
    padding[1, 6:] = True
    inputs = {"key_padding_mask": padding, "need_weights": weights}
    with torch.set_grad_enabled(True):  # where torch's fused kernel is off
        plain = module(x, k, v, **inputs)
        calls: list[AttentionCall] = []
        with tap(module) as t:
            assert t.check(x, k, v, **inputs) < 2e-5
            t.listen(calls.append)
            output = module(x, k, v, **inputs)
    assert torch.equal(output[0], plain[0])
    if weights:
        assert torch.equal(output[1], plain[1])
        torch.testing.assert_close(calls[0].weights().mean(1), plain[1], rtol=1e-4, atol=1e-6)


def test_an_unbatched_call_of_multihead_attention() -> None:
    torch.manual_seed(0)
    module, x = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True).eval(), states()[0]
    plain = module(x, x, x)
    output, (call,) = captured(module, x, x, x)
    assert all(torch.equal(a, b) for a, b in zip(output, plain, strict=True))
    torch.testing.assert_close(call.weights()[0].mean(0), plain[1])


@pytest.mark.parametrize("norm_first", [True, False])
def test_the_fused_kernels_of_an_encoder(norm_first: bool) -> None:
    """Without gradients the plain encoder takes torch's fused path, and the check compares with that."""
    network, x = encoder(norm_first), states()
    padding = torch.zeros(2, 9, dtype=torch.bool)
    padding[1, 6:] = True
    with torch.no_grad():
        plain = network(x, src_key_padding_mask=padding)
        output, calls = captured(network, x, src_key_padding_mask=padding)
    assert [call.name for call in calls] == ["layers.0.self_attn", "layers.1.self_attn"]
    torch.testing.assert_close(output[~padding], plain[~padding], rtol=1e-4, atol=1e-5)
    assert not bool(calls[0].weights()[1, :, :, 6:].any())


def test_a_decoder_with_cross_attention() -> None:
    torch.manual_seed(0)
    layer = nn.TransformerDecoderLayer(WIDTH, HEADS, 64, batch_first=True)
    network = nn.TransformerDecoder(layer, 2).eval()
    x, memory = states(6), states(9)
    mask = nn.Transformer.generate_square_subsequent_mask(6)
    plain = network(x, memory, tgt_mask=mask, tgt_is_causal=True)
    output, calls = captured(network, x, memory, tgt_mask=mask, tgt_is_causal=True)
    torch.testing.assert_close(output, plain)
    kinds = [(call.name, call.kind, call.layer, tuple(call.key.shape[2:])) for call in calls]
    assert kinds == [
        ("layers.0.self_attn", "self", 0, (6, 8)), ("layers.0.multihead_attn", "cross", 0, (9, 8)),
        ("layers.1.self_attn", "self", 1, (6, 8)), ("layers.1.multihead_attn", "cross", 1, (9, 8)),
    ]  # fmt: skip
    assert not bool(calls[0].weights().triu(1).any())


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_are_refused() -> None:
    module = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True).eval()
    nested = torch.nested.nested_tensor([torch.randn(5, WIDTH), torch.randn(3, WIDTH)], layout=torch.jagged)
    with tap(module), torch.no_grad(), pytest.raises((AbbeError, AssertionError), match=r"(?i)nested"):
        module(nested, nested, nested)
    q = torch.nested.nested_tensor([torch.randn(4, 5, 8), torch.randn(4, 3, 8)])
    with tap(Options(SDPA)) as t, pytest.raises(AbbeError, match=r"Options \(Options\) attends with nested tensors"):
        t.network(q, q, q)


def test_a_vision_transformer() -> None:
    torch.manual_seed(0)
    network, images = Patches().eval(), torch.randn(2, 3, 16, 16)
    plain = network(images)
    output, calls = captured(network, images)
    assert torch.equal(output, plain)
    assert [(call.name, call.kind, call.causal) for call in calls] == [
        ("blocks.0.attn", "self", False), ("blocks.1.attn", "self", False),
    ]  # fmt: skip
    assert calls[0].weights().shape == (2, HEADS, 17, 17)


# -- Scope ------------------------------------------------------------------------------------------------------------


def test_another_thread_and_another_network_are_not_seen() -> None:
    network, other = decoder(), decoder(seed=1)
    seen: list[str] = []
    x = ids()

    class Outside(nn.Module):
        """Runs, in the middle of a pass, another network here and in another thread."""

        def forward(self, states: Tensor) -> Tensor:
            other(x)
            thread = threading.Thread(target=lambda: (other(x), SDPA(*[torch.randn(1, 1, 4, 8)] * 3)))
            thread.start()
            thread.join()
            return states

    network.blocks[1].mlp = Outside()
    with tap(network) as t:
        t.listen(lambda call: seen.append(call.name))
        other(x)
        by_sdpa(*[torch.randn(1, 1, 4, 8)] * 3)
        assert seen == []
        network(x)
        assert len(seen) == 3
        thread = threading.Thread(target=network, args=(x,))  # its own passes are seen in every thread
        thread.start()
        thread.join()
        assert len(seen) == 6


class Interrupted(BaseException):
    pass


@pytest.mark.parametrize("error", [ValueError, Interrupted])
def test_an_exception_in_a_pass_leaves_nothing_behind(error: type[BaseException]) -> None:
    network, other, x, calls = decoder(), decoder(seed=1), ids(), []
    plain, before, raising = network(x), marks(network), [True]

    def fail(*args: object) -> None:
        if raising:
            raise error

    handle = network.blocks[1].mlp.register_forward_pre_hook(fail)
    with tap(network) as t:
        with pytest.raises(error):
            network(x)
        raising.clear()
        other(x)  # torch calls no hooks for an interruption from the keyboard
        assert t.check(x) < 2e-5
        t.listen(calls.append)
        assert torch.equal(network(x), plain)
        assert [call.place for call in calls] == [0, 1, 2]  # not a continuation of the pass that failed
        raising.append(True)
        with pytest.raises(error):
            network(x)
    handle.remove()
    assert not active_modes()
    assert marks(network) == before
    assert torch.equal(network(x), plain)


def test_parts_may_be_run_alone() -> None:
    network, calls = decoder(), []
    with tap(network) as t:
        t.listen(lambda call: calls.append((call.name, call.place)))
        for _ in range(2):
            network.blocks[1](states())
            network.blocks[0].attn(states())
    assert calls == [("blocks.1.attn", 0), ("blocks.0.attn", 1)] * 2


def test_a_module_that_is_called_again_is_another_layer() -> None:
    network = decoder()
    network.blocks = nn.ModuleList([network.blocks[0]] * 3)
    _, calls = captured(network, ids())
    assert [(call.name, call.place) for call in calls] == [("blocks.0.attn", i) for i in range(3)]


def test_a_tapped_network_is_saved_and_copied_as_it_is() -> None:
    network, x = decoder(), ids()
    plain = network(x)
    with tap(network) as t:
        t.check(x)
        buffer = io.BytesIO()
        torch.save(network, buffer)
        twin, again = copy.deepcopy(network), pickle.loads(pickle.dumps(network))
        assert torch.equal(twin(x), plain)
    buffer.seek(0)
    loaded = torch.load(buffer, weights_only=False)
    for other in (loaded, again):
        assert marks(other) == marks(network)
        assert torch.equal(other(x), plain)


def test_one_tap_at_a_time() -> None:
    network = decoder()
    with tap(network) as t:
        with pytest.raises(AbbeError, match="this Decoder is tapped already"), tap(network):
            pass
        assert t.check(ids()) < 2e-5


# -- What cannot be seen ----------------------------------------------------------------------------------------------


def test_a_softmax_by_hand_is_refused_with_the_way_out() -> None:
    network = as_written(decoder(), by_hand)
    expected = (
        r"Decoder calls none of F\.scaled_dot_product_attention, nn\.MultiheadAttention or abbe\.attention "
        r"\(blocks\.0\.attn \(CausalAttention\), .* look like attention\).*abbe\.attention\(q, k, v, causal=True\)"
    )
    with tap(network) as t, pytest.raises(AbbeError, match=expected):
        t.check(ids())
    with tap(network) as t, pytest.raises(AbbeError, match="Decoder calls none of"):
        network(ids())


def test_a_layer_by_hand_among_others_is_listed() -> None:
    network = decoder()
    network.blocks[1].attn = CausalAttention(by_hand)
    with tap(network) as t:
        t.check(ids())
        assert t.layers == ["blocks.0.attn", "blocks.2.attn"]
        (line,) = t.skipped
    assert line.startswith("blocks.1.attn (CausalAttention): it called none of")


def test_the_check_fails_if_the_calls_do_not_give_the_output() -> None:
    """Here a third of the attention goes around torch's function in the second of two passes."""
    passes: list[int] = []

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        passes.append(0)
        return by_sdpa(q, k, v) if len(passes) != 5 else 1.1 * by_sdpa(q, k, v)

    with tap(as_written(decoder(), attend)) as t:
        with pytest.raises(
            AbbeError, match=r"self-check failed: .* changes the output of Decoder by .*nothing was measured"
        ):
            t.check(ids())
        assert t.error is not None
        assert t.error > 1e-2


def test_check_needs_two_tokens_and_evaluation_mode() -> None:
    network = decoder()
    with tap(network) as t:
        with pytest.raises(AbbeError, match="at least 2 tokens"):
            t.check(ids(1))
        network.train()
        with pytest.raises(AbbeError, match="training mode"):
            t.check(ids())


def test_shapes_that_are_no_attention_are_refused() -> None:
    network = Options(SDPA)
    q, k = torch.randn(2, 4, 5, 8), torch.randn(1, 4, 5, 8)
    with (
        tap(network),
        pytest.raises(AbbeError, match=r"Options \(Options\) attends with tensors of shapes .*\(1, 4, 5, 8\)"),
    ):
        network(q, k, k)


@pytest.mark.parametrize("wrong", [nn.Linear(2, 2), "gpt2", None, 3])
def test_what_is_no_network(wrong: object) -> None:
    if isinstance(wrong, nn.Module):
        with tap(wrong.eval()) as t, pytest.raises(AbbeError, match="Linear calls none of"):
            t.check(torch.randn(3, 2))
    else:
        with pytest.raises(AbbeError, match=r"tap needs a transformers model .*, or a network"):
            tap(wrong)


def test_a_compiled_network_runs_as_written() -> None:
    network, x = decoder(), ids()
    compiled: Any = torch.compile(network, backend="eager")
    compiled(x)
    calls: list[str] = []
    with tap(compiled) as t:
        assert t.check(x) < 2e-5
        t.listen(lambda call: calls.append(call.name))
        compiled(x)
    assert len(calls) == 3
