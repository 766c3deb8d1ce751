"""Losses and capacity of a comparison of planted records, against hand computations and plain loops."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from compare_runs import MEASURED, from_records, row
from row_cases import expanded_tail

from abbe.measures import bootstrap_interval, resampled_counts
from abbe.normalizers import Truncated, normalizer
from abbe.words.names import BASELINE

ALTERNATIVE = "topk:k=1"
OWN = [4.0, 5.0, 3.0, 4.0, 4.5, 3.5, 4.0, 4.0]


def ends(found: dict[str, Any], name: str) -> tuple[float, float, float]:
    return found[name], found[f"{name}_low"], found[f"{name}_high"]


def test_paired_differences_by_hand() -> None:
    change = torch.tensor([0.2, 0.4, 0.6, 0.4, 0.1, 0.7, 0.3, 0.5], dtype=torch.float64)
    paired = row(from_records({"loss": OWN}, {"loss": (torch.tensor(OWN) + change).tolist()}), ALTERNATIVE)
    interval = [float(end) for end in bootstrap_interval(change, 0.95, 400, 0)]
    assert ends(paired, "loss_change") == pytest.approx((0.4, *interval), rel=1e-6)
    counts = resampled_counts(8, 400, 0)
    ratios = (counts @ change / (counts @ torch.tensor(OWN, dtype=torch.float64))).numpy()
    tail = expanded_tail(8, 0.95)
    assert tail < 0.02
    rise = (0.1, np.quantile(ratios, tail), np.quantile(ratios, 1 - tail))
    assert ends(paired, "loss_rise") == pytest.approx(rise, rel=1e-6)
    assert paired["perplexity"] == pytest.approx(math.exp(4.4), rel=1e-6)


def test_a_loss_that_is_not_finite_is_null_not_left_out() -> None:
    found = row(from_records({"loss": OWN}, {"loss": [None, *OWN[1:]], "capacity": {"points": {}}}), ALTERNATIVE)
    assert ends(found, "loss_rise") == ends(found, "capacity") == (None,) * 3


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


@pytest.mark.parametrize("full", [1.06, None])
def test_above_the_allowed_rise_with_all_keys_there_is_no_capacity(full: float | None, tmp_path: Path) -> None:
    """Nothing is searched, either."""
    loss = [None if full is None else full * value for value in OWN]
    found = from_records({"loss": OWN}, {"loss": loss, "capacity": MEASURED}, folder=tmp_path)
    assert json.loads((tmp_path / "parts" / "1-capacity.json").read_text())["points"] == {}
    for name in ("capacity", "capacity_ratio"):
        assert ends(row(found, ALTERNATIVE), name) == (None,) * 3
        assert row(found, BASELINE)[name] is not None


def test_a_capacity_that_some_resamples_lack_has_no_upper_end() -> None:
    """4 % worse on average, but 12 % worse in the second half of the windows."""
    points = {"1": [9.0] * 8}
    records = ({"loss": [*[4.0] * 4, *[second] * 4], "capacity": {"points": points}} for second in (2.0, 2.24))
    found = row(from_records(*records), ALTERNATIVE)
    for name in ("capacity", "capacity_ratio"):
        value, low, high = ends(found, name)
        assert math.isfinite(value)
        assert low <= value
        assert high is None


# -- Every interval goes out to the expanded percentile ---------------------------------------------------------------

MINE = torch.tensor([1.0, 4.0, 2.0, 8.0, 3.0, 5.0, 9.0, 2.5], dtype=torch.float64)
THEIRS = torch.tensor([2.0, 3.0, 2.0, 7.0, 1.0, 5.0, 4.0, 3.0], dtype=torch.float64)
SIZES = (1, 2, 4, 8)


def outer(resampled: np.ndarray) -> tuple[float, float]:
    tail = expanded_tail(8, 0.95)
    return float(np.quantile(resampled, tail)), float(np.quantile(resampled, 1 - tail))


def crossings(worse: torch.Tensor, counts: torch.Tensor) -> np.ndarray:
    """Where the rises x / (200 N) of resampled windows fall to 5 %, by straight lines over ln N."""
    means = (counts @ worse / counts.sum(-1) / 200).numpy()
    logs, parts = np.log([*SIZES, 40]), [1 / n for n in SIZES]
    return np.array([math.exp(np.interp(-0.05, [*(-mean * part for part in parts), 0.0], logs)) for mean in means])


def test_the_ends_of_a_mean_a_ratio_and_a_capacity() -> None:
    counts, of_length = resampled_counts(8, 400, 0), resampled_counts(8, 400, 40)  # capacities are drawn by length
    worse = 10 + MINE, 14 + THEIRS
    mine, own = ({"capacity": {"points": {str(n): (4 * (1 + x / (200 * n))).tolist() for n in SIZES}}} for x in worse)
    sensitivity = {"alternative": MINE.tolist(), "baseline": THEIRS.tolist(), "matched": 3, "temperature": 2.0}
    found = row(from_records(own, mine | {"sensitivity": sensitivity}), ALTERNATIVE)
    assert ends(found, "sensitivity")[1:] == pytest.approx(outer((counts @ MINE / 8).numpy()))
    assert ends(found, "sensitivity_ratio")[1:] == pytest.approx(outer((counts @ MINE / (counts @ THEIRS)).numpy()))
    both = [crossings(x, of_length) for x in worse]
    value, low, high = ends(found, "capacity_ratio")
    assert (low, high) == pytest.approx(outer(both[0] / both[1]))
    assert low < value < high


def test_ratios_and_differences_are_over_the_baseline() -> None:
    matched = {"sensitivity": {"temperature": 2.0, "matched": 3, "heads": 4, "jumps": True}}
    comparison = from_records(
        {"seconds": 2.0, "megabytes": 10.0}, matched | {"seconds": 5.0, "megabytes": 16.0}, {"megabytes": None}
    )
    found, unknown = row(comparison, ALTERNATIVE), row(comparison, "topk:k=2")
    expected = {"temperature": 2.0, "matched_heads": 0.75, "time_ratio": 2.5, "seconds": 5.0, "extra_megabytes": 6.0}
    assert {name: found[name] for name in expected} == expected
    assert found["jumps"]
    assert row(comparison, BASELINE)["time_ratio"] == 1.0
    assert unknown["extra_megabytes"] is None


# -- A small difference -----------------------------------------------------------------------------------------------


def losses_of(generator: np.random.Generator, keys: float, slope: float, noise: float) -> dict[str, Any]:
    """Losses of 8 windows: the rise is 0.05 at `keys` and falls along ln N."""
    aside = generator.normal(0, noise, 8)
    rises = {n: max(0.05 + slope * math.log(keys / n), 0) + aside * (n < 32) for n in (1, 2, 4, 8, 16, 32)}
    return {"capacity": {"points": {str(n): (4 * (1 + rise)).tolist() for n, rise in rises.items()}}}


@pytest.mark.slow
def test_a_planted_ratio_of_nearly_one_is_seldom_called_fewer() -> None:
    """1.65 keys instead of 1.70, above 0.95 of them. The baseline's is noisy: its mean is often above 2, its resamples
    below; if they were cut off at 2, a quarter of these comparisons would say fewer."""
    generator, runs, held, false = np.random.default_rng(0), 200, 0, 0
    for _ in range(runs):  # each with a baseline of its own: alternatives to one baseline are right or wrong together
        other, own = (losses_of(generator, *how) for how in ((1.65, 0.1, 0.005), (1.70, 0.02, 0.015)))
        _, low, high = ends(row(from_records(own, other), ALTERNATIVE), "capacity_ratio")
        held += low <= 1.65 / 1.70 <= high
        false += high < 0.95
    assert false <= 0.05 * runs
    assert held >= 0.9 * runs
