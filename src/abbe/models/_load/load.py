"""Load a transformer by name (embedded, pulled, a folder, a GGUF file, a hub id), or wrap one in memory."""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..._errors import AbbeError
from .._cache import PULLABLE, pulled_facts, pulled_folder
from .._session.call import causal_flag
from .._unwrap import instead_of, unwrapped
from .device import (
    DeviceLike,
    DeviceMap,
    DtypeLike,
    Placement,
    devices_of,
    dtypes_of,
    input_device,
    placement,
    quantised_by,
    stored_bytes,
    weights_in_memory,
)
from .folder import check_folder, check_size, check_tokenizer, numbers_of, read_config, weight_headers
from .gguf import CAUSAL, gguf_folder, read_gguf, read_weights
from .room import check_room, weight_bytes
from .sources import (
    NAME,
    Kind,
    choose,
    embedded_about,
    embedded_folder,
    hub_folder,
    longest_input,
    looks_like_hub_id,
    one_line,
    quiet,
    setting,
)


def wrap(network: nn.Module, tokenizer: Any, name: str | None = None) -> LoadedModel:
    """What `load` returns, for a transformers network that is in memory already; it is not changed.

    Wrappers of torch.compile or parallel training are left out.

    Args:
        network: a transformers model of text.
        tokenizer: of transformers.
        name: shown in tables; by default that of its configuration.

    Returns:
        The network with its tokenizer.

    Raises:
        AbbeError: it is not a transformers model, or reads images or sound.

    Examples:
        >>> loaded = abbe.load("embedded")
        >>> abbe.models.wrap(loaded.network, loaded.tokenizer, "mine").name
        'mine'
    """
    from transformers import PreTrainedModel

    network = unwrapped(network, alone=True)
    if not isinstance(network, PreTrainedModel):
        raise AbbeError(f"{type(network).__name__} is not a transformers model{instead_of(network)}")
    offloaded = any(hasattr(part, "_hf_hook") for part in network.modules())  # accelerate's hooks bring weights back
    if not offloaded and any(one.is_meta for one in network.parameters()):
        raise AbbeError(f"weights of this {type(network).__name__} are on the meta device: load them into memory first")
    config: Any = network.config
    label = name or getattr(config, "name_or_path", "") or type(network).__name__
    # A model of images or sound names its input.
    if (main := getattr(network, "main_input_name", "input_ids")) != "input_ids":
        raise AbbeError(
            f"{type(network).__name__} reads {main}, not tokens of a text: give a text model, or a part that is one"
        )
    layers, heads = (
        setting(config.get_text_config(), what) or "?" for what in ("num_hidden_layers", "num_attention_heads")
    )
    about = f"{type(network).__name__}, {layers} layers x {heads} heads"
    return LoadedModel(label, network, tokenizer, _kind(network, config), longest_input(config, network), about, label)


def _kind(network: nn.Module, config: Any) -> Kind:
    if config.is_encoder_decoder:
        return "encoder-decoder"
    flags = {causal_flag(module) for module in network.modules()} - {None}
    return "decoder" if True in flags or not flags else "encoder"


EMBEDDED = "embedded"
NAMES = (EMBEDDED, *PULLABLE)
# Masks and positions that older versions of transformers stored: they are computed.
_COMPUTED = re.compile(r"(attn|attention)\.bias$|masked_bias$|causal_mask$|inv_freq$|position_ids$")
_NOT_SETTINGS = ("_name_or_path", "transformers_version", "dtype", "torch_dtype", "_attn_implementation")


@dataclass(frozen=True)
class LoadedModel:
    """A network in evaluation mode with its tokenizer, and facts about it.

    It can be called, and `generate` used, as with the network itself.

    Attributes:
        name: shown in tables and manifests.
        network: the transformers model.
        tokenizer: of transformers; None for a network that was `built`.
        kind: "decoder", "encoder" or "encoder-decoder".
        context: the longest input in tokens, None without a limit.
        about: one line on its shape.
        source: where it was loaded from.
    """

    name: str
    network: nn.Module = field(repr=False)
    tokenizer: Any = field(repr=False)
    kind: Kind
    context: int | None
    about: str
    source: str

    @property
    def config(self) -> Any:
        """The network's settings, which packages read that take a transformers model, such as lm-eval."""
        return self.network.config

    @property
    def name_or_path(self) -> str:
        """Where transformers read the network from, and its tokenizer lies."""
        return str(self.network.name_or_path)

    @property
    def device(self) -> torch.device:
        """Where its inputs go: the device of the embedding."""
        return input_device(self.network)

    @property
    def devices(self) -> str:
        """All devices that it computes on, such as "cpu" or "cuda:0+cuda:1"."""
        return devices_of(self.network)

    @property
    def precision(self) -> str:
        """The dtypes of its weights, such as "float32", "bfloat16" or "float16+int8 (bitsandbytes)"."""
        return dtypes_of(self.network)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The network's forward pass."""
        return self.network(*args, **kwargs)

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        """The network's `generate`: token ids that continue a text.

        Args:
            args: as for the network's own.
            kwargs: as for the network's own, such as `max_new_tokens=20`.

        Raises:
            AbbeError: the model does not predict the next token.

        Examples:
            >>> model = abbe.load("embedded")
            >>> inputs = model.tokenizer("It was a dark and", return_tensors="pt")
            >>> new = model.generate(**inputs, max_new_tokens=5, do_sample=False)
            >>> new.shape[1] - inputs.input_ids.shape[1]
            5
        """
        network: Any = self.network
        if not network.can_generate():
            raise AbbeError(f"{self.name} cannot generate: {type(network).__name__} does not predict the next token")
        return network.generate(*args, **kwargs)

    @cached_property
    def fingerprint(self) -> str:
        """sha256 over names, shapes and bytes of all parameters, sorted by name; computed on first use."""
        digest = hashlib.sha256()
        parts = dict(self.network.named_modules())
        for name, parameter in sorted(self.network.named_parameters()):
            digest.update(f"{name} {tuple(parameter.shape)}\n".encode())
            owner, _, own_name = name.rpartition(".")
            with weights_in_memory(parts[owner]):
                for data in stored_bytes(getattr(parts[owner], own_name)):
                    digest.update(data)
        return digest.hexdigest()

    @cached_property
    def configuration(self) -> str:
        """sha256 over all else that affects the numbers: settings, buffers and tokenizer."""
        network: Any = self.network
        settings = {key: value for key, value in network.config.to_dict().items() if key not in _NOT_SETTINGS}
        digest = hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode())
        for name, buffer in sorted(network.named_buffers()):
            digest.update(f"{name} {tuple(buffer.shape)}\n".encode())
            for data in stored_bytes(buffer):
                digest.update(data)
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        digest.update((backend.to_str() if backend is not None else type(self.tokenizer).__name__).encode())
        return digest.hexdigest()


def load(
    name: str | os.PathLike[str], *, revision: str | None = None, device: DeviceLike | None = None,
    dtype: DtypeLike | None = None, device_map: DeviceMap | None = None,
) -> LoadedModel:  # fmt: skip
    """Load a model by name, ready to be measured; refused before its weights are read if they do not fit.

    Only a hub id may use the network. Pickles and remote code never run.

    Args:
        name: `embedded`, a pulled model (`smollm2`, `minilm`), a folder with safetensors, a `.gguf` file, or a hub id.
        revision: of a hub id.
        device: "cpu" (the default), "cuda", "cuda:1", "mps", "xpu", or "auto" for an accelerator if there is one.
        dtype: of the weights: "float32" (the default), "bfloat16", "float16" or "float64", or torch's own.
        device_map: instead of `device`, to spread the model over devices: "auto", or a mapping as in transformers;
            needs accelerate.

    Returns:
        The network in evaluation mode with its tokenizer.

    Raises:
        AbbeError: there is no such model, it is damaged, or it does not fit.

    Examples:
        >>> model = abbe.load("embedded", device="cpu", dtype="float32")
        >>> model.name, model.kind, model.context, model.precision
        ('abbe-gpt2-5M', 'decoder', 1024, 'float32')
    """
    name = os.fspath(name)
    placed = placement(device, dtype, device_map)
    path = Path(name).expanduser()
    if revision is not None and (name in (*NAMES, NAME) or path.exists()):
        raise AbbeError(f"revision={revision!r} is for hub ids only, and {name!r} is not one")
    with quiet():
        if name in (EMBEDDED, NAME):
            folder, about = embedded_folder(), embedded_about()
            return _from_folder(NAME, folder, placed, source=EMBEDDED, about=about)
        if name in PULLABLE:
            return _from_folder(name, pulled_folder(name), placed, about=str(pulled_facts(name)["what"]))
        if path.suffix == ".gguf":
            return _from_gguf(name, path, placed)
        if path.exists():
            return _from_folder(name, path, placed)
        _refuse_unless_hub_id(name)
        return _from_folder(name, hub_folder(name, revision), placed, source=f"{name}@{revision or 'main'}")


def _from_gguf(name: str, path: Path, placed: Placement) -> LoadedModel:
    if not path.is_file():
        raise AbbeError(f"there is no file {path}")
    with one_line(f"cannot read {path} as GGUF"):
        # It is first unpacked in memory, in float32.
        check_room(name, 4.0 * sum(read_weights(path).values()), Placement(torch.device("cpu"), torch.float32))
    folder = gguf_folder(path)
    if folder is not None:
        check_room(name, weight_bytes(weight_headers(folder), placed.dtype), placed)
        config = read_config(folder)
        network, tokenizer = _read_network(folder, config, CAUSAL, placed), _read_tokenizer(folder, config)
    elif placed.device_map is None:
        network, tokenizer = read_gguf(path, placed.dtype)
        network.to(placed.device)
    else:
        raise AbbeError(f"{path} cannot be cached, and device_map spreads only cached models: free some disk space")
    return _loaded(name, network, tokenizer, "decoder", source=str(path), about=_shape_line(network) + ", from GGUF")


def _from_folder(
    name: str, folder: Path, placed: Placement, *, source: str | None = None, about: str | None = None
) -> LoadedModel:
    check_folder(folder)
    config, header = read_config(folder), weight_headers(folder)
    choice = choose(config, folder)
    quantised = getattr(config, "quantization_config", None) is not None
    check_size(config, choice.auto, numbers_of(header, quantised), len(header), f"in {folder}")
    check_room(name, weight_bytes(header, placed.dtype), placed)
    if quantised and placed.device.type != "cpu":
        # Packed weights cannot be moved afterwards.
        placed = placement(None, placed.dtype, placed.device_map or {"": str(placed.device)})
    tokenizer = _read_tokenizer(folder, config)
    network = _read_network(folder, config, choice.auto, placed)
    return _loaded(name, network, tokenizer, choice.kind, source=source or str(folder), about=about)


def _read_network(folder: Path, config: Any, auto: str, placed: Placement) -> nn.Module:
    """The weights of the folder; transformers would initialise missing ones at random, and leave others out."""
    import transformers

    # A missing pooler is drawn at random, but no attention depends on it: fork, so that it is always the same.
    with one_line(f"cannot read the model in {folder}"), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network, report = getattr(transformers, auto).from_pretrained(
            folder, config=config, dtype=placed.dtype, device_map=placed.device_map, use_safetensors=True,
            trust_remote_code=False, local_files_only=True, output_loading_info=True,
            ignore_mismatched_sizes=True,  # they are refused here, by name
        )  # fmt: skip
    for key, stored, wanted in sorted(report["mismatched_keys"])[:1]:
        raise AbbeError(
            f"the weights in {folder} do not fit its config.json: {key} is {_times(stored)}, but should be "
            f"{_times(wanted)} ({len(report['mismatched_keys'])} such weights)"
        )
    missing = sorted(key for key in report["missing_keys"] if "pooler" not in key)
    if missing:
        raise AbbeError(f"the weights in {folder} are incomplete: {len(missing)} are missing, such as {_few(missing)}")
    unused = _unused(network, report["unexpected_keys"])
    if unused:
        raise AbbeError(
            f"the weights in {folder} do not fit its config.json: {len(unused)} have no place in the "
            f"{type(network).__name__}, such as {_few(unused)}"
        )
    loaded: nn.Module = network
    with one_line(f"cannot put the model in {folder} on {placed.device}"):
        return loaded if placed.device_map is not None or quantised_by(network) else loaded.to(placed.device)


def _unused(network: Any, unexpected: Iterable[str]) -> list[str]:
    """The weights of the body that were left out; heads of other tasks, outside of it, may be."""
    body, prefix = network.base_model, f"{network.base_model_prefix}."
    parts = {name for name, _ in (*body.named_children(), *body.named_parameters(recurse=False))}
    ours = (key for key in unexpected if key.removeprefix(prefix).partition(".")[0] in parts)
    unused = sorted(key for key in ours if not _COMPUTED.search(key))
    if not quantised_by(network):
        return unused
    # Quantised checkpoints have scales, such as those of a cache, that not every package reads.
    modules = {name for name, _ in network.named_modules()}
    return [key for key in unused if key.rpartition(".")[0] not in modules]


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:3])


def _times(shape: Iterable[int]) -> str:
    return " x ".join(map(str, shape))


def _read_tokenizer(folder: Path, config: Any) -> Any:
    from transformers import AutoTokenizer

    check_tokenizer(folder, config)
    with one_line(f"cannot read the tokenizer in {folder}"):
        return AutoTokenizer.from_pretrained(folder, config=config, trust_remote_code=False, local_files_only=True)


def _loaded(
    name: str, network: nn.Module, tokenizer: Any, kind: Kind, *, source: str, about: str | None
) -> LoadedModel:
    network.eval().requires_grad_(False)
    context = longest_input(network.config, network)
    return LoadedModel(name, network, tokenizer, kind, context, about or _shape_line(network), source)


def _shape_line(network: nn.Module) -> str:
    config: Any = network.config
    million = sum(parameter.numel() for parameter in network.parameters()) / 1e6
    text = config.get_text_config()
    sizes = (setting(text, name) or "?" for name in ("num_hidden_layers", "num_attention_heads", "hidden_size"))
    shape = "{} layers x {} heads, width {}".format(*sizes)
    return f"{type(network).__name__}, {shape}, {million:.3g} M parameters"


def _refuse_unless_hub_id(name: str) -> None:
    """A typo in a known name must not become a request to the hub."""
    close = difflib.get_close_matches(name.lower(), NAMES, n=1, cutoff=0.75)
    if close and "/" not in name:
        raise AbbeError(f"unknown model {name!r}. Did you mean {close[0]!r}?")
    if not looks_like_hub_id(name):
        raise AbbeError(f"there is no folder {name!r}, and it is not a hub id; abbe knows {', '.join(NAMES)}")
