"""The cost of a comparison, shown before it starts: a pass of every length is timed, on the unchanged model."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ...models import LoadedModel, Window
from ...words.numbers import about
from .._engine.loss import window_losses
from .._engine.needles.margins import batches, margins
from .._engine.needles.prompts import Prompt

# Total time over that of as many plain passes: 1.25 to 1.9 in small runs of the embedded model, 1.46 by default.
_SWAPPED = 1.5
_TRIES = 2  # the best counts: the first one warms up, and disturbances only make a pass slower


@dataclass(frozen=True)
class CompareCost:
    normalizers: int
    tokens: int
    seconds: float

    def __str__(self) -> str:
        return f"{self.normalizers} normalizers, {self.tokens:,} tokens: about {about(self.seconds)}"


def cost(model: LoadedModel, window: Window, prompts: Sequence[Prompt], passes: int, normalizers: int) -> CompareCost:
    """For each normalizer so many passes on windows like this one, and one for every batch of prompts.

    Times are not scaled from length to length: a short pass is mostly fixed cost.
    """
    seconds = passes * _seconds(lambda: window_losses(model, [window])) + _needle_seconds(model, prompts)
    tokens = passes * window.length + sum(prompt.length for prompt in prompts)
    return CompareCost(normalizers, normalizers * tokens, normalizers * _SWAPPED * seconds)


def _needle_seconds(model: LoadedModel, prompts: Sequence[Prompt]) -> float:
    """A batch takes the fixed cost of a pass once, and for each of its prompts the rest of the time of one alone."""
    one_of_each = {prompt.length: prompt for prompt in prompts}
    alone = {
        length: _seconds(lambda one=prompt: margins(model, [one]))  # type: ignore[misc]
        for length, prompt in sorted(one_of_each.items())
    }
    fixed = max(0.0, min((_at_zero(*ends) for ends in pairwise(alone.items())), default=0.0))
    return sum(fixed + len(batch) * (alone[batch[0].length] - fixed) for batch in batches(prompts))


def _at_zero(short: tuple[int, float], long: tuple[int, float]) -> float:
    """The intercept of the line through two lengths and their times."""
    slope = (long[1] - short[1]) / (long[0] - short[0])
    return short[1] - slope * short[0]


def _seconds(work: Callable[[], object]) -> float:
    times = []
    for _ in range(_TRIES):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return min(times)
