"""The layers of a calibration: fitted one after the other, or read from the folder, then put into tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import polars as pl
import torch
from torch import Tensor

from ...models import HeadGroup
from ...normalizers import Learned, Normalizer
from ...runs.parts import Parts
from .._shared.fitting import HeadFits, LayerRows, fit, judge
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
    normalizer: Normalizer
    start: dict[str, list[float]]
    facts: HeadFits | None = None
    tuned: tuple[Tensor, Tensor] | None = None  # errors and shares of zeros after fine-tuning

    @property
    def pattern(self) -> str:
        """Names exactly these heads in `swap`."""
        return f"layers.{self.layer}.heads.{','.join(map(str, self.heads))}"


def groups_to_fit(normalizers: Mapping[str, Sequence[HeadGroup]]) -> dict[int, list[FittedGroup]]:
    """The normalizers of a swap by layer; heads that keep the baseline's attention are left out."""
    by_layer: dict[int, list[FittedGroup]] = {}
    for layer, (name, groups) in enumerate(normalizers.items()):
        for group in groups:
            if group.normalizer is not None:
                fitted = FittedGroup(layer, name, group.heads, group.normalizer, values_of(group.normalizer))
                by_layer.setdefault(layer, []).append(fitted)
    return by_layer


def values_of(normalizer: Normalizer) -> dict[str, list[float]]:
    """Each learned parameter, such as "t", "alpha" or "a.alpha" of a part a, with its value for each head."""
    return {
        ".".join(part for part in path.split(".") if part not in ("learned", "of")): (
            learned.value().detach().cpu().double().flatten().tolist()
        )
        for path, learned in normalizer.named_modules()
        if isinstance(learned, Learned)
    }


def fit_layer(groups: Sequence[FittedGroup], rows: LayerRows, steps: int) -> list[FittedGroup]:
    return [replace(group, facts=_at_rows(rows, fit, group, steps)) for group in groups]


def judge_layer(groups: Sequence[FittedGroup], rows: LayerRows) -> list[FittedGroup]:
    """With errors and zeros after fine-tuning."""
    return [replace(group, tuned=_at_rows(rows, judge, group)) for group in groups]


def _at_rows(rows: LayerRows, work: Callable[..., T], group: FittedGroup, *more: Any) -> T:
    """Run `work` with the group's normalizer on the device of the rows, which may differ from that of its layer."""
    home = next((parameter.device for parameter in group.normalizer.parameters()), None)
    result = work(group.normalizer.to(rows.logits.device), rows.of_heads(group.heads), *more)
    if home is not None:
        group.normalizer.to(home)
    return result


def keep_layer(parts: Parts, groups: Sequence[FittedGroup]) -> None:
    tensors: dict[str, Tensor] = {}
    for number, group in enumerate(groups):
        tensors |= {f"{number}.state.{key}": value for key, value in group.normalizer.state_dict().items()}
        tensors |= {f"{number}.{key}": getattr(group.facts, key) for key in _FACTS}
    parts.keep_tensors(layer_part(groups), tensors)


def kept_layer(parts: Parts, groups: Sequence[FittedGroup]) -> list[FittedGroup] | None:
    """The layer as fitted by an earlier call, or None."""
    kept = parts.tensors(layer_part(groups))
    if kept is None:
        return None
    tensors, fitted = kept[0], []
    for number, group in enumerate(groups):
        start = f"{number}.state."
        state = {key.removeprefix(start): x for key, x in tensors.items() if key.startswith(start)}
        group.normalizer.load_state_dict(state)
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
            place = {"layer": group.layer, "name": group.name, "head": head, "spec": group.normalizer.initial_spec}
            rows.append(place | dict(zip(columns, of_head, strict=True)))
    return pl.DataFrame(rows, HEADS_SCHEMA).sort("layer", "head")


def parameters_table(groups: Sequence[FittedGroup]) -> pl.DataFrame:
    rows = [
        {"layer": group.layer, "head": head, "parameter": name, "start": group.start[name][place], "value": value}
        for group in groups
        for name, values in values_of(group.normalizer).items()
        for place, (head, value) in enumerate(zip(group.heads, values, strict=True))
    ]
    return pl.DataFrame(rows, PARAMETERS_SCHEMA).sort("layer", "head", "parameter")
