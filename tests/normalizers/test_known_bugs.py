"""Mistakes seen in public implementations of these formulas, each with the number that tells right from wrong."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from inside import normalizers_row_map as _dispatch
from normalizer_cases import random_logits, slow
from row_paths import Path

import abbe


def row(*logits: float, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.tensor(logits, dtype=dtype)


def test_adaptive_temperature_by_hand(path: Path) -> None:
    logits = random_logits(12, seed=1, scale=1.0)
    plain = torch.softmax(logits, -1)
    h = float(-(plain * plain.log()).sum())
    beta = -0.037 * h**4 + 0.481 * h**3 - 2.3 * h**2 + 4.917 * h - 1.791
    assert beta > 1.5
    weights = abbe.normalizer("adaptive-temperature")(logits.to(path.dtype))
    torch.testing.assert_close(weights.double(), torch.softmax(beta * logits, -1), rtol=0, atol=path.tolerance)
    peaked = row(6, 0, -1, dtype=path.dtype)  # an entropy below 0.5 nats: plain softmax
    torch.testing.assert_close(
        abbe.normalizer("adaptive-temperature")(peaked), torch.softmax(peaked, -1), rtol=0, atol=path.tolerance
    )


@pytest.mark.parametrize("level", [-200.0, -30.0, 0.0, 30.0, 200.0])
def test_softmax_plus_one_shifts_its_one_too(level: float, path: Path) -> None:
    """Subtracting the maximum but not from the 1 gives e^l/(1 + sum e^l) of another row."""
    weights = abbe.normalizer("softmax1")(row(level, level - 1, dtype=path.dtype)).double()
    log_total = torch.logsumexp(row(0, level, level - 1), -1)
    torch.testing.assert_close(weights, torch.exp(row(level, level - 1) - log_total), rtol=2e-6, atol=1e-38)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("b", [60.0, -60.0])
def test_large_sinks(b: float, dtype: torch.dtype, fused: None) -> None:
    """A sink of 60 takes all but e^-60; one of -60 takes nothing. Zero sinks would hide a sink that is ignored."""
    made = abbe.normalizer("sink", b=b)
    logits = row(0, 1, 2, dtype=dtype)
    exact = torch.exp(row(0, 1, 2) - torch.logsumexp(row(0, 1, 2, b), -1))
    torch.testing.assert_close(made(logits).double(), exact, rtol=4 * torch.finfo(dtype).eps + 1e-6, atol=0)
    above = row(58, 59, 61, dtype=dtype)
    exact = torch.exp(above.double() - torch.logsumexp(torch.cat([above.double(), row(b)]), -1))
    torch.testing.assert_close(made(above).double(), exact, rtol=4 * torch.finfo(dtype).eps + 1e-6, atol=0)


def test_elastic_offset_is_over_the_visible_keys(path: Path) -> None:
    logits = random_logits(6, 6, seed=4)
    causal = torch.ones(6, 6, dtype=torch.bool).tril()
    plain = torch.softmax(logits.masked_fill(~causal, -torch.inf), -1)
    place = torch.arange(1, 7, dtype=torch.float64)[:, None]
    want = torch.where(causal, torch.relu(plain - 0.8 / place), 0.0)
    weights = abbe.normalizer("elastic:tau=-0.8")(logits.to(path.dtype), causal).double()
    torch.testing.assert_close(weights, want, rtol=0, atol=path.tolerance)


def test_stick_breaking_starts_at_the_last_key(path: Path) -> None:
    gate = [1 / (1 + math.exp(-x)) for x in (0.3, -1.0, 2.0)]
    want = row(gate[0] * (1 - gate[1]) * (1 - gate[2]), gate[1] * (1 - gate[2]), gate[2])
    weights = abbe.normalizer("stick-breaking")(row(0.3, -1, 2, dtype=path.dtype)).double()
    torch.testing.assert_close(weights, want, rtol=0, atol=path.tolerance)
    skipping = abbe.normalizer("stick-breaking")(row(0.3, -1, 2, dtype=path.dtype), torch.tensor([True, True, False]))
    torch.testing.assert_close(skipping.double(), row(gate[0] * (1 - gate[1]), gate[1], 0), rtol=0, atol=path.tolerance)


@pytest.mark.parametrize("value", [0.0, -0.0, 1.5, -2.0])
@pytest.mark.parametrize("keys", [5, 60, 300])
def test_top_k_keeps_the_earliest_of_equals(value: float, keys: int, path: Path) -> None:
    weights = abbe.normalizer("topk:k=3")(torch.full((keys,), value, dtype=path.dtype))
    assert weights.nonzero().flatten().tolist() == [0, 1, 2]
    torch.testing.assert_close(weights[:3].double(), row(1, 1, 1) / 3, rtol=0, atol=path.tolerance)


@given(st.lists(st.integers(-2, 2), min_size=1, max_size=150), st.integers(1, 12))
def test_top_k_keeps_exactly_k_under_ties(whole: list[int], k: int) -> None:
    """Python's sort is stable: it says who the k largest and earliest are. Zeros of either sign are equal."""
    best = sorted(range(len(whole)), key=lambda i: -whole[i])[:k]
    want = torch.zeros(len(whole), dtype=torch.float64)
    chosen = torch.tensor(best)
    logits = torch.tensor([float(x) * (1 if i % 2 else -1) * (1 if i % 2 else -1) for i, x in enumerate(whole)])
    logits[1::3] += 0.0 * -1.0
    want[chosen] = torch.softmax(logits.double()[chosen], -1)
    for dtype, limit in ((torch.float64, 1 << 62), (torch.float32, 1)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(_dispatch, "FUSED_FROM", limit)
            weights = abbe.normalizer("topk", k=k)(logits.to(dtype)).double()
        torch.testing.assert_close(weights, want, rtol=0, atol=1e-6)


def test_top_k_without_renormalisation_keeps_the_full_weights(path: Path) -> None:
    logits = random_logits(40, seed=5)
    full = torch.softmax(logits, -1)
    want = torch.where(full >= full.topk(4).values[-1], full, 0.0)
    weights = abbe.normalizer("topk:k=4,renormalize=false")(logits.to(path.dtype)).double()
    torch.testing.assert_close(weights, want, rtol=0, atol=path.tolerance)


@pytest.mark.parametrize("spec", ["topk:k=99", "topp:p=1", "threshold:rel=0"])
def test_a_selection_of_all_keys_is_softmax(spec: str, path: Path) -> None:
    logits = random_logits(5, 90, seed=7, scale=9, dtype=path.dtype)
    torch.testing.assert_close(abbe.normalizer(spec)(logits), torch.softmax(logits, -1), rtol=0, atol=path.tolerance)


@pytest.mark.parametrize("p", [0.05, 0.33, 0.6, 0.97])
@pytest.mark.parametrize("keys", [3, 40, 700])
def test_top_p_keeps_the_smallest_set(p: float, keys: int, path: Path) -> None:
    """The set reaches p, and without its least member it does not."""
    logits = random_logits(6, keys, seed=keys)
    full = torch.softmax(logits, -1)
    kept = abbe.normalizer("topp", p=p)(logits.to(path.dtype)).double() > 0
    mass = (full * kept).sum(-1)
    least = torch.where(kept, full, 2.0).amin(-1)
    assert bool((mass >= p - 1e-6).all())
    assert bool((mass - least < p + 1e-6).all())
    assert bool((torch.where(kept, 0.0, full).amax(-1) <= least).all())


def test_threshold_drops_what_is_below_a_fraction_of_the_best(path: Path) -> None:
    logits = torch.log(row(1.0, 0.5, 0.11, 0.09, 0.001)).to(path.dtype)
    want = row(1.0, 0.5, 0.11, 0, 0) / 1.61
    weights = abbe.normalizer("threshold:rel=0.1")(logits).double()
    torch.testing.assert_close(weights, want, rtol=0, atol=path.tolerance)
    only = abbe.normalizer("threshold:rel=1")(row(3, 3, 2.9999, dtype=path.dtype)).double()
    torch.testing.assert_close(only, row(0.5, 0.5, 0), rtol=0, atol=path.tolerance)


def test_clipped_softmax_reaches_exact_zeros_and_ones(path: Path) -> None:
    made = abbe.normalizer("clipped:zeta=1.03,gamma=-0.03")
    logits = row(8, 0, -1, -9, dtype=path.dtype).requires_grad_()
    weights = made(logits)
    assert weights.tolist() == [1, 0, 0, 0]
    assert torch.autograd.grad(weights.sum(), logits)[0].tolist() == [0, 0, 0, 0]
    middle = made(row(1, 0, dtype=path.dtype)).double()
    torch.testing.assert_close(middle, 1.06 * torch.softmax(row(1, 0), -1) - 0.03, rtol=0, atol=path.tolerance)


def test_self_adjusted_by_hand(path: Path) -> None:
    made = abbe.normalizer("self-adjusted")
    for logits, ratio in (((2.0, -1.0, 0.5), (1, 0, 0.5)), ((2.0, 1.0, 0.5), (1, 0.5, 0.25)), ((-2.0, -1.0), (0, 0.5))):
        want = row(*ratio) * torch.softmax(row(*logits), -1)
        torch.testing.assert_close(made(row(*logits, dtype=path.dtype)).double(), want, rtol=0, atol=path.tolerance)
    torch.testing.assert_close(made(row(0, 0, dtype=path.dtype)).double(), row(0.5, 0.5), rtol=0, atol=path.tolerance)


def test_gates_by_hand(path: Path) -> None:
    logits = row(1.5, -0.5, 0.2, 3)
    relu, grown, with_sink = torch.relu(logits), torch.expm1(logits), torch.cat([logits, row(1.7)])
    wants = {
        "relu": relu / (relu.sum() + 1e-6),
        "relu:power=3,eps=0.5": relu**3 / ((relu**3).sum() + 0.5),
        "softpick": torch.relu(grown) / (grown.abs().sum() + 1e-6),
        "sigmoid": torch.sigmoid(logits - math.log(4)),
        "sigmoid:bias=-2": torch.sigmoid(logits - 2),
        "norm-softmax:gamma=10": torch.softmax(logits / logits.std(correction=0), -1),
        "norm-softmax:gamma=0.2": torch.softmax(logits / 0.2, -1),
        "sink:b=1.7": torch.softmax(with_sink, -1)[:-1],  # a key without value
        "ssmax:s=0.4": torch.softmax(0.4 * math.log(4) * logits, -1),  # a port adds s ln n, which softmax cannot see
        "logn:trained=64": torch.softmax(logits * math.log(4) / math.log(64), -1),
    }
    for spec, want in wants.items():
        weights = abbe.normalizer(spec)(logits.to(path.dtype)).double()
        torch.testing.assert_close(weights, want, rtol=0, atol=path.tolerance, msg=spec)


def test_norm_softmax_at_an_offset(fused: None) -> None:
    """The deviation must come from differences: (l - top - mean), never l - (top + mean)."""
    logits = (1000 + 2.0**-14 * random_logits(64, 50, seed=8).round()).float()  # a few ulp apart
    exact = abbe.normalizer("norm-softmax")(logits.double())
    torch.testing.assert_close(abbe.normalizer("norm-softmax")(logits).double(), exact, rtol=0, atol=1e-6)


@pytest.mark.parametrize("keys", [19, 1000, slow(20_000)])
@pytest.mark.parametrize("spec", ["sparsemax", "entmax:alpha=1.5", "entmax:alpha=1.3", "entmax:alpha=1.75,learn=true"])
def test_the_reference_sums_to_one_in_float32(spec: str, keys: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One key above many that share the rest: a rounded threshold was off once per key, 978 eps of 1,000 keys."""
    monkeypatch.setattr(_dispatch, "FUSED_FROM", 1 << 62)
    made, eps = abbe.normalizer(spec), torch.finfo(torch.float32).eps
    for below, spread in ((0.3, 1e-4), (0.5, 1e-3), (0.7, 1e-2)):
        logits = random_logits(20, keys, scale=spread, dtype=torch.float32) - below
        logits[:, 0] = 0.1
        weights = made(logits).detach().double()
        assert float((weights.sum(-1) - 1).abs().max()) < 4 * eps
        exact = abbe.normalizer(spec).double()(logits.double()).detach()
        torch.testing.assert_close(weights, exact, rtol=0, atol=4 * eps)
