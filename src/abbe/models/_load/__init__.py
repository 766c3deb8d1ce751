"""Load a transformer by name (embedded, pulled, a folder, a GGUF file, a hub id), or wrap one in memory."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from ..._arguments import whole
from ..._errors import AbbeError, one_line
from ..._tensors import stored_bytes
from .._network import (
    checked_network,
    dtype_name,
    input_device,
    longest_input,
    place_of,
    quantised_by,
    setting,
    unwrapped,
)
from .._own import Loss, OwnNetwork, Run, class_name
from .._plan import Plan, standing_plan
from .._session.call import causal_flag
from .._session.rule import SWAPPED, is_swapped
from .device import DeviceLike, DeviceMap, DtypeLike, Placement, check_room, placement
from .folder import check_folder, check_size, numbers_of, read_config, read_tokenizer, weight_bytes, weight_headers
from .gguf import gguf_folder, read_gguf, read_header
from .sources import NAME, NAMES, Kind, Source, choose, quiet, source


def wrap(
    network: nn.Module, tokenizer: Any = None, name: str | None = None, *, run: Run | None = None,
    loss: Loss | None = None, context: int | None = None,
) -> LoadedModel:  # fmt: skip
    """What `load` returns, for a network that is in memory already; it is not changed.

    Wrappers of torch.compile or parallel training are left out. Of a network that is not from transformers, one pass
    over four tokens shows the layers, whether they are causal, and what predicts the next token.

    Args:
        network: a transformers model of text, or any network that reads token ids and attends by
            F.scaled_dot_product_attention, nn.MultiheadAttention or abbe.attention.
        tokenizer: of transformers; without one, studies need token ids.
        name: shown in tables; by default that of its configuration.
        run: a function of the network and token ids (1, length) that makes a pass; by default `network(tokens)`. Only
            for networks that are not from transformers, as `loss` and `context`.
        loss: a function of the same that gives the loss of every token except the first, (1, length - 1), or logits
            (1, length, vocabulary); by default, if the pass gives such logits, the cross-entropy of the next token.
        context: the longest input in tokens; by default as far as the network states it.

    Returns:
        The network with its tokenizer.

    Raises:
        AbbeError: no attention is seen in it, it needs other arguments, or it reads images or sound.

    Examples:
        >>> loaded = abbe.load("embedded")
        >>> abbe.models.wrap(loaded.network, loaded.tokenizer, "mine").name
        'mine'
    """
    from transformers import PreTrainedModel

    network = unwrapped(network, alone=True)
    if not isinstance(network, PreTrainedModel):
        inner = checked_network(network, "a study")
        own = OwnNetwork(inner, run, loss, context)
        return _described(name or type(inner).__name__, own, tokenizer, own.kind, "memory")
    if run is not None or loss is not None or context is not None:
        raise AbbeError("run=, loss= and context= are for networks that are not from transformers")
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
    flags = {causal_flag(module) for module in network.modules()} - {None}
    kind: Kind = "decoder" if True in flags or not flags else "encoder"
    kind = "encoder-decoder" if config.is_encoder_decoder else kind
    return _described(label, network, tokenizer, kind, label)


# Masks and positions that older versions of transformers stored: they are computed.
_COMPUTED = re.compile(r"(attn|attention)\.bias$|masked_bias$|causal_mask$|inv_freq$|position_ids$")
_PACKED = (torch.int8, torch.uint8, torch.int32)  # quantised weights; other integers are positions of tokens
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

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The network's forward pass."""
        return self.network(*args, **kwargs)

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
        holding = (part for part in self.network.modules() if next(part.parameters(recurse=False), None) is not None)
        return "+".join(sorted({str(place) for part in holding if (place := place_of(part)) is not None})) or "cpu"

    @property
    def precision(self) -> str:
        """The dtypes of its weights, such as "float32", "bfloat16" or "float16+int8 (bitsandbytes)"."""
        packed = (one for one in self.network.buffers() if one.dim() > 1 and one.dtype in _PACKED)
        dtypes = {dtype_name(one.dtype) for one in (*self.network.parameters(), *packed)}
        method = quantised_by(self.network)
        # Some packages show their packed weights with the dtype that they unpack them to.
        return "+".join(sorted(dtypes)) + (f" ({method})" if method else "")

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
        """sha256 over names, shapes and bytes of all weights, sorted by name; computed on first use."""
        digest = hashlib.sha256()
        parts = dict(self.network.named_modules())
        for name, parameter in sorted(self.network.named_parameters()):
            if SWAPPED in name.split("."):
                continue
            digest.update(f"{name} {tuple(parameter.shape)}\n".encode())
            owner, _, own_name = name.rpartition(".")
            with _weights_in_memory(parts[owner]):
                _add_bytes(digest, getattr(parts[owner], own_name))
        return digest.hexdigest()

    @property
    def plan(self) -> Plan | None:
        """The normalizers that it computes with now, by a swap, a plan in its folder or its name; None: softmax."""
        return standing_plan(self.network)

    @property
    def swapped(self) -> bool:
        """Whether a swap is open on it, which a command that loads it anew would not see."""
        return is_swapped(self.network)

    @property
    def configuration(self) -> str:
        """sha256 over all else that affects the numbers: settings, buffers, tokenizer, and the normalizers in place."""
        standing = self.plan
        if standing is None:
            return self._configuration
        return hashlib.sha256(f"{self._configuration} {standing.fingerprint}".encode()).hexdigest()

    @cached_property
    def _configuration(self) -> str:
        network: Any = self.network
        settings = {key: value for key, value in network.config.to_dict().items() if key not in _NOT_SETTINGS}
        digest = hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode())
        for name, buffer in sorted(network.named_buffers()):
            if SWAPPED in name.split("."):
                continue
            digest.update(f"{name} {tuple(buffer.shape)}\n".encode())
            _add_bytes(digest, buffer)
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        digest.update((backend.to_str() if backend is not None else type(self.tokenizer).__name__).encode())
        return digest.hexdigest()


def _weights_in_memory(part: nn.Module) -> AbstractContextManager[object]:
    """Inside, the weights of this module that accelerate has offloaded are in memory."""
    if not any(one.is_meta for one in part.parameters(recurse=False)):
        return nullcontext()
    accelerate: Any = import_module("accelerate.utils")  # installed, since its hooks are there
    context: AbstractContextManager[object] = accelerate.align_module_device(part, "cpu")
    return context


def _add_bytes(digest: Any, tensor: Any) -> None:
    """The bytes of a tensor; of a quantised one, which holds others, the bytes of these."""
    if is_traceable_wrapper_subclass(tensor):
        for name in tensor.__tensor_flatten__()[0]:
            _add_bytes(digest, getattr(tensor, name))
    else:
        digest.update(stored_bytes(tensor))


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
        return (
            _from_gguf(name, path, placed) if path.suffix == ".gguf" else _from_folder(source(name, revision), placed)
        )


def configuration(model: str | os.PathLike[str]) -> Any:
    """The configuration of a model by name: weights are not read, nothing is fetched.

    Args:
        model: embedded, a pulled model, a folder, a config.json, or a hub id that is in the hub's cache.

    Returns:
        What transformers' AutoConfig gives.

    Raises:
        AbbeError: there is no such configuration here.

    Examples:
        >>> abbe.models.configuration("embedded").model_type
        'gpt2'
    """
    name = os.fspath(model)
    if not name.strip():
        raise AbbeError("the model has no name: give embedded, smollm2, a folder, a config.json or a hub id")
    if name.endswith(".gguf"):
        raise AbbeError(f"{name} has no config.json: give the folder of the model, or its shape")
    with quiet():
        folder = source(name, fetch=False).folder
        return read_config(folder.parent if folder.name == "config.json" else folder)


# The sizes of a shape as LlamaConfig names them.
_REQUIRED = {"layers": "num_hidden_layers", "heads": "num_attention_heads", "width": "hidden_size"}
_REQUIRED |= {"mlp": "intermediate_size", "vocabulary": "vocab_size"}
_SIZES = _REQUIRED | {"kv_heads": "num_key_value_heads", "head_width": "head_dim"}


def llama_configuration(shape: Mapping[str, Any]) -> Any:
    """The configuration of a Llama with these sizes.

    Args:
        shape: layers, heads, width, mlp, vocabulary, and if they differ kv_heads and head_width; all >= 1.

    Returns:
        A LlamaConfig.

    Raises:
        AbbeError: a size is missing, unknown, or does not divide another.

    Examples:
        >>> sizes = {"layers": 2, "heads": 4, "width": 64, "mlp": 128, "vocabulary": 100}
        >>> abbe.models.llama_configuration(sizes).head_dim
        16
    """
    from transformers import LlamaConfig

    if unknown := sorted(set(map(str, shape)) - set(_SIZES)):
        raise AbbeError(f"shape has no {unknown[0]!r}: it has {', '.join(_SIZES)}")
    if missing := [name for name in _REQUIRED if name not in shape]:
        raise AbbeError(f"shape lacks {', '.join(missing)}: give for example layers=32,heads=32,width=4096,...")
    size = {name: whole(name, value, least=1) for name, value in shape.items()}
    heads, kv_heads = size["heads"], size.get("kv_heads", size["heads"])
    if heads % kv_heads:
        raise AbbeError(f"shape has {heads} heads, which {kv_heads} kv_heads do not divide")
    if "head_width" not in size and size["width"] % heads:
        raise AbbeError(f"shape has width {size['width']}, which {heads} heads do not divide: give head_width")
    named: dict[str, Any] = {_SIZES[name]: value for name, value in size.items()}
    # Rotary positions take no memory, so any length can be estimated.
    return LlamaConfig(**named, max_position_embeddings=1 << 20, tie_word_embeddings=False)


def built(config: Any, *, name: str, hollow: bool = False) -> LoadedModel:
    """The network of a configuration with random weights and without a tokenizer.

    Args:
        config: of transformers.
        name: shown in tables.
        hollow: on the meta device: shapes, but no memory for the weights.

    Returns:
        The network.

    Examples:
        >>> sizes = {"layers": 80, "heads": 64, "kv_heads": 8, "width": 8192, "mlp": 28672, "vocabulary": 128256}
        >>> model = abbe.models.built(abbe.models.llama_configuration(sizes), name="70B", hollow=True)
        >>> round(sum(one.numel() for one in model.network.parameters()) / 1e9)
        71
    """
    import transformers

    auto, kind = choose(config, name)
    place = torch.device("meta" if hollow else "cpu")
    with quiet(), one_line(f"cannot build a network like {name}"), place, torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network: Any = getattr(transformers, auto).from_config(config)
        network.eval().requires_grad_(False)
    return LoadedModel(name, network, None, kind, longest_input(config, network), "", name)


def _from_gguf(name: str, path: Path, placed: Placement) -> LoadedModel:
    if not path.is_file():
        raise AbbeError(f"there is no file {path}")
    with one_line(f"cannot read {path} as GGUF"):
        # It is first unpacked in memory, in float32.
        unpacked = 4.0 * sum(read_header(path).weights.values())
    check_room(name, unpacked, Placement(torch.device("cpu"), torch.float32))
    if (folder := gguf_folder(path)) is not None:
        loaded = _from_folder(Source(name, folder, str(path)), placed)
    elif placed.device_map is None:
        network, tokenizer = read_gguf(path, placed.dtype)
        network.to(placed.device).eval().requires_grad_(False)
        loaded = _described(name, network, tokenizer, "decoder", str(path))
    else:
        raise AbbeError(f"{path} cannot be cached, and device_map spreads only cached models: free some disk space")
    return replace(loaded, about=f"{loaded.about}, from GGUF")


def _from_folder(found: Source, placed: Placement) -> LoadedModel:
    name, folder, origin, about = found
    check_folder(folder)
    config, header = read_config(folder), weight_headers(folder)
    auto, kind = choose(config, folder)
    quantised = getattr(config, "quantization_config", None) is not None
    check_size(config, auto, numbers_of(header, quantised), len(header), f"in {folder}")
    check_room(name, weight_bytes(header, placed.dtype), placed)
    if quantised and placed.device.type != "cpu":
        # Packed weights cannot be moved afterwards.
        placed = placement(None, placed.dtype, placed.device_map or {"": str(placed.device)})
    tokenizer = read_tokenizer(folder, config)
    network = _read_network(folder, config, auto, placed).eval().requires_grad_(False)
    return _described(name, network, tokenizer, kind, origin, about)


def _described(
    name: str, network: Any, tokenizer: Any, kind: Kind, source: str, about: str | None = None
) -> LoadedModel:
    text = network.config.get_text_config()
    names = ("num_hidden_layers", "num_attention_heads", "hidden_size")
    layers, heads, width = (setting(text, name) or "?" for name in names)
    million = sum(parameter.numel() for parameter in network.parameters()) / 1e6
    shape = f"{class_name(network)}, {layers} layers x {heads} heads, width {width}, {million:.3g} M parameters"
    context = longest_input(network.config, network)
    return LoadedModel(name, network, tokenizer, kind, context, about or shape, source)


def _read_network(folder: Path, config: Any, auto: str, placed: Placement) -> Any:
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
    if wrong := sorted(report["mismatched_keys"]):
        key, stored, wanted = wrong[0][0], *(" x ".join(map(str, shape)) for shape in wrong[0][1:])
        raise AbbeError(
            f"the weights in {folder} do not fit its config.json: {key} is {stored}, but should be {wanted} "
            f"({len(wrong)} such weights)"
        )
    if missing := sorted(key for key in report["missing_keys"] if "pooler" not in key):
        few = ", ".join(missing[:3])
        raise AbbeError(f"the weights in {folder} are incomplete: {len(missing)} are missing, such as {few}")
    if unused := _unused(network, report["unexpected_keys"]):
        raise AbbeError(
            f"the weights in {folder} do not fit its config.json: {len(unused)} have no place in the "
            f"{type(network).__name__}, such as {', '.join(unused[:3])}"
        )
    with one_line(f"cannot put the model in {folder} on {placed.device}"):
        return network if placed.device_map is not None or quantised_by(network) else network.to(placed.device)


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
