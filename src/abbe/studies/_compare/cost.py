"""What a comparison will take, shown before it starts: a pass of every length is timed, on the model as it is."""

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

# Time of all over that of as many plain passes: 1.25 to 1.9 in small runs of the embedded model, 1.46 by default.
_SWAPPED = 1.5
_TRIES = 2  # the best is taken: the first one warms up, and what disturbs a pass only makes it slower


@dataclass(frozen=True)
class CompareCost:
    """Of all normalizers together."""

    normalizers: int
    tokens: int
    seconds: float

    def __str__(self) -> str:
        return f"{self.normalizers} normalizers, {self.tokens:,} tokens: about {about(self.seconds)}"


def cost(model: LoadedModel, window: Window, prompts: Sequence[Prompt], passes: int, normalizers: int) -> CompareCost:
    """So many passes on windows like this one, and one of every batch of prompts, for each normalizer.

    Times are not scaled from length to length: that of a short pass is mostly what every pass takes, however short.
    """
    of_window = _seconds(lambda: window_losses(model, [window]))
    seconds = passes * of_window + _needle_seconds(model, prompts)
    tokens = passes * window.length + sum(prompt.length for prompt in prompts)
    return CompareCost(normalizers, normalizers * tokens, normalizers * _SWAPPED * seconds)


def _needle_seconds(model: LoadedModel, prompts: Sequence[Prompt]) -> float:
    """A batch takes what every pass takes, and for each of its prompts the rest of the time of one alone."""
    one_of_each = {prompt.length: prompt for prompt in prompts}
    alone = {
        length: _seconds(lambda one=prompt: margins(model, [one]))  # type: ignore[misc]
        for length, prompt in sorted(one_of_each.items())
    }
    fixed = max(0.0, min((_at_zero(a, b) for a, b in pairwise(alone.items())), default=0.0))
    return sum(fixed + len(batch) * (alone[batch[0].length] - fixed) for batch in batches(prompts))


def _at_zero(short: tuple[int, float], long: tuple[int, float]) -> float:
    """Of a line through two lengths and their times."""
    slope = (long[1] - short[1]) / (long[0] - short[0])
    return short[1] - slope * short[0]


def _seconds(work: Callable[[], object]) -> float:
    times = []
    for _ in range(_TRIES):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return min(times)
