"""Plans and their normalizers: fitted layer by layer, then tuned end to end, or learned from pass keys.

Every candidate is fitted to every layer separately, and plans are put together from fitted layers. Tuning takes steps
on the loss of the training text, round by round.
Learning sets the free parameters of a candidate for all heads at once: the longest prompts are read once, and the
questions at their end are asked again and again, so that a step costs a small part of a pass over the text. The result
is a guess: in the real model, rows of the text between `trained` keys and the question change, too. So the text is read
again, with the slopes learned so far, before each further round, and the result of each round is measured on other
prompts by true passes.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

import torch
from torch import nn

from ..._errors import AbbeError
from ...models import HeadGroup, LoadedModel, Window, plan, swap, tap
from ...normalizers import LogNScaling, Normalizer, normalizer
from ...results import finite
from ...runs.parts import Parts
from ...runs.watch import Watch
from .._shared.calibrated import learnable
from .._shared.estimates import with_nan
from .._shared.fitting import LayerRows, RowReader, fine_tune, fit, only_learning, portions
from .._shared.prompts import Haystack, read_all
from .._shared.swapped import at_equal_selectivity, effective_tokens, spread
from .settings import CONTROL_SPEC, RETRIEVAL, LiftSettings

ROWS_FROM = 8  # windows whose rows are in memory at once
_FIT_STEPS = 12
_SENSITIVE_WINDOWS, _SENSITIVE_QUERIES = 4, 4  # rows on which sensitivities are compared
ROUNDS = 2
HAYSTACKS = 4  # each with a question for every sentence in it
_RATE = 0.03  # of Adam, for the factor of the logits at the longest length
_PENALTY = 0.02  # times the sum of squared changes of these factors
_MOST_BYTES = 4 << 30  # of cached keys and values

Recipe = Mapping[int, str]  # layer -> candidate
Heads = Mapping[int, tuple[int, ...]]  # layer -> heads that get the candidate; layers without an entry: all heads
State = dict[str, torch.Tensor]


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
        facts = [finite(list(vars(self.facts[layer, spec]).values())) for spec in self.specs]
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


# -- Tuning -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Plan:
    """Its number, the candidate of each layer, and the heads of a layer that get it, if not all."""

    number: int
    recipe: Recipe
    heads: Heads = field(default_factory=dict)

    @property
    def name(self) -> str:
        return recipe_name(self.recipe, self.heads)


class States:
    """Parameters of plans after a number of steps, in memory and in the folder."""

    def __init__(self, parts: Parts, kind: str) -> None:
        self._parts, self._kind = parts, kind
        self._states: dict[str, State] = {}

    def get(self, plan: Plan, steps: int) -> State | None:
        """None if the plan was never tuned for so many steps."""
        part = self._part(plan, steps)
        if part not in self._states and (stored := self._parts.tensors(part)):
            self._states[part] = stored[0]
        return self._states.get(part)

    def keep(self, plan: Plan, steps: int, state: State, notes: Mapping[str, Any] | None = None) -> None:
        self._states[self._part(plan, steps)] = state
        self._parts.keep_tensors(self._part(plan, steps), state, notes)

    def _part(self, plan: Plan, steps: int) -> str:
        return f"parts/{self._kind}-{plan.number}-{steps}"


class Tuner:
    """Tunes plans, starting from the results of earlier rounds and calls."""

    def __init__(
        self, model: LoadedModel, fits: Fits, steps: int, parts: Parts, watch: Watch, windows: Sequence[Window]
    ) -> None:
        self._model, self._fits, self._steps, self._parts, self._watch = model, fits, steps, parts, watch
        self._windows = windows
        self._states = States(parts, "tuned")

    def normalizers(self, plan: Plan, steps: int) -> dict[str, str | Normalizer]:
        """Fitted, then tuned for so many steps; resumes what an earlier round or call did."""
        normalizers = self._fits.normalizers(plan.recipe, plan.heads)
        if not steps or not any(_learns(one) for one in normalizers.values()):
            return normalizers
        half = self._steps // 2
        if steps > half > 0 and self._states.get(plan, steps) is None and self._states.get(plan, half) is None:
            self.normalizers(plan, half)  # the control is tuned like the plan: round by round
        with swap(self._model, normalizers) as running:
            parameters = list(running.parameters())
            if (finished := self._states.get(plan, steps)) is not None:
                restore(parameters, finished)
            else:
                self._tune(plan, steps, parameters, self._states.get(plan, half) if steps > half else None)
        return normalizers

    def _tune(self, plan: Plan, steps: int, parameters: Sequence[torch.nn.Parameter], start: State | None) -> None:
        parts, partial = self._parts, f"tuning/{plan.number}-{steps}"
        stopped = parts.tensors(partial)
        last: State = {}

        def keep(state: State) -> None:
            last.update(state)
            parts.keep_tensors(partial, state)

        fine_tune(
            self._model, parameters, self._windows, steps, stopped[0] if stopped else start, keep,
            lambda step: self._watch.step(f"tuning {plan.name}, step {step}"),
        )  # fmt: skip
        self._states.keep(plan, steps, last or (stopped[0] if stopped else {}))


def _learns(candidate: str | Normalizer) -> bool:
    return isinstance(candidate, Normalizer) and any(True for _ in candidate.parameters())


@torch.no_grad()
def restore(parameters: Sequence[torch.nn.Parameter], state: State) -> None:
    for number, parameter in enumerate(parameters):
        parameter.copy_(state[f"{number}.raw"])


# -- Learning from pass keys ------------------------------------------------------------------------------------------


def round_ends(steps: int) -> list[int]:
    """The number of steps after which each round ends and the text is read again."""
    return sorted({max(1, round(steps * done / ROUNDS)) for done in range(1, ROUNDS + 1)}) if steps else []


class SlopeLearner:
    """Learns a plan round by round; the result of each round is stored."""

    def __init__(
        self, model: LoadedModel, fits: Fits, parts: Parts, watch: Watch, haystacks: Sequence[Haystack], longest: int
    ) -> None:
        self._model, self._fits, self._watch = model, fits, watch
        self._haystacks, self._longest = haystacks, longest
        self._states = States(parts, "learned")

    def normalizers(self, plan: Plan, ends: Sequence[int]) -> dict[str, str | Normalizer]:
        """After the last of these round ends; learned now, unless an earlier call did."""
        normalizers = self._fits.normalizers(plan.recipe)
        if not ends:
            return normalizers
        *before, steps = ends
        if (state := self._states.get(plan, steps)) is None:
            learning = self.normalizers(plan, before)
            with swap(self._model, learning):
                reached = self._learn(plan, steps - (before[-1] if before else 0), _parameters(learning))
            state = {f"{number}.raw": raw.detach().clone() for number, raw in enumerate(_parameters(learning))}
            self._states.keep(plan, steps, state, {"log_probability": reached})
        restore(_parameters(normalizers), state)
        return normalizers

    def _learn(self, plan: Plan, steps: int, parameters: Sequence[nn.Parameter]) -> list[float]:
        """Adam on the mean log-probability of the answers, text by text, with a penalty on large changes."""
        (spec,) = set(plan.recipe.values())
        unit = _factor_per_unit(normalizer(spec), self._longest)
        step_name = f"reading for {plan.name}"
        read = read_all(self._model, self._haystacks, _MOST_BYTES, lambda: self._watch.step(step_name))
        reached: list[float] = []
        optimizer = torch.optim.Adam(parameters, lr=_RATE / unit)
        starts = [raw.detach() for raw in _parameters(self._fits.normalizers(plan.recipe))]
        with only_learning(self._model.network, parameters), torch.enable_grad():
            for step in range(steps):
                optimizer.zero_grad(set_to_none=True)
                mean = read[step % len(read)].learn()
                if not math.isfinite(mean):
                    raise AbbeError(f"learning {plan.name} failed: a log-probability is not finite; try fewer steps")
                for raw, start in zip(parameters, starts, strict=True):
                    if raw.grad is not None:
                        raw.grad += 2 * _PENALTY * unit**2 * (raw.detach() - start)
                optimizer.step()
                reached.append(mean)
                self._watch.step(f"learning {plan.name}: log-probability {reached[-1]:.2f}")
        optimizer.zero_grad(set_to_none=True)
        return reached


def _factor_per_unit(candidate: Normalizer, longest: int) -> float:
    """By how much the factor of the logits at the longest length changes with one unit of the learned parameter."""
    if not isinstance(candidate, LogNScaling):
        return 1.0
    # Rates are divided by it: near the trained length, where it vanishes, they would have no bound.
    return max(math.log(longest) / math.log(candidate.trained) - 1, 1e-3)


def learns(spec: str) -> bool:
    """Whether a candidate has free parameters."""
    return any(True for _ in normalizer(spec).parameters())


def _parameters(normalizers: Mapping[str, str | Normalizer]) -> list[nn.Parameter]:
    return [raw for one in normalizers.values() if isinstance(one, Normalizer) for raw in one.parameters()]
