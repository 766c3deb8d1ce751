"""Which keys a query sees: causality, padding, caches, decode steps, and models with masks of their own."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import tiny_models as tiny
import torch
from test_tap_capture import eager_weights, listen, listen_as_eager
from torch import Tensor, nn
from transformers import DynamicCache, StaticCache

from abbe.models import AttentionCall, swap, tap

pytestmark = pytest.mark.usefixtures("no_grad")


def listen_only(network: nn.Module, **inputs: Any) -> tuple[list[AttentionCall], Tensor]:
    """All calls of one forward pass, without a check before it."""
    calls: list[AttentionCall] = []
    with tap(network) as t:
        t.listen(calls.append)
        output = tiny.main_output(network(**inputs))
    assert calls  # or every loop over them would pass
    return calls, output


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("name", tiny.CAUSAL)
def test_the_last_token_moves_no_earlier_row(name: str, implementation: str) -> None:
    network = tiny.with_attention(tiny.FAMILIES[name].build(), implementation)
    ids, other = tiny.tokens(), tiny.with_another_last_token(tiny.tokens())
    rows = torch.arange(tiny.LENGTH - 1)
    one, first = listen_only(network, input_ids=ids)
    two, second = listen_only(network, input_ids=other)
    assert not torch.equal(first[:, -1], second[:, -1])
    torch.testing.assert_close(first[:, :-1], second[:, :-1], atol=1e-6, rtol=0)
    for a, b in zip(one, two, strict=True):
        torch.testing.assert_close(a.logits(rows), b.logits(rows), atol=1e-6, rtol=0)
        assert not a.visible(rows)[..., -1].any()
        assert a.visible(torch.tensor([tiny.LENGTH - 1]))[..., -1].all()


@pytest.mark.parametrize("name", tiny.FAMILIES)
def test_plain_models_need_no_mask(name: str) -> None:
    calls, _ = listen_only(tiny.FAMILIES[name].build(), **tiny.FAMILIES[name].inputs())
    for call in calls:
        assert call.mask is None or call.window is not None
        decodes = tiny.FAMILIES[name].causal or (call.name.startswith("decoder") and call.kind == "self")
        assert call.causal == (call.mask is None and decodes)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize(
    "build",
    [tiny.gpt2, tiny.llama, tiny.mistral, tiny.gemma2, tiny.gpt_oss, tiny.bert],
    ids=lambda build: build.__name__,
)
def test_padding_is_invisible(build: Any, side: str) -> None:
    network, ids = build(), tiny.tokens()
    kept = tiny.padded(ids, side)
    inputs = {"input_ids": ids, "attention_mask": kept}
    calls, _ = listen(network, inputs)
    oracle = eager_weights(network, inputs)
    for call in calls:
        visible = call.visible(torch.arange(tiny.LENGTH))
        assert not visible[0, :, :, kept[0] == 0].any()
        for row in range(len(ids)):
            weights, wanted = call.weights()[row], oracle["self", call.layer][row]
            torch.testing.assert_close(weights[:, kept[row] == 1], wanted[:, kept[row] == 1], atol=5e-6, rtol=0)


def test_padding_of_an_encoder_is_invisible_to_the_decoder() -> None:
    network, kept = tiny.t5(), tiny.padded(tiny.tokens(), "right", 6).flip(0)
    inputs = tiny.text_pair() | {"attention_mask": kept}
    calls, _ = listen(network, inputs)
    oracle = eager_weights(network, inputs)
    for call in calls:
        rows = kept[1] == 1 if call.name.startswith("encoder") else slice(None)
        torch.testing.assert_close(
            call.weights()[1][:, rows], oracle[call.kind, call.layer][1][:, rows], atol=5e-6, rtol=0
        )


def masks_within(network: nn.Module, inputs: dict[str, Any]) -> list[Any]:
    """The masks that reach the attention modules in one forward pass, and so whatever else reads them."""
    masks: list[Any] = []
    hooks = [
        module.register_forward_pre_hook(
            lambda module, args, kwargs: masks.append(kwargs.get("attention_mask")), with_kwargs=True
        )
        for module in network.modules()
        if hasattr(type(module), "forward") and "attention_mask" in inspect.signature(module.forward).parameters
    ]
    network(**inputs)
    for hook in hooks:
        hook.remove()
    return masks


@pytest.mark.parametrize("change", [tap, lambda network: swap(network, "sparsemax")], ids=["tap", "swap"])
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("name", ["llama", "gemma2", "bert", "t5"])
def test_every_part_reads_the_mask_it_would_have_had(name: str, implementation: str, change: Any) -> None:
    network = tiny.with_attention(tiny.FAMILIES[name].build(), implementation)
    inputs = tiny.FAMILIES[name].inputs()
    inputs["attention_mask"] = tiny.padded(inputs["input_ids"], "right")
    plain = masks_within(network, inputs)
    with change(network):
        changed = masks_within(network, inputs)
    assert any(isinstance(mask, Tensor) and mask.dim() == 4 for mask in plain)
    for one, other in zip(plain, changed, strict=True):
        if isinstance(one, Tensor) or isinstance(other, Tensor):
            if other is None:  # a mask that is causal and nothing else is left out; an eager model builds it
                assert implementation == "eager"
                assert torch.equal(one[:1] == 0, torch.ones_like(one[:1]).tril() == 1)
                continue
            torch.testing.assert_close(other, one, atol=0, rtol=0)


@pytest.mark.parametrize("padding", [None, "left", "right"])
def test_a_part_that_is_no_attention_may_read_the_mask(padding: str | None) -> None:
    """The routers of NLLB-MoE take what is not 0 in the mask for padding."""
    network, inputs = tiny.nllb_moe(), tiny.text_pair()
    inputs |= {"attention_mask": tiny.padded(inputs["input_ids"], padding, 6)} if padding else {}
    plain = network(**inputs).logits
    outputs = []
    with tap(network) as t:
        assert t.check(**inputs) < 1e-5
        outputs.append(network(**inputs).logits)
    with swap(network, "softmax") as handle:
        assert handle.check(**inputs) < 1e-5
        outputs.append(network(**inputs).logits)
    network.set_attn_implementation("abbe:softmax")
    for output in [*outputs, network(**inputs).logits]:
        torch.testing.assert_close(output, plain, atol=1e-5, rtol=0)


@tiny.builds(tiny.gpt2, tiny.llama, tiny.mistral, tiny.gemma2, tiny.gpt_oss)
@pytest.mark.parametrize("steps", [(12, 1, 1, 1), (7, 5, 7)], ids=["decode", "chunks"])
def test_cached_steps_see_what_one_pass_sees(build: Any, steps: tuple[int, ...]) -> None:
    network, ids = build(), tiny.tokens()[:1]
    whole, logits = listen_only(network, input_ids=ids)
    cache, done = DynamicCache(config=network.config), 0
    for step in steps:
        calls, output = listen_only(network, input_ids=ids[:, done : done + step], past_key_values=cache)
        torch.testing.assert_close(output, logits[:, done : done + step], atol=2e-5, rtol=0)
        for call, full in zip(calls, whole, strict=True):
            assert call.query.shape[-2] == step
            assert (call.layer, call.name) == (full.layer, full.name)
            rows = torch.arange(step)
            weights, wanted = call.weights()[:, :, rows], full.weights()[:, :, done + rows]
            seen = call.key.shape[-2]  # a window's cache drops the oldest keys
            wanted = wanted[..., done + step - seen : done + step]
            torch.testing.assert_close(weights, wanted, atol=5e-6, rtol=0)
        done += step


@tiny.builds(tiny.gpt2, tiny.llama, tiny.gemma2, tiny.gpt_oss)
def test_a_static_cache_is_longer_than_its_text(build: Any) -> None:
    network, ids = build(), tiny.tokens()[:1]
    whole, logits = listen_only(network, input_ids=ids)
    cache, done = StaticCache(config=network.config, max_cache_len=32), 0
    for step in (tiny.LENGTH - 2, 1, 1):
        calls, output = listen_only(network, input_ids=ids[:, done : done + step], past_key_values=cache)
        torch.testing.assert_close(output, logits[:, done : done + step], atol=2e-5, rtol=0)
        for call, full in zip(calls, whole, strict=True):
            if call.window is not None:
                continue  # its keys are stored in another order
            wanted = full.weights()[:, :, done : done + step]
            assert call.key.shape[-2] == 32
            assert not call.visible(torch.arange(step))[..., done + step :].any()
            torch.testing.assert_close(call.weights()[..., : tiny.LENGTH], wanted, atol=5e-6, rtol=0)
        done += step


def test_generation_is_the_same_and_every_step_is_heard() -> None:
    for network, inputs in (
        (tiny.gpt2(), {"input_ids": tiny.tokens()[:1]}),
        (tiny.t5(), {"input_ids": tiny.tokens()[:1]}),
    ):
        settings = {"max_new_tokens": 5, "min_new_tokens": 5, "do_sample": False}
        wanted = network.generate(**inputs, **settings)
        heard: list[tuple[str, int, int]] = []
        with tap(network) as t:
            t.check(
                **inputs, **({"decoder_input_ids": tiny.tokens(3)[:1]} if network.config.is_encoder_decoder else {})
            )
            t.listen(lambda call: heard.append((call.name, call.layer, call.query.shape[-2])))  # noqa: B023
            generated = network.generate(**inputs, **settings)
            layers = t.layers
        assert torch.equal(generated, wanted)
        last = [name for name, _, queries in heard[-len(layers) :] if queries == 1]
        assert last
        assert {name for name, _, _ in heard} == set(layers)
        assert all(len({layer for other, layer, _ in heard if other == name}) == 1 for name in layers)


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_a_causal_model_whose_modules_say_that_they_are_not(implementation: str) -> None:
    settings = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
    network = tiny.with_attention(
        tiny.make("CLIPTextModel", "CLIPTextConfig", max_position_embeddings=64, **settings), implementation
    )
    for call in listen_as_eager(network, {"input_ids": tiny.tokens()}):
        assert not call.visible(torch.tensor([3]))[..., 4:].any()


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_the_flag_of_a_module_counts_only_where_the_model_reads_it(implementation: str) -> None:
    """transformers' SDPA function reads `is_causal`, the eager one does not: the tap does what the model did."""
    network = tiny.with_attention(tiny.gpt2(), implementation)
    network.transformer.h[1].attn.is_causal = False
    calls, _ = listen(network, {"input_ids": tiny.tokens()})  # the self-check is the oracle
    sees_later = [bool(call.visible(torch.tensor([3]))[..., 4:].any()) for call in calls]
    assert sees_later == [False, implementation == "sdpa"]


def test_a_decoder_used_as_an_encoder() -> None:
    for implementation in ("sdpa", "eager"):
        network = tiny.llama(is_causal=False, attn_implementation=implementation)
        calls, _ = listen(network, {"input_ids": tiny.tokens()})
        assert all(call.visible(torch.arange(tiny.LENGTH)).all() for call in calls)


def test_packed_texts_do_not_see_each_other() -> None:
    network = tiny.llama()
    positions = torch.cat([torch.arange(8), torch.arange(tiny.LENGTH - 8)])[None].expand(2, -1)
    inputs = {"input_ids": tiny.tokens(), "position_ids": positions, "use_cache": False}
    for call in listen_as_eager(network, inputs):
        assert not call.visible(torch.arange(8, tiny.LENGTH))[..., :8].any()


@pytest.mark.parametrize("hidden", [torch.finfo(torch.float32).min, -1e9, -1e4, -float("inf")])
@tiny.builds(tiny.llama, tiny.gpt_oss, tiny.gemma2)
def test_a_floating_mask_of_the_user(build: Any, hidden: float) -> None:
    network = build()
    added = torch.randn(2, 1, tiny.LENGTH, tiny.LENGTH, generator=torch.Generator().manual_seed(3))
    mask = torch.where(torch.ones(tiny.LENGTH, tiny.LENGTH, dtype=torch.bool).tril(), added, torch.tensor(hidden))
    inputs = {"input_ids": tiny.tokens(), "attention_mask": mask}
    if network.config.model_type in ("gpt_oss", "gemma2"):
        inputs["attention_mask"] = {"full_attention": mask, "sliding_attention": mask}
    calls, _ = listen(network, inputs)
    oracle = eager_weights(network, inputs)
    for call in calls:
        assert torch.equal(
            call.visible(torch.arange(tiny.LENGTH))[0, 0], torch.ones(tiny.LENGTH, tiny.LENGTH).tril().bool()
        )
        torch.testing.assert_close(call.weights(), oracle["self", call.layer], atol=5e-6, rtol=0)
