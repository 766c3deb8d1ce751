"""The layers of a calibration: fitted one after the other, or taken from the folder, then shown as tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import polars as pl
import torch
from torch import Tensor

from ...models import HeadGroup
from ...normalizers import Learned, Normalizer
from .._engine.fitting.fit import HeadFits, fit, judge
from .._engine.fitting.rows import LayerRows
from .._engine.parts import Parts
from .result import HEADS_SCHEMA, PARAMETERS_SCHEMA

T = TypeVar("T")

_FACTS = ("energy", "before", "after", "zeros_before", "zeros_after")
_COLUMNS = ("energy", "error_before", "error_after", "zeros_before", "zeros_after")
_TUNED_COLUMNS = ("error_tuned", "zeros_tuned")


@dataclass(frozen=True, eq=False)
class FittedGroup:
    """Heads of one layer that share a normalizer."""

    layer: int
    name: str
    heads: tuple[int, ...]
    made: Normalizer
    start: dict[str, list[float]]
    facts: HeadFits | None = None
    tuned: tuple[Tensor, Tensor] | None = None  # errors and shares of zeros after fine-tuning

    @property
    def pattern(self) -> str:
        """What names exactly these heads in `swap`."""
        return f"layers.{self.layer}.heads.{','.join(map(str, self.heads))}"


def groups_to_fit(normalizers: Mapping[str, Sequence[HeadGroup]]) -> dict[int, list[FittedGroup]]:
    """By layer, what a swap would put in; heads that keep the baseline's attention are left out."""
    by_layer: dict[int, list[FittedGroup]] = {}
    for layer, (name, groups) in enumerate(normalizers.items()):
        for group in groups:
            if group.normalizer is not None:
                made = group.normalizer
                by_layer.setdefault(layer, []).append(FittedGroup(layer, name, group.heads, made, values_of(made)))
    return by_layer


def values_of(made: Normalizer) -> dict[str, list[float]]:
    """Each learned parameter, such as "t", "alpha" or "a.alpha" of a part a, with its value for each head."""
    return {
        ".".join(part for part in path.split(".") if part not in ("learned", "of")): _flat(learned)
        for path, learned in made.named_modules()
        if isinstance(learned, Learned)
    }


def _flat(learned: Learned) -> list[float]:
    return [float(value) for value in learned.value().detach().cpu().double().flatten()]


def fit_layer(groups: Sequence[FittedGroup], rows: LayerRows, steps: int) -> list[FittedGroup]:
    facts = [_beside(rows, fit, group, steps) for group in groups]
    return [replace(group, facts=of_group) for group, of_group in zip(groups, facts, strict=True)]


def judge_layer(groups: Sequence[FittedGroup], rows: LayerRows) -> list[FittedGroup]:
    """With the errors and zeros of the normalizers as they are after fine-tuning."""
    return [replace(group, tuned=_beside(rows, judge, group)) for group in groups]


def _beside(rows: LayerRows, work: Callable[..., T], group: FittedGroup, *more: Any) -> T:
    """Work on the group's normalizer where the rows are, which need not be where its layer is."""
    at_home = [parameter.device for parameter in group.made.parameters()]
    worked = work(group.made.to(rows.logits.device), rows.of_heads(group.heads), *more)
    for home in at_home[:1]:
        group.made.to(home)
    return worked


def keep_layer(parts: Parts, groups: Sequence[FittedGroup]) -> None:
    tensors: dict[str, Tensor] = {}
    for number, group in enumerate(groups):
        tensors |= {f"{number}.state.{key}": value for key, value in group.made.state_dict().items()}
        tensors |= {f"{number}.{key}": getattr(group.facts, key) for key in _FACTS}
    parts.keep_tensors(layer_part(groups), tensors)


def kept_layer(parts: Parts, groups: Sequence[FittedGroup]) -> list[FittedGroup] | None:
    """The layer as an earlier call fitted it, None if it did not."""
    kept = parts.tensors(layer_part(groups))
    if kept is None:
        return None
    tensors, fitted = kept[0], []
    for number, group in enumerate(groups):
        start = f"{number}.state."
        group.made.load_state_dict({key.removeprefix(start): x for key, x in tensors.items() if key.startswith(start)})
        fitted.append(replace(group, facts=HeadFits(*(tensors[f"{number}.{key}"] for key in _FACTS))))
    return fitted


def layer_part(groups: Sequence[FittedGroup]) -> str:
    return f"layers/{groups[0].layer}"


def heads_table(groups: Sequence[FittedGroup]) -> pl.DataFrame:
    rows: list[dict[str, Any]] = []
    for group in groups:
        assert group.facts is not None
        columns = {column: getattr(group.facts, key) for column, key in zip(_COLUMNS, _FACTS, strict=True)}
        columns |= dict(zip(_TUNED_COLUMNS, group.tuned or (), strict=False))
        numbers = torch.stack([column.cpu() for column in columns.values()], -1).tolist()
        for head, of_head in zip(group.heads, numbers, strict=True):
            place = {"layer": group.layer, "name": group.name, "head": head, "spec": group.made.initial_spec}
            rows.append(place | dict(zip(columns, of_head, strict=True)))
    return pl.DataFrame(rows, HEADS_SCHEMA).sort("layer", "head")


def parameters_table(groups: Sequence[FittedGroup]) -> pl.DataFrame:
    rows = [
        {"layer": group.layer, "head": head, "parameter": name, "start": group.start[name][place], "value": value}
        for group in groups
        for name, values in values_of(group.made).items()
        for place, (head, value) in enumerate(zip(group.heads, values, strict=True))
    ]
    return pl.DataFrame(rows, PARAMETERS_SCHEMA).sort("layer", "head", "parameter")
