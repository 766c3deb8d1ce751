"""A swap as one safetensors file: what the normalizers learned as tensors, patterns, specs and heads as metadata."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from torch import Tensor

from ..._errors import AbbeError
from ..._files import write_whole
from ..._tensor_checksum import tensor_checksum
from ...normalizers import Normalizer, normalizer
from .facts import check_facts, check_groups
from .groups import Groups, HeadGroup, check_fits
from .layers import Layer

_KEY, _FORMAT, _SUM = "abbe_swap", 1, "sha256"


def write_groups(path: str | os.PathLike[str], groups_of: Groups, model: str) -> None:
    """Write all groups; a normalizer that several groups share is written once."""
    from safetensors.torch import save

    made = list({id(group.normalizer): group.normalizer for groups in groups_of.values() for group in groups}.values())
    shared = [one for one in made if one is not None]
    for one in shared:
        _check_spec(one)
    layers = [
        {"path": layer.path, "heads": layer.heads, "groups": [_group_facts(group, shared) for group in groups]}
        for layer, groups in groups_of.items()
    ]
    specs = [one.initial_spec for one in shared]
    facts: dict[str, Any] = {"format": _FORMAT, "abbe": _version(), "model": model, "layers": layers, "specs": specs}
    tensors = {
        f"{number}.{name}": tensor.detach().cpu().contiguous()
        for number, one in enumerate(shared)
        for name, tensor in one.state_dict().items()
    }
    facts |= {_SUM: tensor_checksum(tensors, facts)}
    write_whole(Path(path), save(tensors, {_KEY: json.dumps(facts)}))


def read_groups(path: str, layers: Sequence[Layer], model: str) -> Groups:
    """The groups of a file, for a model of the same class that has the same layers and heads."""
    facts, tensors = _read(path)
    check_facts(path, facts)
    _check_layers(path, facts, layers, model)
    for layer, one in zip(layers, facts["layers"], strict=True):
        check_groups(path, one["groups"], layer, len(facts["specs"]))
    _check_tensors(path, tensors, len(facts["specs"]))
    made = [_loaded(path, number, spec, tensors) for number, spec in enumerate(facts["specs"])]
    stored = zip(layers, facts["layers"], strict=True)
    groups_of = {layer: tuple(_group(group, made, layer) for group in one["groups"]) for layer, one in stored}
    for layer, groups in groups_of.items():
        for group in groups:
            if group.normalizer is not None:
                check_fits(group.normalizer, group.heads, layer)
    _check_sum(path, facts, tensors)
    return groups_of


def _check_sum(path: str, facts: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Last, so that a mistake that has a name is reported by it; files of older versions carry none."""
    summed = {key: value for key, value in facts.items() if key != _SUM}
    if _SUM in facts and facts[_SUM] != tensor_checksum(tensors, summed):
        raise AbbeError(f"{path} is damaged: its checksum is wrong; calibrate or save the swap again")


def _version() -> str:
    try:
        return metadata.version("abbe")
    except metadata.PackageNotFoundError:  # run from its sources
        return "unknown"


def _group_facts(group: HeadGroup, shared: list[Normalizer]) -> dict[str, Any]:
    which = next((number for number, one in enumerate(shared) if one is group.normalizer), None)
    return {"pattern": group.pattern, "heads": group.heads, "normalizer": which}


def _group(stored: dict[str, Any], made: list[Normalizer], layer: Layer) -> HeadGroup:
    which = stored["normalizer"]
    return HeadGroup(stored["pattern"], tuple(stored["heads"]), None if which is None else made[which].to(layer.device))


def _check_spec(one: Normalizer) -> None:
    """A file holds specs, so a normalizer must be what its spec says."""
    try:
        same = type(normalizer(one.initial_spec)) is type(one)
    except AbbeError:
        same = False
    if not same:
        raise AbbeError(f"cannot save {type(one).__name__}: its spec {one.initial_spec!r} does not make it again")


def _read(path: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    from safetensors import safe_open

    if not Path(path).is_file():
        raise AbbeError(f"there is no file {path}")
    try:
        with safe_open(path, framework="pt") as file:
            text = (file.metadata() or {}).get(_KEY)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except Exception as error:
        raise AbbeError(f"{path} is no safetensors file: {error}") from None
    if text is None:
        raise AbbeError(f"{path} was not written by Swap.save: it does not say which normalizers it holds")
    return _facts(path, text), tensors


def _facts(path: str, text: str) -> dict[str, Any]:
    try:
        facts = json.loads(text)
    except (ValueError, RecursionError):
        raise AbbeError(f"{path} is damaged: what it says of its normalizers is no JSON") from None
    if not isinstance(facts, dict):
        raise AbbeError(f"{path} is damaged: what it says of its normalizers is no JSON object")
    if facts.get("format") != _FORMAT:
        raise AbbeError(f"{path} was written by abbe {facts.get('abbe')}, in a format that this abbe cannot read")
    return facts


def _check_layers(path: str, facts: dict[str, Any], layers: Sequence[Layer], model: str) -> None:
    if facts["model"] != model:
        raise AbbeError(f"{path} is for a {facts['model']}, and this model is a {model}; swap a {facts['model']}")
    stored = [(layer["path"], layer["heads"]) for layer in facts["layers"]]
    have = [(layer.path, layer.heads) for layer in layers]
    if stored == have:
        return
    if len(stored) != len(have):
        raise AbbeError(f"{path} is for a {facts['model']} of {len(stored)} layers, this {model} has {len(have)}")
    (other, other_heads), (own, heads) = next(pair for pair in zip(stored, have, strict=True) if pair[0] != pair[1])
    raise AbbeError(
        f"{path} is for another {facts['model']}: it has {other} with {other_heads} heads where this {model} has {own} "
        f"with {heads}"
    )


def _check_tensors(path: str, tensors: dict[str, Tensor], specs: int) -> None:
    known = {str(number) for number in range(specs)}
    for name, tensor in tensors.items():
        if name.partition(".")[0] not in known:
            raise AbbeError(f"{path} is damaged: its tensor {name!r} belongs to none of its {specs} normalizers")
        if not tensor.is_floating_point():
            raise AbbeError(f"{path} is damaged: its tensor {name!r} holds {tensor.dtype}, no floating-point numbers")


def _loaded(path: str, number: int, spec: str, tensors: dict[str, Tensor]) -> Normalizer:
    try:
        made = normalizer(spec)
    except (AbbeError, RuntimeError, MemoryError) as error:  # as many heads as no memory holds are a RuntimeError
        raise AbbeError(f"{path} is damaged: it holds {spec!r}, which cannot be made: {error}") from None
    own = {name.partition(".")[2]: tensor for name, tensor in tensors.items() if name.startswith(f"{number}.")}
    try:
        made.load_state_dict(own)
    except RuntimeError:
        raise AbbeError(f"{path} is damaged: its numbers do not fit {spec}") from None
    for name, tensor in made.state_dict().items():  # not those of the file: a large float64 is infinite in float32
        if not bool(tensor.isfinite().all()):
            raise AbbeError(f"{path} is damaged: its tensor '{number}.{name}' is not finite")
    return made
