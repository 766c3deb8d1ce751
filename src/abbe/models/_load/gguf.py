"""GGUF files: the weights are dequantised into a plain transformers model.

transformers' public entry needs the accelerate package, which only matters for device maps; its reader does not.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from contextlib import redirect_stderr
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..._errors import AbbeError
from .gguf_cache import converted_folder
from .gguf_header import read_settings
from .quiet import one_line

CAUSAL = "AutoModelForCausalLM"


def gguf_folder(path: Path) -> Path | None:
    """A folder in the cache with this file's network in float32 and its tokenizer; None if it cannot be kept there."""
    with one_line(f"cannot read {path} as GGUF"):
        read_settings(path)  # refuses a truncated file before it is hashed
    return converted_folder(path, lambda folder: _convert(path, folder))


def _convert(path: Path, folder: Path) -> bool:
    """Write the model as transformers does; False if its tokenizer does not survive the round trip."""
    from transformers import AutoTokenizer

    network, tokenizer = read_gguf(path, torch.float32)
    network.save_pretrained(folder)  # type: ignore[operator]
    tokenizer.save_pretrained(folder)
    again = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    return bool(again.backend_tokenizer.to_str() == tokenizer.backend_tokenizer.to_str())


def read_gguf(path: Path, dtype: torch.dtype) -> tuple[nn.Module, Any]:
    """The causal language model of a GGUF file with all its weights, and its tokenizer."""
    with one_line(f"cannot read {path} as GGUF"):
        settings = read_settings(path)
        return gguf_network(path, dtype), gguf_tokenizer(path, settings)


def gguf_network(path: Path, dtype: torch.dtype) -> nn.Module:
    """Build the model from the file's settings, then fill every weight; a missing weight is an error."""
    transformers = import_module("transformers")
    read = import_module("transformers.modeling_gguf_pytorch_utils").load_gguf_checkpoint
    # The reader shows a progress bar that no setting of transformers turns off.
    with redirect_stderr(io.StringIO()), torch.random.fork_rng(devices=[]):
        config = transformers.AutoConfig.from_pretrained(str(path.parent), gguf_file=path.name)
        network = getattr(transformers, CAUSAL).from_config(config, dtype=dtype)
        weights = read(str(path), return_tensors=True, model_to_load=network, torch_dtype=dtype)["tensors"]
    network.config.architectures = [type(network).__name__]  # as it will be when read from the cache
    missing = set(network.load_state_dict(weights, strict=False).missing_keys) - set(network.all_tied_weights_keys)
    if missing:
        raise AbbeError(f"{path} lacks weights of its own architecture, such as {min(missing)}")
    network.tie_weights()
    loaded: nn.Module = network
    return loaded


def gguf_tokenizer(path: Path, settings: Mapping[str, Any]) -> Any:
    """The tokenizer of the file, with a begin token if the file asks for one."""
    from transformers import AutoTokenizer

    with redirect_stderr(io.StringIO()):
        tokenizer = AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)
    # As llama.cpp reads it: the file's setting, else yes for sentencepiece vocabularies only.
    setting = settings.get("tokenizer.ggml.add_bos_token")
    wanted = bool(setting) if setting is not None else settings.get("tokenizer.ggml.model") == "llama"
    if wanted and tokenizer.bos_token is not None:
        _begin_with(tokenizer, tokenizer.bos_token)
    return tokenizer


def _begin_with(tokenizer: Any, begin: str) -> None:
    """transformers loses this rule when it converts a GGUF vocabulary."""
    from tokenizers.processors import TemplateProcessing

    if tokenizer("a").input_ids[:1] == [tokenizer.bos_token_id]:
        return
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"{begin} $A", pair=f"{begin} $A {begin} $B", special_tokens=[(begin, tokenizer.bos_token_id)]
    )
