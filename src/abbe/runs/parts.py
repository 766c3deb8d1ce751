"""Parts of a run: written when they are finished, checked when they are read, made by whoever makes them.

A part has a name, such as "windows/64-0", and is a JSON file or a safetensors file in the folder of the run. One that
is damaged, or belongs to another part or run, counts as missing: it is made again, which a line reports. `Parts.each`
is the one loop over the work of a study; `runs.executors` decides which process makes which part. A folder belongs to
one run, which its manifest identifies, so that a stopped run resumes from its parts.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from .._errors import AbbeError
from .._files import CHECKED, check_owner, checked, is_unfinished, read_json, write_json, write_whole
from .._locks import HOLDER, LOCK
from .._tensors import checksum
from ..measures import list_measures
from ..results import FORMAT, MANIFEST, checked_manifest
from .executors import Has, Make, Shard, current
from .study import current_call

T = TypeVar("T")
Say = Callable[[str], object]
Tensors = tuple[dict[str, Tensor], dict[str, Any]]  # with their notes

JSON, TENSORS = ".json", ".safetensors"
_MEASURES = hashlib.sha256(" ".join(info.name for info in list_measures()).encode()).hexdigest()[:12]  # of this version
_NOTHING = (MANIFEST, LOCK, HOLDER)  # a folder with no other files holds nothing finished
_BROKEN = (AbbeError, OSError, SafetensorError, ValueError, KeyError, TypeError, RecursionError)


class Parts:
    """Finished parts of one run by name; without a folder they are kept in memory."""

    def __init__(self, folder: Path | None, run: str, say: Say | None = None, identity: Any = ()) -> None:
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
        """Tensors with their notes; None if they are missing or damaged."""
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
            why = str(error) if isinstance(error, AbbeError) else f"{path} is damaged"
            self._spoilt.add(name)
            self.measured_again.append(f"{why}; it is measured again")
            if self._say is not None:
                self._say(self.measured_again[-1])
            return None
        return content

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


# -- The folder of a run ----------------------------------------------------------------------------------------------


def claim_folder(
    path: Path | None, study: str, facts: Mapping[str, Any], settings: Mapping[str, Any], say: Say | None = None,
    device: str = "cpu",
) -> Parts:  # fmt: skip
    """The parts of a study whose folder belongs to these facts and settings, this type of device and these versions."""
    identity = dict(facts) | {"device": device, "settings": dict(settings), "measures": _MEASURES}
    identity |= {name: version(name) for name in ("abbe", "torch", "transformers", "tokenizers", "numba")}
    identity["digest"] = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
    if path is not None:
        _claim(path, identity, study)
    return Parts(path, identity["digest"], say, identity)


def _claim(path: Path, identity: Mapping[str, Any], study: str) -> None:
    """Assign a folder to a run by its manifest; refused if it belongs to another one, unless nothing is finished."""
    manifest = {} if _may_be_taken(path) else _check_same(path, identity)
    if not isinstance(current(), Shard):  # other shards may be writing
        for left in filter(is_unfinished, (*path.iterdir(), *path.glob("*/.*"))):
            with suppress(OSError):
                left.unlink()  # of a killed process
    if not manifest.get("finished"):
        begun = {"format": FORMAT, "study": study, "finished": False, "identity": dict(identity)}
        write_json(path / MANIFEST, begun | {"call": current_call()})


def _may_be_taken(path: Path) -> bool:
    """Whether it is empty, or holds a run with nothing finished."""
    files = [inner for inner in path.rglob("*") if inner.is_symlink() or not inner.is_dir()]
    if any(not _is_nothing(inner) for inner in files):
        return False
    if not (path / MANIFEST).is_file():
        return not any(inner.name == MANIFEST for inner in files)
    stored = checked_manifest(path / MANIFEST, read_json(path / MANIFEST))
    return "digest" in _as_dict(stored.get("identity"))


def _is_nothing(path: Path) -> bool:
    return path.name in _NOTHING or path.suffix == LOCK or is_unfinished(path)


def _as_dict(content: Any) -> dict[str, Any]:
    return content if isinstance(content, dict) else {}


def _check_same(path: Path, identity: Mapping[str, Any]) -> dict[str, Any]:
    """The manifest of a folder of this run; empty if it was lost."""
    if not (path / MANIFEST).exists() and not (path / MANIFEST).is_symlink():
        if any(run_of(inner) == identity["digest"] for inner in path.rglob("*")):
            return {}  # only the manifest was lost
        raise AbbeError(f"{path} is not empty and holds no run: name a new folder (--out)")
    manifest = checked_manifest(path / MANIFEST, read_json(path / MANIFEST))
    stored = _as_dict(manifest.get("identity"))
    if stored.get("digest") == identity["digest"]:
        return manifest
    different = [key for key in identity if key not in ("settings", "digest") and stored.get(key) != identity[key]]
    before, wanted = _as_dict(stored.get("settings")), identity["settings"]
    different += [key for key in wanted if before.get(key) != wanted[key]]
    raise AbbeError(f"{path} holds another run (different: {', '.join(different)}): name a new folder (--out)")
