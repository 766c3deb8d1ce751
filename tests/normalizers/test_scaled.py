"""`scaled`: the inner normalizer at scaled logits, whichever path computes it, and what learns in it."""

from __future__ import annotations

import math

import pytest
import torch
from normalizer_cases import CASES, Case, random_logits, random_mask

import abbe

PLAIN = [case for case in CASES if not case.learns and case.name != "scaled"]


@pytest.mark.parametrize("inner", PLAIN, ids=str)
@pytest.mark.parametrize("t", [-1.1, 0.8])
def test_weights_are_those_of_scaled_logits(inner: Case, t: float) -> None:
    made = abbe.normalizer("scaled", of=inner.spec, t=t)
    logits, mask = random_logits(2, 3, 4, 9), random_mask(2, 3, 4, 9)
    expected = inner.make()(math.exp(t) * logits, mask)
    torch.testing.assert_close(made(logits, mask), expected, rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(
        made.jacobian(logits, mask), math.exp(t) * inner.make().jacobian(math.exp(t) * logits, mask)
    )
    assert made.lipschitz(9) == pytest.approx(math.exp(t) * inner.make().lipschitz(9))


@pytest.mark.parametrize("inner", ["softmax", "sink:b=1", "topk:k=3", "sigmoid"])
def test_the_learned_scale_gets_the_derivative_of_the_weights(inner: str) -> None:
    """Also where keys are masked: no NaN from 0 * inf."""
    made = abbe.normalizer("scaled", of=inner, t=0.3, learn=True, heads=3).double()
    logits, mask = random_logits(3, 4, 9), random_mask(3, 4, 9)
    upstream = random_logits(3, 4, 9, seed=1)
    (made(logits, mask) * upstream).sum().backward()
    (raw,) = made.parameters()
    step = 1e-6
    with torch.no_grad():
        for head in range(3):
            ends = []
            for sign in (1, -1):
                raw[head] += sign * step
                ends.append(float((made(logits, mask) * upstream).sum()))
                raw[head] -= sign * step
            assert float(raw.grad[head]) == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=1e-6, abs=1e-8)


def test_inner_parameters_stay_learnable() -> None:
    made = abbe.normalizer("scaled:of=(entmax:alpha=1.4,learn=true,heads=3),t=0.2,learn=true,heads=3")
    assert {name: tuple(raw.shape) for name, raw in made.named_parameters()} == {
        "learned.t.raw": (3, 1, 1),
        "of.learned.alpha.raw": (3, 1, 1),
    }
    made(random_logits(3, 4, 9, dtype=torch.float32)).square().sum().backward()
    assert all(bool((raw.grad != 0).all()) for raw in made.parameters())


def test_a_scale_of_one_changes_nothing() -> None:
    logits = random_logits(3, 4, 9)
    for inner in ("entmax:alpha=1.5", "topk:k=3", "sigmoid"):
        assert torch.equal(abbe.normalizer("scaled", of=inner)(logits), abbe.normalizer(inner)(logits))


def test_large_logits_are_scaled_from_their_top_down() -> None:
    near = torch.tensor([[1e6 + 1.0, 1e6, 1e6 - 2.0]])
    for inner in ("softmax", "topk:k=2", "hybrid:a=topk:k=2,b=clipped,mix=0.5", "scaled:of=topp:p=0.9,t=0.1"):
        made = abbe.normalizer("scaled", of=inner, t=-0.7)
        torch.testing.assert_close(made(near), made(near - 1e6), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    "parts", [("softmax", "sigmoid:bias=-2"), ("sigmoid:bias=-2", "softmax"), ("relu", "sparsemax")]
)
def test_a_hybrid_with_a_part_that_knows_the_level_keeps_it(parts: tuple[str, str]) -> None:
    inner = abbe.normalizer("hybrid", a=parts[0], b=parts[1], mix=0.4)
    logits = random_logits(4, 9) + 3
    torch.testing.assert_close(abbe.normalizer("scaled", of=inner, t=0.7)(logits), inner(math.exp(0.7) * logits))
