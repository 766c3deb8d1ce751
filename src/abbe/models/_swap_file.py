"""A swap as one safetensors file: what the normalizers learned as tensors, patterns, specs and heads as metadata."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from torch import Tensor

from .._errors import AbbeError
from ..normalizers import Normalizer, normalizer
from ._swap_layers import Layer
from ._swap_plan import HeadGroup, Plan, check_fits

_KEY, _FORMAT = "abbe_swap", 1


def write_plan(path: str | os.PathLike[str], plan: Plan, model: str) -> None:
    """Write a plan; a normalizer that several groups share is written once."""
    from safetensors.torch import save_file

    made = list({id(group.normalizer): group.normalizer for groups in plan.values() for group in groups}.values())
    shared = [one for one in made if one is not None]
    for one in shared:
        _check_spec(one)
    layers = [
        {"path": layer.path, "heads": layer.heads, "groups": [_group_facts(group, shared) for group in groups]}
        for layer, groups in plan.items()
    ]
    facts = {"format": _FORMAT, "abbe": _version(), "model": model, "layers": layers, "specs": [*map(str, shared)]}
    tensors = {
        f"{number}.{name}": tensor.detach().cpu().contiguous()
        for number, one in enumerate(shared)
        for name, tensor in one.state_dict().items()
    }
    try:
        save_file(tensors, os.fspath(path), {_KEY: json.dumps(facts)})
    except Exception as error:
        raise AbbeError(f"cannot write {os.fspath(path)}: {error}") from None


def read_plan(path: str, layers: Sequence[Layer], model: str) -> Plan:
    """The plan of a file, for a model that has the same layers and heads."""
    facts, tensors = _read(path)
    try:
        _check_layers(path, facts, layers, model)
        made = [_loaded(path, number, spec, tensors) for number, spec in enumerate(facts["specs"])]
        stored = zip(layers, facts["layers"], strict=True)
        plan = {layer: tuple(_group(group, made, layer) for group in one["groups"]) for layer, one in stored}
    except (KeyError, IndexError, TypeError) as error:
        raise AbbeError(f"{path} is damaged: {error!r}") from None
    for layer, groups in plan.items():
        _check_heads(path, layer, groups)
    return plan


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
        same = type(normalizer(one.spec)) is type(one)
    except AbbeError:
        same = False
    if not same:
        raise AbbeError(f"cannot save {type(one).__name__}: its spec {one.spec!r} does not make it again")


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
    facts: dict[str, Any] = json.loads(text)
    if facts.get("format") != _FORMAT:
        raise AbbeError(f"{path} was written by abbe {facts.get('abbe')}, in a format that this abbe cannot read")
    return facts, tensors


def _check_layers(path: str, facts: dict[str, Any], layers: Sequence[Layer], model: str) -> None:
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


def _check_heads(path: str, layer: Layer, groups: Sequence[HeadGroup]) -> None:
    if sorted(head for group in groups for head in group.heads) != list(range(layer.heads)):
        raise AbbeError(f"{path} is damaged: it does not name every head of {layer.path} once")
    for group in groups:
        if group.normalizer is not None:
            check_fits(group.normalizer, group.heads, layer)


def _loaded(path: str, number: int, spec: str, tensors: dict[str, Tensor]) -> Normalizer:
    made = normalizer(spec)
    own = {name.partition(".")[2]: tensor for name, tensor in tensors.items() if name.startswith(f"{number}.")}
    try:
        made.load_state_dict(own)
    except RuntimeError:
        raise AbbeError(f"{path} is damaged: its numbers do not fit {spec}") from None
    return made
