"""Spectral norm of the Jacobian of any normalizer, from its products with vectors alone."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..normalizers import Normalizer
from ._spectral import or_one

_TOLERANCE = 1e-6  # of an eigenvalue; half as much in its root, which is reported
_MOST_STEPS = 64  # of Lanczos; it takes a few dozen where the largest eigenvalues are close
_BETWEEN_TESTS = 4  # steps: a test needs the eigenvalues of a small matrix per row


def jacobian_norms(normalizer: Normalizer, logits: Tensor, directions: Tensor) -> tuple[Tensor, Tensor]:
    """Spectral norm of the Jacobian, and the length of its product with a unit direction: (head, query) each.

    J^T J is applied by forward- and reverse-mode differentiation, to all rows at once; the Lanczos recurrence, a power
    iteration that keeps its past, finds its largest eigenvalue. It stops when four further steps change no eigenvalue
    by more than one part in a million (in float32 3 in 100,000, where rounding begins), or after 64 steps. The result
    is never above the norm, except by rounding.
    """
    logits = logits.detach()
    visible = logits != -torch.inf
    start = torch.where(visible, directions, 0.0)
    start = start / or_one(start.norm(dim=-1, keepdim=True))
    pull_back = torch.func.vjp(normalizer, logits)[1]

    def push(v: Tensor) -> Tensor:
        moved: Tensor = torch.func.jvp(normalizer, (logits,), (v,))[1]
        return torch.where(visible, moved, 0.0)

    def square(v: Tensor) -> Tensor:
        return torch.where(visible, pull_back(push(v))[0], 0.0)

    return largest_eigenvalue(square, start).clamp(min=0).sqrt().to(logits.dtype), push(start).norm(dim=-1)


def largest_eigenvalue(square: Callable[[Tensor], Tensor], start: Tensor) -> Tensor:
    """Of symmetric positive operators on the last dimension, from unit start vectors; float64."""
    before, here = torch.zeros_like(start), start
    beta = start.new_zeros(*start.shape[:-1], 1)
    diagonal: list[Tensor] = []
    off_diagonal: list[Tensor] = []
    # Smaller changes are rounding, and would never end.
    tolerance = max(_TOLERANCE, 256 * torch.finfo(start.dtype).eps)
    largest = torch.zeros(start.shape[:-1], dtype=torch.float64, device=start.device)
    for step in range(1, _MOST_STEPS + 1):
        after = square(here) - beta * before
        alpha = (here * after).sum(-1, keepdim=True)
        after = after - alpha * here
        diagonal.append(alpha.squeeze(-1))
        if step % _BETWEEN_TESTS == 0:
            last, largest = largest, _largest_ritz(diagonal, off_diagonal)
            if bool((largest - last <= tolerance * largest).all()):
                break
        beta = after.norm(dim=-1, keepdim=True)
        # In an invariant subspace the rest is rounding: from there on the row adds nothing.
        active = beta > 8 * torch.finfo(start.dtype).eps * torch.stack(diagonal).amax(0).unsqueeze(-1)
        beta = torch.where(active, beta, 0.0)
        before, here = here, torch.where(active, after / or_one(beta), 0.0)
        off_diagonal.append(beta.squeeze(-1))
    return largest


def _largest_ritz(diagonal: list[Tensor], off_diagonal: list[Tensor]) -> Tensor:
    """Largest eigenvalue of the tridiagonal matrices."""
    # Small matrices: float64 costs nothing, and resolves close eigenvalues.
    main, off = torch.stack(diagonal, -1).double(), torch.stack(off_diagonal, -1).double()
    matrix = torch.diag_embed(main) + torch.diag_embed(off, 1) + torch.diag_embed(off, -1)
    largest: Tensor = torch.linalg.eigvalsh(matrix)[..., -1]
    return largest
