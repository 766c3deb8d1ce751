"""The free parameters of a candidate, learned for all heads at once from pass keys.

The longest prompts are read once, and the questions at their end are asked again and again: a step costs a small part
of a pass over the text. The result is a guess: in the real model, rows of the text between `trained` keys and the
question change, too. So the text is read again, with the slopes learned so far, before each further round, and the
result of each round is measured on other prompts by true passes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import nn

from ..._errors import AbbeError
from ...models import LoadedModel, swap
from ...normalizers import LogNScaling, Normalizer, normalizer
from .._engine.fitting.tune import only_learning
from .._engine.parts import Parts
from .._engine.watch import Watch
from .fits import Fits
from .pass_keys import Haystack
from .questions import read_all
from .tuning import Plan, States, restore

ROUNDS = 2
HAYSTACKS = 4  # each with a question for every sentence in it
_RATE = 0.03  # of Adam, for the factor of the logits at the longest length
_PENALTY = 0.02  # times the sum of squared changes of these factors
_MOST_BYTES = 4 << 30  # of cached keys and values


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
