"""The attention layers of a model as `swap` sees them, and patterns that name layers and heads.

A pattern is "*", "layers.0,2,5-7" or a glob such as "*encoder*", each also followed by ".heads.0,4-6".
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn

from ..._errors import AbbeError
from .._load.device import place_of
from .._load.sources import setting
from .._session.call import is_causal

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
        if chosen[-1] >= layer.heads:
            head = next(head for head in chosen if head >= layer.heads)
            raise AbbeError(f"pattern {pattern!r}: {layer.path} has no head {head}; its heads are 0-{layer.heads - 1}")
    return dict.fromkeys(matched, chosen)


def _layers(pattern: str, where: str, layers: Sequence[Layer]) -> list[Layer]:
    start, dot, numbers = where.partition(".")
    if start == "layers" and dot and _NUMBERS.fullmatch(numbers):
        chosen = _numbers(pattern, numbers)
        for number in chosen:
            if number >= len(layers):
                raise AbbeError(f"pattern {pattern!r}: there is no layer {number}; {_listed(layers)}")
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
