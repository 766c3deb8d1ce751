"""GGUF files: the weights are dequantised into a plain transformers model, which is kept in the user's cache.

transformers' public entry needs the accelerate package, which only matters for device maps; its reader does not. The
cache goes by the sha256 of the file; a folder there is complete or absent, and checked when read. Dequantising 270
million weights and building a vocabulary of 262,144 words takes a minute, reading the result seconds.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import redirect_stderr, suppress
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..._errors import AbbeError
from .._pull.cache import ABOUT, cache_folder
from .folder import check_size, check_tokenizer
from .gguf_header import read_settings, read_weights
from .quiet import one_line

CAUSAL = "AutoModelForCausalLM"
FORMAT = 1  # raised whenever abbe converts the same file differently
_CONVERTERS = ("transformers", "gguf")


def gguf_folder(path: Path) -> Path | None:
    """A folder in the cache with this file's network in float32 and its tokenizer; None if it cannot be kept there.

    A folder that is damaged, or was converted by other versions of the packages, is replaced.
    """
    from safetensors import SafetensorError

    with one_line(f"cannot read {path} as GGUF"):
        read_settings(path)  # refuses a truncated file before it is hashed
    digest = _sha256(path)
    folder = cache_folder() / "gguf" / digest
    facts = {"format": FORMAT, "sha256": digest} | {name: version(name) for name in _CONVERTERS}
    if _is_intact(folder, facts):
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{digest[:8]}-", dir=folder.parent) as work:
            new = Path(work) / "model"
            new.mkdir()
            if not _convert(path, new):
                return None
            files = {file.name: _sha256(file) for file in sorted(new.iterdir())}
            (new / ABOUT).write_text(json.dumps(facts | {"files": files}, indent=1) + "\n", encoding="utf-8")
            _put(new, folder, Path(work) / "old")
    except (OSError, SafetensorError):  # read-only or full: the model can still be read without a cache
        return None
    return folder if _is_intact(folder, facts) else None


def _put(new: Path, folder: Path, aside: Path) -> None:
    """By renaming, so that the folder is complete or absent; another process may do the same at any moment."""
    with suppress(FileNotFoundError):
        os.rename(folder, aside)
    try:
        os.rename(new, folder)
    except OSError:
        if not folder.is_dir():
            raise
    shutil.rmtree(aside, ignore_errors=True)


def _is_intact(folder: Path, facts: dict[str, Any]) -> bool:
    """Whether the folder has these facts, and every file is as it was written."""
    try:
        stored = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
        files = stored.pop("files")
        return bool(stored == facts and files) and all(_sha256(folder / name) == files[name] for name in files)
    except (OSError, ValueError, KeyError, AttributeError, TypeError, RecursionError):
        return False


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


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
    stored = read_weights(path)
    _check_blocks(path, stored)
    # The reader shows a progress bar that no setting of transformers turns off.
    with redirect_stderr(io.StringIO()), torch.random.fork_rng(devices=[]):
        config = transformers.AutoConfig.from_pretrained(
            str(path.parent), gguf_file=path.name, trust_remote_code=False, local_files_only=True
        )
        check_size(config, CAUSAL, sum(stored.values()), len(stored), f"in {path}")
        network = getattr(transformers, CAUSAL).from_config(config, dtype=dtype)
        weights = read(str(path), return_tensors=True, model_to_load=network, torch_dtype=dtype)["tensors"]
    network.config.architectures = [type(network).__name__]  # as it will be when read from the cache
    missing = set(network.load_state_dict(weights, strict=False).missing_keys) - set(network.all_tied_weights_keys)
    if missing:
        raise AbbeError(f"{path} lacks weights of its own architecture, such as {min(missing)}")
    network.tie_weights()
    loaded: nn.Module = network
    return loaded


def _check_blocks(path: Path, stored: Mapping[str, int]) -> None:
    """Refuse a file with fewer layers in its settings than among its weights, which the reader would leave out."""
    settings = read_settings(path)
    described = settings.get(f"{settings.get('general.architecture')}.block_count")
    numbers = [name.split(".")[1] for name in stored if name.startswith("blk.")]
    counted = max((int(number) for number in numbers if number.isdecimal()), default=-1) + 1
    if isinstance(described, int) and (described < counted or described > len(stored)):
        raise AbbeError(
            f"{path} is damaged: its settings describe {described:,} layers, its weights are of {counted:,}"
        )


def gguf_tokenizer(path: Path, settings: Mapping[str, Any]) -> Any:
    """The tokenizer of the file, with a begin token if the file asks for one."""
    from transformers import AutoTokenizer

    check_tokenizer(path.parent, None)  # transformers reads the settings beside the file
    with redirect_stderr(io.StringIO()):
        tokenizer = AutoTokenizer.from_pretrained(
            str(path.parent), gguf_file=path.name, trust_remote_code=False, local_files_only=True
        )
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
