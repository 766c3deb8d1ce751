"""plan(model, what): which normalizer each layer and head would get; the model is read, never changed."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from itertools import groupby

from .._session.modules import attention_modules
from .._unwrap import checked_network
from .file import read_groups, write_groups
from .groups import HeadGroup, What, make_groups
from .layers import FILE_PREFIX, layers_of

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
