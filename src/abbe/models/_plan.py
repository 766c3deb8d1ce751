"""A plan: which head gets which normalizer, by patterns and specs, resolved for one model; and its file.

A pattern is "*", "layers.0,2,5-7" or a glob such as "*encoder*", each also followed by ".heads.0,4-6". A spec creates
one normalizer per layer, with separate parameters for each head if it learns, while a Normalizer instance is used as it
is wherever its pattern matches. A head that no pattern names keeps the model's own attention.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from importlib import import_module
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .._arguments import is_whole
from .._errors import AbbeError, one_line
from .._files import write_whole
from .._tensors import checksum
from ..normalizers import Normalizer, normalizer, parse_spec
from ._network import checked_network, place_of, setting
from ._session.call import HeadGroup, Rule, is_causal
from ._session.modules import attention_modules
from ._session.rule import has_rule, parts_of, standing_rule

_NUMBERS = re.compile(r"\d+(-\d+)?(,\d+(-\d+)?)*")
_LISTED = 8  # layers that an error lists
EVERY = "*"
FILE_PREFIX = "file:"  # of a swap that was saved
# Names for the number of query heads in modules; a module without one follows its config.
_HEADS = ("num_heads", "num_attention_heads", "n_heads", "n_head")


@dataclass(frozen=True, eq=False)
class Layer:
    """One attention module.

    Attributes:
        number: place among the attention modules, in the order in which the network holds them.
        path: of the module in the network, such as "model.layers.3.self_attn".
        heads: number of query heads.
        causal: whether its queries see no later keys, as the module declares it.
    """

    number: int
    path: str
    heads: int
    causal: bool
    module: nn.Module

    @property
    def device(self) -> torch.device:
        return place_of(self.module) or torch.device("cpu")


def layers_of(network: Any, modules: dict[nn.Module, str]) -> list[Layer]:
    """These attention modules, in the order of the network."""
    return [
        Layer(number, path, _heads(network, module, path), is_causal(module), module)
        for number, (module, path) in enumerate(modules.items())
    ]


def _heads(network: Any, module: nn.Module, path: str) -> int:
    for owner in (module, getattr(module, "config", None), network.config.get_text_config()):
        if (heads := setting(owner, *_HEADS)) is not None:
            return heads
    raise AbbeError(f"unsupported: {type(network).__name__} ({path}) does not say how many heads it has")


def rules_in(text: str) -> str | dict[str, str]:
    """Patterns and specs in one line, as a command line has them.

    Args:
        text: "PATTERN=SPEC; PATTERN=SPEC"; a spec alone, or "file:PATH", stays as it is.

    Returns:
        Specs by pattern, or the text.

    Raises:
        AbbeError: a part is not PATTERN=SPEC, or a pattern is given twice.

    Examples:
        >>> abbe.models.rules_in("layers.10-29=softmax:temperature=0.8; *.heads.0=sparsemax")
        {'layers.10-29': 'softmax:temperature=0.8', '*.heads.0': 'sparsemax'}
    """
    first, equals, _ = text.partition("=")
    if text.startswith(FILE_PREFIX) or (";" not in text and (not equals or ":" in first)):
        return text
    rules: dict[str, str] = {}
    for part in text.strip().removesuffix(";").split(";"):
        pattern, equals, spec = (piece.strip() for piece in part.partition("="))
        if not (pattern and equals and spec) or ":" in pattern:
            raise AbbeError(f"{part.strip()!r} is not PATTERN=SPEC: write 'layers.3=topk:k=32; *=softmax'")
        if pattern in rules:
            raise AbbeError(f"pattern {pattern!r} is given twice")
        rules[pattern] = spec
    return rules


def matches(pattern: str, layers: Sequence[Layer]) -> dict[Layer, tuple[int, ...]]:
    """The heads that a pattern names, of each layer that it names; refuses a pattern that names nothing."""
    if not isinstance(pattern, str):
        raise AbbeError(f"a pattern must be a string such as 'layers.3.heads.0,4'; got {pattern!r}")
    where, dot, heads = pattern.strip().rpartition(".heads.")
    if not dot:
        return {layer: tuple(range(layer.heads)) for layer in _layers(pattern, pattern.strip(), layers)}
    if not _NUMBERS.fullmatch(heads):
        raise AbbeError(f"pattern {pattern!r}: heads must be numbers such as 0,4 or 2-5; got {heads!r}")
    chosen = tuple(_numbers(pattern, heads))
    matched = _layers(pattern, where, layers)
    for layer in matched:
        if absent := [head for head in chosen if head >= layer.heads]:
            heads = f"its heads are 0-{layer.heads - 1}"
            raise AbbeError(f"pattern {pattern!r}: {layer.path} has no head {absent[0]}; {heads}")
    return dict.fromkeys(matched, chosen)


def _layers(pattern: str, where: str, layers: Sequence[Layer]) -> list[Layer]:
    start, dot, numbers = where.partition(".")
    if start == "layers" and dot and _NUMBERS.fullmatch(numbers):
        chosen = _numbers(pattern, numbers)
        if absent := [number for number in chosen if number >= len(layers)]:
            raise AbbeError(f"pattern {pattern!r}: there is no layer {absent[0]}; {_listed(layers)}")
        return [layers[number] for number in chosen]
    named = [layer for layer in layers if fnmatchcase(layer.path, where)]
    if not named:
        raise AbbeError(
            f"pattern {pattern!r} matches no layer; write '*', 'layers.3', 'layers.0,2,5-7' or a glob of a path, "
            f"then .heads.0,4 for some heads; {_listed(layers)}"
        )
    return named


def _numbers(pattern: str, text: str) -> list[int]:
    """The numbers of "0,2,5-7", sorted."""
    numbers: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        if last and int(last) < int(first):
            raise AbbeError(f"pattern {pattern!r}: {part} runs backwards; write {last}-{first}")
        numbers.update(range(int(first), int(last or first) + 1))
    return sorted(numbers)


def _listed(layers: Sequence[Layer]) -> str:
    names = [f"{layer.number} {layer.path}" for layer in layers]
    if len(names) > _LISTED:
        names[_LISTED - 2 : -1] = ["..."]
    return f"layers: {', '.join(names)}"


What = str | Normalizer | Mapping[str, str | Normalizer]


Groups = dict[Layer, Rule]


def make_groups(what: What, layers: Sequence[Layer]) -> Groups:
    """The groups of every layer, together all its heads."""
    what = rules_in(what) if isinstance(what, str) else what
    rules = what if isinstance(what, Mapping) else {EVERY: what}
    if not rules:
        raise AbbeError("there is no pattern; write {'*': 'entmax:alpha=1.5'}, or the spec alone")
    free = {layer: set(range(layer.heads)) for layer in layers}
    groups: dict[Layer, list[HeadGroup]] = {layer: [] for layer in layers}
    for pattern, wanted in rules.items():
        used = False
        for layer, named in matches(pattern, layers).items():
            heads = tuple(head for head in named if head in free[layer])
            if heads:
                made = for_heads(wanted, len(heads)).to(layer.device) if isinstance(wanted, str) else normalizer(wanted)
                check_fits(made, heads, layer)
                groups[layer].append(HeadGroup(pattern, heads, made))
                free[layer].difference_update(heads)
                used = True
        if not used and pattern != EVERY:
            raise AbbeError(f"pattern {pattern!r} has no effect: those before it name all of its heads; put it first")
    for layer in layers:
        if free[layer]:
            groups[layer].append(HeadGroup("", tuple(sorted(free[layer])), None))
    return {layer: tuple(groups[layer]) for layer in layers}


def standing_groups(layer: Layer) -> Rule:
    """What the heads of a layer compute with now."""
    rule = standing_rule(layer.module, layer.heads)
    return (HeadGroup("", tuple(range(layer.heads)), None),) if rule is None else rule


def _as_it_stands(layer: Layer, groups: Rule) -> Iterator[HeadGroup]:
    """Heads that keep the model's attention have the normalizers that it computes with now."""
    for group in groups:
        if group.normalizer is not None:
            yield group
            continue
        for one in standing_groups(layer):
            heads = tuple(head for head in one.heads if head in group.heads)
            inner = () if one.normalizer is None else parts_of(one.normalizer)
            if 0 < len(heads) < len(one.heads) and any(part._given.get("heads", 1) > 1 for part in inner):
                raise AbbeError(
                    f"{layer.path} already computes with {one.normalizer}, which has a value for each of its "
                    f"{len(one.heads)} heads: name all of these heads, or none"
                )
            if heads:
                yield replace(one, heads=heads)


def for_heads(spec: str, heads: int) -> Normalizer:
    """The normalizer of a spec; parameters that learn get a value per head, unless the spec says heads=."""
    plain, (name, settings) = normalizer(spec), parse_spec(spec)
    options = {option.name: option for option in plain.options}
    filled: dict[str, Any] = {
        key: for_heads(settings.get(key, option.default), heads)
        for key, option in options.items()
        if option.kind == "normalizer"
    }
    if "heads" in options and "heads" not in settings and (plain.always_learns or plain._given.get("learn")):
        filled["heads"] = heads
    return normalizer(name, **(settings | filled)) if filled else plain


def check_fits(whole: Normalizer, heads: Sequence[int], layer: Layer) -> None:
    for part in parts_of(whole):
        if part._given.get("heads", 1) not in (1, len(heads)):
            raise AbbeError(
                f"{whole} is made for {part._given['heads']} heads, but is to serve {len(heads)} heads of "
                f"{layer.path}; leave heads= out"
            )
        if part.needs_order and not layer.causal:
            raise AbbeError(
                f"{whole} needs keys in causal order, and {layer.path} has none: "
                "it is an encoder's or a cross attention"
            )


class Normalizers(nn.ModuleDict):
    """All normalizers by the number of their layer, as a network holds them; its state says which ones they are.

    A normalizer that layers share is held by the first of them, because safetensors writes no tensor twice.
    """

    def __init__(self, groups_of: Groups) -> None:
        super().__init__()
        self._described = [list(row) for row in _rows(groups_of, _initial_cells)]
        seen: set[int] = set()
        for layer, groups in groups_of.items():
            every = {id(group.normalizer): group.normalizer for group in groups if group.normalizer is not None}
            if new := nn.ModuleList([one for number, one in every.items() if number not in seen]):
                self[str(layer.number)] = new
            seen |= every.keys()

    def get_extra_state(self) -> Tensor:
        """The plan as JSON; a tensor, which any format keeps."""
        return torch.tensor(list(json.dumps(self._described).encode()), dtype=torch.uint8, device="cpu")

    def set_extra_state(self, state: Any) -> None:
        """Nothing to set: `check` has compared it before anything was loaded."""

    def check(self, state: Any) -> None:
        """Refuse the extra state of another plan."""
        with one_line("the checkpoint's plan cannot be read"):
            stored = [[str(cell) for cell in row] for row in json.loads(bytes(state.tolist()))]
            other, own = _in_words(stored), _in_words(self._described)
        if stored != self._described:
            raise AbbeError(
                f"the checkpoint has {other}, but this model has {own}: swap it to the plan of the checkpoint first "
                "(file:FOLDER/abbe_plan.safetensors), or load the weights without abbe_normalizers and strict=False"
            )


def _in_words(rows: list[list[str]]) -> str:
    return "; ".join(f"{spec} in layers {layers}, heads {heads}" for layers, heads, spec in rows if spec != _UNCHANGED)


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
    return Plan(checked_network(model, "plan"), normalizer(what) if what is None else what)  # which refuses it


def standing_plan(network: object) -> Plan | None:
    """The normalizers that a network computes with now; None if all of its heads have the model's own softmax."""
    if not has_rule(checked_network(network, "plan")):
        return None
    plan = Plan(network, None)
    return plan if any(group.normalizer is not None for rule in plan.values() for group in rule) else None


class Plan(Mapping[str, Rule]):
    """The groups of heads with their normalizers by layer path, in the order of the network.

    A group whose normalizer is None keeps the model's own attention. Where other normalizers are in place already, by a
    swap that is open or a folder with a plan, heads that no pattern names keep them.

    Args:
        network: a transformers model.
        what: as for `swap`; None for what the model computes with now.

    Examples:
        >>> planned = abbe.plan(abbe.load("embedded"), "layers.0=sparsemax")
        >>> [str(group.normalizer) for group in planned[planned.layers[0]]]
        ['sparsemax']
    """

    def __init__(self, network: object, what: What | None) -> None:
        self._model = type(network).__name__
        layers = layers_of(network, attention_modules(checked_network(network, "plan")))
        if what is None:
            groups_of = {layer: standing_groups(layer) for layer in layers}
        elif isinstance(what, str) and what.startswith(FILE_PREFIX):
            groups_of = read_groups(what.removeprefix(FILE_PREFIX), layers, self._model)
        else:
            groups_of = make_groups(what, layers)
        self.by_layer = {layer: tuple(_as_it_stands(layer, groups)) for layer, groups in groups_of.items()}
        self._by_path = {layer.path: groups for layer, groups in self.by_layer.items()}

    @property
    def layers(self) -> list[str]:
        """Paths of the attention modules by number, as patterns count them."""
        return list(self._by_path)

    @property
    def fingerprint(self) -> str:
        """sha256 over heads, specs and learned values, whatever the patterns."""
        facts, tensors = _stored(self.by_layer, self._model)
        groups = [[(group["heads"], group["normalizer"]) for group in layer["groups"]] for layer in facts["layers"]]
        return checksum(tensors, {"specs": facts["specs"], "groups": groups})

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write patterns, specs and learned parameters into one safetensors file, for `swap(model, "file:PATH")`.

        Args:
            path: of the file.
        """
        write_groups(path, self.by_layer, self._model)

    def __getitem__(self, path: str) -> Rule:
        return self._by_path[path]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_path)

    def __len__(self) -> int:
        return len(self._by_path)

    def __repr__(self) -> str:
        """A table; neighbouring layers with the same groups share their rows."""
        rows = [_HEADER, *_rows(self.by_layer, _cells)]
        widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADER))]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        count = f"{len(self)} layer{'s' if len(self) != 1 else ''}"
        return "\n".join([f"Plan for {self._model}, {count}", *lines])

    def as_lines(self) -> list[str]:
        """Heads and their normalizers, in one line where all of some layers have the same.

        Examples:
            >>> abbe.plan(abbe.load("embedded"), "layers.3=sparsemax").as_lines()
            ['softmax in layers 0-2,4-5', 'sparsemax in layers 3']
        """
        places: dict[str, dict[str, list[int]]] = {}  # layers by normalizer and heads
        for layer, groups in self.by_layer.items():
            for group in groups:
                heads = "" if len(groups) == 1 else f"heads {_spans(sorted(group.heads))} of "
                places.setdefault(str(group.normalizer or "softmax"), {}).setdefault(heads, []).append(layer.number)
        everywhere = {"": list(range(len(self)))}
        return [
            f"{name} in all heads"
            if at == everywhere
            else f"{name} in " + ", ".join(f"{heads}layers {_spans(numbers)}" for heads, numbers in at.items())
            for name, at in places.items()
        ]


def _rows(groups_of: Groups, cells_of: Callable[[HeadGroup], tuple[str, ...]]) -> Iterator[tuple[str, ...]]:
    """The cells of every group after the numbers of its layers; neighbouring layers with the same cells share rows."""
    layers = [(layer.number, tuple(map(cells_of, groups))) for layer, groups in groups_of.items()]
    for groups, same in groupby(layers, key=lambda entry: entry[1]):
        numbers = _spans([number for number, _ in same])
        yield from ((numbers, *cells) for cells in groups)


def _cells(group: HeadGroup) -> tuple[str, str, str]:
    return _spans(sorted(group.heads)), str(group.normalizer or _UNCHANGED), group.pattern


def _initial_cells(group: HeadGroup) -> tuple[str, str]:
    """Without what is learned, so that they stay the same while a model learns."""
    return _spans(sorted(group.heads)), _UNCHANGED if group.normalizer is None else group.normalizer.initial_spec


def _spans(numbers: list[int]) -> str:
    """Rising numbers as "0,2,5-7"."""
    # Consecutive numbers have the same difference to their place.
    runs = ([n for _, n in run] for _, run in groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0]))
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


_KEY, _FORMAT, _SUM = "abbe_swap", 1, "sha256"
States = Mapping[int, Mapping[str, Tensor]]  # other values than those that normalizers hold, by id


def write_groups(path: str | os.PathLike[str], groups_of: Groups, model: str, states: States | None = None) -> None:
    """Write all groups; a shared normalizer is written once. `states` replace the values that they hold."""
    from safetensors.torch import save

    facts, tensors = _stored(groups_of, model, states)
    facts |= {_SUM: checksum(tensors, facts)}
    write_whole(Path(path), save(tensors, {_KEY: json.dumps(facts)}))


def _stored(groups_of: Groups, model: str, states: States | None = None) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What the file of a plan says, and the learned values."""
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
        "format": _FORMAT, "abbe": import_module("abbe").__version__, "model": model, "layers": layers,
        "specs": [one.initial_spec for one in shared],
    }  # fmt: skip
    tensors = {
        f"{number}.{name}": tensor.detach().cpu().contiguous()
        for number, one in enumerate(shared)
        for name, tensor in (one.state_dict() if states is None else states[id(one)]).items()
    }
    return facts, tensors


def read_groups(path: str, layers: Sequence[Layer], model: str) -> Groups:
    """The groups of a file, for a model of the same class that has the same layers and heads."""
    facts, tensors = _read(path)
    _check_facts(path, facts)
    _check_layers(path, facts, layers, model)
    specs = facts["specs"]
    for name, tensor in tensors.items():
        known = name.partition(".")[0] in map(str, range(len(specs)))
        _check(path, known, f"its tensor {name!r} belongs to none of its {len(specs)} normalizers")
        holds = f"its tensor {name!r} holds {tensor.dtype}, not floating-point numbers"
        _check(path, tensor.is_floating_point(), holds)
    normalizers = [_loaded(path, number, spec, tensors) for number, spec in enumerate(specs)]
    groups_of: Groups = {}
    for layer, stored in zip(layers, facts["layers"], strict=True):
        groups_of[layer] = tuple(_group(path, group, layer, normalizers) for group in stored["groups"])
        heads = sorted(head for group in groups_of[layer] for head in group.heads)
        _check(path, heads == list(range(layer.heads)), f"it does not name every head of {layer.path} once")
        for group in groups_of[layer]:
            if group.normalizer is not None:
                check_fits(group.normalizer, group.heads, layer)
    # Last, so that a more precise error comes first; files of older versions have no checksum.
    summed = {key: value for key, value in facts.items() if key != _SUM}
    intact = _SUM not in facts or facts[_SUM] == checksum(tensors, summed)
    _check(path, intact, "its checksum is wrong; calibrate or save the swap again")
    return groups_of


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
    with one_line(f"{path} is not a safetensors file"), safe_open(path, framework="pt") as file:
        text = (file.metadata() or {}).get(_KEY)
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    if text is None:
        raise AbbeError(f"{path} was not written by Swap.save: it does not say which normalizers it holds")
    with one_line(f"{path} is damaged: its metadata is not JSON"):
        facts = json.loads(text)
    _check(path, isinstance(facts, dict), "its metadata is not a JSON object")
    if facts.get("format") != _FORMAT:
        raise AbbeError(f"{path} was written by abbe {facts.get('abbe')}, in a format that this abbe cannot read")
    return facts, tensors


def _check_layers(path: str, facts: dict[str, Any], layers: Sequence[Layer], model: str) -> None:
    if facts["model"] != model:
        raise AbbeError(f"{path} is for a {facts['model']}, and this model is a {model}; swap a {facts['model']}")
    stored = [(layer["path"], layer["heads"]) for layer in facts["layers"]]
    if len(stored) != len(layers):
        raise AbbeError(f"{path} is for a {facts['model']} of {len(stored)} layers, this {model} has {len(layers)}")
    for (other, heads), own in zip(stored, layers, strict=True):
        if (other, heads) != (own.path, own.heads):
            raise AbbeError(
                f"{path} is for another {facts['model']}: it has {other} with {heads} heads where this {model} "
                f"has {own.path} with {own.heads}"
            )


def _loaded(path: str, number: int, spec: str, tensors: dict[str, Tensor]) -> Normalizer:
    try:
        loaded = normalizer(spec)
    except (AbbeError, RuntimeError, MemoryError) as error:  # more heads than memory can hold are a RuntimeError
        raise AbbeError(f"{path} is damaged: it holds {spec!r}, which cannot be created: {error}") from None
    own = {name.partition(".")[2]: tensor for name, tensor in tensors.items() if name.startswith(f"{number}.")}
    if any(tensor.dtype.itemsize == 2 for tensor in own.values()):
        loaded.to(next(iter(own.values())).dtype)  # as in a network of half precision: rounding depends on it
    try:
        loaded.load_state_dict(own)
    except RuntimeError:
        raise AbbeError(f"{path} is damaged: its numbers do not fit {spec}") from None
    for name, tensor in loaded.state_dict().items():  # not those of the file: a large float64 is infinite in float32
        _check(path, bool(tensor.isfinite().all()), f"its tensor '{number}.{name}' is not finite")
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


def _group(path: str, stored: Any, layer: Layer, normalizers: Sequence[Normalizer]) -> HeadGroup:
    """A group of the file; refused if it names heads that the layer lacks, or a normalizer that the file lacks."""
    pattern, heads, which = stored.get("pattern"), stored.get("heads"), stored.get("normalizer", -1)
    _check(path, isinstance(pattern, str), f"a group of {layer.path} has no pattern")
    there = _all_are(heads, int) and heads and all(is_whole(head) and 0 <= head < layer.heads for head in heads)
    wanted = f"whole numbers from 0 to {layer.heads - 1}"
    _check(path, bool(there), f"heads of {layer.path} are {heads!r}, but must be {wanted}")
    known = which is None or (is_whole(which) and 0 <= which < len(normalizers))
    _check(path, known, f"{layer.path} has normalizer {which!r}, of {len(normalizers)} that the file holds")
    return HeadGroup(pattern, tuple(heads), None if which is None else normalizers[which].to(layer.device))


def _all_are(listed: object, kind: type) -> bool:
    return isinstance(listed, list) and all(isinstance(one, kind) for one in listed)


def _check(path: str, holds: bool, trouble: str) -> None:
    if not holds:
        raise AbbeError(f"{path} is damaged: {trouble}")
