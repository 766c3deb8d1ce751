"""SGD, AdamW and Muon for several seeds at once.

What is special: each parameter can have its own rate, eps and decay, which the compensated control needs, and Muon
treats the matrices (seed, in, out) of all seeds together. torch.optim does neither; tests compare with it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

OPTIMIZERS = ("sgd", "adamw", "muon")
_BETAS, _EPS = (0.9, 0.999), 1e-8  # the usual ones of Adam
_MOMENTUM = 0.95  # of Muon, with Nesterov's look ahead
_NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315), 5  # coefficients and steps of the usual quintic iteration
_LIKE_ADAM = 0.2  # Muon's updates get the root mean square that AdamW's have, so that one rate serves both


@dataclass(frozen=True)
class Factors:
    """Factors of one parameter for the common rate, eps and decay."""

    rate: float = 1.0
    eps: float = 1.0
    decay: float = 1.0


def compensation(optimizer: str, start: float) -> Factors:
    """Factors for the query map at temperature T: with its initial values times T, training equals that at T = 1.

    With W' = T W the logits are those of W at T = 1, and the gradient is 1/T times that of W. SGD's step has to be T
    times as large: rate T^2. Adam's and Muon's steps do not depend on the size of gradients: rate T; eps is compared
    with gradients, and decoupled decay, rate times decay times W', has to stay the same share of W'.
    """
    if optimizer == "sgd":
        return Factors(rate=start**2, decay=start**-2)
    return Factors(rate=start, eps=1 / start, decay=1 / start)


class Optimizer:
    """One of `OPTIMIZERS`; each step is given its rate."""

    def __init__(self, name: str, parameters: Iterable[tuple[nn.Parameter, Factors, bool]], decay: float = 0.0) -> None:
        """Parameters with their factors, and whether they are inner matrices, which Muon orthogonalises.

        As usual, Muon leaves tables, output maps and vectors to AdamW.
        """
        self.decay, self.steps = decay, 0
        self._parameters = [(p, f, name if name != "muon" or inner else "adamw") for p, f, inner in parameters]
        self._first = [torch.zeros_like(p) for p, _, _ in self._parameters]
        self._second = [torch.zeros_like(p) if how == "adamw" else p for p, _, how in self._parameters]

    @torch.no_grad()
    def step(self, rate: float) -> None:
        self.steps += 1
        for (parameter, factors, how), first, second in zip(self._parameters, self._first, self._second, strict=True):
            gradient = parameter.grad
            if gradient is None:
                continue
            scaled = rate * factors.rate
            if self.decay:
                parameter.mul_(1 - scaled * self.decay * factors.decay)
            if how == "sgd":
                parameter.add_(gradient, alpha=-scaled)
            elif how == "adamw":
                self._adamw(parameter, gradient, first, second, scaled, _EPS * factors.eps)
            else:
                first.lerp_(gradient, 1 - _MOMENTUM)
                update = orthogonalised(gradient.lerp(first, _MOMENTUM), eps=1e-7 * factors.eps)
                parameter.add_(update, alpha=-scaled * _LIKE_ADAM * math.sqrt(max(parameter.shape[-2:])))

    def _adamw(
        self, parameter: Tensor, gradient: Tensor, first: Tensor, second: Tensor, rate: float, eps: float
    ) -> None:
        first.lerp_(gradient, 1 - _BETAS[0])
        second.mul_(_BETAS[1]).addcmul_(gradient, gradient, value=1 - _BETAS[1])
        # Averages that start from zero are too small at first, by these factors.
        of_first, of_second = 1 - _BETAS[0] ** self.steps, 1 - _BETAS[1] ** self.steps
        parameter.addcdiv_(first, (second / of_second).sqrt_().add_(eps), value=-rate / of_first)


def orthogonalised(matrices: Tensor, eps: float = 1e-7) -> Tensor:
    """Nearly the orthogonal factor of each (..., m, n), by five steps of a Newton-Schulz iteration."""
    (a, b, c), steps = _NEWTON_SCHULZ
    wide = matrices if matrices.shape[-2] <= matrices.shape[-1] else matrices.transpose(-1, -2)
    x: Tensor = wide / torch.linalg.matrix_norm(wide, keepdim=True).clamp(min=eps)
    for _ in range(steps):
        gram = x @ x.transpose(-1, -2)
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x if wide is matrices else x.transpose(-1, -2)
