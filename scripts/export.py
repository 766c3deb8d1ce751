"""Write a trained network and its tokenizer as a folder to load from: float16 on disk, float32 in use."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

WEIGHTS = "model.safetensors"
FILES = (WEIGHTS, "config.json", "tokenizer.json", "tokenizer_config.json")
LARGEST = 12_000_000  # bytes of the weights: the model is part of the package


def write_files(network: Any, tokenizer: Any, out: Path, end_of_text: str) -> None:
    """The four files of FILES; the embedding, which is also the output layer, is stored once."""
    out.mkdir(parents=True, exist_ok=True)
    weights = {name: value.detach().half().contiguous() for name, value in network.named_parameters()}
    damaged = [name for name, value in weights.items() if not bool(value.isfinite().all())]
    if damaged:
        raise SystemExit(f"{damaged[0]} holds NaN or numbers too large for float16: nothing was written")
    size = sum(value.nbytes for value in weights.values())
    if size > LARGEST:
        raise SystemExit(f"the weights take {size:,} bytes in float16, above {LARGEST:,}: nothing was written")
    save_file(weights, out / WEIGHTS, metadata={"format": "pt"})
    (out / WEIGHTS).chmod(0o644)  # it comes readable for its owner alone
    written = (out / WEIGHTS).stat().st_size
    if written > LARGEST:
        raise SystemExit(f"{out / WEIGHTS} has {written:,} bytes, above {LARGEST:,}: make the network smaller")
    _write_config(network, out)
    _write_tokenizer(tokenizer, out, end_of_text, network.config.n_positions)


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _write_config(network: Any, out: Path) -> None:
    config = type(network.config)(**network.config.to_dict())
    config.architectures = [type(network).__name__]
    config.dtype = torch.float32  # what to compute in: transformers would take the dtype of the file
    config.to_json_file(out / "config.json")


def _write_tokenizer(tokenizer: Any, out: Path, end_of_text: str, context: int) -> None:
    from transformers import PreTrainedTokenizerFast

    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=end_of_text,
        eos_token=end_of_text,
        model_max_length=context,
        clean_up_tokenization_spaces=False,
    )
    fast.save_pretrained(out)
