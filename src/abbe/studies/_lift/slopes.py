"""What a candidate leaves free, learned for all heads at once from pass keys.

The longest prompts are read once, and the questions at their end are asked again and again: a step costs a small part
of a pass over the text. What is learned so is a guess: rows of the text between `trained` keys and the question change
in the real model, too. So the text is read again, with what was learned so far, before each further round, and what
comes of each round is measured on other prompts by true passes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from ..._errors import AbbeError
from ...models import LoadedModel, swap
from ...normalizers import LogNScaling, Normalizer, normalizer
from .._engine.fitting.tune import only_learning
from .._engine.parts import Parts
from .._engine.watch import Watch
from .fits import Fits
from .pass_keys import Haystack
from .questions import read_all
from .tuning import Plan

ROUNDS = 2
HAYSTACKS = 4  # each with a question for every sentence in it
_RATE = 0.03  # of Adam, for the factor of the logits at the longest length
_PENALTY = 0.02  # times the sum of squared changes of these factors
_MOST_BYTES = 4 << 30  # of keys and values that are kept

State = Mapping[str, Tensor]


def round_ends(steps: int) -> list[int]:
    """After how many steps the text is read again: those of each round, at least one."""
    return sorted({max(1, round(steps * done / ROUNDS)) for done in range(1, ROUNDS + 1)}) if steps else []


class SlopeLearner:
    """Learns a plan round by round; what a round has left is kept, and read back."""

    def __init__(
        self, model: LoadedModel, fits: Fits, parts: Parts, watch: Watch, some: Sequence[Haystack], longest: int
    ) -> None:
        self._model, self._fits, self._parts, self._watch = model, fits, parts, watch
        self._haystacks, self._longest = some, longest
        self._learned: dict[tuple[int, int], State] = {}

    def normalizers(self, plan: Plan, ends: Sequence[int]) -> dict[str, str | Normalizer]:
        """As they are after the last of these ends of rounds; learned where an earlier call has not done it."""
        made = self._fits.normalizers(plan.recipe)
        if not ends:
            return made
        *before, steps = ends
        if (state := self._state(plan, steps)) is None:
            started = self.normalizers(plan, before)
            with swap(self._model, started):
                reached = self._learn(plan, steps - (before[-1] if before else 0), _parameters(started))
            state = {f"{number}.raw": raw.detach().clone() for number, raw in enumerate(_parameters(started))}
            self._learned[plan.number, steps] = state
            self._parts.keep_tensors(_part(plan, steps), state, {"log_probability": reached})
        with torch.no_grad():
            for number, raw in enumerate(_parameters(made)):
                raw.copy_(state[f"{number}.raw"])
        return made

    def _state(self, plan: Plan, steps: int) -> State | None:
        if (plan.number, steps) not in self._learned and (kept := self._parts.tensors(_part(plan, steps))):
            self._learned[plan.number, steps] = kept[0]
        return self._learned.get((plan.number, steps))

    def _learn(self, plan: Plan, steps: int, parameters: Sequence[nn.Parameter]) -> list[float]:
        """Adam on the mean log-probability of the answers, text by text, with a penalty on large changes."""
        (spec,) = set(plan.recipe.values())
        unit = factor_per_value(normalizer(spec), self._longest)
        asked = read_all(
            self._model, self._haystacks, _MOST_BYTES, lambda: self._watch.step(f"reading for {plan.name}")
        )
        reached: list[float] = []
        optimizer = torch.optim.Adam(parameters, lr=_RATE / unit)
        starts = [raw.detach() for raw in _parameters(self._fits.normalizers(plan.recipe))]
        with only_learning(self._model.network, parameters), torch.enable_grad():
            for step in range(steps):
                optimizer.zero_grad(set_to_none=True)
                mean = asked[step % len(asked)].learn()
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


def factor_per_value(made: Normalizer, longest: int) -> float:
    """By how much the factor of the logits at the longest length changes with one unit of what is learned."""
    if not isinstance(made, LogNScaling):
        return 1.0
    # Rates are divided by it: near the trained length, where it vanishes, they would have no bound.
    return max(math.log(longest) / math.log(made.trained) - 1, 1e-3)


def learns(spec: str) -> bool:
    """Whether a candidate leaves numbers free."""
    return any(True for _ in normalizer(spec).parameters())


def _parameters(made: Mapping[str, str | Normalizer]) -> list[nn.Parameter]:
    return [raw for one in made.values() if isinstance(one, Normalizer) for raw in one.parameters()]


def _part(plan: Plan, steps: int) -> str:
    return f"parts/learned-{plan.number}-{steps}"
