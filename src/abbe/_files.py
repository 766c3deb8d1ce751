"""The files of a run: each appears whole or not at all, and is checked for damage when it is read.

What is special: a file is written under a unique name and then renamed, so neither a kill nor a second process leaves
half of it. The checksum is over the content of a JSON file, not its bytes, and stands in the file itself, in a block
that also names the run and the part: a part copied over another is detected like a flipped bit.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ._errors import AbbeError

CHECKED = "checked"  # the block: run, part, hashes of files next to it, sha256 of all that and of the content
_UNFINISHED = re.compile(r"\..+\.\d+-[0-9a-f]{8}\.part")


class CannotWrite(AbbeError):
    """The disk is full, or the folder is read-only or gone."""


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def is_unfinished(path: Path) -> bool:
    """Whether `write_whole` left this file behind when its process was killed."""
    return _UNFINISHED.fullmatch(path.name) is not None


def write_whole(path: Path, content: bytes | str, durable: bool = True) -> None:
    """Write a file atomically. Unless durable, a power failure may damage it: its checksum will show."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.part")
    try:
        with open(unfinished, "wb") as file:
            file.write(content if isinstance(content, bytes) else content.encode())
            if durable:
                file.flush()
                os.fsync(file.fileno())
        unfinished.replace(path)
    except OSError as error:
        raise CannotWrite(f"cannot write {path}: {error.strerror or error}") from None
    finally:
        with suppress(OSError):
            unfinished.unlink()


def write_json(
    path: Path, content: Mapping[str, Any], *, run: str = "", part: str = "", files: Sequence[str] = ()
) -> None:
    """Write an object with its checksum, and with the hashes of `files` in the same folder.

    A part of a run need not survive a power failure: it is made again.
    """
    block: dict[str, Any] = {key: name for key, name in (("run", run), ("part", part)) if name}
    if files:
        block["files"] = {name: sha256(read_bytes(path.parent / name)) for name in files}
    plain = json.loads(json.dumps(content))  # with keys as text, as it will be read
    sealed = plain | {CHECKED: block | {"sha256": _sum_of(plain, block)}}
    write_whole(path, json.dumps(sealed, indent=1) + "\n", durable=not part)


def read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        why = "it is a link to nothing" if path.is_symlink() and not path.exists() else error.strerror
        raise AbbeError(f"{path} cannot be read: {why}") from None


def read_json(path: Path) -> dict[str, Any]:
    """The object in a file, including its checksum."""
    stored = read_bytes(path)
    try:
        content = json.loads(stored.decode())
    except (ValueError, RecursionError):  # also numbers of thousands of digits, and deeply nested lists
        raise AbbeError(f"{path} is not valid JSON: it was changed or cut off") from None
    if not isinstance(content, dict):
        raise AbbeError(f"{path} is not a JSON object")
    return content


def checked(path: Path, content: Mapping[str, Any], run: str = "", part: str = "") -> dict[str, Any]:
    """The content of a file without its checksum; an error if it is damaged, or belongs to another part or run."""
    plain = {key: value for key, value in content.items() if key != CHECKED}
    block = content.get(CHECKED)
    if not isinstance(block, dict):
        raise AbbeError(f"{path} has no checksum")
    facts = {key: value for key, value in block.items() if key != "sha256"}
    if block.get("sha256") != _sum_of(plain, facts):
        raise AbbeError(f"{path} is damaged: its checksum is wrong")
    check_owner(path, facts, run, part)
    return plain


def check_owner(path: Path, facts: Mapping[str, Any], run: str, part: str) -> None:
    if facts.get("run", "") != run:
        raise AbbeError(f"{path} belongs to another run")
    if facts.get("part", "") != part:
        raise AbbeError(f"{path} is a copy of {facts.get('part')}")


def check_file(path: Path, content: bytes, record: Mapping[str, Any], name: str = "") -> None:
    """Check a file against its hash in `record`, an object from `read_json` that lists it as `name`."""
    if record[CHECKED].get("files", {}).get(name or path.name) != sha256(content):
        raise AbbeError(f"{path} is damaged: its checksum is wrong")


def _sum_of(content: Mapping[str, Any], facts: Mapping[str, Any]) -> str:
    return sha256(json.dumps([content, facts]).encode())


def finite(content: Any) -> Any:
    """Content for JSON, which has neither NaN nor infinity: they become None.

    Args:
        content: numbers, text, lists and mappings.

    Returns:
        The same with keys as text and lists for tuples.

    Examples:
        >>> abbe.results.finite({"a": (1.0, float("inf"))})
        {'a': [1.0, None]}
    """
    if isinstance(content, Mapping):
        return {str(key): finite(value) for key, value in content.items()}
    if isinstance(content, (list, tuple)):
        return [finite(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content
