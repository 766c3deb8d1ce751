"""Spectral norm of Jacobians of the form diag(p) - p p^T, exact through the secular equation; and ||J u||.

With p_1 the largest and p_2 the second of the p, the largest eigenvalue is the root between them of
p_1/(p_1 - x) = sum_{i > 1} p_i/(x - p_i) + m/x, where m = 1 - sum p is the part that a sink takes. Every step replaces
the sum by r + s/(x - p_2) with the same value and slope, which leaves a quadratic; a few steps are enough.
"""

from __future__ import annotations

from contextlib import suppress

import torch
from torch import Tensor

from .._kernels.switch import KernelsBrokenError
from .._kernels.threads import over_rows
from ._rows import Rows, flat, row_kernel

_MOST_STEPS = 60  # a handful is enough; the bound is for rows in which rounding keeps the steps going


def rank_one_norms(rows: Rows, p: Tensor, missing: Tensor, directions: Tensor) -> tuple[Tensor, Tensor]:
    """Largest eigenvalue of diag(p) - p p^T, and the length of its product with a unit direction: (head, query) each.

    p is (head, query, key), `missing` is 1 - sum p; `directions` (query, key) is cut to the visible keys of a row and
    made a unit vector.
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
