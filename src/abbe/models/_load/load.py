"""Load a transformer by name: the embedded one, a pulled one, a folder, a GGUF file or a hub id."""

from __future__ import annotations

import difflib
import hashlib
import json
import os
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..._errors import AbbeError
from .._pull.cache import PULLABLE, facts, model_folder
from . import embedded as _embedded
from .gguf import CAUSAL, gguf_folder, read_gguf
from .hub import hub_folder, looks_like_hub_id
from .kind import Kind, choose, longest_input
from .quiet import one_line, quiet

EMBEDDED = "embedded"
NAMES = (EMBEDDED, *PULLABLE)
_NOT_SETTINGS = ("_name_or_path", "transformers_version", "dtype", "torch_dtype", "_attn_implementation")


@dataclass(frozen=True)
class LoadedModel:
    """A network in evaluation mode with its tokenizer, and what is known about it.

    It can be called, and asked to `generate`, as the network itself.
    """

    name: str
    network: nn.Module = field(repr=False)
    tokenizer: Any = field(repr=False)
    kind: Kind
    context: int | None
    about: str
    source: str

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The network's forward pass."""
        return self.network(*args, **kwargs)

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        """The network's `generate`, such as `model.generate(**inputs, max_new_tokens=20)`: token ids."""
        network: Any = self.network
        if not network.can_generate():
            raise AbbeError(f"{self.name} cannot generate: {type(network).__name__} does not predict the next token")
        return network.generate(*args, **kwargs)

    @cached_property
    def fingerprint(self) -> str:
        """sha256 over names, shapes and bytes of all parameters, sorted by name; computed on first use."""
        digest = hashlib.sha256()
        for name, parameter in sorted(self.network.named_parameters()):
            digest.update(f"{name} {tuple(parameter.shape)}\n".encode())
            data = parameter.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
            digest.update(data.numpy().data)
        return digest.hexdigest()

    @cached_property
    def configuration(self) -> str:
        """sha256 over what else decides the numbers: settings, buffers and tokenizer."""
        network: Any = self.network
        settings = {key: value for key, value in network.config.to_dict().items() if key not in _NOT_SETTINGS}
        digest = hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode())
        for name, buffer in sorted(network.named_buffers()):
            digest.update(f"{name} {tuple(buffer.shape)}\n".encode())
            digest.update(buffer.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        digest.update((backend.to_str() if backend is not None else type(self.tokenizer).__name__).encode())
        return digest.hexdigest()


def load(
    name: str | os.PathLike[str], *, revision: str | None = None, dtype: torch.dtype = torch.float32
) -> LoadedModel:
    """The model of that name, on the CPU, ready to be measured.

    `name` is `embedded`, a pulled model (`smollm2`, `minilm`), a folder with safetensors, a `.gguf` file,
    or a hub id, whose `revision` may be given. Only a hub id may touch the network. Pickles and foreign code never run.
    """
    given = os.fspath(name)
    if not dtype.is_floating_point:
        raise AbbeError(f"dtype is {dtype}, but weights need a floating-point one, such as torch.float32")
    path = Path(given).expanduser()
    from_hub = given not in (*NAMES, _embedded.NAME) and not path.exists()
    if revision is not None and not from_hub:
        raise AbbeError(f"revision={revision!r} is for hub ids only, and {given!r} is none")
    with quiet():
        if given in (EMBEDDED, _embedded.NAME):
            return _embedded_model(dtype)
        if given in PULLABLE:
            return _from_folder(given, model_folder(given), dtype, about=str(facts(given)["what"]))
        if path.suffix == ".gguf":
            return _from_gguf(given, path, dtype)
        if path.exists():
            return _from_folder(given, path, dtype)
        _refuse_unless_hub_id(given)
        return _from_folder(given, hub_folder(given, revision), dtype, source=f"{given}@{revision or 'main'}")


def _embedded_model(dtype: torch.dtype) -> LoadedModel:
    folder = _embedded.embedded_folder()
    return _from_folder(_embedded.NAME, folder, dtype, source=EMBEDDED, about=_embedded.about())


def _from_gguf(name: str, path: Path, dtype: torch.dtype) -> LoadedModel:
    if not path.is_file():
        raise AbbeError(f"there is no file {path}")
    folder = gguf_folder(path)
    if folder is None:
        network, tokenizer = read_gguf(path, dtype)
    else:
        network, tokenizer = _read_network(folder, CAUSAL, dtype), _read_tokenizer(folder)
    return _loaded(name, network, tokenizer, "decoder", source=str(path), about=_shape_line(network) + ", from GGUF")


def _from_folder(
    name: str, folder: Path, dtype: torch.dtype, *, source: str | None = None, about: str | None = None
) -> LoadedModel:
    _check_folder(folder)
    from transformers import AutoConfig

    with one_line(f"cannot read the model in {folder}"):
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    choice = choose(config, folder)
    tokenizer = _read_tokenizer(folder)
    network = _read_network(folder, choice.auto, dtype)
    return _loaded(name, network, tokenizer, choice.kind, source=source or str(folder), about=about)


def _check_folder(folder: Path) -> None:
    """Settings and safetensors must be there; files that would have to be unpickled do not count."""
    if not folder.is_dir():
        raise AbbeError(f"{folder} is a file: give the folder that it lies in, or a .gguf file")
    if not (folder / "config.json").is_file():
        raise AbbeError(f"{folder} has no config.json: it is no model in the Hugging Face layout")
    if any(folder.glob("*.safetensors")):
        return
    pickles = sorted(path.name for ending in ("bin", "pt", "pth", "ckpt") for path in folder.glob(f"*.{ending}"))
    if pickles:
        raise AbbeError(f"{folder} has only {pickles[0]}, a pickle, which can run code: abbe loads safetensors only")
    raise AbbeError(f"{folder} has no weights (*.safetensors)")


def _read_network(folder: Path, auto: str, dtype: torch.dtype) -> nn.Module:
    """The weights of the folder; transformers would draw missing ones at random, here they are an error."""
    import transformers

    # A pooler that the file lacks is drawn, but no attention depends on it: fork, so that it is always the same one.
    with one_line(f"cannot read the model in {folder}"), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network, report = getattr(transformers, auto).from_pretrained(
            folder, dtype=dtype, use_safetensors=True, trust_remote_code=False, output_loading_info=True
        )
    missing = sorted(key for key in report["missing_keys"] if "pooler" not in key)
    if missing:
        raise AbbeError(f"the weights in {folder} are incomplete: {len(missing)} are missing, such as {missing[0]}")
    loaded: nn.Module = network
    return loaded


def _read_tokenizer(folder: Path) -> Any:
    from transformers import AutoTokenizer

    with one_line(f"cannot read the tokenizer in {folder}"):
        return AutoTokenizer.from_pretrained(folder, trust_remote_code=False)


def _loaded(
    name: str, network: nn.Module, tokenizer: Any, kind: Kind, *, source: str, about: str | None
) -> LoadedModel:
    network.eval().requires_grad_(False)
    context = longest_input(network.config, network)
    return LoadedModel(name, network, tokenizer, kind, context, about or _shape_line(network), source)


def _shape_line(network: nn.Module) -> str:
    config: Any = network.config
    text = config.get_text_config()
    million = sum(parameter.numel() for parameter in network.parameters()) / 1e6
    shape = f"{text.num_hidden_layers} layers x {text.num_attention_heads} heads, width {text.hidden_size}"
    return f"{type(network).__name__}, {shape}, {million:.3g} M parameters"


def _refuse_unless_hub_id(name: str) -> None:
    """A typing error in a known name must not become a question to the hub."""
    close = difflib.get_close_matches(name.lower(), NAMES, n=1, cutoff=0.75)
    if close and "/" not in name:
        raise AbbeError(f"unknown model {name!r}. Did you mean {close[0]!r}?")
    if not looks_like_hub_id(name):
        raise AbbeError(f"there is no folder {name!r}, and it is no hub id; abbe knows {', '.join(NAMES)}")
