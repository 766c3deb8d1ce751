"""Text to measure on: files, standard input, the text itself, or the sample that comes with abbe."""

from __future__ import annotations

import hashlib
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Any

from .._arguments import shown
from .._errors import AbbeError

PathLike = str | os.PathLike[str]

_LONGEST = 200  # characters of a path that a message repeats
_AS_TEXT = "a string with a space or a line break, or abbe.Text(name, content), is taken as the text itself"

# One line that begins like a path or ends in a suffix such as .txt names a file, even if there is none.
_FILE_NAME = re.compile(r"(~|\.{0,2})/.*|.*\.[A-Za-z]\w{0,4}")


@dataclass(frozen=True)
class Text:
    """A text with a name: what `read_text` returns, or any text of yours.

    Every function that takes a text also takes this. The name appears in tables and manifests; only the content affects
    the measurements.

    Attributes:
        name: shown in tables and manifests.
        content: the text.

    Examples:
        >>> text = abbe.Text("my corpus", " ".join(["It was a dark and stormy night."] * 100))
        >>> text.name, text.fingerprint[:8]
        ('my corpus', '2c85d9f5')
    """

    name: str
    content: str = field(repr=False)

    def __post_init__(self) -> None:
        for what in ("name", "content"):
            if not isinstance(value := getattr(self, what), str):
                raise AbbeError(f"the {what} of a Text is {shown(value)}, but must be a string")

    @cached_property
    def fingerprint(self) -> str:
        """sha256 of the content in UTF-8."""
        return hashlib.sha256(self.content.encode("utf-8", "surrogatepass")).hexdigest()


def read_text(source: PathLike | Sequence[PathLike] | None = None) -> Text:
    """Read the text to measure on: files, standard input, the text itself, or the sample that comes with abbe.

    A string that is not the path of a file is the text itself if it has a space or a line break, unless it is one line
    that looks like a path: it begins with /, ./, ../ or ~/, or ends in a suffix such as .txt. `Text(name, content)`
    takes any string. Files are UTF-8; a byte order mark is dropped, all else is kept, so that character spans fit the
    file.

    Args:
        source: one file or several (joined by a newline), "-" for standard input, None for the embedded sample.

    Returns:
        The text with its name.

    Raises:
        AbbeError: there is no such file, it is not UTF-8, or it is empty.

    Examples:
        >>> abbe.read_text().name
        'embedded sample'
        >>> abbe.read_text("It was a dark and stormy night.").content
        'It was a dark and stormy night.'
    """
    if source is None:
        return _sample()
    parts = [_read(one) for one in _sources(source)]
    return Text(" + ".join(part.name for part in parts), "\n".join(part.content for part in parts))


def _sources(source: object) -> list[PathLike]:
    sources: list[Any] = [source]
    if isinstance(source, Iterable) and not isinstance(source, (str, bytes, os.PathLike, Mapping)):
        sources = list(source)
    if not sources:
        raise AbbeError("no text was named: give a file, '-' for standard input, or nothing for the embedded sample")
    for one in sources:
        if not isinstance(one, str | os.PathLike) or not isinstance(os.fspath(one), str):
            raise AbbeError(
                f"text is {shown(one)}, but must be a file, the text itself (a string with a space or a line break), "
                "an abbe.Text, or None for the embedded sample"
            )
    return sources


def _sample() -> Text:
    try:
        content = resources.files("abbe").joinpath("embedded", "sample.txt").read_bytes()
    except OSError as error:
        raise AbbeError("the embedded sample is missing from this installation: name a text file instead") from error
    return Text("embedded sample", _decode(content, "the embedded sample"))


def _read(source: PathLike) -> Text:
    if source == "-":
        return Text("standard input", _decode(sys.stdin.buffer.read(), "standard input"))
    if isinstance(source, str) and _is_text_itself(source):
        return Text("text", _not_empty(source, "text"))
    name = os.fspath(source)
    name = name if len(name) <= _LONGEST else f"{name[:_LONGEST]}..."
    try:
        path = Path(source).expanduser()
        content = path.read_bytes()
    except FileNotFoundError as error:
        raise AbbeError(f"there is no text file {name}; {_AS_TEXT}") from error
    except IsADirectoryError as error:
        raise AbbeError(f"{name} is a folder: name the text files in it") from error
    except OSError as error:
        raise AbbeError(f"cannot read {name}: {error.strerror}; {_AS_TEXT}") from error
    except (ValueError, RuntimeError) as error:  # a zero byte; the home of an unknown user
        raise AbbeError(f"{shown(name)} is not a path: {error}; {_AS_TEXT}") from error
    return Text(path.name, _decode(content, name))


def _is_text_itself(source: str) -> bool:
    if not source.strip():
        return True
    with suppress(OSError, ValueError, RuntimeError):  # too long for a path, a zero byte, an unknown user's home
        if Path(source).expanduser().exists():
            return False
    line = source.strip()
    return "\n" in source or "\r" in source or (" " in line and not _FILE_NAME.fullmatch(line))


def _decode(content: bytes, where: str) -> str:
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        wrong = f"byte 0x{content[error.start]:02x} at position {error.start}, line {line}"
        raise AbbeError(f"{where} is not UTF-8 ({wrong}): convert it, for example with iconv") from error
    return _not_empty(text, where)


def _not_empty(text: str, where: str) -> str:
    if not text.strip():
        raise AbbeError(f"{where} is empty: there is no text to measure on")
    return text
