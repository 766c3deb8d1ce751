"""What is compared: models, folders of checkpoints, or folders of runs that were measured before."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import nn

from ..._errors import AbbeError
from ...models import LoadedModel
from ...results import MANIFEST, Run, read_manifest
from .._engine.inputs import ModelLike
from .._engine.parts import Parts
from .._engine.tables import Record

_CONFIG = "config.json"
_NUMBER = re.compile(r"(\d+)")
_STUDIES = (Run.study, "report")


def sources(model: ModelLike | Sequence[ModelLike], other: ModelLike | None) -> list[ModelLike]:
    """All sides in order: a folder of checkpoints, or a glob of them, stands for each of them by its number."""
    given: list[Any] = [*model] if isinstance(model, (list, tuple)) else [model]
    listed = [one for several in (*given, *([] if other is None else [other])) for one in _expanded(several)]
    if len(listed) < 2:
        raise AbbeError("there is only one model: name another one, or a folder or a glob of several checkpoints")
    return listed


def _expanded(model: ModelLike) -> list[ModelLike]:
    if not isinstance(model, (str, os.PathLike)) or isinstance(model, (LoadedModel, nn.Module)):
        return [model]
    path = Path(model).expanduser()
    if any(sign in os.fspath(model) for sign in "*?["):
        matching = [Path(one) for one in glob.glob(str(path))]
        inside = [one for one in matching if _is_side(one)]
        if not inside:
            raise AbbeError(f"{os.fspath(model)} matches no folder of a model or of a run")
        return [*sorted(inside, key=_in_order)]
    if path.is_dir() and not _is_side(path):
        checkpoints = sorted((one for one in path.iterdir() if _is_side(one)), key=_in_order)
        if not checkpoints:
            raise AbbeError(f"{path} is no model, no run, and holds no checkpoints (folders with a {_CONFIG})")
        return [*checkpoints]
    return [model]


def _is_side(path: Path) -> bool:
    return path.is_dir() and ((path / _CONFIG).is_file() or is_run(path))


def is_run(model: object) -> bool:
    """Whether it is a folder of a run, not of a model."""
    if not isinstance(model, (str, os.PathLike)):
        return False
    path = Path(model).expanduser()
    return (path / MANIFEST).is_file() and not (path / _CONFIG).is_file()


def _in_order(path: Path) -> list[Any]:
    """checkpoint-500 before checkpoint-1000."""
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in _NUMBER.split(path.name)]


def read_run(folder: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[int, list[Record]]]:
    """Manifest and records of the windows of a finished run, by length."""
    path = Path(folder).expanduser()
    manifest, _ = read_manifest(path)
    study = manifest.get("study", Run.study)
    if study not in _STUDIES:
        raise AbbeError(f"{path} is a folder of `abbe {study}`: diff takes those of diagnose and report")
    parts = Parts(path, (manifest.get("identity") or {}).get("digest", ""))
    records: dict[int, list[Record]] = {}
    if not isinstance(manifest.get("windows"), list):
        raise AbbeError(f"{path} was written by an older version of abbe, without its windows: measure it again")
    for window in manifest["windows"]:
        name = f"windows/{window['length']}-{window['index']}"
        stored = parts.tensors(name)
        if stored is None:
            why = parts.measured_again[0].partition(";")[0] if parts.measured_again else f"it has no {name}"
            raise AbbeError(f"{path} has not all of its windows ({why}): name the folder in which it was measured")
        records.setdefault(int(window["length"]), []).append(stored[0])
    return manifest, records


def check_alike(names: Sequence[str], manifests: Sequence[dict[str, Any]]) -> None:
    """Runs are compared window by window: text, settings and windows must be the same."""
    first = manifests[0]
    for name, other in zip(names[1:], manifests[1:], strict=True):
        if other["text"]["fingerprint"] != first["text"]["fingerprint"]:
            raise AbbeError(f"{names[0]} and {name} were measured on different texts: measure both on the same one")
        different = [key for key, value in first["settings"].items() if other["settings"].get(key) != value]
        if different:
            raise AbbeError(
                f"{names[0]} and {name} were measured with different settings ({', '.join(different)}): "
                "measure both with the same"
            )
        if other["windows"] != first["windows"]:
            raise AbbeError(f"{names[0]} and {name} have different windows, since their tokenizers differ")


def check_shapes(names: Sequence[str], shapes: Sequence[Sequence[int]]) -> None:
    """Heads are compared one by one: layers and heads must be as many on all sides."""
    for name, shape in zip(names[1:], shapes[1:], strict=True):
        if tuple(shape) != tuple(shapes[0]):
            ours, theirs = (" layers of ".join(map(str, one)) for one in (shapes[0], shape))
            raise AbbeError(
                f"{names[0]} has {ours} heads, {name} has {theirs}: diff compares head by head, so give models of one "
                "shape"
            )
