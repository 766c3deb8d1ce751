"""Every candidate, fitted to every layer separately: all plans are then put together from fitted layers."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

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
from .records import with_nan, without_nan
from .settings import CONTROL_SPEC, RETRIEVAL, LiftSettings

ROWS_FROM = 8  # windows whose rows are in memory at once
_FIT_STEPS = 12
_SENSITIVE_WINDOWS, _SENSITIVE_QUERIES = 4, 4  # rows on which sensitivities are compared

Recipe = Mapping[int, str]  # layer -> candidate
Heads = Mapping[int, tuple[int, ...]]  # layer -> heads that get the candidate; layers without an entry: all heads


@dataclass(frozen=True)
class LayerFacts:
    """What a candidate does in one layer, on rows of the unchanged model; means over its heads."""

    error: float  # of its outputs, relative to their size
    zeros: float
    effective: float
    effective_baseline: float
    sensitivity: float  # at equal selectivity, relative to softmax; NaN if no head can be matched


class Fits:
    """The normalizer of each candidate in each layer, fitted or as given, and what it does there."""

    def __init__(self, model: LoadedModel, settings: LiftSettings, parts: Parts, watch: Watch) -> None:
        self._model, self._settings, self._parts, self._watch = model, settings, parts, watch
        self.specs = list(dict.fromkeys([*settings.candidates, CONTROL_SPEC]))
        whats = {spec: spec if settings.goal == RETRIEVAL else learnable(spec) for spec in self.specs}
        plans = {spec: plan(model, what) for spec, what in whats.items()}
        self.layers: list[str] = plans[CONTROL_SPEC].layers
        self.heads = [sum(len(group.heads) for group in groups) for groups in plans[CONTROL_SPEC].values()]
        self._normalizers: dict[tuple[int, str], Normalizer] = {}
        for spec, of_model in plans.items():
            for number, path in enumerate(self.layers):
                (group,) = of_model[path]
                assert group.normalizer is not None
                self._normalizers[number, spec] = group.normalizer
        self.facts: dict[tuple[int, str], LayerFacts] = {}

    def make(self, windows: Sequence[Window]) -> None:
        """Fit the layers that no earlier call has fitted; for retrieval only facts are read, and nothing is fitted."""
        left = {path: number for number, path in enumerate(self.layers) if not self._restored(number)}
        if not left:
            return
        some, settings = spread(windows, ROWS_FROM), self._settings
        with tap(self._model) as open_tap:
            reader = RowReader(self._model, open_tap, some, settings.reading())
            queries = min(settings.queries, settings.length)
            for names in portions(list(left), max(self.heads), len(some), queries, settings.length):
                rows = reader.read(names)
                for name in names:
                    if name not in rows:
                        raise AbbeError(f"{name} was not called on this text: abbe lift needs every attention layer")
                    self._fit(left[name], rows.pop(name))
                    self._watch.step(f"fitting {name}")

    def normalizers(self, recipe: Recipe, heads: Heads | None = None) -> dict[str, str | Normalizer]:
        """For `swap`: copies, which may be tuned; layers of which only some heads are swapped get the plain spec."""
        some = heads or {}
        return {
            _pattern([layer], some.get(layer)): spec if layer in some else copy.deepcopy(self._normalizers[layer, spec])
            for layer, spec in sorted(recipe.items())
        }

    def _restored(self, layer: int) -> bool:
        stored = self._parts.tensors(_part(layer))
        if stored is None:
            return False
        tensors, notes = stored
        for number, spec in enumerate(self.specs):
            start = f"{number}."
            state = {key.removeprefix(start): x for key, x in tensors.items() if key.startswith(start)}
            self._normalizers[layer, spec].load_state_dict(state)
            self.facts[layer, spec] = LayerFacts(*with_nan(notes["facts"][number]))
        self._watch.step(f"fitting {self.layers[layer]}")
        return True

    def _fit(self, layer: int, rows: LayerRows) -> None:
        tensors: dict[str, torch.Tensor] = {"layer": torch.tensor(layer)}
        for number, spec in enumerate(self.specs):
            candidate = self._normalizers[layer, spec]
            self.facts[layer, spec] = self._facts(candidate, rows)
            tensors |= {f"{number}.{key}": value for key, value in candidate.state_dict().items()}
        facts = [list(without_nan(vars(self.facts[layer, spec])).values()) for spec in self.specs]
        self._parts.keep_tensors(_part(layer), tensors, {"facts": facts})

    def _facts(self, candidate: Normalizer, rows: LayerRows) -> LayerFacts:
        if self._settings.goal == RETRIEVAL:
            error, zeros = math.nan, _zeros(candidate, rows)
        else:
            fitted = fit(candidate, rows, _FIT_STEPS)
            error, zeros = float(fitted.after.mean()), float(fitted.zeros_after.mean())
        logits = rows.logits.transpose(0, 1).float().cpu()  # (head, window, query, key)
        both = (candidate, normalizer(CONTROL_SPEC))
        effective, baseline = (float(effective_tokens(one, logits).nanmean()) for one in both)
        return LayerFacts(error, zeros, effective, baseline, self._sensitivity(candidate, logits))

    def _sensitivity(self, candidate: Normalizer, logits: torch.Tensor) -> float:
        group = HeadGroup("", tuple(range(len(logits))), candidate)
        some = logits[:, :_SENSITIVE_WINDOWS, :: max(1, logits.shape[2] // _SENSITIVE_QUERIES)]
        window = Window(self._settings.length, 0, torch.zeros(0), 0, 0)
        settings = replace(self._settings.reading(), queries=1)
        equal = at_equal_selectivity({"": some}, {"": (group,)}, settings, window)
        return float(sum(equal["alternative"]) / sum(equal["baseline"])) if equal["matched"] else math.nan


def _part(layer: int) -> str:
    return f"parts/fit-{layer}"


@torch.no_grad()
def _zeros(candidate: Normalizer, rows: LayerRows) -> float:
    visible = rows.logits > -torch.inf
    return float(((candidate(rows.logits) == 0) & visible).sum() / visible.sum().clamp(min=1))


def recipe_name(recipe: Recipe, heads: Heads | None = None) -> str:
    """ "layers.0,2-5=sparsemax; layers.1=topk:k=32", which `swap` takes, too."""
    groups: dict[tuple[str, tuple[int, ...] | None], list[int]] = {}
    for layer, spec in sorted(recipe.items()):
        groups.setdefault((spec, (heads or {}).get(layer)), []).append(layer)
    return "; ".join(f"{_pattern(layers, some)}={spec}" for (spec, some), layers in groups.items())


def _pattern(layers: Sequence[int], heads: Sequence[int] | None = None) -> str:
    return f"layers.{spans(layers)}" + (f".heads.{spans(heads)}" if heads is not None else "")


def spans(numbers: Sequence[int]) -> str:
    """Rising numbers as "0,2,5-7"."""
    # Neighbours have the same difference to their place.
    runs = ([n for _, n in run] for _, run in groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0]))
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
