"""A plan, which head gets which normalizer, and its file."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from itertools import groupby
from pathlib import Path
from typing import Any

from torch import Tensor

from ..._arguments import is_whole
from ..._errors import AbbeError
from ..._files import write_whole
from ..._tensor_checksum import tensor_checksum
from ...normalizers import Normalizer, normalizer
from .._session.modules import attention_modules
from .._unwrap import checked_network
from .attention import Groups, HeadGroup, What, check_fits, make_groups
from .layers import FILE_PREFIX, Layer, layers_of

_HEADER = ("layers", "heads", "normalizer", "pattern")
_UNCHANGED = "unchanged"  # heads that keep the model's attention


def plan(model: object, what: What) -> Plan:
    """What `swap(model, what)` would do, without doing it: which normalizer each layer and head would get.

    The model may be in use meanwhile, also under a tap or a swap.

    Args:
        model: a transformers model, or what `load` returns.
        what: all that `swap` takes; a mistake in it is the same error.

    Returns:
        A mapping from layer paths to groups of heads, which prints as a table.

    Examples:
        >>> abbe.plan(abbe.load("embedded"), {"layers.3": "topk:k=32", "*.heads.0,4": "sparsemax"})
        Plan for GPT2LMHeadModel, 6 layers
        layers  heads    normalizer  pattern
        0-2     0,4      sparsemax   *.heads.0,4
        0-2     1-3,5-7  unchanged
        3       0-7      topk:k=32   layers.3
        4-5     0,4      sparsemax   *.heads.0,4
        4-5     1-3,5-7  unchanged
    """
    return Plan(checked_network(model, "plan"), what)


class Plan(Mapping[str, tuple[HeadGroup, ...]]):
    """The groups of heads with their normalizers by layer path, in the order of the network.

    A group whose normalizer is None keeps the model's own attention.

    Args:
        network: a transformers model.
        what: as for `swap`.

    Examples:
        >>> planned = abbe.plan(abbe.load("embedded"), "layers.0=sparsemax")
        >>> [str(group.normalizer) for group in planned[planned.layers[0]]]
        ['sparsemax']
    """

    def __init__(self, network: object, what: What) -> None:
        self._model = type(network).__name__
        layers = layers_of(network, attention_modules(checked_network(network, "plan")))
        if isinstance(what, str) and what.startswith(FILE_PREFIX):
            self.by_layer = read_groups(what.removeprefix(FILE_PREFIX), layers, self._model)
        else:
            self.by_layer = make_groups(what, layers)
        self._by_path = {layer.path: groups for layer, groups in self.by_layer.items()}

    @property
    def layers(self) -> list[str]:
        """Paths of the attention modules by number, as patterns count them."""
        return list(self._by_path)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write patterns, specs and learned parameters into one safetensors file, for `swap(model, "file:PATH")`.

        Args:
            path: of the file.
        """
        write_groups(path, self.by_layer, self._model)

    def __getitem__(self, path: str) -> tuple[HeadGroup, ...]:
        return self._by_path[path]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_path)

    def __len__(self) -> int:
        return len(self._by_path)

    def __repr__(self) -> str:
        """A table; neighbouring layers with the same groups share their rows."""
        rows = [_HEADER, *self._rows()]
        widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADER))]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        count = f"{len(self)} layer{'s' if len(self) != 1 else ''}"
        return "\n".join([f"Plan for {self._model}, {count}", *lines])

    def _rows(self) -> Iterator[tuple[str, ...]]:
        layers = [(layer.number, tuple(map(_cells, groups))) for layer, groups in self.by_layer.items()]
        for groups, same in groupby(layers, key=lambda entry: entry[1]):
            numbers = _spans([number for number, _ in same])
            yield from ((numbers, *cells) for cells in groups)


def _cells(group: HeadGroup) -> tuple[str, str, str]:
    return _spans(sorted(group.heads)), str(group.normalizer or _UNCHANGED), group.pattern


def _spans(numbers: list[int]) -> str:
    """Rising numbers as "0,2,5-7"."""
    # Consecutive numbers have the same difference to their place.
    runs = ([n for _, n in run] for _, run in groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0]))
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


_KEY, _FORMAT, _SUM = "abbe_swap", 1, "sha256"


def write_groups(path: str | os.PathLike[str], groups_of: Groups, model: str) -> None:
    """Write all groups; a normalizer that several groups share is written once."""
    from safetensors.torch import save

    every = (group.normalizer for groups in groups_of.values() for group in groups)
    shared = list({id(one): one for one in every if one is not None}.values())
    for one in shared:
        _check_spec(one)
    numbers = {id(one): number for number, one in enumerate(shared)}

    def group_facts(group: HeadGroup) -> dict[str, Any]:
        return {"pattern": group.pattern, "heads": group.heads, "normalizer": numbers.get(id(group.normalizer))}

    layers = [
        {"path": layer.path, "heads": layer.heads, "groups": [group_facts(group) for group in groups]}
        for layer, groups in groups_of.items()
    ]
    facts: dict[str, Any] = {
        "format": _FORMAT, "abbe": installed_version("abbe"), "model": model, "layers": layers,
        "specs": [one.initial_spec for one in shared],
    }  # fmt: skip
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
    _check_facts(path, facts)
    _check_layers(path, facts, layers, model)
    for layer, one in zip(layers, facts["layers"], strict=True):
        _check_groups(path, one["groups"], layer, len(facts["specs"]))
    _check_tensors(path, tensors, len(facts["specs"]))
    normalizers = [_loaded(path, number, spec, tensors) for number, spec in enumerate(facts["specs"])]
    stored = zip(layers, facts["layers"], strict=True)
    groups_of = {layer: tuple(_group(group, normalizers, layer) for group in one["groups"]) for layer, one in stored}
    for layer, groups in groups_of.items():
        for group in groups:
            if group.normalizer is not None:
                check_fits(group.normalizer, group.heads, layer)
    # Last, so that a more precise error comes first; files of older versions have no checksum.
    summed = {key: value for key, value in facts.items() if key != _SUM}
    if _SUM in facts and facts[_SUM] != tensor_checksum(tensors, summed):
        raise AbbeError(f"{path} is damaged: its checksum is wrong; calibrate or save the swap again")
    return groups_of


def installed_version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:  # run from its sources
        return "unknown"


def _group(stored: dict[str, Any], normalizers: list[Normalizer], layer: Layer) -> HeadGroup:
    which = stored["normalizer"]
    chosen = None if which is None else normalizers[which].to(layer.device)
    return HeadGroup(stored["pattern"], tuple(stored["heads"]), chosen)


def _check_spec(one: Normalizer) -> None:
    """Refuse a normalizer that its spec does not create, since the file holds specs."""
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
        raise AbbeError(f"{path} is not a safetensors file: {error}") from None
    if text is None:
        raise AbbeError(f"{path} was not written by Swap.save: it does not say which normalizers it holds")
    return _facts(path, text), tensors


def _facts(path: str, text: str) -> dict[str, Any]:
    try:
        facts = json.loads(text)
    except (ValueError, RecursionError):
        raise AbbeError(f"{path} is damaged: its metadata is not JSON") from None
    if not isinstance(facts, dict):
        raise AbbeError(f"{path} is damaged: its metadata is not a JSON object")
    if facts.get("format") != _FORMAT:
        raise AbbeError(f"{path} was written by abbe {facts.get('abbe')}, in a format that this abbe cannot read")
    return facts


def _check_layers(path: str, facts: dict[str, Any], layers: Sequence[Layer], model: str) -> None:
    if facts["model"] != model:
        raise AbbeError(f"{path} is for a {facts['model']}, and this model is a {model}; swap a {facts['model']}")
    stored = [(layer["path"], layer["heads"]) for layer in facts["layers"]]
    have = [(layer.path, layer.heads) for layer in layers]
    if len(stored) != len(have):
        raise AbbeError(f"{path} is for a {facts['model']} of {len(stored)} layers, this {model} has {len(have)}")
    for (other, other_heads), (own, heads) in zip(stored, have, strict=True):
        if (other, other_heads) != (own, heads):
            raise AbbeError(
                f"{path} is for another {facts['model']}: it has {other} with {other_heads} heads where this {model} "
                f"has {own} with {heads}"
            )


def _check_tensors(path: str, tensors: dict[str, Tensor], specs: int) -> None:
    known = {str(number) for number in range(specs)}
    for name, tensor in tensors.items():
        if name.partition(".")[0] not in known:
            raise AbbeError(f"{path} is damaged: its tensor {name!r} belongs to none of its {specs} normalizers")
        if not tensor.is_floating_point():
            raise AbbeError(f"{path} is damaged: its tensor {name!r} holds {tensor.dtype}, not floating-point numbers")


def _loaded(path: str, number: int, spec: str, tensors: dict[str, Tensor]) -> Normalizer:
    try:
        loaded = normalizer(spec)
    except (AbbeError, RuntimeError, MemoryError) as error:  # more heads than memory can hold are a RuntimeError
        raise AbbeError(f"{path} is damaged: it holds {spec!r}, which cannot be created: {error}") from None
    own = {name.partition(".")[2]: tensor for name, tensor in tensors.items() if name.startswith(f"{number}.")}
    try:
        loaded.load_state_dict(own)
    except RuntimeError:
        raise AbbeError(f"{path} is damaged: its numbers do not fit {spec}") from None
    for name, tensor in loaded.state_dict().items():  # not those of the file: a large float64 is infinite in float32
        if not bool(tensor.isfinite().all()):
            raise AbbeError(f"{path} is damaged: its tensor '{number}.{name}' is not finite")
    return loaded


def _check_facts(path: str, facts: dict[str, Any]) -> None:
    """Refuse metadata in which an entry is missing or of another type: the file may come from anywhere."""
    _check(path, isinstance(facts.get("model"), str), "it does not name the model's class")
    specs, layers = facts.get("specs"), facts.get("layers")
    _check(path, _all_are(specs, str), "its specs are not a list of strings")
    _check(path, _all_are(layers, dict), "its layers are not a list of objects")
    for number, layer in enumerate(layers or ()):
        complete = isinstance(layer.get("path"), str) and is_whole(layer.get("heads"))
        _check(path, complete, f"its layer {number} has no path or no number of heads")
        _check(path, _all_are(layer.get("groups"), dict), f"the groups of its layer {number} are not a list of objects")


def _check_groups(path: str, groups: list[dict[str, Any]], layer: Layer, specs: int) -> None:
    """Refuse a layer whose groups do not name every head once, or name normalizers that the file does not hold."""
    named: list[int] = []
    for group in groups:
        _check(path, isinstance(group.get("pattern"), str), f"a group of {layer.path} has no pattern")
        heads, which = group.get("heads"), group.get("normalizer", -1)
        if not isinstance(heads, list) or not heads or not all(is_whole(h) and 0 <= h < layer.heads for h in heads):
            what = f"heads of {layer.path} are {heads!r}, but must be whole numbers from 0 to {layer.heads - 1}"
            raise AbbeError(f"{path} is damaged: {what}")
        known = which is None or (is_whole(which) and 0 <= which < specs)
        _check(path, known, f"{layer.path} has normalizer {which!r}, of {specs} that the file holds")
        named += heads
    _check(path, sorted(named) == list(range(layer.heads)), f"it does not name every head of {layer.path} once")


def _all_are(listed: object, kind: type) -> bool:
    return isinstance(listed, list) and all(isinstance(one, kind) for one in listed)


def _check(path: str, holds: bool, trouble: str) -> None:
    if not holds:
        raise AbbeError(f"{path} is damaged: {trouble}")
