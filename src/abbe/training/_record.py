"""The run folder of a monitor: a manifest, and one line per step that was read.

A line is appended and flushed as soon as its step is over, so a killed run keeps its measurements; each carries its own
checksum, and an incomplete last line (of a run that was killed, or is still writing) is ignored. So the folder can be
opened at any time. A run that resumes from a checkpoint keeps the lines up to it, and replaces those after it.
"""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

from .._errors import AbbeError
from .._files import finite, is_unfinished, read_json, write_json, write_whole
from .._locks import HOLDER, LOCK, held
from ..results import MANIFEST, checked_manifest
from ._alerts import list_rules
from ._quantities import list_quantities

STUDY = "watch"
STEPS = "steps.jsonl"
_CHECK = "crc32"


# -- Lines ------------------------------------------------------------------------------------------------------------


def encoded_step(record: Mapping[str, Any]) -> str:
    r"""A record as one line, with its checksum; NaN and infinity become null.

    Args:
        record: of a step that was read.

    Returns:
        The line, with its newline.

    Examples:
        >>> abbe.training.encoded_step({"step": 1, "loss": 2.5})
        '{"crc32":339451216,"step":1,"loss":2.5}\n'
    """
    text = json.dumps(finite(record), separators=(",", ":"), allow_nan=False)
    return f'{{"{_CHECK}":{zlib.crc32(text.encode())},{text[1:]}\n'


class StepsFile:
    """The records of a growing file: each read decodes only what was appended since the last one.

    A run that resumes from a checkpoint replaces its file, which is then read from the start: it has another line where
    the last one ended, or none.

    Args:
        path: of the file.

    Examples:
        >>> from pathlib import Path
        >>> steps = abbe.training.StepsFile(Path("steps.jsonl"))
        >>> before = steps.read()
        >>> _ = Path("steps.jsonl").write_text(abbe.training.encoded_step({"step": 1}) + '{"crc32":')
        >>> before, steps.read()
        ([], [{'step': 1}])
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._forget()

    def _forget(self) -> None:
        self._records: list[dict[str, Any]] = []
        self._end, self._last = 0, b""  # of the lines that were read

    def read(self) -> list[dict[str, Any]]:
        """All records so far; none if there is no file."""
        if not self.path.exists():
            self._forget()
            return []
        try:
            with open(self.path, "rb") as file:
                appended = self._appended(file)
        except OSError as error:
            raise AbbeError(f"{self.path} cannot be read: {error.strerror}") from None
        whole, newline, _ = appended.rpartition(b"\n")  # a line without a newline is still being written
        if newline:
            lines, first = whole.split(b"\n"), len(self._records) + 1
            self._records += [self._decoded(number, line) for number, line in enumerate(lines, first)]
            self._end, self._last = self._end + len(whole) + 1, lines[-1] + newline
        return list(self._records)

    def _appended(self, file: BinaryIO) -> bytes:
        file.seek(self._end - len(self._last))
        if file.read(len(self._last)) != self._last:
            self._forget()
            file.seek(0)
        return file.read()

    def _decoded(self, number: int, line: bytes) -> dict[str, Any]:
        head, _, rest = line.partition(b",")
        try:
            if json.loads(head + b"}")[_CHECK] != zlib.crc32(b"{" + rest):
                raise ValueError
            record: dict[str, Any] = json.loads(b"{" + rest)
        except (ValueError, KeyError, TypeError, RecursionError):
            raise AbbeError(f"{self.path} is damaged: line {number} is not what was written") from None
        return record


# -- Folder -----------------------------------------------------------------------------------------------------------


def manifest_of(network: Any, settings: Mapping[str, Any], skipped: list[str]) -> dict[str, Any]:
    """The identity of a run: class and configuration of its model, settings, and versions."""
    from ..runs.measuring import study_facts  # loads models, for which `abbe watch` must not wait

    config: Any = getattr(network, "config", None)
    if hasattr(config, "to_diff_dict"):
        configuration = config.to_diff_dict()
    else:  # not from transformers
        configuration = {name: tuple(part.shape) for name, part in network.state_dict().items()}
    for irrelevant in ("transformers_version", "dtype", "_name_or_path"):
        configuration.pop(irrelevant, None)
    digest = hashlib.sha256(json.dumps(configuration, sort_keys=True, default=str).encode()).hexdigest()
    kind = type(network).__name__
    return study_facts(STUDY, settings) | {
        "finished": True,  # it can be opened at any time
        "identity": {"model": kind, "configuration": digest, "settings": dict(settings)},
        "model": {
            "name": getattr(config, "_name_or_path", "") or kind,
            "class": kind,
            "parameters": sum(parameter.numel() for parameter in network.parameters()),
            "configuration": digest,
        },
        "text": {"name": "the batches of the training run"},
        "self_check": {"error": None, "why": "nothing was read yet"},
        "layers": [],
        "quantities": [asdict(quantity) for quantity in list_quantities()],
        "rules": [asdict(rule) for rule in list_rules()],
        "skipped": list(skipped),
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
    }


class Record:
    """What a monitor has measured, in memory and in its folder, which it holds until it is closed."""

    def __init__(self, folder: str | os.PathLike[str] | None, manifest: dict[str, Any], resume: int) -> None:
        self.manifest, self.path = manifest, None if folder is None else Path(folder)
        self.records: list[dict[str, Any]] = []
        self._open = ExitStack()
        if self.path is not None:
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

    def _take(self, path: Path, resume: int) -> None:
        """Start or resume in a folder whose lock is held."""
        if any(file.name not in (LOCK, HOLDER) and not is_unfinished(file) for file in path.iterdir()):
            stored = _check_same(path, self.manifest["identity"])
            before = StepsFile(path / STEPS).read()
            if before and not resume:
                raise AbbeError(
                    f"{path} holds a run up to step {before[-1]['step']:,}: resume it with resume=STEP, the step of "
                    "the checkpoint, or name another folder"
                )
            self.records = [record for record in before if record["step"] <= resume]
            self.manifest |= {name: stored[name] for name in ("made", "layers", "self_check") if name in stored}
        write_whole(path / STEPS, "".join(map(encoded_step, self.records)))
        write_json(path / MANIFEST, self.manifest)


def _check_same(path: Path, identity: Mapping[str, Any]) -> dict[str, Any]:
    """The manifest of a folder that belongs to this run; an error for any other folder."""
    if not (path / MANIFEST).is_file():
        raise AbbeError(f"{path} is not empty and holds no run: name a new folder")
    manifest = checked_manifest(path / MANIFEST, read_json(path / MANIFEST))
    if manifest.get("study") != STUDY:
        raise AbbeError(f"{path} is a folder of `abbe {manifest.get('study')}`: name a new folder")
    stored, wanted = manifest.get("identity") or {}, json.loads(json.dumps(identity))
    different = [key for key in ("model", "configuration") if stored.get(key) != wanted[key]]
    settings = stored.get("settings") or {}
    different += [key for key, value in wanted["settings"].items() if settings.get(key) != value]
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
