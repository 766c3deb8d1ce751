"""The loss of a training run: of a step that is read, and on average over the steps since the one before."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from ._reading import StepReading


class RunningLoss:
    """The mean loss over steps. Without waiting for the device: the sum is looked at on steps that are read only."""

    def __init__(self) -> None:
        self._sum: Any = 0.0
        self._steps = 0

    def add(self, loss: Any) -> None:
        if loss is not None:
            self._sum = self._sum + (loss.detach() if isinstance(loss, Tensor) else float(loss))
            self._steps += 1

    def take(self, otherwise: float | None) -> float | None:
        """The mean so far, or `otherwise` if no step had a loss; then it begins anew."""
        mean = float(self._sum) / self._steps if self._steps else otherwise
        self._sum, self._steps = 0.0, 0
        return mean


def loss_of(reading: StepReading, loss: Any) -> float | None:
    """What the loop said, else what the model computed: parts of one sum, or the mean over micro-batches."""
    if loss is not None:
        return float(loss.detach() if isinstance(loss, Tensor) else loss)
    if not reading.losses:
        return None
    parts = [float(one) for one in reading.losses]
    return math.fsum(parts) if reading.summed else math.fsum(parts) / len(parts)
