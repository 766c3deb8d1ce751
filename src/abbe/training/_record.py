"""The run folder of a monitor: a manifest, and one line per step that was read.

What is special: a line is appended and flushed as soon as its step is over, so a killed run keeps its measurements. A
run that resumes from a checkpoint keeps the lines up to it, and replaces those after it.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from .._errors import AbbeError
from .._files import is_unfinished, read_json, write_json, write_whole
from .._locks import HOLDER, LOCK, held
from ..results import FORMAT, MANIFEST, STEPS, Training, checked_manifest, decoded_steps, encoded_step, kept_until
from ._alerts import list_rules
from ._quantities import list_quantities

_PACKAGES = ("abbe", "torch", "transformers", "numba", "polars")


def manifest_of(network: Any, settings: Mapping[str, Any], skipped: list[str]) -> dict[str, Any]:
    """The identity of a run: class and configuration of its model, settings, and versions."""
    configuration = network.config.to_diff_dict()
    for irrelevant in ("transformers_version", "dtype", "_name_or_path"):
        configuration.pop(irrelevant, None)
    digest = hashlib.sha256(json.dumps(configuration, sort_keys=True, default=str).encode()).hexdigest()
    name = getattr(network.config, "_name_or_path", "") or type(network).__name__
    return {
        "format": FORMAT,
        "study": Training.study,
        "finished": True,  # it can be opened at any time
        "identity": {"model": type(network).__name__, "configuration": digest, "settings": dict(settings)},
        "versions": {"python": platform.python_version()} | {name: version(name) for name in _PACKAGES},
        "machine": {"system": platform.platform(terse=True), "threads": torch.get_num_threads()},
        "model": {
            "name": name,
            "class": type(network).__name__,
            "parameters": sum(parameter.numel() for parameter in network.parameters()),
            "configuration": digest,
        },
        "text": {"name": "the batches of the training run"},
        "settings": dict(settings),
        "self_check": {"error": None, "why": "nothing was read yet"},
        "layers": [],
        "quantities": [asdict(quantity) for quantity in list_quantities()],
        "rules": [asdict(rule) for rule in list_rules()],
        "skipped": list(skipped),
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
    }


class Record:
    def __init__(self, folder: str | os.PathLike[str] | None, manifest: dict[str, Any], resume: int) -> None:
        self.manifest, self.path = manifest, None if folder is None else Path(folder)
        self.records: list[dict[str, Any]] = []
        self._open = ExitStack()
        if self.path is None:
            return
        with ExitStack() as undo:
            undo.enter_context(held(self.path))
            self._take(self.path, resume)
            self._open = undo.pop_all()

    def add(self, record: dict[str, Any]) -> None:
        self.records.append(record)
        if self.path is None:
            return
        try:
            with open(self.path / STEPS, "ab") as file:
                file.write(encoded_step(record).encode())
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise AbbeError(f"cannot write {self.path / STEPS}: {error.strerror or error}") from None

    def update(self, **facts: Any) -> None:
        if all(self.manifest.get(name) == value for name, value in facts.items()):
            return
        self.manifest |= facts
        if self.path is not None:
            write_json(self.path / MANIFEST, self.manifest)

    def close(self) -> None:
        self._open.close()

    def result(self) -> Training:
        return Training(list(self.records), dict(self.manifest))

    def _take(self, path: Path, resume: int) -> None:
        """Start or resume in a folder whose lock is held."""
        if any(file.name not in (LOCK, HOLDER) and not is_unfinished(file) for file in path.iterdir()):
            stored = _check_same(path, self.manifest["identity"])
            before = decoded_steps(path / STEPS)
            if before and not resume:
                raise AbbeError(
                    f"{path} holds a run up to step {before[-1]['step']:,}: resume it with resume=STEP, the step of "
                    "the checkpoint, or name another folder"
                )
            self.records = kept_until(before, resume)
            self.manifest |= {name: stored[name] for name in ("made", "layers", "self_check") if name in stored}
        write_whole(path / STEPS, "".join(encoded_step(record) for record in self.records))
        write_json(path / MANIFEST, self.manifest)


def _check_same(path: Path, identity: Mapping[str, Any]) -> dict[str, Any]:
    """The manifest of a folder that belongs to this run; an error for any other folder."""
    if not (path / MANIFEST).is_file():
        raise AbbeError(f"{path} is not empty and holds no run: name a new folder")
    manifest = checked_manifest(path / MANIFEST, read_json(path / MANIFEST))
    if manifest.get("study") != Training.study:
        raise AbbeError(f"{path} is a folder of `abbe {manifest.get('study')}`: name a new folder")
    stored = manifest.get("identity") or {}
    plain = json.loads(json.dumps(identity))
    different = [key for key in ("model", "configuration") if stored.get(key) != plain[key]]
    settings = stored.get("settings") or {}
    different += [key for key, value in plain["settings"].items() if settings.get(key) != value]
    if different:
        raise AbbeError(f"{path} holds another run (different: {', '.join(different)}): name a new folder")
    return manifest


def free_folder(parent: Path) -> Path:
    """parent/abbe, or the first of abbe-2, abbe-3, ... that holds no run."""
    names = ("abbe", *(f"abbe-{number}" for number in range(2, 10_000)))
    return next(parent / name for name in names if not (parent / name / STEPS).exists())


def last_folder(parent: Path) -> Path | None:
    """The newest of these folders that holds a run."""
    runs = [folder for folder in parent.glob("abbe*") if (folder / STEPS).is_file()]
    return max(runs, key=lambda folder: (folder / STEPS).stat().st_mtime, default=None)
