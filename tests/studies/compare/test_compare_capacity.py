"""Losses and capacity of a comparison, against hand computations and plain loops."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import astuple
from typing import Any

import numpy as np
import pytest
import torch
from compare_runs import SETTINGS
from inside import compare_rules, expanded_tail, truncation

from abbe.measures import bootstrap_interval, resampled_counts
from abbe.normalizers import Truncated, normalizer

COARSE, Curve, Sizes, trace = truncation.COARSE, truncation.Curve, truncation.Sizes, truncation.trace
BASELINE = torch.tensor([4.0, 2.0], dtype=torch.float64)  # two windows


def traced(rise: Callable[[int], float | torch.Tensor], baseline: torch.Tensor = BASELINE, full: float = 0.0) -> Curve:
    """On the coarse grid, for 5 %: the rise with so many keys, and with all 512 of them."""
    sizes = Sizes.of(COARSE, 512)
    return trace(
        lambda keep: baseline * (1 + rise(keep)), baseline, baseline * (1 + full), [0.05], sizes, length=512,
        way="renormalised",
    )  # fmt: skip


def record(full: list[float], points: dict[str, list[float]], untouched: int = 40) -> dict[str, Any]:
    return {"full": full, "points": points, "untouched": untouched}


def test_paired_differences_by_hand() -> None:
    own = [4.0, 5.0, 3.0, 4.0, 4.5, 3.5, 4.0, 4.0]
    change = torch.tensor([0.2, 0.4, 0.6, 0.4, 0.1, 0.7, 0.3, 0.5], dtype=torch.float64)
    paired = compare_rules.losses({"loss": (torch.tensor(own) + change).tolist()}, {"loss": own}, SETTINGS)
    ends = [float(end) for end in bootstrap_interval(change, 0.95, 400, 0)]
    assert astuple(paired["loss_change"]) == pytest.approx((0.4, *ends))
    assert paired["loss_rise"].value == pytest.approx(0.1)
    counts = resampled_counts(8, 400, 0)
    ratios = (counts @ change / (counts @ torch.tensor(own, dtype=torch.float64))).numpy()
    tail = expanded_tail(8, 0.95)
    assert tail < 0.02
    assert astuple(paired["loss_rise"])[1:] == pytest.approx((np.quantile(ratios, tail), np.quantile(ratios, 1 - tail)))
    assert paired["perplexity"].value == pytest.approx(torch.tensor(4.4).exp().item())


def test_a_loss_that_is_not_finite_is_null_not_left_out() -> None:
    paired = compare_rules.losses({"loss": [4.0, None, 3.0]}, {"loss": [4.0, 5.0, 3.0]}, SETTINGS)
    assert math.isnan(paired["loss_rise"].value)
    assert paired["loss_rise"].low is paired["loss_rise"].high is None


@pytest.mark.parametrize("spec", ["softmax", "entmax:alpha=1.5", "sigmoid"])
def test_truncated_keeps_the_largest_and_the_sum(spec: str) -> None:
    logits = torch.randn(2, 3, 9, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    logits[..., 7] = -torch.inf
    full = normalizer(spec)(logits)
    weights = Truncated(normalizer(spec), 3)(logits)
    for before, after in zip(full.view(-1, 9), weights.view(-1, 9), strict=True):
        largest = sorted(range(9), key=lambda key: -before[key])[:3]
        kept = sum(float(before[key]) for key in largest)
        for key in range(9):
            expected = float(before[key]) * float(before.sum()) / kept if key in largest else 0.0
            assert float(after[key]) == pytest.approx(expected, abs=1e-12)
    assert torch.equal(Truncated(normalizer(spec), 9)(logits), full)
    if spec == "softmax":
        torch.testing.assert_close(weights, normalizer("topk:k=3")(logits))


@pytest.mark.parametrize("full", [0.06, math.nan])
def test_above_the_allowed_rise_with_all_keys_there_is_no_capacity(full: float) -> None:
    curve = traced(lambda keep: pytest.fail("searched"), full=full)
    assert curve.sizes == ()
    estimates = compare_rules.capacities(
        compare_rules.curve_record(curve), record(BASELINE.tolist(), {"1": [4.1, 2.1]}), SETTINGS
    )
    assert all(math.isnan(each.value) and each.low is each.high is None for each in estimates.values())


def test_a_capacity_that_some_resamples_lack_has_no_upper_end() -> None:
    """4 % worse on average, but 12 % worse in the second window."""
    points = {"1": [9.0, 9.0]}
    estimates = compare_rules.capacities(record([4.0, 2.24], points), record([4.0, 2.0], points), SETTINGS)
    for name in ("capacity", "capacity_ratio"):
        value, low, high = astuple(estimates[name])
        assert math.isfinite(value)
        assert low <= value
        assert high is None


def planted(generator: np.random.Generator, keys: float, slope: float, noise: float) -> dict[str, Any]:
    """Losses of 8 windows at the N that are tried: the rise is 0.05 at `keys` and falls along ln N."""
    aside = torch.from_numpy(generator.normal(0, noise, 8))
    curve = traced(
        lambda keep: max(0.05 + slope * math.log(keys / keep), 0) + aside * (keep < 256),
        torch.full((8,), 4.0, dtype=torch.float64),
    )
    return compare_rules.curve_record(curve)


def test_a_planted_ratio_of_nearly_one_is_seldom_called_fewer() -> None:
    """1.65 keys instead of 1.70, above 0.95 of them. The baseline's is noisy: its mean is often above 2, its resamples
    below; if they were cut off at 2, a quarter of these comparisons would say fewer."""
    generator, runs = np.random.default_rng(0), 200
    held, false = 0, 0
    for _ in range(runs):
        records = [planted(generator, *how) for how in ((1.65, 0.1, 0.005), (1.70, 0.02, 0.015))]
        _, low, high = astuple(compare_rules.capacities(*records, SETTINGS)["capacity_ratio"])
        held += low <= 1.65 / 1.70 <= high
        false += high < 0.95
    assert false <= 0.05 * runs
    assert held >= 0.9 * runs


# -- Every interval goes out to the expanded percentile ---------------------------------------------------------------


def ends_of(resampled: torch.Tensor, windows: int) -> tuple[float, float]:
    tail = expanded_tail(windows, 0.95)
    return float(np.quantile(resampled.numpy(), tail)), float(np.quantile(resampled.numpy(), 1 - tail))


def test_the_ends_of_a_mean_a_ratio_and_a_capacity() -> None:
    mine = torch.tensor([1.0, 4.0, 2.0, 8.0, 3.0, 5.0, 9.0, 2.5], dtype=torch.float64)
    own = torch.tensor([2.0, 3.0, 2.0, 7.0, 1.0, 5.0, 4.0, 3.0], dtype=torch.float64)
    counts = resampled_counts(8, 400, 0)
    assert astuple(compare_rules.mean_over(mine, SETTINGS))[1:] == pytest.approx(ends_of(counts @ mine / 8, 8))
    numbers = compare_rules.sensitivities({"alternative": mine.tolist(), "baseline": own.tolist()}, SETTINGS)
    assert astuple(numbers["sensitivity_ratio"])[1:] == pytest.approx(ends_of(counts @ mine / (counts @ own), 8))
    full = torch.full((8,), 4.0, dtype=torch.float64)
    records = [
        record(full.tolist(), {str(n): (full * (1 + x / (200 * n))).tolist() for n in (1, 2, 4, 8)})
        for x in (10 + mine, 14 + own)
    ]
    of_length = resampled_counts(8, 400, SETTINGS.length)  # as `abbe capacity` draws them
    crossed = [
        Curve(40, "renormalised", None, 40, False, (1, 2, 4, 8), full, full, losses_of(one)).crossing(
            0.05, of_length @ torch.cat([losses_of(one), full[None]]).T / 32 - 1
        )
        for one in records
    ]
    ratio = astuple(compare_rules.capacities(*records, SETTINGS)["capacity_ratio"])
    assert ratio[1:] == pytest.approx(ends_of(crossed[0] / crossed[1], 8))
    assert ratio[1] < ratio[0] < ratio[2]


def losses_of(kept: dict[str, Any]) -> torch.Tensor:
    return torch.tensor(list(kept["points"].values()), dtype=torch.float64)
