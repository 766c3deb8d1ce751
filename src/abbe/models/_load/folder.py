"""A model folder, checked before transformers reads it: it may come from anywhere.

What is special: it may name only safetensors inside itself. What names code, a repository or another file is ignored
or refused, and so is a config.json that describes far more than the files hold: from_pretrained would follow both.
"""

from __future__ import annotations

import copy
import importlib.util
import json
import math
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from ..._arguments import shown
from ..._errors import AbbeError, one_line
from .._session.modules import CARRIED_FILE

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"  # in the order in which transformers looks
ADAPTER = "adapter_config.json"
# transformers fetches code for any other attention that config.json names, also for flash_attention_2; and it patches
# its classes by fusion_config.
_CHOICES = ("attn_implementation", "experts_implementation", "fusion_config")
_BUILT_IN = ("eager", "sdpa", "flex_attention", "grouped_mm", "batched_mm")
_LISTED = ("num_labels", "attention_types")  # as for layers, transformers makes lists of this length
_MOST = 10**6  # of their entries: some classifiers have so many labels
# With the package kernels, transformers may fetch code for every other method, and for these architectures.
_WITHOUT_KERNELS = ("bitsandbytes", "hqq", "quanto", "torchao")
_WITH_KERNELS = ("mra", "rwkv", "yoso")
# The network may be larger than the files by what transformers fills itself, such as a pooler or sinusoidal positions.
_SPARE, _SPARE_TABLES, _SPARE_PARTS = 1 << 24, 1 << 27, 4000

Header = dict[str, tuple[str, int]]  # dtype and number of numbers, by weight


def check_folder(folder: Path) -> None:
    """It must be a model in the Hugging Face layout, not an adapter or a part of one."""
    if not folder.is_dir():
        raise AbbeError(f"{folder} is a file: give the folder that it lies in, or a .gguf file")
    if (folder / ADAPTER).is_file():
        settings = read_settings(folder, ADAPTER)
        base = shown(settings.get("base_model_name_or_path"))
        if (folder / "config.json").is_file():
            raise AbbeError(
                f"{folder} holds a model and a PEFT adapter of {base}: move {ADAPTER} away to load the model without "
                "it, or save the result of merge_and_unload()"
            )
        then = f", then abbe.swap(model, 'file:{folder / CARRIED_FILE}')," if "abbe" in settings else ""
        raise AbbeError(
            f"{folder} is a PEFT adapter of {base}, not a model: give abbe PeftModel.from_pretrained(base, folder)"
            f"{then} instead of a name, or the folder to which you save its merge_and_unload()"
        )
    if part := next(folder.glob("shard-*-model-*.safetensors"), None):  # transformers prefers them to all others
        raise AbbeError(f"{part} is a part of a distributed checkpoint: consolidate it, and give that folder")


def read_settings(folder: Path, name: str = "config.json") -> dict[str, Any]:
    with one_line(f"cannot read the model in {folder}: {name}"):
        settings = json.loads((folder / name).read_text(encoding="utf-8"))
    if not isinstance(settings, dict):
        raise AbbeError(f"cannot read the model in {folder}: {name} is not a JSON object")
    return settings


def read_config(folder: Path) -> Any:
    """The configuration in a folder, by transformers, without what could fetch code or read other files."""
    from transformers import AutoConfig  # slow to import

    if not (folder / "config.json").is_file():
        raise AbbeError(f"{folder} has no config.json: it is not a model in the Hugging Face layout")
    settings = read_settings(folder)
    _check_settings(folder, settings)
    # A copy, because transformers has no way to leave out a key of the file.
    with one_line(f"cannot read the model in {folder}"), tempfile.TemporaryDirectory(prefix="abbe-config-") as work:
        Path(work, "config.json").write_text(json.dumps(_harmless(settings)), encoding="utf-8")
        config = AutoConfig.from_pretrained(work, trust_remote_code=False, local_files_only=True)
    config.name_or_path = str(folder)
    if ("model_type", "timm_backbone") in _entries(config.to_dict()):
        raise AbbeError(f"{folder}/config.json names a timm_backbone, which transformers would fetch: abbe reads text")
    return config


def _check_settings(folder: Path, settings: dict[str, Any]) -> None:
    from huggingface_hub import constants  # slow to import

    may_fetch = importlib.util.find_spec("kernels") is not None and not constants.HF_HUB_OFFLINE
    if not isinstance(settings.get("model_type"), str):
        raise AbbeError(f"cannot read the model in {folder}: config.json has no model_type")
    for key, value in _entries(settings):
        if key == "configuration_files":
            raise AbbeError(
                f"{folder}/config.json names other files (configuration_files): abbe reads config.json only"
            )
        if ("layer" in key or key in _LISTED) and isinstance(value, int) and value > _MOST:
            raise AbbeError(f"{folder}/config.json is damaged: {key} is {shown(value)}")
        asks = {"quant_method": value not in _WITHOUT_KERNELS, "model_type": value in _WITH_KERNELS}
        if may_fetch and asks.get(key):
            raise AbbeError(
                f"{folder}/config.json asks for {shown(value)} ({key}), for which transformers may fetch code from the "
                "hub with the package kernels: set HF_HUB_OFFLINE=1, or uninstall kernels"
            )


def _entries(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Every key with a plain value, at any depth; entries of a list have the key of the list."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _entries(inner, str(name))
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _entries(inner, key)
    else:
        yield key, value


def _harmless(value: Any) -> Any:
    """The settings without the attention and experts of others, at any depth."""
    if isinstance(value, list):
        return [_harmless(one) for one in value]
    if not isinstance(value, dict):
        return value
    return {
        key: _harmless(one)
        for key, one in value.items()
        if key != "transformers_weights" and (key.lstrip("_") not in _CHOICES or _is_built_in(one))
    }


def _is_built_in(choice: Any) -> bool:
    if isinstance(choice, dict):  # by part of the model
        return all(_is_built_in(one) for one in choice.values())
    return isinstance(choice, str) and (choice in _BUILT_IN or choice.startswith("abbe:"))


def read_tokenizer(folder: Path, config: Any = None, **options: Any) -> Any:
    """The tokenizer in a folder, by transformers, once its settings are checked."""
    from transformers import AutoTokenizer  # slow to import

    _check_tokenizer(folder, config)
    with one_line(f"cannot read the tokenizer in {folder / options.get('gguf_file', '')}"):
        options |= {} if config is None else {"config": config}
        return AutoTokenizer.from_pretrained(folder, **options, trust_remote_code=False, local_files_only=True)


def _check_tokenizer(folder: Path, config: Any) -> None:
    """Refuse tokenizer settings that load something other than a tokenizer, or read files elsewhere."""
    import transformers  # slow to import

    name = "tokenizer_config.json"
    settings = read_settings(folder, name) if (folder / name).is_file() else {}
    for kind in (settings.get("tokenizer_class"), getattr(config, "tokenizer_class", None)):
        named: Any = getattr(transformers, kind, None) if isinstance(kind, str) else None
        if named is not None and not _is_tokenizer(named):
            raise AbbeError(f"{folder} names the tokenizer_class {kind}, which is not a tokenizer")
    if settings.get("init_inputs"):
        raise AbbeError(f"{folder}/{name} has init_inputs, which abbe does not pass on: remove the entry")
    for key, value in _entries(settings):
        outside = key.endswith(("_file", "_files")) and key not in ("tokenizer_file", "special_tokens_map_file")
        if outside and isinstance(value, str) and not _is_ours(folder, value):
            raise AbbeError(f"{folder}/{name} names a file elsewhere: {key} is {shown(value)}")


def _is_tokenizer(named: Any) -> bool:
    from transformers import PreTrainedTokenizerBase  # slow to import
    from transformers.utils.import_utils import DummyObject

    # A class whose package is not installed is a dummy, which says so.
    return isinstance(named, DummyObject) or (isinstance(named, type) and issubclass(named, PreTrainedTokenizerBase))


def _is_ours(folder: Path, name: str) -> bool:
    """Whether a name means a file of this folder, or none: the paths of the machine that wrote it mean nothing here."""
    if Path(name).name == name:
        return True
    return not any(path.is_file() for path in (Path(name), folder / name))


def weight_headers(folder: Path) -> Header:
    """Names, dtypes and sizes of the weights that transformers will read, from safetensors inside the folder."""
    from safetensors import safe_open  # of the extra `models`

    merged: Header = {}
    for file in _weight_files(folder):
        failure = f"cannot read the model in {folder}: {file.name} is not a safetensors file"
        with one_line(failure), safe_open(file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118
                part = opened.get_slice(name)
                merged[name] = part.get_dtype(), math.prod(part.get_shape())
    return merged


def _weight_files(folder: Path) -> list[Path]:
    first = next((name for name in (SINGLE, INDEX) if (folder / name).is_file()), None)
    if first is None:
        pickles = sorted(path.name for ending in ("bin", "pt", "pth", "ckpt") for path in folder.glob(f"*.{ending}"))
        if pickles:
            raise AbbeError(
                f"{folder} has only {pickles[0]}, a pickle, which can run code: abbe loads safetensors only"
            )
        raise AbbeError(f"{folder} has no weights (*.safetensors): neither {SINGLE} nor {INDEX}")
    for key, value in _entries(read_settings(folder)):
        if key == "transformers_weights" and value not in (None, first):
            raise AbbeError(
                f"{folder}/config.json names the weights {shown(value)} (transformers_weights): abbe reads {first}"
            )
    if first == SINGLE:
        return [_inside(folder, SINGLE)]
    listed = read_settings(folder, INDEX).get("weight_map")
    names = {str(name) for name in listed.values()} if isinstance(listed, dict) else set()
    if not names:
        raise AbbeError(f"cannot read the model in {folder}: {INDEX} lists no files")
    return [_inside(folder, name) for name in sorted(names)]


def _inside(folder: Path, name: str) -> Path:
    """A file of the folder; a link may only lead to where the hub's cache keeps its files."""
    if not name.endswith(".safetensors") or Path(name).name != name or "\\" in name:
        raise AbbeError(f"{folder}/{INDEX} names {shown(name)}: only *.safetensors inside the folder are read")
    if not (folder / name).is_file():
        raise AbbeError(f"the weights in {folder} are incomplete: {INDEX} names {name}, which is not there")
    home, file = folder.resolve(), (folder / name).resolve()
    allowed = [home, *([home.parents[1] / "blobs"] if home.parent.name == "snapshots" else [])]
    if not any(one in file.parents for one in allowed):
        raise AbbeError(
            f"{folder}/{name} is a link out of the folder, to {file}: give the folder of that file, or copy it"
        )
    return folder / name


def check_size(config: Any, auto: str, held: int, parts: int, where: str) -> None:
    """Refuse a configuration of a network larger than the files, which hold these numbers of weights and parts.

    The network is built without memory, and not to the end if it has far more parts.
    """
    import transformers  # slow to import

    with (
        one_line(f"cannot read the model {where}"),
        torch.random.fork_rng(devices=[]),
        _at_most(4 * parts + _SPARE_PARTS, where),
        torch.device("meta"),
    ):
        network: nn.Module = getattr(transformers, auto).from_config(
            copy.deepcopy(config), dtype=torch.float32, trust_remote_code=False
        )
    described = sum(one.numel() for one in network.parameters())
    if described > 2 * held + _SPARE:
        raise AbbeError(
            f"the model {where} is damaged: its settings describe {described:,} parameters, its weights are {held:,}"
        )
    tables = sum(one.numel() for one in network.buffers())
    if tables > 2 * held + _SPARE_TABLES:
        raise AbbeError(f"the model {where} is damaged: its settings ask for tables of {tables:,} numbers")


@contextmanager
def _at_most(count: int, where: str) -> Iterator[None]:
    """Inside, this thread may register at most `count` parameters."""
    thread, left = threading.get_ident(), [count]

    def registered(*args: object) -> None:
        if threading.get_ident() == thread:
            left[0] -= 1
            if left[0] < 0:
                raise AbbeError(f"the model {where} is damaged: its settings describe far more weights than it has")

    handle = register_module_parameter_registration_hook(registered)
    try:
        yield
    finally:
        handle.remove()


_FLOATS = ("F64", "F32", "F16", "BF16")  # read in the requested dtype; all others stay as they are
_BITS = {"F64": 64, "I64": 64, "U64": 64, "F32": 32, "I32": 32, "U32": 32, "F16": 16, "BF16": 16, "I16": 16, "U16": 16}


def numbers_of(header: Header, quantised: bool) -> int:
    """How many weights the files can hold: one per number, of packed ones up to one per bit."""
    return sum(count * (_BITS.get(dtype, 8) if quantised else 1) for dtype, count in header.values())


def weight_bytes(header: Header, dtype: torch.dtype) -> float:
    """Size of the weights with these headers, read in this dtype."""
    bits = {stored: 8 * dtype.itemsize if stored in _FLOATS else _BITS.get(stored, 8) for stored, _ in header.values()}
    return sum(count * bits[stored] for stored, count in header.values()) / 8
