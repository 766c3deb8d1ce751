"""float16 and bfloat16: computed in float32, and never worse than twice the usual eager low-precision code."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from normalizer_cases import Case, every_case, random_logits
from row_paths import Path
from torch import Tensor

import abbe

HALF = [torch.float16, torch.bfloat16]


def _sparsemax(x: Tensor) -> Tensor:
    ordered = x.sort(-1, descending=True).values
    rank = torch.arange(1, x.shape[-1] + 1).to(x.dtype)
    sums = ordered.cumsum(-1) - 1
    count = (ordered * rank > sums).sum(-1, keepdim=True)
    return (x - sums.gather(-1, count - 1) / count.to(x.dtype)).clamp(min=0)


def _entmax15(x: Tensor) -> Tensor:
    x = (x - x.amax(-1, keepdim=True)) / 2
    ordered = x.sort(-1, descending=True).values
    rank = torch.arange(1, x.shape[-1] + 1).to(x.dtype)
    mean = ordered.cumsum(-1) / rank
    spread = rank * ((ordered**2).cumsum(-1) / rank - mean**2)
    tau = mean - ((1 - spread) / rank).clamp(min=0).sqrt()
    count = (tau <= ordered).sum(-1, keepdim=True)
    return (x - tau.gather(-1, count - 1)).clamp(min=0) ** 2


def _topk(x: Tensor) -> Tensor:
    cut = x.topk(3, -1).values[..., -1:]
    return torch.softmax(x.masked_fill(x < cut, -torch.inf), -1)


def _stick(x: Tensor) -> Tensor:
    gate = torch.sigmoid(x)
    left = torch.cat([(1 - gate).flip(-1).cumprod(-1).flip(-1)[..., 1:], torch.ones_like(x[..., :1])], -1)
    return gate * left


def _over_sum(x: Tensor, eps: float = 1e-6) -> Tensor:
    return x / (x.sum(-1, keepdim=True) + eps)


# What one writes without thinking, every operation in the low precision.
EAGER: dict[str, Callable[[Tensor], Tensor]] = {
    "softmax": lambda x: torch.softmax(x, -1),
    "softmax:temperature=0.3": lambda x: torch.softmax(x / 0.3, -1),
    "ssmax": lambda x: torch.softmax(math.log(x.shape[-1]) * x, -1),
    "logn:trained=16": lambda x: torch.softmax(math.log(x.shape[-1]) / math.log(16) * x, -1),
    "sparsemax": _sparsemax,
    "entmax:alpha=1.5": _entmax15,
    "softmax1": lambda x: torch.softmax(torch.cat([x, torch.zeros_like(x[..., :1])], -1), -1)[..., :-1],
    "sink:b=8": lambda x: torch.softmax(torch.cat([x, torch.full_like(x[..., :1], 8)], -1), -1)[..., :-1],
    "clipped": lambda x: (1.006 * torch.softmax(x, -1) - 0.003).clamp(0, 1),
    "sigmoid": lambda x: torch.sigmoid(x - math.log(x.shape[-1])),
    "relu": lambda x: _over_sum(torch.relu(x)),
    "relu:power=2": lambda x: _over_sum(torch.relu(x) ** 2),
    "softpick": lambda x: torch.relu(x.exp() - 1) / ((x.exp() - 1).abs().sum(-1, keepdim=True) + 1e-6),
    "topk:k=3": _topk,
    "elastic:tau=-1": lambda x: torch.relu(torch.softmax(x, -1) - 1 / x.shape[-1]),
    "norm-softmax:gamma=10": lambda x: torch.softmax(x / x.std(-1, keepdim=True, correction=0), -1),
    "stick-breaking": _stick,
}


@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("spec", EAGER)
def test_error_is_at_most_twice_that_of_eager_code(spec: str, dtype: torch.dtype, path: Path) -> None:
    for keys in (8, 64, 700):
        logits = random_logits(64, keys, seed=keys, dtype=dtype)
        if spec == "topk:k=3":  # ties are cut by place, the eager code keeps them all
            logits = logits[(logits.sort(-1).values.diff(dim=-1)[..., -4:] > 0).all(-1)]
        exact = abbe.normalizer(spec)(logits.double())
        ours = (abbe.normalizer(spec)(logits).double() - exact).abs()
        eager = (EAGER[spec](logits).double() - exact).abs()
        assert float(ours.max()) <= 2 * float(eager.max())
        assert float(ours.mean()) <= 2 * float(eager.mean())


@every_case()
@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_result_is_the_exact_one_rounded_once(case: Case, dtype: torch.dtype, path: Path) -> None:
    """Half an ulp of the dtype, and 1e-6 for the work in float32."""
    for keys in (16, 300):
        logits = random_logits(2, 3, 4, keys, dtype=dtype)
        want, rough = case.make()(logits.double()), case.make(torch.float32)(logits.float())
        clear = ((want > 0) == (rough > 0)).all(-1) | torch.tensor(case.continuous)  # a cut may fall between equals
        assert bool(clear.float().mean() > 0.9)
        finfo = torch.finfo(dtype)
        allowed = 0.501 * finfo.eps * want.abs() + finfo.smallest_normal * finfo.eps + 1e-6
        error = (case.make(torch.float32)(logits).double() - want).abs()
        assert bool((error <= allowed)[clear].all())
