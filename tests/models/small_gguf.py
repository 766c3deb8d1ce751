"""A small random Llama as a GGUF file, written tensor by tensor in the layout of llama.cpp."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from tiny_models import byte_tokenizer
from transformers import LlamaConfig, LlamaForCausalLM

NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def small_llama() -> Any:
    """Two layers, four query heads, two key heads, bytes, one merged pair and a begin token."""
    config = LlamaConfig(
        hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=258, max_position_embeddings=64, rms_norm_eps=1e-5, tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 100000.0}, bos_token_id=257, eos_token_id=257,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(2)
        network = LlamaForCausalLM(config).eval()
        for parameter in network.parameters():
            parameter.data.mul_(1 + torch.rand_like(parameter)).mul_(4 if parameter.ndim == 2 else 1)
    return network


def write_gguf(
    network: Any, path: Path, *, begin: bool = False, without: str = "", half: bool = False,
    described: dict[str, int] | None = None,
) -> Path:  # fmt: skip
    """With `half` matrices are float16, as with `--outtype f16`; `described` are settings that lie."""
    writer = gguf.GGUFWriter(path, "llama")
    _write_settings(writer, LlamaConfig.from_dict(network.config.to_dict() | (described or {})), begin)
    for name, weight in _tensors(network):
        if name != without:
            writer.add_tensor(name, weight.astype(np.float16) if half and weight.ndim == 2 else weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _write_settings(writer: Any, config: Any, begin: bool) -> None:
    letters = byte_tokenizer().get_vocab()
    writer.add_name("small")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_rope_dimension_count(config.hidden_size // config.num_attention_heads)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list([*sorted(letters, key=letters.get), "Ã©", "<begin>"])
    writer.add_token_types([1] * 257 + [3])
    writer.add_token_merges(["Ã ©"])
    writer.add_bos_token_id(257)
    writer.add_eos_token_id(257)
    writer.add_add_bos_token(begin)


def _tensors(network: Any) -> list[tuple[str, np.ndarray[Any, Any]]]:
    config = network.config
    heads = {"self_attn.q_proj": config.num_attention_heads, "self_attn.k_proj": config.num_key_value_heads}
    weights = {name: weight.detach().numpy() for name, weight in network.named_parameters()}
    named = [("token_embd.weight", weights["model.embed_tokens.weight"])]
    named.append(("output_norm.weight", weights["model.norm.weight"]))
    for layer in range(config.num_hidden_layers):
        for long, short in NAMES.items():
            weight = weights[f"model.layers.{layer}.{long}.weight"]
            named.append((f"blk.{layer}.{short}.weight", interleaved(weight, heads[long]) if long in heads else weight))
    return named


def interleaved(weight: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    """Rows i and i + half of each head become neighbours, as llama.cpp and llama2.c rotate them."""
    half = weight.shape[0] // heads // 2
    order = [head * 2 * half + part * half + i for head in range(heads) for i in range(half) for part in range(2)]
    return np.ascontiguousarray(weight[order])
