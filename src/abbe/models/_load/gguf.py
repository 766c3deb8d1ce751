"""The header of a GGUF file: its plain settings, and the proof that nothing is cut off behind it.

What is special: lists, such as a vocabulary of 262,144 words, are skipped, which takes 0.1 s where the reader of the
package gguf takes 13 s. A file that an interrupted download left is refused here, before a reader fails on it with a
message that does not say so.
"""

from __future__ import annotations

import io
import json
import mmap
import os
import shutil
import struct
import tempfile
from collections.abc import Mapping
from contextlib import redirect_stderr, suppress
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ..._errors import AbbeError, one_line
from ..._files import file_sha256
from .folder import check_size, read_tokenizer
from .sources import ABOUT, cache_folder

_MAGIC, _VERSIONS = b"GGUF", (2, 3)
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")
# By the format's number of a type: uint8 .. int32, float32, bool, and, after text and list, the types of 64 bits.
_NUMBERS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_SCALARS = {kind: struct.Struct(form) for kind, form in _NUMBERS.items()}
_TEXT, _LIST = 8, 9
_ALIGNMENT = 32  # of the weights, by default


class _CutOffError(Exception):
    """The file ends before what it announces."""


class Header(NamedTuple):
    """The numbers and texts among the settings of a GGUF file, and how many numbers each weight has once unpacked."""

    settings: dict[str, Any]
    weights: dict[str, int]


def read_header(path: Path) -> Header:
    """The header of a file; AbbeError if the file is truncated.

    Anything but a GGUF file of a known version has an empty one here: its reader says what is wrong.
    """
    size, part = path.stat().st_size, "header"
    with path.open("rb") as file:
        if not _MAGIC.startswith(file.read(len(_MAGIC))):
            return Header({}, {})
        if size < len(_MAGIC) + _U32.size:
            raise _truncated(path, f"it has {size} bytes")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            cursor = _Cursor(data, len(_MAGIC))
            if cursor.number(_U32) not in _VERSIONS:
                return Header({}, {})
            try:
                tensors, count = cursor.number(_U64), cursor.number(_U64)
                part = "settings"
                settings = dict(cursor.setting() for _ in range(count))
                part = "list of weights"
                weights = [cursor.weight() for _ in range(tensors)]
            except _CutOffError:
                raise _truncated(path, f"it ends after {size:,} bytes, within its {part}") from None
    alignment = int(settings.get("general.alignment") or _ALIGNMENT)
    needed = -(-cursor.at // alignment) * alignment + max((end for *_, end in weights), default=0)
    if weights and needed > size:
        raise _truncated(path, f"its weights end at byte {needed:,}, but it has {size:,} bytes")
    return Header(settings, {name: numbers for name, numbers, _ in weights})


def _truncated(path: Path, how: str) -> AbbeError:
    return AbbeError(f"{path} is truncated: {how}; fetch the file again")


class _Cursor:
    """A position in the file that advances with each read, never beyond the end."""

    def __init__(self, data: mmap.mmap, at: int) -> None:
        self.data, self.at = data, at

    def setting(self) -> tuple[str, Any]:
        name = self.text()
        return name.decode(errors="replace"), self.value(self.number(_U32))

    def weight(self) -> tuple[str, int, int]:
        """Name of a weight, how many numbers it has, and where it ends, counted from the start of the first one."""
        from gguf.constants import GGML_QUANT_SIZES

        name, elements = self.text().decode(errors="replace"), 1
        for _ in range(self.number(_U32)):
            elements *= self.number(_U64)
        kind, start = self.number(_U32), self.number(_U64)
        block, size = GGML_QUANT_SIZES.get(kind, (1, 0))  # the reader refuses an unknown kind
        return name, elements, int(start + elements // block * size)

    def value(self, kind: int) -> Any:
        """A number or text; None for a list, which is skipped."""
        if kind == _TEXT:
            return self.text().decode(errors="replace")
        if kind != _LIST:
            return self.number(_SCALARS[kind])
        kind, count = self.number(_U32), self.number(_U64)
        if kind in _SCALARS:
            self.skip(count * _SCALARS[kind].size)
        else:
            for _ in range(count):
                self.text() if kind == _TEXT else self.value(kind)
        return None

    def text(self) -> bytes:
        length = self.number(_U64)
        self.skip(length)
        return self.data[self.at - length : self.at]

    def number(self, form: struct.Struct) -> Any:
        self.skip(form.size)
        return form.unpack_from(self.data, self.at - form.size)[0]

    def skip(self, length: int) -> None:
        if self.at + length > len(self.data):
            raise _CutOffError
        self.at += length


CAUSAL = "AutoModelForCausalLM"
FORMAT = 1  # raised whenever abbe converts the same file differently
_CONVERTERS = ("transformers", "gguf")


def gguf_folder(path: Path) -> Path | None:
    """A folder in the cache with this file's network in float32 and its tokenizer; None if it cannot be kept there.

    A folder that is damaged, or was converted by other versions of the packages, is replaced.
    """
    from safetensors import SafetensorError

    digest = file_sha256(path)
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
            files = {file.name: file_sha256(file) for file in sorted(new.iterdir())}
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
        return bool(stored == facts and files) and all(file_sha256(folder / name) == files[name] for name in files)
    except (OSError, ValueError, KeyError, AttributeError, TypeError, RecursionError):
        return False


def _convert(path: Path, folder: Path) -> bool:
    """Write the model as transformers does; False if its tokenizer does not survive the round trip."""
    network, tokenizer = read_gguf(path, torch.float32)
    network.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    again = read_tokenizer(folder)
    return bool(again.backend_tokenizer.to_str() == tokenizer.backend_tokenizer.to_str())


def read_gguf(path: Path, dtype: torch.dtype) -> tuple[Any, Any]:
    """The causal language model of a GGUF file with all its weights, and its tokenizer."""
    with one_line(f"cannot read {path} as GGUF"):
        header = read_header(path)
        return _network(path, header, dtype), _tokenizer(path, header.settings)


def _network(path: Path, header: Header, dtype: torch.dtype) -> Any:
    """Build the model from the file's settings, then fill every weight; a missing weight is an error."""
    transformers = import_module("transformers")
    read = import_module("transformers.modeling_gguf_pytorch_utils").load_gguf_checkpoint
    _check_blocks(path, header)
    # The reader shows a progress bar that no setting of transformers turns off.
    with redirect_stderr(io.StringIO()), torch.random.fork_rng(devices=[]):
        config = transformers.AutoConfig.from_pretrained(
            str(path.parent), gguf_file=path.name, trust_remote_code=False, local_files_only=True
        )
        check_size(config, CAUSAL, sum(header.weights.values()), len(header.weights), f"in {path}")
        network = getattr(transformers, CAUSAL).from_config(config, dtype=dtype)
        weights = read(str(path), return_tensors=True, model_to_load=network, torch_dtype=dtype)["tensors"]
    network.config.architectures = [type(network).__name__]  # as it will be when read from the cache
    missing = set(network.load_state_dict(weights, strict=False).missing_keys) - set(network.all_tied_weights_keys)
    if missing:
        raise AbbeError(f"{path} lacks weights of its own architecture, such as {min(missing)}")
    network.tie_weights()
    return network


def _check_blocks(path: Path, header: Header) -> None:
    """Refuse a file with fewer layers in its settings than among its weights, which the reader would leave out."""
    settings, stored = header
    described = settings.get(f"{settings.get('general.architecture')}.block_count")
    numbers = [name.split(".")[1] for name in stored if name.startswith("blk.")]
    counted = max((int(number) for number in numbers if number.isdecimal()), default=-1) + 1
    if isinstance(described, int) and (described < counted or described > len(stored)):
        raise AbbeError(
            f"{path} is damaged: its settings describe {described:,} layers, its weights are of {counted:,}"
        )


def _tokenizer(path: Path, settings: Mapping[str, Any]) -> Any:
    """The tokenizer of the file, with a begin token if the file asks for one."""
    from tokenizers.processors import TemplateProcessing

    with redirect_stderr(io.StringIO()):
        tokenizer = read_tokenizer(path.parent, gguf_file=path.name)  # settings beside the file are read, too
    # As llama.cpp reads it: the file's setting, else yes for sentencepiece vocabularies only.
    setting = settings.get("tokenizer.ggml.add_bos_token")
    wanted = bool(setting) if setting is not None else settings.get("tokenizer.ggml.model") == "llama"
    begin, number = tokenizer.bos_token, tokenizer.bos_token_id
    if wanted and begin is not None and tokenizer("a").input_ids[:1] != [number]:
        # transformers loses this rule when it converts a GGUF vocabulary.
        tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
            single=f"{begin} $A", pair=f"{begin} $A {begin} $B", special_tokens=[(begin, number)]
        )
    return tokenizer
