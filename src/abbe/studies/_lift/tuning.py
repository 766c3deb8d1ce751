"""Plans, and their normalizers: fitted layer by layer, then tuned end to end on the part to fit on, round by round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ...models import LoadedModel, Window, swap
from ...normalizers import Normalizer
from .._engine.fitting.tune import fine_tune
from .._engine.parts import Parts
from .._engine.watch import Watch
from .fits import Fits, Heads, Recipe, recipe_name

State = dict[str, torch.Tensor]


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
