"""A run folder while the run goes on: finished windows are kept in it, so that a stopped run goes on from there."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from .._errors import AbbeError
from ..models import LoadedModel, Text, Window
from ..results import FORMAT, MANIFEST, TABLE, read_json, write_json
from ._tables import Record

IDENTITY = "identity.json"  # of a folder of several runs
_WINDOWS = "windows"


class RunFolder:
    """Records of windows on disk, or in memory only when there is no folder.

    A folder belongs to one identity (model, text, settings, versions); another run in it is refused.
    """

    def __init__(self, folder: str | os.PathLike[str] | None, identity: Mapping[str, Any]) -> None:
        self.path = None if folder is None else Path(folder)
        self.identity = dict(identity)
        self._kept: dict[tuple[int, int], Record] = {}
        self._notes: dict[tuple[int, int], dict[str, Any]] = {}
        if self.path is not None:
            self._claim(self.path)

    def _claim(self, path: Path) -> None:
        if path.exists() and not path.is_dir():
            raise AbbeError(f"{path} is a file: name a folder for the run")
        if path.is_dir() and any(path.iterdir()):
            _check_same(path, self.identity)
        try:
            (path / _WINDOWS).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise AbbeError(f"cannot make the run folder {path}: {error.strerror}") from None
        if not (path / TABLE).exists():
            write_json(path / MANIFEST, {"format": FORMAT, "finished": False, "identity": self.identity})

    def __contains__(self, window: Window) -> bool:
        return self.record(window) is not None

    def record(self, window: Window) -> Record | None:
        """The record of a finished window, None if it is not finished (or its file is damaged)."""
        key = window.length, window.index
        if key not in self._kept and self.path is not None:
            try:
                with safe_open(self._file(self.path, window), "pt") as file:
                    self._kept[key] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
                    self._notes[key] = json.loads(file.metadata()["notes"])
            except (FileNotFoundError, SafetensorError):
                return None
        return self._kept.get(key)

    def notes(self, window: Window) -> dict[str, Any]:
        """What was written down when the window was measured: "seconds" and "skipped"."""
        return self._notes[window.length, window.index] if window in self else {}

    def keep(self, window: Window, record: Record, seconds: float, skipped: Sequence[str]) -> None:
        """Remember a finished window; its file appears whole or not at all."""
        key = window.length, window.index
        self._kept[key], self._notes[key] = record, {"seconds": round(seconds, 3), "skipped": list(skipped)}
        if self.path is not None:
            target = self._file(self.path, window)
            unfinished = target.with_suffix(".part")
            tensors = {name: x.contiguous() for name, x in record.items()}
            save_file(tensors, unfinished, {"notes": json.dumps(self._notes[key])})
            unfinished.replace(target)

    @staticmethod
    def _file(path: Path, window: Window) -> Path:
        return path / _WINDOWS / f"{window.length}-{window.index}.safetensors"


def identity_of(model: Mapping[str, Any], text: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """What two runs must share to have the same table."""
    from .. import __version__

    parts = {"model": model["fingerprint"], "configuration": model["configuration"], "text": text["fingerprint"]}
    parts |= {"settings": dict(settings), "abbe": __version__}
    parts |= {name: version(name) for name in ("torch", "transformers", "tokenizers", "numba")}
    digest = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
    return parts | {"digest": digest}


def claim_folder(path: Path, model: LoadedModel, text: Text, settings: Mapping[str, Any]) -> None:
    """A folder of several runs belongs to one model, text and settings, too."""
    identity = identity_of(
        {"fingerprint": model.fingerprint, "configuration": model.configuration},
        {"fingerprint": text.fingerprint},
        settings,
    )
    if path.exists() and not path.is_dir():
        raise AbbeError(f"{path} is a file: name a folder")
    if path.is_dir() and any(path.iterdir()):
        _check_same(path, identity, IDENTITY)
    path.mkdir(parents=True, exist_ok=True)
    write_json(path / IDENTITY, {"identity": identity})


def _as_dict(found: Any) -> dict[str, Any]:
    return found if isinstance(found, dict) else {}


def _check_same(path: Path, identity: Mapping[str, Any], file: str = MANIFEST) -> None:
    if not (path / file).is_file():
        raise AbbeError(f"{path} is not empty and holds no run: name a new folder (--out)")
    found = _as_dict(read_json(path / file).get("identity"))
    if found.get("digest") == identity["digest"]:
        return
    other = [key for key in identity if key not in ("settings", "digest") and found.get(key) != identity[key]]
    known, wanted = _as_dict(found.get("settings")), identity["settings"]
    other += [key for key in wanted if known.get(key) != wanted[key]]
    raise AbbeError(f"{path} holds another run (different: {', '.join(other)}): name a new folder (--out)")
