"""Temperatures folded into weights give what the swapped model computes, in every family, or are refused by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny_models as tiny
import torch
from torch import nn

from abbe import AbbeError, Text, export
from abbe.models import Export, wrap

pytestmark = pytest.mark.usefixtures("no_grad", "same_process")
DIGITS = Text("digits", " ".join(str(i * i) for i in range(400)))  # bytes that the small vocabularies have
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
    "bart": tiny.bart,
    "deepseek3": lambda: tiny.deepseek(first_k_dense_replace=2),
}
EXACT_PER_HEAD = (
    *("gpt2", "gpt-neox", "llama", "gpt-oss", "mistral", "qwen2", "olmo", "opt", "bert", "modernbert"),
    *("olmo2", "cohere", "phi3", "persimmon", "bart", "deepseek3"),
)


def built(name: str) -> nn.Module:
    return tiny.FAMILIES[name].build() if name in tiny.FAMILIES else MORE[name]()


def exported(network: Any, what: Any, folder: Path) -> Export:
    return export(wrap(network, tiny.byte_tokenizer(64), "tiny"), what, folder / "out", text=DIGITS)


def assert_folded(network: Any, what: Any, folder: Path) -> None:
    """The export compares the folded model with the swapped one; afterwards the network is as before."""
    before = {name: value.clone() for name, value in network.state_dict().items()}
    written = exported(network, what, folder)
    assert written.plain
    assert written.error < 1e-5
    for name, value in network.state_dict().items():
        assert torch.equal(value, before[name]), name


@pytest.mark.quick(4)
@pytest.mark.parametrize("name", EXACT_PER_HEAD)
def test_temperatures_per_head_are_exact(name: str, tmp_path: Path) -> None:
    """Sinks, where there are any, are scaled along."""
    assert_folded(built(name), PER_HEAD, tmp_path)


@pytest.mark.quick(2)
@pytest.mark.parametrize("name", ["qwen3", "gemma3", "phi"])
def test_under_a_norm_that_heads_share_a_layer_has_one_temperature(name: str, tmp_path: Path) -> None:
    network = built(name)
    with pytest.raises(AbbeError, match=r"per head: the queries of model\.layers\.0\.self_attn go through q_"):
        exported(network, PER_HEAD, tmp_path)
    assert_folded(network, PER_LAYER, tmp_path)


def test_a_soft_cap_needs_one_temperature(tmp_path: Path) -> None:
    network: Any = tiny.gemma2()
    with pytest.raises(AbbeError, match="bounds its scores by a soft cap, one number for all layers"):
        exported(network, PER_LAYER, tmp_path)
    assert_folded(network, ONE, tmp_path)
    assert network.config.attn_logit_softcapping == 2.0


def test_position_biases_are_scaled_where_their_readers_agree(tmp_path: Path) -> None:
    network = tiny.t5()
    with pytest.raises(AbbeError, match=r"2 layers share the position biases of encoder\.block\.0"):
        exported(network, "layers.0=softmax:temperature=0.8", tmp_path)
    per_head = "*encoder*=learned-temperature:t=0.5/-0.3/0.2/0.1; *decoder*SelfAttention=softmax:temperature=0.8"
    assert_folded(network, per_head, tmp_path)


def test_biases_in_a_mask_are_refused(tmp_path: Path) -> None:
    """As a model would do that adds ALiBi's slopes to its mask."""
    network: Any = tiny.llama()
    forward = network.model.forward

    def with_slopes(input_ids: Any = None, attention_mask: Any = None, **more: Any) -> Any:
        places = torch.arange(input_ids.shape[1])
        slopes = -(places[:, None] - places).clamp(min=0) * 0.5
        mask = slopes.masked_fill(places > places[:, None], -1e9).expand(len(input_ids), 1, -1, -1)
        return forward(input_ids=input_ids, attention_mask=mask, **more)

    network.model.forward = with_slopes
    with pytest.raises(AbbeError, match=r"model\.layers\.0\.self_attn adds biases of positions"):
        exported(network, ONE, tmp_path)


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
def test_projections_that_cannot_be_scaled_are_refused_by_name(message: str, tmp_path: Path) -> None:
    network: Any = tiny.llama()
    SPOILED[message](*(layer.self_attn for layer in network.model.layers))
    with pytest.raises(AbbeError, match=message):
        exported(network, ONE, tmp_path)


@pytest.mark.parametrize(
    "what", ["entmax:alpha=1.5", "ssmax", "layers.0.heads.1=softmax1", "scaled:of=topk:k=3,t=0.1", "sink:b=1"]
)
def test_other_maps_are_no_factors(what: str, tmp_path: Path) -> None:
    assert not exported(tiny.llama(), what, tmp_path).plain


def test_scales_within_scales_are_one_factor(tmp_path: Path) -> None:
    what = {"layers.0.heads.0,2": "scaled:of=(scaled:of=softmax:temperature=2,t=0.5),t=0.25", "layers.1": ONE}
    assert_folded(tiny.llama(), what, tmp_path)
