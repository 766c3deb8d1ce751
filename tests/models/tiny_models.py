"""Tiny random models of many families, seeded, with weights large enough that attention is far from uniform.

Every window is shorter than the text, every soft cap small enough to bend the scores, every sink other than zero: an
option that is ignored shows.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor, nn

VOCABULARY = 61
LENGTH = 19
BATCH = 2


class Family(NamedTuple):
    """How to make a model, the inputs of a plain call, and whether no query of it sees later keys."""

    build: Callable[[], nn.Module]
    inputs: Callable[[], dict[str, Tensor]]
    causal: bool = True


def builds(*builders: Callable[..., nn.Module]) -> pytest.MarkDecorator:
    """A test of each of these models."""
    return pytest.mark.parametrize("build", builders, ids=lambda build: build.__name__)


def byte_tokenizer(context: int = 1024) -> Any:
    """One token a byte, its id is the byte; a character of several bytes gives each of them its whole span."""
    tokenizer = Tokenizer(models.BPE(vocab=_byte_letters(), merges=[]))
    # The pattern of GPT-2 cuts the text into words: short words are cached, one word of 3 MB would be slow.
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=context)


def _byte_letters() -> dict[str, int]:
    """The letters that byte-level tokenizers write for the bytes: printable ones stand for themselves."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    letters = {chr(byte): byte for byte in printable}
    letters |= {chr(256 + place): byte for place, byte in enumerate(others)}
    return letters


def tokens(length: int = LENGTH, batch: int = BATCH, seed: int = 0) -> Tensor:
    return torch.randint(2, VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(seed))


def with_another_last_token(ids: Tensor) -> Tensor:
    """The same texts, but for the last token of each."""
    return torch.cat([ids[:, :-1], 2 + (ids[:, -1:] + 5) % 59], -1)


def padded(ids: Tensor, side: str, count: int = 4) -> Tensor:
    """The mask for texts of which the first is padded on this side by so many tokens."""
    kept = torch.ones_like(ids)
    kept[0, slice(0, count) if side == "left" else slice(-count, None)] = 0
    return kept


def main_output(result: Any) -> Tensor:
    """The logits of a model, or the states of an encoder."""
    output: Tensor = result[0] if isinstance(result, tuple) else result.get("logits", result.get("last_hidden_state"))
    return output.detach()


def relative_error(plain: Tensor, own: Tensor, kept: Tensor | None = None) -> float:
    """The largest difference over the deviation of the plain output, without padding: a second implementation."""
    if kept is not None:
        plain, own = plain[kept.bool()], own[kept.bool()]
    return float((plain.double() - own.double()).abs().max() / plain.double().std(correction=0))


def text() -> dict[str, Tensor]:
    return {"input_ids": tokens()}


def text_pair() -> dict[str, Tensor]:
    return {"input_ids": tokens(), "decoder_input_ids": tokens(11, seed=1)}


def make(kind: str, config: str, gain: float = 1.5, **settings: Any) -> nn.Module:
    """A model of this class with seeded weights; torch's global generator is left as it was."""
    special = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 1, "vocab_size": VOCABULARY}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network: nn.Module = getattr(transformers, kind)(getattr(transformers, config)(**(special | settings)))
        enlarge(network, gain)
    return network.eval()


def enlarge(network: nn.Module, gain: float) -> None:
    """Draw all weights anew: matrices keep the size of what they map, times the gain."""
    with torch.no_grad():
        for name, weight in network.named_parameters():
            if weight.dim() >= 2:
                embedding = "emb" in name or name.endswith(("wte.weight", "wpe.weight", "shared.weight"))
                weight.normal_(0, 1.0 if embedding else gain * max(weight.shape[-2:]) ** -0.5)
            elif "norm" in name.lower() or ".ln_" in name:
                weight.add_(0.1 * torch.randn_like(weight))
            else:
                weight.normal_(0, 1.0 if "sink" in name else 0.2)


def eager_twin(network: nn.Module) -> nn.Module:
    """The same model, computing its attention eagerly: the oracle."""
    config = copy.deepcopy(network.config)
    config._attn_implementation = "eager"
    twin = type(network)(config)
    twin.load_state_dict(network.state_dict())
    return twin.eval()


def with_attention(network: nn.Module, implementation: str) -> nn.Module:
    """The model as built, which computes its attention by SDPA, or its eager twin."""
    return eager_twin(network) if implementation == "eager" else network


SMALL = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
    "max_position_embeddings": 64,
}  # fmt: skip
GROUPED = SMALL | {"num_key_value_heads": 2}
NO_FEED_FORWARD = {key: value for key, value in SMALL.items() if key != "intermediate_size"}  # another name for it


def gpt2(**settings: Any) -> nn.Module:
    return make(
        "GPT2LMHeadModel", "GPT2Config", **({"n_layer": 2, "n_head": 4, "n_embd": 32, "n_positions": 64} | settings)
    )


def llama(**settings: Any) -> nn.Module:
    return make("LlamaForCausalLM", "LlamaConfig", **(GROUPED | settings))


def mistral(**settings: Any) -> nn.Module:
    return make("MistralForCausalLM", "MistralConfig", **(GROUPED | {"sliding_window": 5, "head_dim": 8} | settings))


def gemma2(**settings: Any) -> nn.Module:
    own = {
        "head_dim": 16, "sliding_window": 5, "attn_logit_softcapping": 2.0, "query_pre_attn_scalar": 9,
        "final_logit_softcapping": 30.0, "num_hidden_layers": 3,
    }  # fmt: skip
    return make("Gemma2ForCausalLM", "Gemma2Config", **(GROUPED | own | settings))


def gpt_oss(**settings: Any) -> nn.Module:
    own = {
        "head_dim": 8, "sliding_window": 5, "num_local_experts": 2, "num_experts_per_tok": 2,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    }  # fmt: skip
    return make("GptOssForCausalLM", "GptOssConfig", **(GROUPED | own | settings))


def bert(**settings: Any) -> nn.Module:
    return make("BertModel", "BertConfig", **(SMALL | settings))


def albert(**settings: Any) -> nn.Module:
    """Three layers, all the same module."""
    return make("AlbertModel", "AlbertConfig", **(SMALL | {"embedding_size": 16, "num_hidden_layers": 3} | settings))


def diffllama(**settings: Any) -> nn.Module:
    """Each layer calls its attention function twice, with the same queries and keys."""
    return make("DiffLlamaForCausalLM", "DiffLlamaConfig", **(GROUPED | settings))


def hrm(**settings: Any) -> nn.Module:
    """Two stacks of two layers: the lower one runs four times, the higher one twice."""
    own = {"num_layers_per_stack": 2, "head_dim": 8, "H_cycles": 2, "L_cycles": 2}
    sizes = {name: size for name, size in GROUPED.items() if name != "num_hidden_layers"}
    return make("HrmTextForCausalLM", "HrmTextConfig", **(sizes | own | settings))


def gemma4(**settings: Any) -> nn.Module:
    """Heads of another width in every second layer."""
    own = {
        "head_dim": 8, "global_head_dim": 16, "sliding_window": 5, "vocab_size_per_layer_input": VOCABULARY,
        "hidden_size_per_layer_input": 8, "layer_types": ["sliding_attention", "full_attention"],
    }  # fmt: skip
    return make("Gemma4ForCausalLM", "Gemma4TextConfig", **(GROUPED | own | settings))


def t5(**settings: Any) -> nn.Module:
    own = {
        "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_decoder_layers": 2, "num_heads": 4,
        "decoder_start_token_id": 0, "relative_attention_num_buckets": 8, "relative_attention_max_distance": 16,
    }  # fmt: skip
    return make("T5ForConditionalGeneration", "T5Config", gain=0.8, **(own | settings))


def bart() -> nn.Module:
    sides = {f"{half}_{name}": size for half in ("encoder", "decoder") for name, size in _BART_HALF.items()}
    settings = {"d_model": 32, "max_position_embeddings": 64, "decoder_start_token_id": 1, "forced_eos_token_id": 1}
    return make("BartForConditionalGeneration", "BartConfig", **(settings | sides))


_BART_HALF = {"layers": 2, "attention_heads": 4, "ffn_dim": 48}


def deepseek(**settings: Any) -> nn.Module:
    """Latent attention: queries and keys are made of two parts, and values have a width of their own."""
    own = {
        "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8,
        "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "moe_intermediate_size": 16,
    }  # fmt: skip
    return make("DeepseekV3ForCausalLM", "DeepseekV3Config", **(SMALL | own | settings))


def nllb_moe() -> nn.Module:
    """Its sparse layers read the attention mask, too."""
    own = {f"{half}_{name}": value for half in ("encoder", "decoder") for name, value in _NLLB_HALF.items()}
    settings = {"d_model": 32, "num_experts": 4, "expert_capacity": 64, "decoder_start_token_id": 1} | own
    return make("NllbMoeForConditionalGeneration", "NllbMoeConfig", max_position_embeddings=64, **settings)


_NLLB_HALF = {"layers": 2, "sparse_step": 2, "attention_heads": 4, "ffn_dim": 48}


FAMILIES: dict[str, Family] = {
    "gpt2": Family(gpt2, text),
    "gpt-neox": Family(
        lambda: make("GPTNeoXForCausalLM", "GPTNeoXConfig", rotary_pct=0.5, **SMALL), text
    ),
    "llama": Family(llama, text),
    "mistral": Family(mistral, text),
    "qwen2": Family(lambda: make("Qwen2ForCausalLM", "Qwen2Config", **GROUPED), text),
    "qwen3": Family(lambda: make("Qwen3ForCausalLM", "Qwen3Config", head_dim=16, **GROUPED), text),
    "gemma2": Family(gemma2, text),
    "gpt-oss": Family(gpt_oss, text),
    "olmo": Family(lambda: make("OlmoForCausalLM", "OlmoConfig", **GROUPED), text),
    "opt": Family(
        lambda: make("OPTForCausalLM", "OPTConfig", ffn_dim=48, word_embed_proj_dim=32, **NO_FEED_FORWARD),
        text,
    ),
    "bert": Family(bert, text, causal=False),
    "modernbert": Family(
        lambda: make(
            "ModernBertModel", "ModernBertConfig", local_attention=6, global_attn_every_n_layers=2, cls_token_id=1,
            sep_token_id=1, **(SMALL | {"num_hidden_layers": 3}),
        ),
        text,
        causal=False,
    ),
    "t5": Family(t5, text_pair, causal=False),
}  # fmt: skip


NEO = {"hidden_size": 32, "num_layers": 2, "num_heads": 4, "attention_types": [[["global"], 2]]}
UNROUTED: dict[str, Callable[[], nn.Module]] = {
    "GPTJForCausalLM": lambda: make("GPTJForCausalLM", "GPTJConfig", n_layer=2, n_head=4, n_embd=32, rotary_dim=4),
    "GPTNeoForCausalLM": lambda: make("GPTNeoForCausalLM", "GPTNeoConfig", **NEO),
    "BloomForCausalLM": lambda: make("BloomForCausalLM", "BloomConfig", hidden_size=32, n_layer=2, n_head=4),
    "FalconForCausalLM": lambda: make("FalconForCausalLM", "FalconConfig", **NO_FEED_FORWARD),
    "MptForCausalLM": lambda: make("MptForCausalLM", "MptConfig", d_model=32, n_heads=4, n_layers=2),
    "DebertaModel": lambda: make("DebertaModel", "DebertaConfig", **SMALL),
    "DebertaV2Model": lambda: make("DebertaV2Model", "DebertaV2Config", **SMALL),
    "XLNetLMHeadModel": lambda: make("XLNetLMHeadModel", "XLNetConfig", d_model=32, n_layer=2, n_head=4, d_inner=48),
}
CAUSAL = [name for name, family in FAMILIES.items() if family.causal]
