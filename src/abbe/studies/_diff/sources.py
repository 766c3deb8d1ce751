"""The sides of a comparison: models, folders of checkpoints, or folders of finished runs."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from ..._errors import AbbeError
from ...models import LoadedModel, Windows, shape_of
from ...results import MANIFEST, Run, read_manifest
from ...runs.inputs import ModelLike
from ...runs.parts import Parts
from ...runs.tables import Record
from ...words.manifest import without_folder

_CONFIG = "config.json"
_NUMBER = re.compile(r"(\d+)")
_STUDIES = (Run.study, "report")


def sources(model: ModelLike | Sequence[ModelLike], other: ModelLike | None) -> list[ModelLike]:
    """All sides in order; a folder or a glob of checkpoints stands for all of them, sorted by number."""
    models: list[Any] = [*model] if isinstance(model, (list, tuple)) else [model]
    models += [] if other is None else [other]
    sides = [side for one in models for side in _expanded(one)]
    if len(sides) < 2:
        raise AbbeError("there is only one model: name another one, or a folder or a glob of several checkpoints")
    return sides


def _expanded(model: ModelLike) -> list[ModelLike]:
    if not isinstance(model, (str, os.PathLike)):
        return [model]
    path = Path(model).expanduser()
    if any(sign in os.fspath(model) for sign in "*?["):
        paths: Iterable[Path] = map(Path, glob.glob(str(path)))
        problem = f"{os.fspath(model)} matches no folder of a model or of a run"
    elif path.is_dir() and not _is_side(path):
        paths = path.iterdir()
        problem = f"{path} is neither a model nor a run, and holds no checkpoints (folders with a {_CONFIG})"
    else:
        return [model]
    sides = sorted(filter(_is_side, paths), key=_natural_order)
    if not sides:
        raise AbbeError(problem)
    return [*sides]


def _is_side(path: Path) -> bool:
    return path.is_dir() and ((path / _CONFIG).is_file() or is_run(path))


def is_run(model: object) -> bool:
    """Whether it is the folder of a run, not of a model."""
    if not isinstance(model, (str, os.PathLike)):
        return False
    path = Path(model).expanduser()
    return (path / MANIFEST).is_file() and not (path / _CONFIG).is_file()


def _natural_order(path: Path) -> list[Any]:
    """checkpoint-500 before checkpoint-1000."""
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in _NUMBER.split(path.name)]


def read_runs(folders: Sequence[str]) -> tuple[list[str], list[dict[int, list[Record]]]]:
    """Names of finished runs, and the records of their windows by length; refused if they cannot be compared."""
    paths = [Path(folder) for folder in folders]
    names = [path.name for path in paths]
    names = names if len(set(names)) == len(names) else [str(path) for path in paths]
    runs = [_read_run(path.expanduser()) for path in paths]
    check_shapes(names, [_recorded_shape(records) for _, records in runs])
    _check_same_setup(names, [manifest for manifest, _ in runs])
    return names, [records for _, records in runs]


def _read_run(path: Path) -> tuple[dict[str, Any], dict[int, list[Record]]]:
    manifest, _ = read_manifest(path)
    study = manifest.get("study", Run.study)
    if study not in _STUDIES:
        raise AbbeError(f"{path} is a folder of `abbe {study}`: diff takes folders of diagnose and report")
    parts = Parts(path, (manifest.get("identity") or {}).get("digest", ""))
    records: dict[int, list[Record]] = {}
    if not isinstance(manifest.get("windows"), list):
        raise AbbeError(f"{path} was written by an older version of abbe, without its windows: measure it again")
    for window in manifest["windows"]:
        name = f"windows/{window['length']}-{window['index']}"
        stored = parts.tensors(name)
        if stored is None:
            why = parts.measured_again[0].partition(";")[0] if parts.measured_again else f"it has no {name}"
            raise AbbeError(f"{path} lacks some of its windows ({why}): name the folder in which it was measured")
        records.setdefault(int(window["length"]), []).append(stored[0])
    return manifest, records


def _check_same_setup(names: Sequence[str], manifests: Sequence[dict[str, Any]]) -> None:
    """Runs are compared window by window: text, settings and windows must be the same."""
    first = manifests[0]
    for name, other in zip(names[1:], manifests[1:], strict=True):
        if other["text"]["fingerprint"] != first["text"]["fingerprint"]:
            raise AbbeError(f"{names[0]} and {name} were measured on different texts: measure both on the same one")
        different = [key for key, value in first["settings"].items() if other["settings"].get(key) != value]
        if different:
            raise AbbeError(
                f"{names[0]} and {name} were measured with different settings ({', '.join(different)}): "
                "measure both with the same ones"
            )
        if other["windows"] != first["windows"]:
            raise AbbeError(f"{names[0]} and {name} have different windows, since their tokenizers differ")


def check_shapes(names: Sequence[str], shapes: Sequence[tuple[int, ...]]) -> None:
    """Heads are compared one by one: all sides need the same numbers of layers and heads."""
    for name, shape in zip(names[1:], shapes[1:], strict=True):
        if shape != shapes[0]:
            ours, theirs = (" layers of ".join(map(str, one)) for one in (shapes[0], shape))
            raise AbbeError(
                f"{names[0]} has {ours} heads, {name} has {theirs}: diff compares head by head, so give models of the "
                "same shape"
            )


def check_tokens(names: Sequence[str], cut: Sequence[Windows]) -> None:
    """Windows are compared in pairs: they must hold the same tokens."""
    first = [window.tokens.tolist() for window in cut[0]]
    for name, windows in zip(names[1:], cut[1:], strict=True):
        if [window.tokens.tolist() for window in windows] != first:
            raise AbbeError(
                f"{names[0]} and {name} cut the text into different tokens, so their windows cannot be paired: "
                "give models with the same tokenizer"
            )


def model_shape(model: LoadedModel) -> tuple[int, ...]:
    """Numbers of layers and heads."""
    shape = shape_of(model.network, model.kind)
    return shape.layers, shape.heads


def _recorded_shape(records: dict[int, list[Record]]) -> tuple[int, ...]:
    record = next(iter(records.values()))[0]
    return tuple(next(x for key, x in record.items() if key.endswith("/value")).shape[:2])


def names_of(models: Sequence[ModelLike]) -> list[str]:
    """Names to show, without folders of this machine; duplicates get their dtype or a number."""
    names = [_name(model) for model in models]
    if len(set(names)) == len(names):
        return names
    with_dtype = [f"{name} ({_dtype(model)})" for name, model in zip(names, models, strict=True)]
    if len(set(with_dtype)) == len(with_dtype):
        return with_dtype
    return [f"{name} ({number})" for number, name in enumerate(names, 1)]


def provisional_id(model: ModelLike) -> str:
    """How a folder identifies a model that is not loaded yet; its run later checks the weights."""
    return model.fingerprint if isinstance(model, LoadedModel) else _name(model)


def _name(model: ModelLike) -> str:
    if isinstance(model, nn.Module):
        return type(model).__name__
    name = model.name if isinstance(model, LoadedModel) else os.fspath(model)
    return Path(name).name if Path(name).exists() else without_folder(name)


def _dtype(model: ModelLike) -> str:
    network: Any = model.network if isinstance(model, LoadedModel) else model
    return str(getattr(network, "dtype", "")).removeprefix("torch.")
