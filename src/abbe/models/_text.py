"""Text to measure on: files, standard input, or the sample that comes with abbe."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib import resources
from pathlib import Path

from .._errors import AbbeError

PathLike = str | os.PathLike[str]


@dataclass(frozen=True)
class Text:
    """A text with a name to show."""

    name: str
    content: str = field(repr=False)

    @cached_property
    def fingerprint(self) -> str:
        """sha256 of the content in UTF-8."""
        return hashlib.sha256(self.content.encode("utf-8", "surrogatepass")).hexdigest()


def read_text(source: PathLike | Sequence[PathLike] | None = None) -> Text:
    """One file or several (joined by a newline), standard input for "-", or the embedded sample for None.

    Files are UTF-8; a byte order mark is dropped, all else is kept as it is, so that character spans fit the file.
    """
    if source is None:
        return _sample()
    sources = [source] if isinstance(source, (str, os.PathLike)) else list(source)
    if not sources:
        raise AbbeError("no text was named: give a file, '-' for standard input, or nothing for the embedded sample")
    parts = [_read(os.fspath(one)) for one in sources]
    return Text(" + ".join(part.name for part in parts), "\n".join(part.content for part in parts))


def _sample() -> Text:
    try:
        content = resources.files("abbe").joinpath("embedded", "sample.txt").read_bytes()
    except OSError as error:
        raise AbbeError("the embedded sample is missing from this installation: name a text file instead") from error
    return Text("embedded sample", _decode(content, "the embedded sample"))


def _read(source: str) -> Text:
    if source == "-":
        return Text("standard input", _decode(sys.stdin.buffer.read(), "standard input"))
    path = Path(source).expanduser()
    try:
        content = path.read_bytes()
    except FileNotFoundError as error:
        raise AbbeError(f"there is no text file {source}") from error
    except IsADirectoryError as error:
        raise AbbeError(f"{source} is a folder: name the text files in it") from error
    except OSError as error:
        raise AbbeError(f"cannot read {source}: {error.strerror}") from error
    return Text(path.name, _decode(content, source))


def _decode(content: bytes, where: str) -> str:
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        wrong = f"byte 0x{content[error.start]:02x} at position {error.start}, line {line}"
        raise AbbeError(f"{where} is not UTF-8 ({wrong}): convert it, for example with iconv") from error
    if not text.strip():
        raise AbbeError(f"{where} is empty: there is no text to measure on")
    return text
