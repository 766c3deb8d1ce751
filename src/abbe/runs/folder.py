"""The folder of a run: which run it belongs to, and its finished windows, from which a stopped run resumes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from .._errors import AbbeError
from .._files import is_unfinished, read_json, write_json
from .._locks import HOLDER, LOCK
from ..measures import list_measures
from ..models import LoadedModel, Text, Window
from ..results import FORMAT, MANIFEST, checked_manifest
from .executors import Shard, current
from .parts import Parts, run_of
from .study import current_call
from .tables import Record

_WINDOWS = "windows"
_MEASURES = hashlib.sha256(" ".join(info.name for info in list_measures()).encode()).hexdigest()[:12]  # of this version
_NOTHING = (MANIFEST, LOCK, HOLDER)  # a folder with no other files holds nothing finished

Say = Callable[[str], object]


@dataclass(frozen=True)
class RunFolder:
    """Records of windows on disk, or only in memory without a folder."""

    parts: Parts

    def __contains__(self, window: Window) -> bool:
        return self.record(window) is not None

    def record(self, window: Window) -> Record | None:
        """The record of a finished window; None if it is unfinished or its file is damaged."""
        name = window_part(window)
        stored = self.parts.tensors(name)
        if stored is not None and stored[1].get("measures") != _MEASURES:
            self.parts.spoil(name, f"{self.parts.folder}/{name} was written by a version with other measures")
            return None
        return None if stored is None else stored[0]

    def notes(self, window: Window) -> dict[str, Any]:
        """Recorded when the window was measured: "seconds", "skipped" and "measures"."""
        stored = self.parts.tensors(window_part(window))
        return {} if stored is None else stored[1]

    def keep(self, window: Window, record: Record, seconds: float, skipped: Sequence[str]) -> None:
        """Remember a finished window; its file appears whole or not at all."""
        notes = {"seconds": round(seconds, 3), "skipped": list(skipped), "measures": _MEASURES}
        self.parts.keep_tensors(window_part(window), record, notes)


def window_part(window: Window) -> str:
    return f"{_WINDOWS}/{window.length}-{window.index}"


def finished_windows(folder: Path | None) -> list[tuple[int, int]]:
    """Length and number of the windows that have a file, for the cost line; the files are not read."""
    names = [] if folder is None else [path.stem.split("-") for path in (folder / _WINDOWS).glob("*-*.safetensors")]
    return [(int(name[0]), int(name[1])) for name in names if len(name) == 2 and all(map(str.isdecimal, name))]


def claim_folder(
    path: Path | None, study: str, model: LoadedModel, text: Text, settings: Mapping[str, Any], say: Say | None = None
) -> Parts:
    """The parts of a study whose folder belongs to one model, text and settings."""
    # Kernels of other devices round differently, and a table must not mix them; which of several equal devices
    # computed does not matter.
    kinds = "+".join(sorted({device.partition(":")[0] for device in model.devices.split("+")}))
    facts = {"model": model.fingerprint, "configuration": model.configuration, "text": text.fingerprint}
    packages = ("torch", "transformers", "tokenizers", "numba")
    return claim_without_model(path, study, facts | {"dtype": model.precision}, settings, say, kinds, packages)


def claim_without_model(
    path: Path | None, study: str, facts: Mapping[str, Any], settings: Mapping[str, Any], say: Say | None = None,
    device: str = "cpu", packages: Sequence[str] = ("torch", "numba"),
) -> Parts:  # fmt: skip
    """The parts of a study that makes its own models; its folder belongs to these facts, settings and device type."""
    identity = dict(facts) | {"device": device, "settings": dict(settings)}
    identity |= {name: version(name) for name in ("abbe", *packages)}
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
