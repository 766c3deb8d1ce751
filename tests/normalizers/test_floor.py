"""logn and ssmax with a floor: the closed form, row by row."""

from __future__ import annotations

import math

import pytest
import torch

import abbe


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


def test_a_floor_counts_for_each_row_by_its_visible_keys() -> None:
    logits = torch.randn(40, 40, dtype=torch.float64).masked_fill(torch.ones(40, 40).triu(1).bool(), -torch.inf)
    weights = abbe.normalizer("logn:trained=10,floor=1")(logits)
    torch.testing.assert_close(weights[:10], torch.softmax(logits, -1)[:10])  # rows up to `trained` stay as they are
    factor = torch.arange(11, 41).double().log() / math.log(10)
    torch.testing.assert_close(weights[10:], torch.softmax(factor[:, None] * logits[10:], -1))


def test_lipschitz_constant_spec_and_range() -> None:
    assert abbe.normalizer("logn:trained=100,floor=1").lipschitz(10) == 0.5
    assert abbe.normalizer("logn:trained=100").lipschitz(10) == pytest.approx(0.25)
    assert abbe.normalizer("ssmax:s=0.1,floor=2").lipschitz(10) == 1.0
    assert str(abbe.normalizer("logn:trained=4096,floor=1")) == "logn:trained=4096,floor=1"
    assert str(abbe.normalizer("logn:trained=4096")) == "logn:trained=4096"
    with pytest.raises(abbe.AbbeError, match="floor must be a number >= 0"):
        abbe.normalizer("logn:floor=-1")
