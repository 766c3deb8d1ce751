"""logn with a slope per head: the closed form, rows up to `trained` bit for bit, and the gradient of the slope."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import abbe

SLOPES = (-3.0, 0.0, 0.4, 6.0)
SPEC = "logn:trained=16,slope=-3/0/0.4/6,beyond=true,learn=true"


def causal_rows(length: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """(heads, queries, keys): row i sees i + 1 keys."""
    logits = torch.randn(len(SLOPES), length, length, generator=torch.Generator().manual_seed(length)).to(dtype)
    return 3 * logits.masked_fill(torch.ones(length, length).triu(1).bool(), -math.inf)


def expected(logits: Tensor, slopes: Tensor, trained: int) -> Tensor:
    keys = torch.arange(1, logits.shape[-1] + 1, dtype=logits.dtype)
    excess = (keys.log() / math.log(trained) - 1).clamp(min=0)
    factor = (1 + slopes[:, None] * excess).clamp(min=0)
    seen = logits > -math.inf  # a factor of 0 times -inf would be NaN
    return torch.softmax(torch.where(seen, factor[..., None] * torch.where(seen, logits, 0.0), -math.inf), -1)


@pytest.mark.parametrize("length", [16, 17, 60])
def test_each_head_is_softmax_at_its_own_factor(length: int) -> None:
    logits = causal_rows(length)
    torch.testing.assert_close(
        abbe.normalizer(SPEC).double()(logits), expected(logits, torch.tensor(SLOPES).double(), 16)
    )


@pytest.mark.parametrize("trained", [16, 100, 257])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_up_to_trained_are_those_of_softmax_bit_for_bit(dtype: torch.dtype, trained: int) -> None:
    """260 keys in 4 heads are enough for the kernels; both sides take the same way."""
    logits = causal_rows(260, dtype)
    made = abbe.normalizer(SPEC.replace("16", str(trained), 1)).to(dtype)
    weights, softmax = made(logits), abbe.normalizer("softmax")(logits)
    assert torch.equal(weights[:, :trained], softmax[:, :trained])
    for head, slope in enumerate(SLOPES):
        assert torch.equal(weights[head, trained:], softmax[head, trained:]) is (slope == 0)


def test_a_slope_of_one_is_the_published_factor_with_and_without_learning() -> None:
    logits = causal_rows(40)
    published = abbe.normalizer("logn:trained=10")(logits)
    torch.testing.assert_close(abbe.normalizer("logn:trained=10,slope=1,learn=true").double()(logits), published)
    floored = abbe.normalizer("logn:trained=10,floor=1")(logits)
    torch.testing.assert_close(abbe.normalizer("logn:trained=10,beyond=true")(logits), floored)


def test_gradient_of_the_slopes_is_that_of_autograd_in_float64() -> None:
    logits = causal_rows(260, torch.float32)  # enough logits for the kernels
    towards = torch.randn(logits.shape, generator=torch.Generator().manual_seed(1))
    made = abbe.normalizer(SPEC)
    (made(logits) * towards).sum().backward()
    (raw,) = made.parameters()
    slopes = torch.tensor(SLOPES, dtype=torch.float64, requires_grad=True)
    (expected(logits.double(), slopes, 16) * towards.double()).sum().backward()
    assert raw.grad is not None
    assert slopes.grad is not None
    torch.testing.assert_close(raw.grad.flatten().double(), slopes.grad, rtol=2e-4, atol=1e-4)


def test_a_factor_never_falls_below_zero() -> None:
    logits = causal_rows(40)
    weights = abbe.normalizer("logn:trained=2,slope=-50,beyond=true")(logits)
    torch.testing.assert_close(weights[:, -1], torch.full_like(weights[:, -1], 1 / 40))


def test_lipschitz_constant_is_that_of_the_largest_factor() -> None:
    assert abbe.normalizer(SPEC).lipschitz(16) == 0.5
    assert abbe.normalizer(SPEC).lipschitz(256) == pytest.approx((1 + 6) / 2)
    assert abbe.normalizer("logn:trained=16,slope=-2,beyond=true").lipschitz(256) == 0.5
    # Without `beyond` a slope below 0 sharpens short rows: at two keys ln 2 / ln 16 - 1 is -3/4.
    assert abbe.normalizer("logn:trained=16,slope=-2").lipschitz(256) == pytest.approx((1 + 2 * 0.75) / 2)


# -- The floor --------------------------------------------------------------------------------------------------------


def rows(keys: int, heads: int = 1) -> torch.Tensor:
    return torch.randn(heads, 3, keys, generator=torch.Generator().manual_seed(keys), dtype=torch.float64)


@pytest.mark.parametrize("keys", [1, 2, 15, 16, 17, 200])
def test_logn_with_a_floor_is_softmax_at_the_larger_factor(keys: int) -> None:
    logits = rows(keys)
    for floor in (0.0, 0.7, 1.0, 1.3):
        factor = max(math.log(keys) / math.log(16), floor)
        expected = torch.softmax(factor * logits, -1)
        torch.testing.assert_close(abbe.normalizer(f"logn:trained=16,floor={floor}")(logits), expected)


@pytest.mark.parametrize("keys", [2, 20, 200])
def test_ssmax_with_a_floor_is_softmax_at_the_larger_factor_of_each_head(keys: int) -> None:
    logits = rows(keys, heads=2)
    made = abbe.normalizer("ssmax:s=0.1/0.6,floor=1,heads=2,learn=true").double()
    factors = [max(s * math.log(keys), 1.0) for s in (0.1, 0.6)]
    expected = torch.stack([torch.softmax(factor * head, -1) for factor, head in zip(factors, logits, strict=True)])
    torch.testing.assert_close(made(logits), expected)


def test_a_slope_below_the_floor_does_not_learn_and_one_above_does() -> None:
    made = abbe.normalizer("ssmax:s=0.1/0.6,floor=1,heads=2,learn=true").double()
    made(rows(20, heads=2))[..., 0].sum().backward()
    (gradient,) = (raw.grad.flatten() for raw in made.parameters())
    assert gradient[0] == 0
    assert gradient[1] != 0


def test_lipschitz_constant_with_a_floor() -> None:
    assert abbe.normalizer("logn:trained=100,floor=1").lipschitz(10) == 0.5
    assert abbe.normalizer("logn:trained=100").lipschitz(10) == pytest.approx(0.25)
    assert abbe.normalizer("ssmax:s=0.1,floor=2").lipschitz(10) == 1.0
