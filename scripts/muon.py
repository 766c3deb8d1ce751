"""Muon (Jordan et al., 2024): momentum whose update is made orthogonal: all directions of a matrix learn alike.

torch.optim.Muon does the same in bfloat16, which takes four times as long on processors without bfloat16 units.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

# The quintic of the method: it drives all singular values to about 1 in five steps.
QUINTIC = (3.4445, -4.7750, 2.0315)
STEPS = 5


class Muon(torch.optim.Optimizer):
    """`parts` of a group: how many matrices stand side by side in each of its own: 3 for query, key and value."""

    def __init__(
        self, groups: Iterable[dict[str, Any]], lr: float, momentum: float = 0.95, weight_decay: float = 0.01
    ) -> None:
        super().__init__(groups, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "parts": 1})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            for matrix in group["params"]:
                state = self.state[matrix]
                if not state:
                    state["average"] = torch.zeros_like(matrix)
                average = state["average"].lerp_(matrix.grad, 1 - group["momentum"])
                direction = matrix.grad.lerp(average, group["momentum"])
                # Together, the parts with large gradients (values) would leave those with small ones (queries, keys)
                # little but noise.
                update = torch.cat([orthogonal(part) for part in direction.chunk(group["parts"], 1)], 1)
                # GPT-2 keeps its matrices as input x output.
                stretch = max(1.0, matrix.shape[1] / matrix.shape[0]) ** 0.5
                matrix.mul_(1 - group["lr"] * group["weight_decay"]).add_(update, alpha=-group["lr"] * stretch)


def orthogonal(matrix: torch.Tensor) -> torch.Tensor:
    """Nearly U V^T of the singular value decomposition U S V^T, by matrix products alone."""
    tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if tall else matrix
    x = x / (x.norm() + 1e-7)
    a, b, c = QUINTIC
    for _ in range(STEPS):
        gram = x @ x.T
        x = a * x + torch.addmm(gram, gram, gram, beta=b, alpha=c) @ x
    return x.T if tall else x
