"""Parts of a run: written when they are finished, checked when they are read, made by whoever makes them.

A part has a name, such as "windows/64-0", and is a JSON file or a safetensors file in the folder of the run. One that
is damaged, or belongs to another part or run, counts as missing: it is made again, which a line reports. `Parts.each`
is the one loop over the work of a study; `runs.executors` decides which process makes which part.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from .._errors import AbbeError
from .._files import CHECKED, check_owner, checked, read_json, write_json, write_whole
from .._tensors import checksum
from .executors import Has, Make, current

T = TypeVar("T")
Tensors = tuple[dict[str, Tensor], dict[str, Any]]  # with their notes

JSON, TENSORS = ".json", ".safetensors"
_BROKEN = (AbbeError, OSError, SafetensorError, ValueError, KeyError, TypeError, RecursionError)


class Parts:
    """Finished parts of one run by name; without a folder they are kept in memory."""

    def __init__(
        self, folder: Path | None, run: str, say: Callable[[str], object] | None = None, identity: Any = ()
    ) -> None:
        self.folder, self.run, self.identity = folder, run, dict(identity)
        self.measured_again: list[str] = []  # a line per damaged part
        self._say = say
        self._spoilt: set[str] = set()
        self._known: dict[str, Any] = {}  # read or kept by this process

    def __contains__(self, name: str) -> bool:
        return self.json(name) is not None or self.tensors(name) is not None

    def each(self, names: Iterable[str], make: Make, step: Make = lambda name: None, has: Has | None = None) -> None:
        """Make every missing part; afterwards all are there.

        Here, or on Ray's actors; a shard makes only its share, and then stops the study.

        Args:
            names: of independent parts, in the same order in every process.
            make: makes and keeps one of them. Two processes may make the same part: both write the same.
            step: called after each part, whether it was made or there before.
            has: whether a part is there; by default whether it is kept under its name.
        """
        current().make(self.folder, list(names), make, step, has or self.__contains__)

    def json(self, name: str) -> dict[str, Any] | None:
        """None if it is missing or damaged."""
        return self._read(name, JSON, lambda path: checked(path, read_json(path), self.run, name))

    def keep_json(self, name: str, content: Mapping[str, Any]) -> None:
        self._known[name + JSON] = json.loads(json.dumps(content))  # with keys as text, as it will be read
        if self.folder is not None:
            write_json(self._ready(name, JSON), content, run=self.run, part=name)

    def get_or_make(self, name: str, make: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
        """A part of JSON, made and kept if it is missing."""
        if self.json(name) is None:
            self.keep_json(name, make())
        content: dict[str, Any] = self._known[name + JSON]
        return content

    def tensors(self, name: str) -> Tensors | None:
        """With their notes; None if they are missing or damaged."""
        return self._read(name, TENSORS, lambda path: _read_tensors(path, self.run, name))

    def keep_tensors(self, name: str, tensors: Mapping[str, Tensor], notes: Mapping[str, Any] | None = None) -> None:
        plain = {key: tensor.detach().cpu().contiguous().clone() for key, tensor in tensors.items()}
        facts = {"run": self.run, "part": name, "notes": dict(notes or {})}
        self._known[name + TENSORS] = plain, facts["notes"]
        if self.folder is not None:
            # The checksum covers the facts, too: a part copied from another run is as bad as a damaged one.
            block = json.dumps(facts | {"sha256": checksum(plain, facts)})
            # Not forced to the disk: a part lost in a power cut is measured again, and waiting costs more.
            write_whole(self._ready(name, TENSORS), save(plain, {CHECKED: block}), durable=False)

    def _read(self, name: str, suffix: str, read: Callable[[Path], T]) -> T | None:
        """What `read` returns; None if the file is missing or damaged, which is reported once."""
        if name + suffix in self._known:
            known: T = self._known[name + suffix]
            return known
        if self.folder is None or name in self._spoilt:
            return None
        path = self.folder / f"{name}{suffix}"
        if not path.exists() and not path.is_symlink():
            return None
        try:
            self._known[name + suffix] = content = read(path)
        except _BROKEN as error:
            self.spoil(name, str(error) if isinstance(error, AbbeError) else f"{path} is damaged")
            return None
        return content

    def spoil(self, name: str, why: str) -> None:
        """Count an unusable part as missing."""
        self._spoilt.add(name)
        for suffix in (JSON, TENSORS):
            self._known.pop(name + suffix, None)
        self.again(why)

    def again(self, why: str) -> None:
        """Report that something is measured again."""
        self.measured_again.append(f"{why}; it is measured again")
        if self._say is not None:
            self._say(self.measured_again[-1])

    def _ready(self, name: str, suffix: str) -> Path:
        """Where to write a part; a folder in its place is moved aside."""
        assert self.folder is not None
        path = self.folder / f"{name}{suffix}"
        self._spoilt.discard(name)
        with suppress(OSError):  # the writer reports failures
            path.parent.mkdir(exist_ok=True)
            if path.is_dir() and not path.is_symlink():
                path.rename(path.with_name(f"{path.name}.moved"))
        return path


def run_of(path: Path) -> str | None:
    """The run that a file claims to be part of; None if it is unreadable."""
    with suppress(*_BROKEN):
        if path.suffix == JSON:
            return str(read_json(path)[CHECKED]["run"])
        if path.suffix == TENSORS:
            with safe_open(path, "pt") as file:
                return str(json.loads(file.metadata()[CHECKED])["run"])
    return None


def _read_tensors(path: Path, run: str, name: str) -> Tensors:
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
    if facts.pop("sha256") != checksum(tensors, facts):
        raise AbbeError(f"{path} is damaged: its checksum is wrong")
    check_owner(path, facts, run, name)
    return tensors, facts["notes"]
