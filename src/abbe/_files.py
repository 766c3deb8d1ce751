"""Files that a run keeps: each appears whole or not at all, and is known to be unharmed when it is read again.

What is special: a file is written under a name of its own and then renamed, so neither a kill nor a second process
leaves half of one. The checksum is over what a JSON file says, not over its bytes, and stands in the file itself, in a
block that also names the run and the part: one part copied over another is found like a flipped bit.
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

CHECKED = "checked"  # the block: run, part, hashes of files beside, sha256 of all that and of the content
_UNFINISHED = re.compile(r"\..+\.\d+-[0-9a-f]{8}\.part")


class CannotWrite(AbbeError):
    """A full disk, a folder that may not be written or is gone."""


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def is_unfinished(path: Path) -> bool:
    """Whether it is what `write_whole` leaves when its process is killed."""
    return _UNFINISHED.fullmatch(path.name) is not None


def write_whole(path: Path, content: bytes | str, durable: bool = True) -> None:
    """Write a file at once. One that is not durable may be lost with the power: its checksum tells."""
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


def write_once(path: Path, content: bytes | str) -> bool:
    """Write a file at once if there is none of this name; False if there is. Of several processes one wins.

    By a link and not by a lock, which NFS may lose.
    """
    unfinished = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.part")
    plain = content if isinstance(content, bytes) else content.encode()
    try:
        unfinished.write_bytes(plain)
        try:
            os.link(unfinished, path)
        except FileExistsError:
            # NFS asks again when an answer was lost, and is then told that the link, its own, is there.
            return unfinished.stat().st_nlink == 2
        except OSError:  # a file system without links
            return _write_exclusively(path, plain)
        return True
    except OSError as error:
        raise CannotWrite(f"cannot write {path}: {error.strerror or error}") from None
    finally:
        with suppress(OSError):
            unfinished.unlink()


def _write_exclusively(path: Path, content: bytes) -> bool:
    try:
        with open(path, "xb") as file:
            file.write(content)
    except FileExistsError:
        return False
    return True


def write_json(
    path: Path,
    content: Mapping[str, Any],
    *,
    run: str = "",
    part: str = "",
    files: Sequence[str] = (),
    durable: bool = True,
) -> None:
    """Write an object with its checksum; `files` beside it are hashed in it."""
    block: dict[str, Any] = {key: name for key, name in (("run", run), ("part", part)) if name}
    if files:
        block["files"] = {name: sha256(read_bytes(path.parent / name)) for name in files}
    write_whole(path, _sealed(content, block), durable)


def write_json_once(path: Path, content: Mapping[str, Any]) -> bool:
    """Write an object with its checksum if there is no such file; whether it was written."""
    return write_once(path, _sealed(content, {}))


def _sealed(content: Mapping[str, Any], block: Mapping[str, Any]) -> str:
    plain = json.loads(json.dumps(content))  # keys as text, as they are read again
    sealed = plain | {CHECKED: dict(block) | {"sha256": _sum_of(plain, block)}}
    return json.dumps(sealed, indent=1) + "\n"


def read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        why = "it is a link to nothing" if path.is_symlink() and not path.exists() else error.strerror
        raise AbbeError(f"{path} cannot be read: {why}") from None


def read_json(path: Path) -> dict[str, Any]:
    """An object as it is written, its checksum with it."""
    stored = read_bytes(path)
    try:
        content = json.loads(stored.decode())
    except (ValueError, RecursionError):  # also numbers of thousands of digits, and lists in lists in lists
        raise AbbeError(f"{path} is not valid JSON: it was changed or cut off") from None
    if not isinstance(content, dict):
        raise AbbeError(f"{path} is not a JSON object")
    return content


def checked(path: Path, content: Mapping[str, Any], run: str = "", part: str = "") -> dict[str, Any]:
    """What was read from a file, without its checksum; refused if it is damaged, or another part or run is named."""
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
        raise AbbeError(f"{path} is of another run")
    if facts.get("part", "") != part:
        raise AbbeError(f"{path} is a copy of {facts.get('part')}")


def check_file(path: Path, content: bytes, beside: Mapping[str, Any], name: str = "") -> None:
    """A file is as it was when the object beside it, read by `read_json`, was written; `name` is its name there."""
    if beside[CHECKED].get("files", {}).get(name or path.name) != sha256(content):
        raise AbbeError(f"{path} is damaged: its checksum is wrong")


def _sum_of(content: Mapping[str, Any], facts: Mapping[str, Any]) -> str:
    return sha256(json.dumps([content, facts]).encode())


def finite(content: Any) -> Any:
    """Content for JSON, which knows neither NaN nor infinity: they become None.

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
