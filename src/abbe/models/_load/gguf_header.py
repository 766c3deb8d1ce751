"""The header of a GGUF file: its plain settings, and the proof that nothing is cut off behind it.

What is special: lists, such as a vocabulary of 262,144 words, are skipped. A file that an interrupted download left is
refused here, before a reader fails on it with a message that does not say so.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import Any

from ..._errors import AbbeError

_MAGIC, _VERSIONS = b"GGUF", (2, 3)
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")
# By the format's number of a type: uint8 .. int32, float32, bool, and, after text and list, the types of 64 bits.
_NUMBERS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_SCALARS = {kind: struct.Struct(form) for kind, form in _NUMBERS.items()}
_TEXT, _LIST = 8, 9
_ALIGNMENT = 32  # of the weights, by default


class _CutOffError(Exception):
    """The file ends before what it announces."""


def read_settings(path: Path) -> dict[str, Any]:
    """The numbers and texts among the settings of a GGUF file; AbbeError if the file is truncated.

    Anything but a GGUF file of a known version has no settings here: its reader says what is wrong.
    """
    return _read(path)[0]


def read_weights(path: Path) -> dict[str, int]:
    """The weights of a GGUF file: how many numbers each has once unpacked."""
    return _read(path)[1]


def _read(path: Path) -> tuple[dict[str, Any], dict[str, int]]:
    size, part = path.stat().st_size, "header"
    with path.open("rb") as file:
        if not _MAGIC.startswith(file.read(len(_MAGIC))):
            return {}, {}
        if size < len(_MAGIC) + _U32.size:
            raise _truncated(path, f"it has {size} bytes")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            cursor = _Cursor(data, len(_MAGIC))
            if cursor.number(_U32) not in _VERSIONS:
                return {}, {}
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
    return settings, {name: numbers for name, numbers, _ in weights}


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
