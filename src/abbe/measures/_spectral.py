"""Spectral norm of the Jacobian J of a normalizer, and ||J u|| for a unit vector u.

Of the form diag(p) - p p^T it is exact through the secular equation: with p_1 the largest and p_2 the second of the p,
the largest eigenvalue is the root between them of p_1/(p_1 - x) = sum_{i > 1} p_i/(x - p_i) + m/x, where m = 1 - sum p
is the part of a sink. Every step replaces the sum by r + s/(x - p_2) with the same value and slope, which leaves
a quadratic; a few steps are enough. For any other normalizer it comes from products with vectors alone.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import torch
from torch import Tensor

from .._kernels.switch import KernelsBrokenError
from .._kernels.threads import over_rows
from ..normalizers import Normalizer
from ._rows import Rows, flat, row_kernel

_MOST_STEPS = 60  # a handful is enough; the bound is for rows in which rounding keeps the steps going
_LANCZOS_STEPS = 64  # at most; it takes a few dozen where the largest eigenvalues are close
_BETWEEN_TESTS = 4  # steps: a test needs the eigenvalues of a small matrix per row
_TOLERANCE = 1e-6  # of an eigenvalue; half as much in its root, which is reported


def rank_one_norms(rows: Rows, p: Tensor, missing: Tensor, directions: Tensor) -> tuple[Tensor, Tensor]:
    """Largest eigenvalue of diag(p) - p p^T, and the length of its product with a unit direction: (head, query) each.

    p is (head, query, key), `missing` is 1 - sum p; `directions` (query, key) is restricted to the visible keys of a
    row and normalised.
    """
    if rows.fused and p.dtype == torch.float32:
        with suppress(KernelsBrokenError):
            return _fused(rows, p, missing, directions)
    g = torch.where(rows.visible, directions, 0.0)
    moved = p * (g - (p * g).sum(-1, keepdim=True))
    return largest_eigenvalue(p, missing), moved.norm(dim=-1) / or_one(g.norm(dim=-1))


def _fused(rows: Rows, p: Tensor, missing: Tensor, directions: Tensor) -> tuple[Tensor, Tensor]:
    norms = torch.empty(rows.heads * rows.queries, 2)
    missing = missing.detach().expand(rows.heads, rows.queries).reshape(-1).contiguous()
    over_rows(
        row_kernel("rank_one_norms"), len(norms), flat(rows.logits), flat(p), missing, directions.contiguous(),
        rows.facts.last.reshape(-1).contiguous(), norms,
    )  # fmt: skip
    worst, random = norms.view(rows.heads, rows.queries, 2).unbind(-1)
    return worst, random


def largest_eigenvalue(p: Tensor, missing: Tensor) -> Tensor:
    """Of diag(p) - p p^T, p >= 0 (..., key) with at least one key: the specification of the kernel."""
    top = p.amax(-1, keepdim=True)
    rest = torch.where(p < top, p, 0.0)
    second, m = rest.amax(-1, keepdim=True), missing.unsqueeze(-1)
    width = top - second
    tied = (p == top).sum(-1, keepdim=True) > 1
    x = (rest.sum(-1, keepdim=True) + m) * width  # not 1 - top, which is 0 in a peaked row; above the root
    for _ in range(_MOST_STEPS):
        safe = or_one(x)
        share, of_sink = safe / (safe + second - rest), safe / (safe + second)
        value = (rest * share).sum(-1, keepdim=True) + m * of_sink
        s = (rest * share**2).sum(-1, keepdim=True) + m * of_sink**2
        step = torch.where(x > 0, _root(top, width, (value - s).clamp(min=0) / safe, s), 0.0)
        done = (step - x).abs() <= torch.finfo(p.dtype).eps * (second + step)
        x = step
        if bool(done.all()):
            break
    # For a tiny top, top (1 - top) <= norm <= top is exact up to rounding.
    return torch.where(tied | (top < torch.finfo(p.dtype).eps), top, second + x).squeeze(-1)


def _root(top: Tensor, width: Tensor, r: Tensor, s: Tensor) -> Tensor:
    """The x in (0, width) with top/(width - x) = r + s/x."""
    b = top + s - r * width
    root = torch.sqrt(b**2 + 4 * r * s * width)
    # The form of the root that subtracts no nearly equal numbers.
    return torch.where(b > 0, 2 * s * width / or_one(b + root), (root - b) / or_one(2 * r))


def or_one(x: Tensor) -> Tensor:
    return torch.where(x > 0, x, 1.0)


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

    return _lanczos(square, start).clamp(min=0).sqrt().to(logits.dtype), push(start).norm(dim=-1)


def _lanczos(square: Callable[[Tensor], Tensor], start: Tensor) -> Tensor:
    """Largest eigenvalue of symmetric positive operators on the last dimension, from unit start vectors; float64."""
    before, here = torch.zeros_like(start), start
    beta = start.new_zeros(*start.shape[:-1], 1)
    diagonal: list[Tensor] = []
    off_diagonal: list[Tensor] = []
    # Smaller changes are rounding, and would never end.
    tolerance = max(_TOLERANCE, 256 * torch.finfo(start.dtype).eps)
    largest = torch.zeros(start.shape[:-1], dtype=torch.float64, device=start.device)
    for step in range(1, _LANCZOS_STEPS + 1):
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
