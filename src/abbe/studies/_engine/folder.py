"""A run folder during the run: it keeps finished windows, from which a stopped run resumes."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ..._errors import AbbeError
from ..._files import is_unfinished, read_json, write_json, write_json_once
from ..._locks import LOCK
from ...measures import list_measures
from ...models import LoadedModel, Text, Window
from ...results import FORMAT, MANIFEST, Run, checked_manifest
from .parts import Parts, run_of
from .sharing.board import Board, is_of_workers
from .sharing.crew import current, is_shared, is_worker
from .tables import Record

_OLDER = "identity.json"  # of folders with several parts, up to format 2
_WINDOWS = "windows"
_MEASURES = hashlib.sha256(" ".join(info.name for info in list_measures()).encode()).hexdigest()[:12]  # of this version
_USUAL = {"device": "cpu", "dtype": "float32"}  # left out of identities, for folders of versions without them
_NOTHING = (MANIFEST, LOCK)  # a folder with no other files holds nothing finished

Say = Callable[[str], object]


def _silent(line: str) -> None:
    """Says nothing."""


class RunFolder:
    """Records of windows on disk, or only in memory without a folder.

    A folder belongs to one identity (model, text, settings, versions); another run in it is refused.
    """

    def __init__(
        self, folder: str | os.PathLike[str] | None, identity: Mapping[str, Any], say: Say = _silent,
        study: str = Run.study,
    ) -> None:  # fmt: skip
        self.path = None if folder is None else Path(folder)
        self.identity = dict(identity)
        self.parts = Parts(self.path, identity["digest"], say, identity)
        self._kept: dict[tuple[int, int], tuple[Record, dict[str, Any]]] = {}  # with the notes
        self.finished = self.path is not None and claim(self.path, self.identity, study)  # by an earlier call

    def __contains__(self, window: Window) -> bool:
        return self.record(window) is not None

    def record(self, window: Window) -> Record | None:
        """The record of a finished window; None if it is unfinished or its file is damaged."""
        key, name = (window.length, window.index), window_part(window)
        if key not in self._kept and (stored := self.parts.tensors(name)) is not None:
            if stored[1].get("measures") != _MEASURES:
                self.parts.spoil(name, f"{self.path}/{name} was written by a version with other measures")
            else:
                self._kept[key] = stored
        return self._kept[key][0] if key in self._kept else None

    def notes(self, window: Window) -> dict[str, Any]:
        """Recorded when the window was measured: "seconds", "skipped" and "measures"."""
        return self._kept[window.length, window.index][1] if window in self else {}

    def keep(self, window: Window, record: Record, seconds: float, skipped: Sequence[str]) -> None:
        """Remember a finished window; its file appears whole or not at all."""
        notes = {"seconds": round(seconds, 3), "skipped": list(skipped), "measures": _MEASURES}
        self._kept[window.length, window.index] = record, notes
        self.parts.keep_tensors(window_part(window), record, notes)


def window_part(window: Window) -> str:
    return f"{_WINDOWS}/{window.length}-{window.index}"


def finished_windows(folder: Path | None) -> list[tuple[int, int]]:
    """Length and number of the windows that have a file, for the cost line; the files are not read."""
    names = [] if folder is None else [path.stem.split("-") for path in (folder / _WINDOWS).glob("*-*.safetensors")]
    return [(int(name[0]), int(name[1])) for name in names if len(name) == 2 and all(map(str.isdecimal, name))]


def identity_of(model: Mapping[str, Any], text: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """What two runs must share to have the same table."""
    facts = {"model": model["fingerprint"], "configuration": model["configuration"], "text": text["fingerprint"]}
    # Kernels of other devices round differently, and a table must not mix them; which of several equal devices
    # computed does not matter.
    kinds = "+".join(sorted({place.partition(":")[0] for place in model["device"].split("+")}))
    placed = {"device": kinds, "dtype": model["dtype"]}
    facts |= {name: value for name, value in placed.items() if value != _USUAL[name]}
    return _identity(facts, settings, ("torch", "transformers", "tokenizers", "numba"))


def _identity(facts: Mapping[str, Any], settings: Mapping[str, Any], packages: Sequence[str]) -> dict[str, Any]:
    from ... import __version__

    parts = dict(facts) | {"settings": dict(settings), "abbe": __version__}
    parts |= {name: version(name) for name in packages}
    digest = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
    return parts | {"digest": digest}


def model_identity(model: LoadedModel) -> dict[str, Any]:
    """What a manifest says about a model that also belongs to the identity of its runs."""
    return {
        "fingerprint": model.fingerprint, "configuration": model.configuration, "device": model.devices,
        "dtype": model.precision,
    }  # fmt: skip


def claim_without_model(
    path: Path | None, study: str, facts: Mapping[str, Any], settings: Mapping[str, Any], say: Say = _silent,
    device: str = _USUAL["device"],
) -> Parts:  # fmt: skip
    """The parts of a study that makes its own models; its folder belongs to these facts, settings and device type."""
    placed = {} if device == _USUAL["device"] else {"device": device}
    return _claimed(path, study, _identity(dict(facts) | placed, settings, ("torch", "numba")), say)


def claim_folder(
    path: Path | None, study: str, model: LoadedModel, text: Text, settings: Mapping[str, Any], say: Say = _silent
) -> Parts:
    """The parts of a study whose folder belongs to one model, text and settings."""
    identity = identity_of(model_identity(model), {"fingerprint": text.fingerprint}, settings)
    return _claimed(path, study, identity, say)


def _claimed(path: Path | None, study: str, identity: Mapping[str, Any], say: Say) -> Parts:
    if path is not None:
        claim(path, identity, study)
    return Parts(path, identity["digest"], say, identity)


def claim(path: Path, identity: Mapping[str, Any], study: str) -> bool:
    """Assign a folder, which the caller holds, to a run by its manifest; True if that run is finished.

    Refused if it belongs to another run, unless nothing in it is finished.
    """
    if (path / _OLDER).exists():
        raise AbbeError(f"{path} was written by an older version of abbe ({_OLDER}): name a new folder (--out)")
    begun = {"format": FORMAT, "study": study, "finished": False, "identity": dict(identity)}
    if is_worker():
        manifest = _claim_with_others(path, begun, study)
    else:
        manifest = {} if _may_be_taken(path) else _check_same(path, identity, study)
        for left in filter(is_unfinished, (*path.iterdir(), *path.glob("*/.*"))):
            with suppress(OSError):
                left.unlink()  # of a killed process: nobody else writes here now
        if not is_shared():
            Board(path).clear()  # of workers that are gone, perhaps of another run: this process makes the rest
        if not manifest.get("finished"):
            write_json(path / MANIFEST, begun)
    return bool(manifest.get("finished")) and manifest.get("study", study) == study


def _claim_with_others(path: Path, begun: Mapping[str, Any], study: str) -> dict[str, Any]:
    """As a worker: one of those that begin writes the manifest, and the others check that it is theirs."""
    manifest: dict[str, Any] = {}
    is_new = not (path / MANIFEST).exists() and _may_be_taken(path)
    if not (is_new and write_json_once(path / MANIFEST, begun)):
        manifest = _check_same(path, begun["identity"], study)
        if not manifest:
            write_json_once(path / MANIFEST, begun)
    current.get().begin(path)
    return manifest


def _may_be_taken(path: Path) -> bool:
    """Whether it is empty, or holds a run with nothing finished."""
    files = [one for one in path.rglob("*") if one.is_symlink() or not one.is_dir()]
    files = [one for one in files if not is_of_workers(one.relative_to(path))]
    if any(one.name not in _NOTHING and not is_unfinished(one) for one in files):
        return False
    if not (path / MANIFEST).is_file():
        return not any(one.name == MANIFEST for one in files)
    stored = checked_manifest(path / MANIFEST, read_json(path / MANIFEST))
    return "digest" in _as_dict(stored.get("identity"))


def _as_dict(content: Any) -> dict[str, Any]:
    return content if isinstance(content, dict) else {}


def _check_same(path: Path, identity: Mapping[str, Any], study: str) -> dict[str, Any]:
    """The manifest of a folder of this run; empty if it was lost."""
    if not (path / MANIFEST).exists() and not (path / MANIFEST).is_symlink():
        if any(run_of(one) == identity["digest"] for one in path.rglob("*")):
            return {}  # only the manifest was lost
        raise AbbeError(f"{path} is not empty and holds no run: name a new folder (--out)")
    manifest = checked_manifest(path / MANIFEST, read_json(path / MANIFEST))
    other = manifest.get("study", study)
    if other != study and (other, study) != ("diagnose", "report"):  # a report continues the run of a diagnosis
        raise AbbeError(f"{path} is a folder of `abbe {other}`: name a new folder (--out)")
    stored = _as_dict(manifest.get("identity"))
    if stored.get("digest") == identity["digest"]:
        return manifest
    facts = [key for key in dict.fromkeys((*identity, *_USUAL)) if key not in ("settings", "digest")]
    different = [key for key in facts if stored.get(key) != identity.get(key)]
    before, wanted = _as_dict(stored.get("settings")), identity["settings"]
    different += [key for key in wanted if before.get(key) != wanted[key]]
    raise AbbeError(f"{path} holds another run (different: {', '.join(different)}): name a new folder (--out)")
