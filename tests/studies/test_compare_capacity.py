"""Losses and capacity of a comparison, against hand computations and plain loops."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from compare_runs import SETTINGS, made, word_model
from needle_models import TEXT

from abbe.measures import bootstrap_interval
from abbe.measures._bootstrap import expanded_tail, resampled_counts
from abbe.models import swap
from abbe.models import windows as cut_windows
from abbe.normalizers import normalizer
from abbe.studies._compare import tables
from abbe.studies._compare import work as study
from abbe.studies._compare.tables import capacities, losses
from abbe.studies._compare.truncated import Truncated, capacity, capacity_points, truncated_swap
from abbe.studies._engine.loss import window_losses

ONCE = torch.ones(1, 2, dtype=torch.float64)  # two windows as they are


def test_paired_differences_by_hand() -> None:
    own = [4.0, 5.0, 3.0, 4.0, 4.5, 3.5, 4.0, 4.0]
    change = torch.tensor([0.2, 0.4, 0.6, 0.4, 0.1, 0.7, 0.3, 0.5], dtype=torch.float64)
    found = losses({"loss": (torch.tensor(own) + change).tolist()}, {"loss": own}, SETTINGS)
    ends = [float(end) for end in bootstrap_interval(change, 0.95, 400, 0)]
    assert found["loss_change"] == pytest.approx((0.4, *ends))
    assert found["loss_rise"][0] == pytest.approx(0.1)
    counts = resampled_counts(8, 400, 0)
    ratios = (counts @ change / (counts @ torch.tensor(own, dtype=torch.float64))).numpy()
    tail = expanded_tail(8, 0.95)
    assert tail < 0.02
    assert found["loss_rise"][1:] == pytest.approx((np.quantile(ratios, tail), np.quantile(ratios, 1 - tail)))
    assert found["perplexity"][0] == pytest.approx(torch.tensor(4.4).exp().item())


def test_a_loss_that_is_not_finite_is_null_not_left_out() -> None:
    found = losses({"loss": [4.0, None, 3.0]}, {"loss": [4.0, 5.0, 3.0]}, SETTINGS)
    assert all(math.isnan(x) for x in found["loss_rise"])


@pytest.mark.parametrize("spec", ["softmax", "entmax:alpha=1.5", "sigmoid"])
def test_truncated_keeps_the_largest_and_the_sum(spec: str) -> None:
    logits = torch.randn(2, 3, 9, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    logits[..., 7] = -torch.inf
    full = normalizer(spec)(logits)
    found = Truncated(normalizer(spec), 3)(logits)
    for before, after in zip(full.view(-1, 9), found.view(-1, 9), strict=True):
        largest = sorted(range(9), key=lambda key: -before[key])[:3]
        kept = sum(float(before[key]) for key in largest)
        for key in range(9):
            expected = float(before[key]) * float(before.sum()) / kept if key in largest else 0.0
            assert float(after[key]) == pytest.approx(expected, abs=1e-12)
    assert torch.equal(Truncated(normalizer(spec), 9)(logits), full)
    if spec == "softmax":
        torch.testing.assert_close(found, normalizer("topk:k=3")(logits))


def test_a_truncated_swap_is_top_k() -> None:
    model = word_model()
    cut = cut_windows(TEXT, [40], 2, 0, tokenizer=model.tokenizer)
    with swap(model, truncated_swap(model, "softmax", 3)):
        found = window_losses(model, cut)
    with swap(model, "topk:k=3"):
        torch.testing.assert_close(found, window_losses(model, cut), rtol=1e-6, atol=1e-6)


def test_capacity_by_hand() -> None:
    """The rise is 1/N: it is 0.05 at 20, between the powers 16 and 32 on a straight line of the rise."""
    full = torch.tensor([4.0, 2.0], dtype=torch.float64)
    asked: list[int] = []

    def losses_with(keep: int) -> list[float]:
        asked.append(keep)
        return (full * (1 + 1 / keep)).tolist()

    points = capacity_points(losses_with, full, full, resampled_counts(2, 50, 0), 0.05, 512)
    assert {16, 32} <= set(points)
    assert len(asked) <= 4
    expected = 16 * 2 ** ((1 / 16 - 0.05) / (1 / 16 - 1 / 32))
    assert float(capacity(points, full, full, ONCE, 0.05, 512)[0]) == pytest.approx(expected)
    everywhere = {2**k: losses_with(2**k) for k in range(9)}
    assert float(capacity(everywhere, full, full, ONCE, 0.05, 512)[0]) == pytest.approx(expected)


@pytest.mark.parametrize(("rise", "expected"), [(0.0, 1.0), (9.0, 512.0)])
def test_capacity_at_its_ends(rise: float, expected: float) -> None:
    full = torch.tensor([4.0, 2.0], dtype=torch.float64)
    points = capacity_points(lambda keep: (full * (1 + rise)).tolist(), full, full, ONCE, 0.05, 512)
    found = float(capacity(points, full, full, ONCE, 0.05, 512)[0])
    assert found == pytest.approx(expected, rel=0.01)


def test_a_worse_one_earns_no_smaller_capacity() -> None:
    """2 % worse with all keys, and 1/N more with N of them: 0.05 over own is 0.03 over itself, which is at 1/0.03."""
    own = torch.tensor([4.0, 2.0], dtype=torch.float64)
    points = capacity_points(lambda keep: (own * (1.02 + 1 / keep)).tolist(), own * 1.02, own, ONCE, 0.05, 512)
    assert {32, 64} <= set(points)
    found = capacity(points, own * 1.02, own, ONCE, 0.05, 512)
    assert float(found[0]) == pytest.approx(32 * 2 ** ((1 / 32 - 0.03) / (1 / 32 - 1 / 64)))


def test_above_the_allowed_rise_with_all_keys_there_is_no_capacity() -> None:
    own = torch.tensor([4.0, 2.0], dtype=torch.float64)
    points = capacity_points(lambda keep: pytest.fail("searched"), own * 1.06, own, ONCE, 0.05, 512)
    assert points == {}
    record, before = {"full": (own * 1.06).tolist(), "points": {}}, {"full": own.tolist(), "points": {"1": [4.1, 2.1]}}
    found = capacities(record, before, SETTINGS)
    assert not any(math.isfinite(end) for ends in found.values() for end in ends)


def test_a_capacity_that_some_resamples_lack_has_no_upper_end() -> None:
    """4 % worse on average, but 12 % worse in the second window."""
    record, own = {"full": [4.0, 2.24], "points": {"1": [9.0, 9.0]}}, {"full": [4.0, 2.0], "points": {"1": [9.0, 9.0]}}
    found = capacities(record, own, SETTINGS)
    for name in ("capacity", "capacity_ratio"):
        value, low, high = found[name]
        assert math.isfinite(value)
        assert low <= value
        assert not math.isfinite(high)


def test_every_search_is_against_the_losses_of_own(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[list[float], list[float]]] = []

    def search(_losses_with: object, full: torch.Tensor, own: torch.Tensor, *_rest: object) -> Any:
        seen.append((full.tolist(), own.tolist()))
        return {}

    monkeypatch.setattr(study, "capacity_points", search)
    made()
    model = word_model()
    cut = cut_windows(TEXT, [40], 3, 0, tokenizer=model.tokenizer, context=model.context)
    expected = window_losses(model, cut).tolist()  # of all windows
    assert [own for _, own in seen] == [pytest.approx(expected)] * 3
    assert seen[1][0] != pytest.approx(expected, rel=1e-9)  # those of sparsemax


def test_the_largest_weights_of_top_k_are_those_of_softmax() -> None:
    """So its capacity is the same where it is well below k, whatever all k of them cost."""
    model = word_model()
    cut = cut_windows(TEXT, [40], 2, 0, tokenizer=model.tokenizer)
    found = []
    for spec in ("softmax", "topk:k=8"):
        with swap(model, truncated_swap(model, spec, 4)):
            found.append(window_losses(model, cut))
    torch.testing.assert_close(*found, rtol=1e-6, atol=1e-6)


def test_capacities_take_windows_in_pairs() -> None:
    record = {"full": [4.0, 2.0], "points": {"1": [8.0, 2.1], "2": [4.1, 2.05]}}
    found = capacities(record, record, SETTINGS)
    assert found["capacity_ratio"] == (1.0, 1.0, 1.0)
    assert found["capacity"][1] < found["capacity"][0] < found["capacity"][2]


# -- Ends of the intervals --------------------------------------------------------------------------------------------


def test_the_search_goes_on_until_every_resample_crosses_between_two_neighbours() -> None:
    """The rise of one window is 0.05 at 2.6 keys, of the other at 23.4, of both at 13: bisection tries 4, 8 and 16."""
    own = torch.tensor([1.0, 1.0], dtype=torch.float64)

    def losses_with(keep: int) -> list[float]:
        return [1 + 0.05 * 2.6 / keep, 1 + 0.05 * 23.4 / keep]

    drawn = torch.tensor([[2.0, 0.0], [1.0, 1.0], [0.0, 2.0]], dtype=torch.float64)
    assert set(capacity_points(losses_with, own, own, drawn[1:2], 0.05, 512)) == {4, 8, 16}
    points = capacity_points(losses_with, own, own, drawn, 0.05, 512)
    assert set(points) == {2, 4, 8, 16, 32}  # at 2 all fail: nothing is to be found below
    everywhere = {2**k: losses_with(2**k) for k in range(9)}
    expected = capacity(everywhere, own, own, drawn, 0.05, 512)
    torch.testing.assert_close(capacity(points, own, own, drawn, 0.05, 512), expected)
    assert float(expected[0]) < 4
    assert float(expected[2]) > 16


def test_below_all_that_was_tried_nothing_is_known() -> None:
    """An interval that would reach there has no such end, and a ratio over it no upper one; at 1 it is 1."""
    own = {"full": [4.0, 2.0], "points": {"4": [4.1, 2.2], "8": [4.0, 2.0]}}
    found = capacities(own, own, SETTINGS)
    assert math.isnan(found["capacity"][1])
    assert found["capacity"][2] == pytest.approx(4 * 2 ** ((0.1 - 0.05) / 0.1))
    mine = {"full": [4.0, 2.0], "points": {"1": [8.0, 4.0], "2": [4.1, 2.05]}}
    assert math.isnan(capacities(mine, own, SETTINGS)["capacity_ratio"][2])
    least = {"full": [4.0, 2.0], "points": {"1": [4.1, 2.2]}}
    assert capacities(least, own, SETTINGS)["capacity"][1] == 1.0


def planted(generator: np.random.Generator, keys: float, slope: float, noise: float) -> dict[int, list[float]]:
    """Losses of 8 windows at the N that are tried: the rise is 0.05 at `keys` and falls along ln N."""
    aside, full = generator.normal(0, noise, 8), torch.full((8,), 4.0, dtype=torch.float64)

    def losses_with(keep: int) -> list[float]:
        return (4 * (1 + max(0.05 + slope * math.log(keys / keep), 0) + aside * (keep < 256))).tolist()

    return capacity_points(losses_with, full, full, resampled_counts(8, 400, 0), 0.05, 512)


def test_a_planted_ratio_of_nearly_one_is_seldom_told_as_fewer() -> None:
    """1.65 keys instead of 1.70, above 0.95 of them. That of own is noisy: its mean is often above 2, its resamples
    below; if they were cut off at 2, a quarter of these comparisons would tell fewer."""
    generator, runs = np.random.default_rng(0), 200
    held, false = 0, 0
    for _ in range(runs):
        records = [
            {"full": [4.0] * 8, "points": planted(generator, *how)} for how in ((1.65, 0.1, 0.005), (1.70, 0.02, 0.015))
        ]
        _, low, high = capacities(*records, SETTINGS)["capacity_ratio"]
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
    assert tables._mean(mine, SETTINGS)[1:] == pytest.approx(ends_of(counts @ mine / 8, 8))
    found = tables._sensitivities({"alternative": mine.tolist(), "own": own.tolist()}, SETTINGS)
    assert found["sensitivity_ratio"][1:] == pytest.approx(ends_of(counts @ mine / (counts @ own), 8))
    full = torch.full((8,), 4.0, dtype=torch.float64)
    records = [
        {"full": full.tolist(), "points": {n: (full * (1 + x / (200 * n))).tolist() for n in (1, 2, 4, 8)}}
        for x in (10 + mine, 14 + own)
    ]
    crossed = [capacity(one["points"], full, full, counts, 0.05, 40) for one in records]
    ratio = capacities(*records, SETTINGS)["capacity_ratio"]
    assert ratio[1:] == pytest.approx(ends_of(crossed[0] / crossed[1], 8))
    assert ratio[1] < ratio[0] < ratio[2]
