"""Parts of a run in its folder: written when they are finished, checked when they are read.

A part that is damaged, or belongs to another window or run, counts as missing: it is measured again, which a line
reports.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from ..._errors import AbbeError
from ..._files import CHECKED, check_owner, checked, read_json, write_json, write_whole
from ..._tensor_checksum import tensor_checksum
from .sharing.crew import is_worker

Content = TypeVar("Content")

JSON, TENSORS = ".json", ".safetensors"


class Parts:
    """Finished parts of one run by name, such as "windows/64-0"; without a folder nothing is kept."""

    def __init__(
        self, folder: Path | None, run: str, say: Callable[[str], object] = lambda line: None,
        identity: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        self.folder, self.run, self.identity = folder, run, dict(identity or {})
        self.measured_again: list[str] = []  # a line per damaged part
        self._say = say
        self._spoilt: set[str] = set()

    def json(self, name: str) -> dict[str, Any] | None:
        """None if it is missing or damaged."""
        return self.read(name, JSON, lambda path: checked(path, read_json(path), self.run, name))

    def keep_json(self, name: str, content: Mapping[str, Any]) -> None:
        if self.folder is not None:
            write_json(self._ready(name, JSON), content, run=self.run, part=name, durable=False)

    def tensors(self, name: str) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """With their notes; None if they are missing or damaged."""
        return self.read(name, TENSORS, lambda path: _read_tensors(path, self.run, name))

    def keep_tensors(self, name: str, tensors: Mapping[str, Tensor], notes: Mapping[str, Any] | None = None) -> None:
        if self.folder is not None:
            plain = {key: tensor.detach().cpu().contiguous() for key, tensor in tensors.items()}
            facts = {"run": self.run, "part": name, "notes": dict(notes or {})}
            # The checksum covers the facts, too: a part copied from another run is as bad as a damaged one.
            block = json.dumps(facts | {"sha256": tensor_checksum(plain, facts)})
            # Not forced to the disk: a part lost in a power cut is measured again, and waiting costs more.
            write_whole(self._ready(name, TENSORS), save(plain, {CHECKED: block}), durable=False)

    def read(self, name: str, suffix: str, read: Callable[[Path], Content]) -> Content | None:
        """What `read` returns; None if the file is missing or damaged, which is reported once."""
        if self.folder is None or name in self._spoilt:
            return None
        path = self._path(name, suffix)
        if not path.exists() and not path.is_symlink():
            return None
        try:
            return read(path)
        except (AbbeError, OSError, SafetensorError, ValueError, KeyError, TypeError, RecursionError) as error:
            self.spoil(name, str(error) if isinstance(error, AbbeError) else f"{path} is damaged")
            if is_worker():
                with suppress(OSError):
                    path.unlink()  # so that all workers see that it is missing
            return None

    def spoil(self, name: str, why: str) -> None:
        """Count an unusable part as missing."""
        self._spoilt.add(name)
        self.again(why)

    def again(self, why: str) -> None:
        """Report that something is measured again."""
        self.measured_again.append(f"{why}; it is measured again")
        self._say(self.measured_again[-1])

    def _ready(self, name: str, suffix: str) -> Path:
        """Where to write a part; a folder in its place is moved aside."""
        path = self._path(name, suffix)
        self._spoilt.discard(name)
        with suppress(OSError):  # the writer reports failures
            path.parent.mkdir(exist_ok=True)
            if path.is_dir() and not path.is_symlink():
                path.rename(path.with_name(f"{path.name}.moved"))
        return path

    def _path(self, name: str, suffix: str) -> Path:
        assert self.folder is not None
        return self.folder / f"{name}{suffix}"


def run_of(path: Path) -> str | None:
    """The run that a file claims to be part of; None if it is unreadable."""
    with suppress(AbbeError, OSError, SafetensorError, ValueError, KeyError, TypeError, RecursionError):
        if path.suffix == JSON:
            return str(read_json(path)[CHECKED]["run"])
        if path.suffix == TENSORS:
            with safe_open(path, "pt") as file:
                return str(json.loads(file.metadata()[CHECKED])["run"])
    return None


def _read_tensors(path: Path, run: str, name: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    if path.is_dir():
        raise AbbeError(f"{path} is a folder")
    if not path.exists():
        raise AbbeError(f"{path} is a link to nothing")
    with safe_open(path, "pt") as file:
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        block = (file.metadata() or {}).get(CHECKED)
    if block is None:
        raise AbbeError(f"{path} has no checksum")
    facts: dict[str, Any] = json.loads(block)
    if facts.pop("sha256") != tensor_checksum(tensors, facts):
        raise AbbeError(f"{path} is damaged: its checksum is wrong")
    check_owner(path, facts, run, name)
    return tensors, facts["notes"]
