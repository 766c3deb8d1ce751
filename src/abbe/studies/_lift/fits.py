"""Normalizers of plans: fitted layer by layer, then tuned or learned round by round.

Every candidate is fitted to every layer separately, and plans are put together from fitted layers. Tuning takes steps
on the loss of the training text.
Learning, for retrieval, sets the free parameters of a candidate for all heads at once: the longest prompts are read
once, and the questions at their end are asked again and again, so that a step costs a small part of a pass over the
text. The result is a guess: in the real model, rows of the text between `trained` keys and the question change, too. So
the text is read again, with the slopes learned so far, before each further round, and the result of each round is
measured on other prompts by true passes.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn

from ..._errors import AbbeError
from ...models import HeadGroup, LoadedModel, Window, Windows, plan, swap, tap
from ...normalizers import LogNScaling, Normalizer, normalizer
from ...results import finite
from ...runs.parts import Parts
from ...runs.watch import Stages
from .._shared.estimates import with_nan
from .._shared.fitting import LayerRows, RowReader, fine_tune, fit, learnable, only_learning
from .._shared.prompts import Haystack, PassKey, read_all
from .._shared.swapped import at_equal_selectivity, effective_tokens, spread
from .rules import CONTROL_SPEC, RETRIEVAL, LiftSettings

FITTING, BASELINE_STAGE, LEARNING, SCAN, PLANS, HEADS, TESTING = (
    "fitting", "baseline", "learning", "scan", "plans", "heads", "test"
)  # fmt: skip
ROWS_FROM = 8  # windows whose rows are in memory at once
ROUNDS = 2  # of learning
_FIT_STEPS = 12
_SENSITIVE_WINDOWS, _SENSITIVE_QUERIES = 4, 4  # rows on which sensitivities are compared
_RATE = 0.03  # of Adam, for the factor of the logits at the longest length
_PENALTY = 0.02  # times the sum of squared changes of these factors
_MOST_BYTES = 4 << 30  # of cached keys and values
CONTROL_NUMBER, HEADS_NUMBER, LEARNED_NUMBER = 1000, 2000, 3000  # added to the number of a plan

What = str | Mapping[str, str | Normalizer]  # for `swap`
Made = dict[str, str | Normalizer]
Heads = Mapping[int, tuple[int, ...]]  # layer -> heads that get the candidate; layers without an entry: all heads


@dataclass(eq=False)
class Work:
    """What all stages share: windows and pass keys of the training and of the validation text, and the parts.

    `spent` sums the seconds that finished parts took, in earlier calls too.
    """

    model: LoadedModel
    settings: LiftSettings
    training: Windows
    validation: Windows
    training_keys: Sequence[PassKey] = ()
    validation_keys: Sequence[PassKey] = ()
    haystacks: Sequence[Haystack] = ()
    spent: float = 0.0
    parts: Parts = field(init=False)
    stages: Stages = field(init=False)

    def get(self, name: str) -> dict[str, Any] | None:
        return self.parts.json(f"parts/{name}")

    def keep(self, name: str, content: Mapping[str, Any]) -> None:
        """Fix a decision, unless an earlier call did."""
        self.parts.get_or_make(f"parts/{name}", lambda: content)

    def get_or_make(self, name: str, make: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
        """The record of an earlier call, or what `make` returns."""

        def timed() -> dict[str, Any]:
            started = time.perf_counter()
            content: dict[str, Any] = finite(dict(make()))
            return content | {"seconds": time.perf_counter() - started}

        record = self.parts.get_or_make(f"parts/{name}", timed)
        self.spent += record["seconds"]
        return record

    def step(self, stage: str, what: str) -> Callable[..., None]:
        """Called after each pass of a stage."""
        return lambda *_: self.stages.step(stage, what)


@dataclass(frozen=True)
class Plan:
    """Its number, the candidate of each layer, and the heads of a layer that get it, if not all."""

    number: int
    recipe: Mapping[int, str]
    heads: Heads = field(default_factory=dict)

    @property
    def name(self) -> str:
        """ "layers.0,2-5=sparsemax; layers.1=topk:k=32", which `swap` takes, too."""
        groups: dict[tuple[str, tuple[int, ...] | None], list[int]] = {}
        for layer, spec in sorted(self.recipe.items()):
            groups.setdefault((spec, self.heads.get(layer)), []).append(layer)
        return "; ".join(f"{_pattern(layers, some)}={spec}" for (spec, some), layers in groups.items())

    @property
    def is_softmax(self) -> bool:
        return all(normalizer(spec).name == CONTROL_SPEC for spec in self.recipe.values())

    @property
    def is_learned(self) -> bool:
        """Whether it is learned from pass keys, for all heads at once."""
        return self.number >= LEARNED_NUMBER

    def part(self, steps: int) -> str:
        return f"plan-{self.number}-{steps}"


def _pattern(layers: Sequence[int], heads: Sequence[int] | None = None) -> str:
    return f"layers.{spans(layers)}" + (f".heads.{spans(heads)}" if heads is not None else "")


def spans(numbers: Sequence[int]) -> str:
    """Rising numbers as "0,2,5-7"."""
    # Neighbours have the same difference to their place.
    runs = ([n for _, n in run] for _, run in groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0]))
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


# What a candidate does in one layer, on rows of the unchanged model, as means over its heads. The error is that of its
# outputs, relative to their size; the sensitivity is NaN if no head can be matched.
FACTS = ("output_error", "zeros", "effective_tokens", "effective_tokens_baseline", "sensitivity_ratio")


class Fits:
    """The normalizer of each candidate in each layer, fitted or as given, and what it does there."""

    def __init__(self, work: Work) -> None:
        self._work, settings = work, work.settings
        self.specs = list(dict.fromkeys([*settings.candidates, CONTROL_SPEC]))
        specs = {spec: spec if settings.goal == RETRIEVAL else learnable(spec) for spec in self.specs}
        plans = {spec: plan(work.model, what) for spec, what in specs.items()}
        self.layers: list[str] = plans[CONTROL_SPEC].layers
        self.heads = [sum(len(group.heads) for group in groups) for groups in plans[CONTROL_SPEC].values()]
        self._normalizers: dict[tuple[int, str], Normalizer] = {}
        for spec, of_model in plans.items():
            for number, path in enumerate(self.layers):
                (group,) = of_model[path]
                assert group.normalizer is not None
                self._normalizers[number, spec] = group.normalizer
        self.facts: dict[tuple[int, str], dict[str, float]] = {}

    def make(self) -> None:
        """Fit the layers that no earlier call has fitted; for retrieval only facts are read, and nothing is fitted."""
        work, settings = self._work, self._work.settings
        left = {path: number for number, path in enumerate(self.layers) if not self._restored(number)}
        if left:
            sample = spread(work.training, ROWS_FROM)
            with tap(work.model) as open_tap:
                reader = RowReader(work.model, open_tap, sample, settings.reading(), list(left), max(self.heads))
                for name, number in left.items():
                    self._fit(number, reader.rows(name))
                    work.stages.step(FITTING, f"fitting {name}")
        work.stages.end(FITTING)

    def normalizers(self, recipe: Mapping[int, str], heads: Heads | None = None) -> Made:
        """What `swap` takes: copies, which may be tuned; where only some heads are swapped, the plain spec."""
        part = heads or {}
        return {
            _pattern([layer], part.get(layer)): spec if layer in part else copy.deepcopy(self._normalizers[layer, spec])
            for layer, spec in sorted(recipe.items())
        }

    def _restored(self, layer: int) -> bool:
        stored = self._work.parts.tensors(f"parts/fit-{layer}")
        if stored is None:
            return False
        tensors, notes = stored
        for number, spec in enumerate(self.specs):
            start = f"{number}."
            state = {key.removeprefix(start): x for key, x in tensors.items() if key.startswith(start)}
            self._normalizers[layer, spec].load_state_dict(state)
            self.facts[layer, spec] = dict(zip(FACTS, with_nan(notes["facts"][number]), strict=True))
        return True

    def _fit(self, layer: int, rows: LayerRows) -> None:
        tensors: dict[str, Tensor] = {"layer": torch.tensor(layer)}
        for number, spec in enumerate(self.specs):
            candidate = self._normalizers[layer, spec]
            self.facts[layer, spec] = self._facts(candidate, rows)
            tensors |= {f"{number}.{key}": value for key, value in candidate.state_dict().items()}
        facts = [finite(list(self.facts[layer, spec].values())) for spec in self.specs]
        self._work.parts.keep_tensors(f"parts/fit-{layer}", tensors, {"facts": facts})

    def _facts(self, candidate: Normalizer, rows: LayerRows) -> dict[str, float]:
        settings = self._work.settings
        if settings.goal == RETRIEVAL:
            with torch.no_grad():
                visible = rows.logits > -torch.inf
                error = math.nan
                zeros = float(((candidate(rows.logits) == 0) & visible).sum() / visible.sum().clamp(min=1))
        else:
            fitted = fit(candidate, rows, _FIT_STEPS)
            error, zeros = float(fitted.error_after.mean()), float(fitted.zeros_after.mean())
        logits = rows.logits.transpose(0, 1).float().cpu()  # (head, window, query, key)
        both = (candidate, normalizer(CONTROL_SPEC))
        effective, baseline = (float(effective_tokens(rule, logits).nanmean()) for rule in both)
        group = HeadGroup("", tuple(range(len(logits))), candidate)
        sample = logits[:, :_SENSITIVE_WINDOWS, :: max(1, logits.shape[2] // _SENSITIVE_QUERIES)]
        window = Window(settings.length, 0, torch.zeros(0), 0, 0)
        reading = replace(settings.reading(), queries=1)
        equal = at_equal_selectivity({"": sample}, {"": (group,)}, reading, window)
        return dict(zip(FACTS, (error, zeros, effective, baseline, sensitivity_ratio(equal)), strict=True))


def sensitivity_ratio(equal: Mapping[str, Any]) -> float:
    """Sensitivity at equal selectivity, relative to the baseline; NaN if no head can be matched."""
    return float(sum(equal["alternative"]) / sum(equal["baseline"])) if equal["matched"] else math.nan


class Tuner:
    """Tunes plans on the training text, or learns their slopes from pass keys, round by round.

    Every round starts from the state of the one before, whichever call of the study reached it.
    """

    def __init__(self, work: Work, fits: Fits, steps: int) -> None:
        """`steps` of tuning, for plans that reach the last round."""
        self._work, self._fits, self._steps = work, fits, steps

    def normalizers(self, plan: Plan, steps: int) -> Made:
        """Fitted, then tuned, or learned from pass keys, for this many steps."""
        normalizers = self._fits.normalizers(plan.recipe, plan.heads)
        if steps and (parameters := _parameters(normalizers)):
            state = self._state(plan, steps)
            with torch.no_grad():
                for number, parameter in enumerate(parameters):
                    parameter.copy_(state[f"{number}.raw"])
        return normalizers

    def _state(self, plan: Plan, steps: int) -> dict[str, Tensor]:
        """What a plan has learned after the round that ends with this step."""
        parts, part = self._work.parts, f"parts/{'learned' if plan.is_learned else 'tuned'}-{plan.number}-{steps}"
        if (stored := parts.tensors(part)) is not None:
            return stored[0]
        rounds = round_ends(self._work.settings.steps) if plan.is_learned else [self._steps // 2]
        before = max((end for end in rounds if end < steps), default=0)
        learning, notes = self.normalizers(plan, before), {}
        parameters = _parameters(learning)
        with swap(self._work.model, learning):
            if plan.is_learned:
                notes["log_probability"] = self._learn(plan, steps - before, parameters)
                state = {f"{number}.raw": raw.detach().clone() for number, raw in enumerate(parameters)}
            else:
                state = self._tune(plan, steps, parameters, self._state(plan, before) if before else None)
        parts.keep_tensors(part, state, notes)
        return state

    def _tune(
        self, plan: Plan, steps: int, parameters: Sequence[nn.Parameter], start: dict[str, Tensor] | None
    ) -> dict[str, Tensor]:
        """Steps on the loss, from where an interrupted call stopped."""
        parts, part = self._work.parts, f"tuning/{plan.number}-{steps}"
        stopped = parts.tensors(part)
        fine_tune(
            self._work.model, parameters, self._work.training, steps, stopped[0] if stopped else start,
            lambda state: parts.keep_tensors(part, state),
            lambda step: self._work.stages.step(PLANS, f"tuning {plan.name}, step {step}"),
        )  # fmt: skip
        tuned = parts.tensors(part)
        assert tuned is not None  # the last step is kept
        return tuned[0]

    def _learn(self, plan: Plan, steps: int, parameters: Sequence[nn.Parameter]) -> list[float]:
        """Adam on the mean log-probability of the answers, text by text, with a penalty on large changes."""
        (spec,) = set(plan.recipe.values())
        model, unit = self._work.model, _factor_per_unit(normalizer(spec), max(self._work.settings.lengths))
        read = read_all(model, self._work.haystacks, _MOST_BYTES, self._work.step(LEARNING, f"reading for {plan.name}"))
        reached: list[float] = []
        optimizer = torch.optim.Adam(parameters, lr=_RATE / unit)
        starts = [raw.detach() for raw in _parameters(self._fits.normalizers(plan.recipe))]
        with only_learning(model.network, parameters), torch.enable_grad():
            for step in range(steps):
                optimizer.zero_grad(set_to_none=True)
                reached.append(read[step % len(read)].learn())
                if not math.isfinite(reached[-1]):
                    raise AbbeError(f"learning {plan.name} failed: a log-probability is not finite; try fewer steps")
                for raw, start in zip(parameters, starts, strict=True):
                    if raw.grad is not None:
                        raw.grad += 2 * _PENALTY * unit**2 * (raw.detach() - start)
                optimizer.step()
                self._work.stages.step(LEARNING, f"learning {plan.name}: log-probability {reached[-1]:.2f}")
        optimizer.zero_grad(set_to_none=True)
        return reached


def round_ends(steps: int) -> list[int]:
    """The number of steps after which each round of learning ends and the text is read again."""
    return sorted({max(1, round(steps * done / ROUNDS)) for done in range(1, ROUNDS + 1)}) if steps else []


def learns(spec: str) -> bool:
    """Whether a candidate has free parameters."""
    return any(True for _ in normalizer(spec).parameters())


def _factor_per_unit(candidate: Normalizer, longest: int) -> float:
    """Change of the factor of the logits at the longest length with one unit of the learned parameter."""
    if not isinstance(candidate, LogNScaling):
        return 1.0
    # Rates are divided by it: near the trained length, where it vanishes, they would have no bound.
    return max(math.log(longest) / math.log(candidate.trained) - 1, 1e-3)


def _parameters(normalizers: Mapping[str, str | Normalizer]) -> list[nn.Parameter]:
    return [raw for each in normalizers.values() if isinstance(each, Normalizer) for raw in each.parameters()]
