"""A run folder during the run: finished windows are kept in it, so that a stopped run resumes from there."""

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
_MEASURES = hashlib.sha256(" ".join(info.name for info in list_measures()).encode()).hexdigest()[:12]  # known here
_USUAL = {"device": "cpu", "dtype": "float32"}  # left out of identities, as in folders of versions without them
_NOTHING = (MANIFEST, LOCK)  # a folder with no other file holds nothing that was finished


class RunFolder:
    """Records of windows on disk, or in memory only when there is no folder.

    A folder belongs to one identity (model, text, settings, versions); another run in it is refused.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str] | None,
        identity: Mapping[str, Any],
        say: Callable[[str], object] = lambda line: None,
        study: str = Run.study,
    ) -> None:
        self.path = None if folder is None else Path(folder)
        self.identity = dict(identity)
        self.parts = Parts(self.path, identity["digest"], say, identity)
        self._kept: dict[tuple[int, int], Record] = {}
        self._notes: dict[tuple[int, int], dict[str, Any]] = {}
        self.finished = self.path is not None and claim(self.path, self.identity, study)  # by an earlier call

    def __contains__(self, window: Window) -> bool:
        return self.record(window) is not None

    def record(self, window: Window) -> Record | None:
        """The record of a finished window, None if it is not finished (or its file is damaged)."""
        key = window.length, window.index
        name = window_part(window)
        if key not in self._kept and (stored := self.parts.tensors(name)) is not None:
            if stored[1].get("measures") != _MEASURES:
                self.parts.spoil(name, f"{self.path}/{name} was written by a version with other measures")
            else:
                self._kept[key], self._notes[key] = stored
        return self._kept.get(key)

    def notes(self, window: Window) -> dict[str, Any]:
        """What was written down when the window was measured: "seconds", "skipped" and "measures"."""
        return self._notes[window.length, window.index] if window in self else {}

    def keep(self, window: Window, record: Record, seconds: float, skipped: Sequence[str]) -> None:
        """Remember a finished window; its file appears whole or not at all."""
        key = window.length, window.index
        notes = {"seconds": round(seconds, 3), "skipped": list(skipped), "measures": _MEASURES}
        self._kept[key], self._notes[key] = record, notes
        self.parts.keep_tensors(window_part(window), record, self._notes[key])


def window_part(window: Window) -> str:
    return f"{_WINDOWS}/{window.length}-{window.index}"


def finished_windows(folder: Path | None) -> list[tuple[int, int]]:
    """Length and number of the windows of which a folder has a file, for the cost: it is not looked into."""
    names = [] if folder is None else [path.stem.split("-") for path in (folder / _WINDOWS).glob("*-*.safetensors")]
    return [(int(name[0]), int(name[1])) for name in names if len(name) == 2 and all(map(str.isdecimal, name))]


def identity_of(model: Mapping[str, Any], text: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """What two runs must share to have the same table."""
    facts = {"model": model["fingerprint"], "configuration": model["configuration"], "text": text["fingerprint"]}
    # Kernels of other devices round otherwise, so that a table of both would be that of neither; which of several
    # equal devices computed does not matter.
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


def claim_without_model(
    path: Path | None,
    study: str,
    facts: Mapping[str, Any],
    settings: Mapping[str, Any],
    say: Callable[[str], object] = lambda line: None,
    device: str = _USUAL["device"],
) -> Parts:
    """The folder of a study that makes its own models: it belongs to these facts, settings and kind of device."""
    placed = {} if device == _USUAL["device"] else {"device": device}
    identity = _identity(dict(facts) | placed, settings, ("torch", "numba"))
    if path is not None:
        claim(path, identity, study)
    return Parts(path, identity["digest"], say, identity)


def claim_folder(
    path: Path | None,
    study: str,
    model: LoadedModel,
    text: Text,
    settings: Mapping[str, Any],
    say: Callable[[str], object] = lambda line: None,
) -> Parts:
    """A folder of several parts or runs belongs to one model, text and settings, too; gives its parts."""
    identity = identity_of(
        {
            "fingerprint": model.fingerprint,
            "configuration": model.configuration,
            "device": model.devices,
            "dtype": model.precision,
        },
        {"fingerprint": text.fingerprint},
        settings,
    )
    if path is not None:
        claim(path, identity, study)
    return Parts(path, identity["digest"], say, identity)


def claim(path: Path, identity: Mapping[str, Any], study: str) -> bool:
    """Make a folder that of a run, which its manifest says; called by who holds it. Whether the run was finished.

    Refused if it is that of another run, unless nothing in it was finished.
    """
    if (path / _OLDER).exists():
        raise AbbeError(f"{path} was written by an older version of abbe ({_OLDER}): name a new folder (--out)")
    begun = {"format": FORMAT, "study": study, "finished": False, "identity": dict(identity)}
    if is_worker():
        known = _claim_with_others(path, begun, study)
    else:
        known = {} if _may_be_taken(path) else _check_same(path, identity, study)
        for left in filter(is_unfinished, (*path.iterdir(), *path.glob("*/.*"))):
            with suppress(OSError):
                left.unlink()  # of a process that was killed: nobody else writes here now
        if not is_shared():
            Board(path).clear()  # of workers that are gone, perhaps of another run: this process makes what is left
        if not known.get("finished"):
            write_json(path / MANIFEST, begun)
    return bool(known.get("finished")) and known.get("study", study) == study


def _claim_with_others(path: Path, begun: Mapping[str, Any], study: str) -> dict[str, Any]:
    """As a worker: of several that begin at once one writes the manifest, and the others find whether it is theirs."""
    is_new = not (path / MANIFEST).exists() and _may_be_taken(path)
    if not (is_new and write_json_once(path / MANIFEST, begun)):
        known = _check_same(path, begun["identity"], study)
        if not known:
            write_json_once(path / MANIFEST, begun)
    else:
        known = {}
    crew = current.get()
    if crew is not None:
        crew.begin(path)
    return known


def _may_be_taken(path: Path) -> bool:
    """Whether it is empty, or a run was begun in it and nothing finished."""
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
    """The manifest of a folder that belongs to this run; empty if it was lost."""
    if not (path / MANIFEST).exists() and not (path / MANIFEST).is_symlink():
        if any(run_of(one) == identity["digest"] for one in path.rglob("*")):
            return {}  # only the file that says so was lost
        raise AbbeError(f"{path} is not empty and holds no run: name a new folder (--out)")
    manifest = checked_manifest(path / MANIFEST, read_json(path / MANIFEST))
    other = manifest.get("study", study)
    if other != study and (other, study) != ("diagnose", "report"):  # a report takes up the run of a diagnosis
        raise AbbeError(f"{path} is a folder of `abbe {other}`: name a new folder (--out)")
    known = _as_dict(manifest.get("identity"))
    if known.get("digest") == identity["digest"]:
        return manifest
    facts = [key for key in dict.fromkeys((*identity, *_USUAL)) if key not in ("settings", "digest")]
    different = [key for key in facts if known.get(key) != identity.get(key)]
    before, wanted = _as_dict(known.get("settings")), identity["settings"]
    different += [key for key in wanted if before.get(key) != wanted[key]]
    raise AbbeError(f"{path} holds another run (different: {', '.join(different)}): name a new folder (--out)")
