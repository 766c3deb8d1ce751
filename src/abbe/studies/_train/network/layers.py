"""Linear maps, embeddings and a two-layer perceptron for several seeds at once.

What is special: parameters are (seed, ...), so that one matrix product serves all seeds, and each seed draws from its
own generator. No operation mixes seeds, so the gradient of the summed loss is, for each seed, that of its own loss.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

Generators = Sequence[torch.Generator]


def drawn(generators: Generators, *shape: int, scale: float, dtype: torch.dtype) -> nn.Parameter:
    """Scaled standard normal numbers, for each seed from its own generator (drawn in float64, then rounded)."""
    each = [torch.randn(*shape, generator=one, dtype=torch.float64) * scale for one in generators]
    return nn.Parameter(torch.stack(each).to(dtype))


class Linear(nn.Module):
    """x W (+ b); the entries of W (seed, in, out) have variance 1/in, so outputs are as large as inputs."""

    def __init__(
        self, generators: Generators, inputs: int, outputs: int, *, bias: bool, dtype: torch.dtype, gain: float = 1.0
    ) -> None:
        super().__init__()
        self.weight = drawn(generators, inputs, outputs, scale=gain * inputs**-0.5, dtype=dtype)
        self.bias = nn.Parameter(torch.zeros(len(generators), 1, outputs, dtype=dtype)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(1, -2)
        y = flat @ self.weight if self.bias is None else torch.baddbmm(self.bias, flat, self.weight)
        return y.view(len(y), *x.shape[1:-1], -1)


class Embedding(nn.Module):
    """Rows of a table (seed, symbol, feature)."""

    def __init__(
        self, generators: Generators, symbols: int, width: int, *, dtype: torch.dtype, scale: float = 1.0
    ) -> None:
        super().__init__()
        self.weight = drawn(generators, symbols, width, scale=scale, dtype=dtype)

    def forward(self, symbols: Tensor) -> Tensor:
        """From whole numbers (seed, ...) to (seed, ..., feature)."""
        seeds, count, width = self.weight.shape
        offsets = torch.arange(seeds, device=symbols.device).view(-1, *[1] * (symbols.dim() - 1)) * count
        return nn.functional.embedding(symbols + offsets, self.weight.view(seeds * count, width))


class Perceptron(nn.Module):
    """Linear, GELU, linear."""

    def __init__(self, generators: Generators, inputs: int, hidden: int, outputs: int, *, dtype: torch.dtype) -> None:
        super().__init__()
        self.first = Linear(generators, inputs, hidden, bias=True, dtype=dtype)
        self.second = Linear(generators, hidden, outputs, bias=True, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.second(nn.functional.gelu(self.first(x)))
        return y


def unit_rms(x: Tensor) -> Tensor:
    """Every vector scaled to a mean square of 1; without a gain, so that no parameter can undo it."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)  # the usual epsilon: a vector of zeros stays zero
