"""Which normalizer each head gets: patterns and specs, resolved for one model.

What is special: a spec creates one normalizer per layer, with separate parameters for each head if it learns, while a
Normalizer instance is used as it is wherever its pattern matches. A head that no pattern names keeps the model's own
attention.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from ..._errors import AbbeError
from ...normalizers import Normalizer, normalizer, parse_spec
from .layers import EVERY, Layer, matches, rules_in

What = str | Normalizer | Mapping[str, str | Normalizer]


@dataclass(frozen=True, eq=False)
class HeadGroup:
    """Heads of one layer that share a normalizer.

    Attributes:
        pattern: that chose them.
        heads: their numbers, from 0.
        normalizer: None is the model's own attention.
    """

    pattern: str
    heads: tuple[int, ...]
    normalizer: Normalizer | None


Groups = dict[Layer, tuple[HeadGroup, ...]]


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
                groups[layer].append(HeadGroup(pattern, heads, _normalizer(wanted, heads, layer)))
                free[layer].difference_update(heads)
                used = True
        if not used and pattern != EVERY:
            raise AbbeError(f"pattern {pattern!r} has no effect: those before it name all of its heads; put it first")
    for layer in layers:
        if free[layer]:
            groups[layer].append(HeadGroup("", tuple(sorted(free[layer])), None))
    return {layer: tuple(groups[layer]) for layer in layers}


def _normalizer(wanted: str | Normalizer, heads: Sequence[int], layer: Layer) -> Normalizer:
    chosen = normalizer(wanted) if not isinstance(wanted, str) else for_heads(wanted, len(heads)).to(layer.device)
    check_fits(chosen, heads, layer)
    return chosen


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
    for part in _parts(whole):
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


def needs_order(whole: Normalizer | None) -> bool:
    return whole is not None and any(part.needs_order for part in _parts(whole))


def _parts(whole: Normalizer) -> Iterable[Normalizer]:
    return (part for part in whole.modules() if isinstance(part, Normalizer))


def as_module(groups_of: Groups) -> nn.ModuleDict:
    """All normalizers by the number of their layer, as the network holds them during the swap."""
    return nn.ModuleDict(
        {
            str(layer.number): nn.ModuleList([group.normalizer for group in groups if group.normalizer is not None])
            for layer, groups in groups_of.items()
            if any(group.normalizer is not None for group in groups)
        }
    )
