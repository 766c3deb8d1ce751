"""Every candidate fitted to every layer alone: once this is done, each plan is put together from fitted layers."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from ..._errors import AbbeError
from ...models import HeadGroup, LoadedModel, Window, plan, tap
from ...normalizers import Normalizer, normalizer
from .._engine.calibrated import learnable
from .._engine.fitting.fit import fit
from .._engine.fitting.rows import LayerRows, RowReader, portions
from .._engine.parts import Parts
from .._engine.swapped.sensitivity import at_equal_selectivity, effective_tokens, spread
from .._engine.watch import Watch
from .settings import CONTROL_SPEC, RETRIEVAL, LiftSettings

ROWS_FROM = 8  # windows whose rows are kept at once
_FIT_STEPS = 12
_FACTS = ("error", "zeros", "effective", "effective_baseline", "sensitivity")
_SENSITIVE_WINDOWS, _SENSITIVE_QUERIES = 4, 4  # rows on which sensitivities are compared

Recipe = Mapping[int, str]  # layer -> candidate
Heads = Mapping[int, tuple[int, ...]]  # layer -> those of its heads that get it, where it is not all


@dataclass(frozen=True)
class LayerFacts:
    """What a candidate does in one layer, on rows of the unchanged model; means over its heads."""

    error: float  # of its outputs, over their size
    zeros: float
    effective: float
    effective_baseline: float
    sensitivity: float  # at equal selectivity, over that of softmax; NaN where no head can be matched


class Fits:
    """The normalizer of each candidate in each layer, fitted or as it is, and what it does there."""

    def __init__(self, model: LoadedModel, settings: LiftSettings, parts: Parts, watch: Watch) -> None:
        self._model, self._settings, self._parts, self._watch = model, settings, parts, watch
        self.specs = list(dict.fromkeys([*settings.candidates, CONTROL_SPEC]))
        whats = {spec: spec if settings.goal == RETRIEVAL else learnable(spec) for spec in self.specs}
        plans = {spec: plan(model, what) for spec, what in whats.items()}
        self.layers: list[str] = plans[CONTROL_SPEC].layers
        self.heads = [sum(len(group.heads) for group in groups) for groups in plans[CONTROL_SPEC].values()]
        self._made: dict[tuple[int, str], Normalizer] = {}
        for spec, of_model in plans.items():
            for number, path in enumerate(self.layers):
                (group,) = of_model[path]
                assert group.normalizer is not None
                self._made[number, spec] = group.normalizer
        self.facts: dict[tuple[int, str], LayerFacts] = {}

    @property
    def steps(self) -> int:
        return len(self.layers)

    def make(self, windows: Sequence[Window]) -> None:
        """Fit what an earlier call did not; for retrieval the candidates stay as they are, and only facts are read."""
        left = {path: number for number, path in enumerate(self.layers) if not self._restored(number)}
        if not left:
            return
        some, settings = spread(windows, ROWS_FROM), self._settings.reading()
        heads = max(self.heads)
        with tap(self._model) as open_tap:
            reader = RowReader(self._model, open_tap, some, settings)
            queries = min(self._settings.queries, self._settings.length)
            for names in portions(list(left), heads, len(some), queries, self._settings.length):
                rows = reader.read(names)
                for name in names:
                    if name not in rows:
                        raise AbbeError(f"{name} was not called on this text: abbe lift needs every attention layer")
                    self._fit(left[name], rows.pop(name))
                    self._watch.step(f"fitting {name}")

    def normalizers(self, recipe: Recipe, heads: Heads | None = None) -> dict[str, str | Normalizer]:
        """For `swap`: copies, which may be tuned; for some heads only, what the spec makes for them."""
        some = heads or {}
        return {
            _pattern([layer], some.get(layer)): spec if layer in some else copy.deepcopy(self._made[layer, spec])
            for layer, spec in sorted(recipe.items())
        }

    def _part(self, layer: int) -> str:
        return f"parts/fit-{layer}"

    def _restored(self, layer: int) -> bool:
        kept = self._parts.tensors(self._part(layer))
        if kept is None:
            return False
        tensors, notes = kept
        for number, spec in enumerate(self.specs):
            start = f"{number}."
            state = {key.removeprefix(start): x for key, x in tensors.items() if key.startswith(start)}
            self._made[layer, spec].load_state_dict(state)
            values = (torch.nan if value is None else value for value in notes["facts"][number])
            self.facts[layer, spec] = LayerFacts(*values)
        self._watch.step(f"fitting {self.layers[layer]}")
        return True

    def _fit(self, layer: int, rows: LayerRows) -> None:
        tensors: dict[str, torch.Tensor] = {"layer": torch.tensor(layer)}
        for number, spec in enumerate(self.specs):
            made = self._made[layer, spec]
            steps = 0 if self._settings.goal == RETRIEVAL else _FIT_STEPS
            self.facts[layer, spec] = self._facts(made, rows, steps)
            tensors |= {f"{number}.{key}": value for key, value in made.state_dict().items()}
        facts = [_plain(self.facts[layer, spec]) for spec in self.specs]
        self._parts.keep_tensors(self._part(layer), tensors, {"facts": facts})

    def _facts(self, made: Normalizer, rows: LayerRows, steps: int) -> LayerFacts:
        if steps:
            fitted = fit(made, rows, steps)
            error, zeros = float(fitted.after.mean()), float(fitted.zeros_after.mean())
        else:
            error, zeros = float("nan"), _zeros(made, rows)
        logits = rows.logits.transpose(0, 1).float().cpu()  # (head, window, query, key)
        softmax = normalizer("softmax")
        effective = [float(effective_tokens(one, logits).nanmean()) for one in (made, softmax)]
        return LayerFacts(error, zeros, effective[0], effective[1], self._sensitivity(made, logits))

    def _sensitivity(self, made: Normalizer, logits: torch.Tensor) -> float:
        settings = self._settings.reading()
        group = HeadGroup("", tuple(range(len(logits))), made)
        some = logits[:, :_SENSITIVE_WINDOWS, :: max(1, logits.shape[2] // _SENSITIVE_QUERIES)]
        window = Window(self._settings.length, 0, torch.zeros(0), 0, 0)
        equal = at_equal_selectivity({"": some}, {"": (group,)}, replace(settings, queries=1), window)
        if not equal["matched"]:
            return float("nan")
        return float(sum(equal["alternative"]) / sum(equal["baseline"]))


def _plain(facts: LayerFacts) -> list[Any]:
    numbers = [getattr(facts, name) for name in _FACTS]
    return [number if number == number else None for number in numbers]  # NaN is no JSON


@torch.no_grad()
def _zeros(made: Normalizer, rows: LayerRows) -> float:
    visible = rows.logits > -torch.inf
    return float(((made(rows.logits) == 0) & visible).sum() / visible.sum().clamp(min=1))


def recipe_name(recipe: Recipe, heads: Heads | None = None) -> str:
    """ "layers.0,2-5=sparsemax; layers.1=topk:k=32", which `swap` takes, too."""
    alike: dict[tuple[str, tuple[int, ...] | None], list[int]] = {}
    for layer, spec in sorted(recipe.items()):
        alike.setdefault((spec, (heads or {}).get(layer)), []).append(layer)
    return "; ".join(f"{_pattern(layers, some)}={spec}" for (spec, some), layers in alike.items())


def _pattern(layers: Sequence[int], heads: Sequence[int] | None = None) -> str:
    return f"layers.{spans(layers)}" + (f".heads.{spans(heads)}" if heads is not None else "")


def spans(numbers: Sequence[int]) -> str:
    """Rising numbers as "0,2,5-7"."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
