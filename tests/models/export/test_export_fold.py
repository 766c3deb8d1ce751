"""Temperatures folded into weights give what the swapped model computes, in every family, or are refused by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tiny_models as tiny
import torch
from inside import fold_changes, plan_scales
from torch import nn

from abbe import AbbeError, plan, swap

pytestmark = pytest.mark.usefixtures("no_grad")
PER_HEAD = "layers.0=learned-temperature:t=0.5/-0.3/0.2/0.1; layers.1.heads.2=softmax:temperature=0.6"
PER_LAYER = "layers.0=softmax:temperature=0.7; layers.1=scaled:of=softmax,t=-0.4"
ONE = "softmax:temperature=0.7"

MORE: dict[str, Callable[[], nn.Module]] = {
    "gemma3": lambda: tiny.make("Gemma3ForCausalLM", "Gemma3TextConfig", head_dim=16, **tiny.GROUPED),
    "olmo2": lambda: tiny.make("Olmo2ForCausalLM", "Olmo2Config", **tiny.GROUPED),
    "cohere": lambda: tiny.make("CohereForCausalLM", "CohereConfig", use_qk_norm=True, **tiny.GROUPED),
    "phi": lambda: tiny.make("PhiForCausalLM", "PhiConfig", qk_layernorm=True, **tiny.SMALL),
    "phi3": lambda: tiny.make("Phi3ForCausalLM", "Phi3Config", **tiny.GROUPED),
    "persimmon": lambda: tiny.make("PersimmonForCausalLM", "PersimmonConfig", qk_layernorm=False, **tiny.SMALL),
    "bart": lambda: tiny.make(
        "BartForConditionalGeneration", "BartConfig", d_model=32, encoder_layers=2, decoder_layers=2,
        encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=48, decoder_ffn_dim=48,
        max_position_embeddings=64, decoder_start_token_id=1, forced_eos_token_id=1,
    ),
    "deepseek3": lambda: tiny.make(
        "DeepseekV3ForCausalLM", "DeepseekV3Config", q_lora_rank=16, kv_lora_rank=16, qk_rope_head_dim=8,
        qk_nope_head_dim=8, v_head_dim=8, n_routed_experts=4, num_experts_per_tok=2, n_group=1, topk_group=1,
        moe_intermediate_size=16, first_k_dense_replace=2, **tiny.SMALL,
    ),
}  # fmt: skip
EXACT_PER_HEAD = (
    *("gpt2", "gpt-neox", "llama", "mistral", "qwen2", "gpt-oss", "olmo", "opt", "bert", "modernbert"),
    *("olmo2", "cohere", "phi3", "persimmon", "bart", "deepseek3"),
)


def built(name: str) -> tuple[nn.Module, dict[str, Any]]:
    if name in tiny.FAMILIES:
        return tiny.FAMILIES[name].build(), tiny.FAMILIES[name].inputs()
    return MORE[name](), tiny.text_pair() if name == "bart" else tiny.text()


def folded_error(network: Any, what: str, inputs: dict[str, Any]) -> float:
    """The folded model against the swapped one; afterwards the network is as before."""
    factors = plan_scales(plan(network, what))
    assert factors is not None
    before = {name: value.clone() for name, value in network.state_dict().items()}
    exact = torch.float32 if "GptOss" in type(network).__name__ else torch.float64  # its experts know no float64
    network.to(exact)
    with swap(network, what):
        wanted = tiny.main_output(network(**inputs))
    plain = tiny.main_output(network(**inputs))
    network.float()
    changes = fold_changes(network, factors, inputs)
    with changes.applied():
        network.to(exact)
        got = tiny.main_output(network(**inputs))
        network.float()
    for name, value in network.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert tiny.relative_error(wanted, plain) > 1e-3  # the plan does something
    return tiny.relative_error(wanted, got)


@pytest.mark.quick(4)
@pytest.mark.parametrize("name", EXACT_PER_HEAD)
def test_temperatures_per_head_are_exact(name: str) -> None:
    network, inputs = built(name)
    assert folded_error(network, PER_HEAD, inputs) < 1e-5


@pytest.mark.quick(2)
@pytest.mark.parametrize("name", ["qwen3", "gemma3", "phi"])
def test_under_a_norm_that_heads_share_a_layer_has_one_temperature(name: str) -> None:
    network, inputs = built(name)
    assert folded_error(network, PER_LAYER, inputs) < 1e-5
    with pytest.raises(AbbeError, match=r"per head: the queries of model\.layers\.0\.self_attn go through q_"):
        folded_error(network, PER_HEAD, inputs)


def test_sinks_are_scaled_along() -> None:
    network: Any = tiny.gpt_oss()
    changes = fold_changes(network, plan_scales(plan(network, ONE)), tiny.text())
    sinks = network.model.layers[0].self_attn.sinks
    before = sinks.clone()
    with changes.applied():
        torch.testing.assert_close(network.model.layers[0].self_attn.sinks, before / 0.7)
    assert torch.equal(sinks, before)


def test_a_soft_cap_needs_one_temperature() -> None:
    network: Any = tiny.gemma2()
    assert folded_error(network, ONE, tiny.text()) < 1e-5
    assert network.config.attn_logit_softcapping == 2.0
    with pytest.raises(AbbeError, match="bounds its scores by a soft cap, one number for all layers"):
        folded_error(network, PER_LAYER, tiny.text())


def test_position_biases_are_scaled_where_their_readers_agree() -> None:
    network = tiny.t5()
    per_head = "*encoder*=learned-temperature:t=0.5/-0.3/0.2/0.1; *decoder*SelfAttention=softmax:temperature=0.8"
    assert folded_error(network, per_head, tiny.text_pair()) < 1e-5
    with pytest.raises(AbbeError, match=r"2 layers share the position biases of encoder\.block\.0"):
        folded_error(network, "layers.0=softmax:temperature=0.8", tiny.text_pair())


@pytest.mark.parametrize("name", ["BloomForCausalLM", "MptForCausalLM", "FalconForCausalLM"])
def test_models_with_alibi_are_refused_by_name(name: str) -> None:
    with pytest.raises(AbbeError, match=f"unsupported: {name}"):
        plan(tiny.UNROUTED[name](), ONE)


def test_biases_in_a_mask_are_refused() -> None:
    """As a model would do that adds ALiBi's slopes to its mask."""
    network, inputs = tiny.llama(), tiny.text()
    length = inputs["input_ids"].shape[1]
    places = torch.arange(length)
    slopes = -(places[:, None] - places).clamp(min=0) * 0.5
    inputs["attention_mask"] = slopes.masked_fill(places > places[:, None], -1e9).expand(2, 1, -1, -1)
    with pytest.raises(AbbeError, match=r"model\.layers\.0\.self_attn adds biases of positions"):
        fold_changes(network, plan_scales(plan(network, ONE)), inputs)


class Adapted(nn.Linear):
    """What an adapter puts in the place of a projection."""


def with_gates(attention: Any) -> None:
    """A projection that makes more than queries."""
    plain, attention.q_proj = attention.q_proj, nn.Linear(32, 64)
    attention.q_proj.forward = plain.forward


SPOILED: dict[str, Callable[[Any, Any], object]] = {
    r"LlamaAttention \(model\.layers\.0\.self_attn\): its q_proj is a Adapted": lambda first, second: setattr(
        first.q_proj, "__class__", Adapted
    ),
    "its q_proj has 64 outputs, not the 32 of 4 heads of width 8": lambda first, second: with_gates(first),
    "share one weight": lambda first, second: setattr(second, "q_proj", first.q_proj),
    r"clips its queries \(clip_qkv=1\.0\)": lambda first, second: setattr(first.config, "clip_qkv", 1.0),
}


@pytest.mark.parametrize("message", SPOILED)
def test_projections_that_cannot_be_scaled_are_refused_by_name(message: str) -> None:
    network: Any = tiny.llama()
    SPOILED[message](*(layer.self_attn for layer in network.model.layers))
    with pytest.raises(AbbeError, match=message):
        fold_changes(network, plan_scales(plan(network, ONE)), tiny.text())


@pytest.mark.parametrize(
    "what", ["entmax:alpha=1.5", "ssmax", "layers.0.heads.1=softmax1", "scaled:of=topk:k=3,t=0.1", "sink:b=1"]
)
def test_other_maps_are_no_factors(what: str) -> None:
    assert plan_scales(plan(tiny.llama(), what)) is None


def test_factors() -> None:
    network = tiny.llama()
    what = {"layers.0.heads.0,2": "scaled:of=(scaled:of=softmax:temperature=2,t=0.5),t=0.25", "layers.1": ONE}
    first, second = plan_scales(plan(network, what)).values()
    outer = torch.tensor(0.75, dtype=torch.float64).exp() / 2
    torch.testing.assert_close(first, torch.stack([outer, outer * 0 + 1, outer, outer * 0 + 1]))
    torch.testing.assert_close(second, torch.full((4,), 1 / 0.7, dtype=torch.float64))
