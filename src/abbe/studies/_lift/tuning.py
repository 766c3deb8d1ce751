"""A plan with its normalizers: fitted layer by layer, then tuned end to end on the part to fit on, round by round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

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
    """Its number, what goes into each layer, and which heads of a layer, if not all."""

    number: int
    recipe: Recipe
    heads: Heads = field(default_factory=dict)

    @property
    def name(self) -> str:
        return recipe_name(self.recipe, self.heads)


class Tuner:
    """Tunes plans, and knows what an earlier round or call has tuned."""

    def __init__(
        self, model: LoadedModel, fits: Fits, steps: int, parts: Parts, watch: Watch, windows: Sequence[Window]
    ) -> None:
        self._model, self._fits, self._steps, self._parts, self._watch = model, fits, steps, parts, watch
        self._windows = windows
        self._tuned: dict[tuple[int, int], State] = {}

    def normalizers(self, plan: Plan, steps: int) -> dict[str, str | Normalizer]:
        """Fitted, then tuned for so many steps; resumes what an earlier round or call did."""
        made = self._fits.normalizers(plan.recipe, plan.heads)
        if not steps or not any(_learns(one) for one in made.values()):
            return made
        half = self._steps // 2
        if steps > half > 0 and self._state(plan, steps) is None and self._state(plan, half) is None:
            self.normalizers(plan, half)  # the control goes the same way as the plan: round by round
        with swap(self._model, made) as running:
            parameters = list(running.parameters())
            if (finished := self._state(plan, steps)) is not None:
                _restore(parameters, finished)
            else:
                self._tune(plan, steps, parameters, self._state(plan, half) if steps > half else None)
        return made

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
        last = last or (stopped[0] if stopped else {})
        self._tuned[plan.number, steps] = last
        parts.keep_tensors(_tuned_part(plan, steps), last)

    def _state(self, plan: Plan, steps: int) -> State | None:
        """What tuning for so many steps has left, None if it was not done."""
        if (plan.number, steps) not in self._tuned and (kept := self._parts.tensors(_tuned_part(plan, steps))):
            self._tuned[plan.number, steps] = kept[0]
        return self._tuned.get((plan.number, steps))


def _learns(made: str | Normalizer) -> bool:
    return isinstance(made, Normalizer) and any(True for _ in made.parameters())


def _tuned_part(plan: Plan, steps: int) -> str:
    return f"parts/tuned-{plan.number}-{steps}"


@torch.no_grad()
def _restore(parameters: Sequence[torch.nn.Parameter], state: Mapping[str, torch.Tensor]) -> None:
    for number, parameter in enumerate(parameters):
        parameter.copy_(state[f"{number}.raw"])
