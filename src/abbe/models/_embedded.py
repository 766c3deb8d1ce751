"""The model that needs no files: until a trained one exists, a GPT-2 with random weights that reads bytes."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch
from torch import nn

SEED = 20240817
LAYERS, HEADS, WIDTH, CONTEXT = 6, 8, 256, 1024
ABOUT = (
    f"random weights, NOT trained: GPT-2 shape, {LAYERS} layers x {HEADS} heads, width {WIDTH}, "
    f"context {CONTEXT}, reads bytes; good for trying abbe out, not for findings"
)


def embedded_network() -> nn.Module:
    """The same weights in every process; torch's global generator is left as it was."""
    transformers = import_module("transformers")
    config = transformers.GPT2Config(
        vocab_size=256, n_positions=CONTEXT, n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS, bos_token_id=0, eos_token_id=0
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        network: nn.Module = transformers.GPT2LMHeadModel(config)
    return network


def byte_tokenizer() -> Any:
    """One token a byte, its id is the byte; a character of several bytes gives each of them its whole span."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    tokenizer = Tokenizer(models.BPE(vocab=_byte_letters(), merges=[]))
    # The pattern of GPT-2 cuts the text into words: short words are cached, one word of 3 MB would be slow.
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    return import_module("transformers").PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=CONTEXT)


def _byte_letters() -> dict[str, int]:
    """The letters that byte-level tokenizers write for the bytes: printable ones stand for themselves."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    letters = {chr(byte): byte for byte in printable}
    letters |= {chr(256 + place): byte for place, byte in enumerate(others)}
    return letters
