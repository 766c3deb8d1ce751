"""Decay exponent, critical N and bootstrap against plain computations and exact cases."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given
from hypothesis import strategies as st
from row_cases import expanded_tail, random_rows, seeded

from abbe import AbbeError
from abbe.measures import (
    Rows,
    State,
    bootstrap_interval,
    critical_n,
    decay,
    decay_exponent,
    enough_windows,
    interval_ends,
    ks_test,
    mean_decay_exponent,
    resampled_counts,
    resampled_means,
    update,
)


def decay_sums(*blocks: Rows) -> dict[str, torch.Tensor]:
    """Each block as a window: "x" and the others, (window, head)."""
    states = [update(State(), decay(rows)) for rows in blocks]
    return {name.removeprefix("decay/"): torch.stack([state[name] for state in states]) for name in states[0]}


def power_law_rows(gamma: float, lengths: list[int]) -> Rows:
    """Rows whose largest weight is exactly n^-gamma / 2."""
    keys = max(lengths)
    logits = torch.full((1, len(lengths), keys), -math.inf, dtype=torch.float64)
    weights = torch.zeros_like(logits)
    for q, n in enumerate(lengths):
        logits[0, q, :n] = 0
        weights[0, q, :n] = 1e-9
        weights[0, q, 0] = n**-gamma / 2
    return Rows(logits, weights, torch.zeros(1, keys, 1, dtype=torch.float64))


def two_heads(first: float, second: float, lengths: list[int]) -> Rows:
    """A head of each exponent, in one block."""
    a, b = power_law_rows(first, lengths), power_law_rows(second, lengths)
    return Rows(torch.cat([a.logits, b.logits]), torch.cat([a.weights, b.weights]), a.vectors)


@given(st.floats(-0.5, 1.5), st.lists(st.integers(2, 60), min_size=2, max_size=12))
def test_exponent_of_an_exact_power_law(gamma: float, lengths: list[int]) -> None:
    value, low, high = decay_exponent(decay_sums(power_law_rows(gamma, lengths)), resamples=20)
    if len(set(lengths)) == 1:
        assert bool(value.isnan())
    else:
        assert float(value) == pytest.approx(gamma, abs=1e-7)
    assert bool(low.isnan())
    assert bool(high.isnan())  # one window has no interval


def test_exponent_is_that_of_least_squares_over_all_rows() -> None:
    blocks = [random_rows(seed, queries=15, keys=40 + 9 * seed) for seed in range(4)]
    value, low, high = decay_exponent(decay_sums(*blocks), resamples=500, seed=3)
    for head in range(4):
        n = np.concatenate([rows.count[head].numpy() for rows in blocks])
        top = np.concatenate([rows.weights[head].amax(-1).numpy() for rows in blocks])
        fit = scipy.stats.linregress(np.log(n[n >= 2]), np.log(top[n >= 2]))
        assert float(value[head]) == pytest.approx(-fit.slope, rel=1e-9)
    assert bool((low <= value).all())
    assert bool((value <= high).all())
    assert bool((low < high).all())
    again = decay_exponent(decay_sums(*blocks), resamples=500, seed=3)
    assert torch.equal(again[1], low)


def test_uniform_rows_have_exponent_one_and_merge() -> None:
    blocks = [random_rows(seed, queries=8, keys=30 + seed, scale=0.0) for seed in range(3)]
    value = decay_exponent(decay_sums(*blocks), resamples=5)[0]
    torch.testing.assert_close(value, torch.ones_like(value), rtol=1e-9, atol=0)
    state = State()
    for rows in blocks:
        state = update(state, decay(rows))
    merged = {name.removeprefix("decay/"): x[None] for name, x in state.items()}
    torch.testing.assert_close(decay_exponent(merged, resamples=5)[0], value)


def test_the_mean_exponent_resamples_windows_with_all_their_heads() -> None:
    """Two heads whose windows deviate in opposite ways: the mean varies less than either."""
    blocks = [two_heads(0.5 + shift, 0.3 - shift, [5, 20, 80]) for shift in (-0.1, -0.05, 0.0, 0.05, 0.1)]
    sums = decay_sums(*blocks)
    value, low, high = decay_exponent(sums, resamples=300)
    mean, mean_low, mean_high = mean_decay_exponent(sums, resamples=300)
    assert float(mean) == pytest.approx(float(value.mean()), rel=1e-12) == pytest.approx(0.4, abs=1e-6)
    assert float(mean_low) <= float(mean) <= float(mean_high)
    assert float(mean_high - mean_low) < 0.01 * float((high - low).min())
    alone = {name: x[:1] for name, x in sums.items()}
    assert bool(mean_decay_exponent(alone, resamples=5)[1].isnan())


def test_intervals_of_exponents_are_expanded_for_few_windows() -> None:
    """Against least squares over the rows of every resample, for unequal windows, one of which lacks a head."""
    blocks = [random_rows(seed, heads=2, queries=15, keys=40 + 9 * seed) for seed in range(5)]
    sums = decay_sums(*blocks)
    for x in sums.values():
        x[4, 1] = math.nan
    rows = [[(r.count[h].numpy(), r.weights[h].amax(-1).numpy()) for r in blocks[: 5 - h]] for h in range(2)]
    slopes = np.array(
        [
            [fitted_exponent(some, counts[: len(some)]) for some in rows]
            for counts in resampled_counts(5, 300, 3).int().tolist()
        ]
    )
    _, low, high = decay_exponent(sums, 0.9, 300, 3)
    for head, windows in enumerate((5, 4)):
        tail = expanded_tail(windows, 0.9)
        expected = np.nanquantile(slopes[:, head], [tail, 1 - tail])
        assert [float(low[head]), float(high[head])] == pytest.approx(expected.tolist(), rel=1e-7)
    tail = expanded_tail(5, 0.9)
    expected = np.quantile(np.nanmean(slopes, 1), [tail, 1 - tail])
    assert [float(end) for end in mean_decay_exponent(sums, 0.9, 300, 3)[1:]] == pytest.approx(expected.tolist())


def fitted_exponent(rows: list[tuple[np.ndarray, np.ndarray]], counts: list[int]) -> float:
    """Of windows that are there so many times; NaN if none is."""
    drawn = [some for some, count in zip(rows, counts, strict=True) for _ in range(count)]
    if not drawn:
        return math.nan
    n, top = (np.concatenate(part) for part in zip(*drawn, strict=True))
    return -float(scipy.stats.linregress(np.log(n[n >= 2]), np.log(top[n >= 2])).slope)


def test_rows_of_one_key_and_heads_that_are_not_there_say_nothing() -> None:
    sums = decay_sums(power_law_rows(0.5, [1, 1, 1, 7, 30]), power_law_rows(0.5, [3, 9]))
    assert float(decay_exponent(sums, resamples=5)[0]) == pytest.approx(0.5, abs=1e-7)
    absent = {name: torch.cat([x, torch.full_like(x, math.nan)], -1) for name, x in sums.items()}
    value, low, _ = decay_exponent(absent, resamples=5)
    assert float(value[0]) == pytest.approx(0.5, abs=1e-7)
    assert bool(value[1].isnan())
    assert bool(low[1].isnan())


@given(st.integers(0, 10**6), st.integers(1, 60), st.floats(0, 3), st.booleans())
def test_ks_of_any_samples_is_that_of_scipy(seed: int, size: int, shift: float, ties: bool) -> None:
    """Statistics are counted for many samples at once, and a p-value is looked up by its statistic alone."""
    draw = np.random.default_rng(seed)
    first, second = draw.normal(size=size), draw.normal(size=size) + shift
    if ties:
        first, second = first.round(1), second.round(1)
    expected = scipy.stats.ks_2samp(first, second, method="exact")
    statistic, p = ks_test(torch.from_numpy(first), torch.from_numpy(second))
    assert statistic == pytest.approx(expected.statistic, rel=1e-12)
    assert p == pytest.approx(expected.pvalue, rel=1e-9)


@pytest.mark.parametrize(("size", "height"), [(60, 1), (60, 2), (6144, 25)])
def test_a_p_value_of_one_is_no_warning(size: int, height: int) -> None:
    """scipy's exact sum passes 1 by rounding there."""
    steps = torch.arange(size).double()
    statistic, p = ks_test(steps, steps + height - 0.5)
    assert statistic == pytest.approx(height / size)
    assert p == pytest.approx(1.0, rel=1e-9)
    assert p <= 1


def test_critical_n_is_the_first_size_that_is_not_rejected() -> None:
    draw = seeded(1)
    control = torch.randn(4, 144, generator=draw, dtype=torch.float64)
    shift = torch.tensor([3.0, 0.19, 0.0, 2.0], dtype=torch.float64)
    tests = critical_n(torch.randn(4, 144, generator=draw, dtype=torch.float64) + shift[:, None], control, (1, 2, 4, 8))
    for i in range(4):
        assert 0 <= tests.statistic[i] <= 1
    for level in (0.01, 0.05):
        expected = next((n for n, p in zip(tests.grid, tests.p_value, strict=True) if p > level), None)
        assert tests.critical[level] == expected
    assert tests.p_value[0] < 0.01 < tests.p_value[2]
    assert tests.critical[0.01] in (2, 4)
    apart = critical_n(control + 100, control, (1, 2, 4, 8))
    assert apart.critical == {0.01: None, 0.05: None}
    assert apart.statistic == (1.0,) * 4


def test_ks_refuses_bad_samples() -> None:
    with pytest.raises(AbbeError, match="samples must have the same size"):
        ks_test(torch.ones(3), torch.ones(4))
    with pytest.raises(AbbeError, match="samples hold NaN"):
        ks_test(torch.tensor([1.0, math.nan]), torch.ones(2))
    with pytest.raises(AbbeError, match="true and control must both be \\(2 N, head\\)"):
        critical_n(torch.ones(3, 4), torch.ones(3, 4), (1, 2))


def test_bootstrap_is_the_expanded_percentile_interval_of_resampled_means() -> None:
    values = torch.randn(9, 3, 4, generator=seeded(2), dtype=torch.float64)
    low, high = bootstrap_interval(values, level=0.9, resamples=400, seed=7)
    means = resampled_means(values, resamples=400, seed=7)
    assert means.shape == (400, 3, 4)
    tail = scipy.stats.norm.cdf(-scipy.stats.t.ppf(0.95, 8) * math.sqrt(9 / 8))
    np.testing.assert_allclose(low, np.quantile(means, tail, axis=0), rtol=1e-9)
    np.testing.assert_allclose(high, np.quantile(means, 1 - tail, axis=0), rtol=1e-9)
    student = scipy.stats.t.ppf(0.95, 8) * values.std(0) / 3
    torch.testing.assert_close((high - low) / 2, student, rtol=0.35, atol=0)
    assert torch.equal(bootstrap_interval(values, 0.9, 400, 7)[0], low)
    assert not torch.equal(bootstrap_interval(values, 0.9, 400, 8)[0], low)


@pytest.mark.parametrize(
    ("level", "windows"), [(0.95, 6), (0.9, 5), (0.99, 8), (0.5, 2), (0.501, 3), (0.875, 4), (0.876, 5), (1e-20, 2)]
)
def test_enough_windows_can_reach_the_level(level: float, windows: int) -> None:
    """The chance that n windows are not all on one side of a median is 1 - 2 / 2^n."""
    assert enough_windows(level) == windows
    sides = [sum(1 for side in range(2**n) if 0 < side < 2**n - 1) / 2**n for n in range(windows + 1)]
    assert sides[windows] >= level
    assert windows == 2 or sides[windows - 1] < level


def test_fewer_windows_than_enough_hold_too_seldom() -> None:
    """On normal data, whatever the tail: the whole range of five windows holds the truth in 15 of 16 cases."""
    values = torch.randn(enough_windows(0.95) - 1, 4000, generator=seeded(13), dtype=torch.float64)
    within = ((values.amin(0) <= 0) & (values.amax(0) >= 0)).double().mean()
    assert float(within) == pytest.approx(15 / 16, abs=0.012)
    assert float(within) < 0.95


def test_cells_of_one_table_have_the_tails_of_their_own_windows() -> None:
    resampled = torch.randn(1001, 3, generator=seeded(11), dtype=torch.float64)
    low, high = interval_ends(resampled, 0.9, torch.tensor([2, 8, 500]))
    for cell, windows in enumerate((2, 8, 500)):
        tail = expanded_tail(windows, 0.9)
        expected = np.quantile(resampled[:, cell], [tail, 1 - tail])
        assert [float(low[cell]), float(high[cell])] == pytest.approx(expected.tolist(), rel=1e-12)


@pytest.mark.parametrize(("windows", "least"), [(6, 0.90), (8, 0.915), (16, 0.92)])
def test_intervals_hold_about_as_often_as_they_say(windows: int, least: float) -> None:
    """On normal data, 95 % asked for; plain percentiles hold 85, 88 and 92 %."""
    values = torch.randn(windows, 4000, generator=seeded(12), dtype=torch.float64)
    low, high = bootstrap_interval(values, resamples=1000, seed=3)
    assert least < float(((low <= 0) & (high >= 0)).double().mean()) < 0.96


def test_bootstrap_draws_are_with_replacement_and_uniform() -> None:
    """Mean and variance of the resampled means of an indicator are those of a binomial."""
    indicator = torch.zeros(6, 1, dtype=torch.float64)
    indicator[2] = 1
    means = resampled_means(indicator, resamples=20_000, seed=1).flatten() * 6
    assert float(means.mean()) == pytest.approx(1, abs=4 * math.sqrt(5 / 6 / 20_000))
    assert float(means.var()) == pytest.approx(5 / 6, rel=0.05)
    assert bool(((means - means.round()).abs() < 1e-9).all())


def test_bootstrap_leaves_out_nan_and_needs_two_windows() -> None:
    values = torch.randn(5, 4, generator=seeded(3), dtype=torch.float64)
    values[2:, 1] = math.nan
    values[1:, 2] = math.nan
    values[:, 3] = math.nan
    low, high = bootstrap_interval(values, resamples=300)
    assert low.isnan().tolist() == high.isnan().tolist() == [False, False, True, True]
    assert float(low[1]) == pytest.approx(float(values[:2, 1].min()), rel=1e-12)
    assert float(high[1]) == pytest.approx(float(values[:2, 1].max()), rel=1e-12)
    assert bool(bootstrap_interval(values[:1])[0].isnan().all())


def test_bootstrap_of_the_maximum() -> None:
    values = torch.randn(7, 2, generator=seeded(4), dtype=torch.float64)
    values[3, 1] = math.nan
    low, high = bootstrap_interval(values, resamples=500, statistic="max")
    assert float(high[0]) == float(values[:, 0].max())
    assert bool((low <= high).all())
    assert bool((low >= values.nan_to_num(nan=math.inf).amin(0)).all())


def test_bootstrap_in_pieces_is_the_same() -> None:
    """4,194 cells fill the memory that is taken at once."""
    values = torch.randn(5, 4200, generator=seeded(5), dtype=torch.float64)
    alone = bootstrap_interval(values[:, 4190:])
    for whole, part in zip(bootstrap_interval(values), alone, strict=True):
        torch.testing.assert_close(whole[4190:], part, rtol=1e-12, atol=0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"values": torch.ones(())}, "at least one window"),
        ({"values": torch.ones(0, 2)}, "at least one window"),
        ({"level": 1.0}, "level must lie strictly between 0 and 1"),
        ({"resamples": 0}, "resamples must be a whole number >= 1"),
        ({"statistic": "median"}, "statistic must be 'mean' or 'max'"),
    ],
)
def test_bootstrap_refuses(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(AbbeError, match=message):
        bootstrap_interval(**({"values": torch.ones(3, 2)} | arguments))  # type: ignore[arg-type]
