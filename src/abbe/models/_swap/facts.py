"""What a file of a swap says of itself, checked before it is used: the file may come from anywhere."""

from __future__ import annotations

from typing import Any

from ..._arguments import is_whole
from ..._errors import AbbeError
from .layers import Layer


def check_facts(path: str, facts: dict[str, Any]) -> None:
    """That everything that is read is there and of its kind."""
    _check(path, isinstance(facts.get("model"), str), "it does not name the model's class")
    specs, layers = facts.get("specs"), facts.get("layers")
    _check(path, _all_are(specs, str), "its specs are no list of texts")
    _check(path, _all_are(layers, dict), "its layers are no list of objects")
    for number, layer in enumerate(layers or ()):
        complete = isinstance(layer.get("path"), str) and is_whole(layer.get("heads"))
        _check(path, complete, f"its layer {number} has no path or no number of heads")
        _check(path, _all_are(layer.get("groups"), dict), f"the groups of its layer {number} are no list of objects")


def check_groups(path: str, groups: list[dict[str, Any]], layer: Layer, specs: int) -> None:
    """That the groups of one layer name every head once, and normalizers that the file holds."""
    named: list[int] = []
    for group in groups:
        _check(path, isinstance(group.get("pattern"), str), f"a group of {layer.path} has no pattern")
        heads, which = group.get("heads"), group.get("normalizer", -1)
        if not isinstance(heads, list) or not heads or not all(is_whole(h) and 0 <= h < layer.heads for h in heads):
            raise AbbeError(
                f"{path} is damaged: heads of {layer.path} are {heads!r}, "
                f"but must be whole numbers from 0 to {layer.heads - 1}"
            )
        known = which is None or (is_whole(which) and 0 <= which < specs)
        _check(path, known, f"{layer.path} has normalizer {which!r}, of {specs} that the file holds")
        named += heads
    _check(path, sorted(named) == list(range(layer.heads)), f"it does not name every head of {layer.path} once")


def _all_are(listed: object, kind: type) -> bool:
    return isinstance(listed, list) and all(isinstance(one, kind) for one in listed)


def _check(path: str, holds: bool, trouble: str) -> None:
    if not holds:
        raise AbbeError(f"{path} is damaged: {trouble}")
