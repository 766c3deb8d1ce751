"""A hidden key is an absent key, whatever it holds: a weight of 0 times NaN or infinity would be NaN.

What is special: numbers are replaced only if they are not finite, which is looked up after the call (in the output), or
before it if there are gradients. Where values cannot be read (torch.compile, transforms, other devices), they are
always replaced.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from ..normalizers import inside_transform
from .blocks import Inputs, Rule, compute_dtype, needs_grad, visible_distances

Results = tuple[Tensor, ...]  # the output, then the weights if they are returned


def without_hidden_keys(attend: Callable[[Rule, Inputs], Results], rule: Rule, inputs: Inputs) -> Results:
    """attend(rule, inputs), where NaN and infinities of hidden keys and values reach no result and no gradient."""
    causal = rule.causal and inputs.q.shape[-2] > 1  # a single query is the last one, and sees all keys
    hides = causal or rule.window is not None or inputs.mask is not None or inputs.bias is not None
    if not hides or inputs.v.numel() == 0:
        return attend(rule, inputs)
    if can_read(*inputs[:3]):
        # With gradients the output does not tell: it is finite if only hidden keys, not their values, are NaN.
        results = None if needs_grad(*inputs, *rule.normalizer.parameters()) else attend(rule, inputs)
        if are_finite(*(inputs[:3] if results is None else results[:1])):
            return results or attend(rule, inputs)
        if results is not None and are_finite(*inputs[:3]):
            return results
    finite = inputs._replace(**{name: torch.nan_to_num(getattr(inputs, name), 0.0, 0.0, 0.0) for name in "qkv"})
    results = attend(rule, finite)
    return tuple(t.masked_fill(rows, math.nan) for t, rows in zip(results, _spoiled_rows(rule, inputs), strict=False))


def can_read(*tensors: Tensor) -> bool:
    """Whether values may decide what is computed, and reading them costs little."""
    if torch.compiler.is_compiling() or inside_transform():
        return False
    return all(t.device.type == "cpu" and type(t) in (Tensor, torch.nn.Parameter) for t in tensors)


def are_finite(*tensors: Tensor) -> bool:
    # A sum is one pass; the sum of finite numbers may overflow, which a second look tells apart.
    sums = (t.detach().sum(dtype=compute_dtype(t)).item() for t in tensors)
    return all(map(math.isfinite, sums)) or all(bool(torch.isfinite(t).all()) for t in tensors)


def _spoiled_rows(rule: Rule, inputs: Inputs) -> tuple[Tensor, Tensor]:
    """Rows (..., H, Lq, 1) whose output, and whose weights, depend on numbers that are not finite."""
    # Of NaN the largest is NaN, which is not less.
    q, k, v = (~(t.detach().abs().amax(-1, keepdim=True) < math.inf) for t in inputs[:3])
    flags = torch.cat(torch.broadcast_tensors(k, v, torch.ones_like(k)), -1).float()  # type: ignore[no-untyped-call]
    seen = _seen(rule, inputs, flags) > 0.5
    weights = seen[..., :1] | (q & seen[..., 2:])
    return weights | seen[..., 1:2], weights


def _seen(rule: Rule, inputs: Inputs, flags: Tensor) -> Tensor:
    """Sums of the flags (..., Hkv, Lk, n) over the keys that each query sees, (..., H, Lq, n)."""
    heads, queries, keys = *inputs.q.shape[-3:-1], inputs.k.shape[-2]
    flags = flags.repeat_interleave(heads // flags.shape[-3], -3)
    shown = None if inputs.bias is None else inputs.bias != -math.inf
    table = shown if inputs.mask is None else inputs.mask if shown is None else inputs.mask & shown
    nearest, farthest = visible_distances(rule.causal, rule.window, inputs.q, inputs.k)
    position = torch.arange(keys - queries, keys, device=flags.device)
    if table is not None and table.dim() > 1 and table.shape[-2] > 1:
        distance = position[:, None] - torch.arange(keys, device=flags.device)
        table = table & (distance >= nearest) & (distance <= farthest)
        return torch.einsum("...hqk,...hkn->...hqn", table[(None,) * (3 - table.dim())].float(), flags)
    if table is not None:
        flags = flags * torch.atleast_2d(table).mT  # type: ignore[no-untyped-call]
    # Differences of running sums: nothing of size Lq x Lk.
    totals = F.pad(flags.cumsum(-2), (0, 0, 1, 0))
    first, last = ((position + shift).clamp(0, keys) for shift in (-farthest, 1 - nearest))
    return totals[..., torch.maximum(first, last), :] - totals[..., first, :]
