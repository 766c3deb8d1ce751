"""Differences against exact arithmetic, their limits, sinks, blocks and bad arguments."""

from __future__ import annotations

import math
from itertools import pairwise

import mpmath
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from inside import directions
from row_cases import as_type, nasty_rows, random_rows, seeded
from torch import Tensor

import abbe
from abbe import bounds
from abbe.measures import Reading, Rows, State, differences, list_measures, sensitivity, summarize, update

TEMPERATURES = (0.003, 0.1, 1.0, 10.0)
STEPS = (1e-3, 0.1, 10.0)
COLD = (0.003, 10.0)  # the coldest temperature with the longest step: exponents up to 4,700


def rows_of(logits: Tensor, sink: Tensor | None = None, known: bool = True) -> Rows:
    """Softmax rows of logits (head, query, key), beside a sink of logits (head,) if given."""
    beside = logits if sink is None else torch.cat([logits, sink[:, None, None].expand(*logits.shape[:2], 1)], -1)
    weights = torch.softmax(beside, -1).nan_to_num()[..., : logits.shape[-1]].contiguous()
    x = torch.zeros(1, logits.shape[-1], 1, dtype=logits.dtype)
    if sink is None:
        return Rows(logits, weights, x, softmax=True)
    return Rows(logits, weights, x, sink=True, sink_logits=sink if known else None)


def exact(logits: Tensor, direction: Tensor, t: float, step: float, sink: float | None = None) -> float:
    """g of one row in arithmetic of 60 digits; `direction` is not yet of length 1, invisible keys are left out."""
    seen = [j for j, x in enumerate(logits.tolist()) if x != -math.inf]
    with mpmath.workdps(60):
        u = [mpmath.mpf(float(direction[j])) for j in seen]
        length = mpmath.sqrt(sum(x**2 for x in u)) or mpmath.mpf(1)
        before = [mpmath.mpf(float(logits[j])) for j in seen]
        after = [x + mpmath.mpf(step) * v / length for x, v in zip(before, u, strict=True)]
        beside = [] if sink is None else [mpmath.mpf(sink)]
        weights = []
        for row in (before + beside, after + beside):
            top = max(row)
            terms = [mpmath.exp((x - top) / mpmath.mpf(t)) for x in row]
            total = sum(terms)
            weights.append([x / total for x in terms[: len(seen)]])
        return float(mpmath.sqrt(sum((b - a) ** 2 for a, b in zip(*weights, strict=True))) / mpmath.mpf(step))


def pair_direction(logits: Tensor) -> Tensor:
    """Second largest up, largest down; of equal ones the first wins. Zeros with one visible key."""
    order = sorted(range(len(logits)), key=lambda j: (-float(logits[j]), j))
    u = torch.zeros(len(logits), dtype=torch.float64)
    if len(logits) > 1 and float(logits[order[1]]) != -math.inf:
        u[order[0]], u[order[1]] = -1.0, 1.0
    return u


def assert_exact(rows: Rows, seed: int, close: float = 1e-9, settings: tuple[tuple[float, float], ...] = ()) -> None:
    settings = settings or tuple((t, step) for t in TEMPERATURES for step in STEPS)
    drawn = directions(rows, seeded(seed))
    for t, step in settings:
        readings = differences(rows, (t,), (step,), seeded(seed))
        for head in range(rows.heads):
            sink = None if rows.sink_logits is None else float(rows.sink_logits[head])
            for query in range(rows.queries):
                row = rows.logits[head, query]
                for name, u in (("random", drawn[query]), ("pair", pair_direction(row))):
                    reading = readings[f"difference_{name}@T={t:g},eps={step:g}"]
                    if not bool(reading.defined[head, query]):
                        continue
                    wanted = exact(row, u, t, step, sink)
                    got = float(reading.value[head, query])
                    assert got == pytest.approx(wanted, rel=close, abs=1e-45), (name, t, step, head, query)


@pytest.mark.quick(7)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("scale", [0.0, 1e-3, 0.3, 3.0, 40.0])
@pytest.mark.parametrize("mask", ["all", "some"])
def test_values_are_those_of_exact_arithmetic(dtype: torch.dtype, scale: float, mask: str) -> None:
    """Flat rows, where the weights hardly move, and peaked ones, where a weight rounds to 1: both keep their digits."""
    logits = random_rows(1, heads=2, queries=2, keys=7, mask=mask, scale=scale, dtype=dtype).logits
    assert_exact(rows_of(logits), 3)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("scale", [0.0, 0.3, 3.0, 40.0])
def test_values_beside_a_sink_are_those_of_exact_arithmetic(dtype: torch.dtype, scale: float) -> None:
    """The second sink is above nearly all keys, the third takes everything, the last nothing."""
    logits = random_rows(2, heads=4, queries=2, keys=6, mask="some", scale=scale, dtype=dtype).logits
    assert_exact(rows_of(logits, torch.tensor([0.5, 2.0, 300.0, -300.0], dtype=dtype)), 4)


def test_a_sink_whose_weight_rounds_to_zero_may_still_take_all() -> None:
    """At T = 0.003 it has e^-900 beside the first key, until the step has pushed that key below."""
    logits = torch.tensor([[[9.0, -3.0, -4.0]], [[9.0, -3.0, -4.0]]])
    rows = rows_of(logits, torch.tensor([6.3, -9.0]))
    assert_exact(rows, 5, settings=(COLD,))
    pair = differences(rows, (0.003,), (10.0,), seeded(5))["difference_pair@T=0.003,eps=10"].value[:, 0]
    torch.testing.assert_close(pair, torch.tensor([0.1, math.sqrt(2) / 10], dtype=torch.float64))


@pytest.mark.parametrize("scale", [0.0, 0.01, 2.0])
def test_long_rows_of_float32_keep_their_digits(scale: float) -> None:
    logits = 5 + random_rows(3, heads=1, queries=1, keys=1024, mask="all", scale=scale, dtype=torch.float32).logits
    assert_exact(rows_of(logits), 6, settings=((10.0, 1e-3), (0.003, 1e-3), (1.0, 0.1), COLD))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", nasty_rows())
def test_nasty_rows(name: str, dtype: torch.dtype, kernels: None) -> None:
    rows = nasty_rows(dtype)[name]
    assert_exact(rows, 7, settings=((0.003, 1e-3), (1.0, 0.1), COLD))
    for reading in differences(rows, TEMPERATURES, STEPS, seeded(0)).values():
        assert torch.equal(reading.defined, rows.count > 0)
        assert bool(torch.isfinite(reading.value).all())


@given(
    st.integers(0, 10**6), st.integers(1, 9), st.floats(0, 60), st.floats(0.003, 10), st.floats(1e-3, 10), st.booleans()
)
def test_limits_hold(seed: int, keys: int, scale: float, t: float, step: float, sink: bool) -> None:
    rows = random_rows(seed, heads=2, queries=3, keys=keys, mask="some", scale=scale)
    rows = rows_of(rows.logits, torch.tensor([0.3, 4.0], dtype=torch.float64)) if sink else rows
    for reading in differences(rows, (t,), (step,), seeded(seed)).values():
        assert reading.limit is not None
        assert bool((reading.limit <= min(1 / (2 * t), math.sqrt(2) / step) * (1 + 1e-12)).all())
        tight = math.sqrt(2) * math.tanh(step / (2 * math.sqrt(2) * t)) / step
        torch.testing.assert_close(reading.limit, torch.full_like(reading.limit, tight), rtol=1e-9, atol=0)
        assert bool((reading.value <= reading.limit * (1 + 1e-9))[reading.defined].all())
        assert bool((reading.value >= 0).all())


@pytest.mark.parametrize("t", TEMPERATURES)
@pytest.mark.parametrize("step", STEPS)
def test_two_keys_reach_what_is_proved(t: float, step: float) -> None:
    """The largest difference that a step of this length can make: two keys that change places."""
    half = step / (2 * math.sqrt(2))
    rows = rows_of(torch.tensor([[[-half, half]]], dtype=torch.float64))
    reading = differences(rows, (t,), (step,), seeded(0))[f"difference_pair@T={t:g},eps={step:g}"]
    assert float(reading.value) == pytest.approx(float(bounds.change_bound_by_norm(step, t)) / step, rel=1e-9)


@pytest.mark.parametrize("sink", [False, True])
def test_small_steps_give_the_sensitivity(sink: bool) -> None:
    """To first order in eps, along the same draw of the generator."""
    rows = random_rows(8, mask="some")
    rows = rows_of(rows.logits, torch.tensor([0.3, 4.0, -1.0, 0.0], dtype=torch.float64)) if sink else rows
    readings = differences(rows, (10.0, 1.0), (1e-3,), seeded(2))
    slopes = sensitivity(rows, abbe.normalizer("softmax"), (10.0, 1.0), seeded(2))
    for t, suffix in ((10, "@T=10"), (1, "")):
        got, slope = readings[f"difference_random@T={t},eps=0.001"], slopes[f"sensitivity_random{suffix}"]
        torch.testing.assert_close(got.value[got.defined], slope.value[got.defined], rtol=2e-3, atol=1e-12)


def test_heads_share_the_draw_of_their_query() -> None:
    logits = random_rows(9, heads=1, queries=1, mask="all").logits.expand(3, 4, -1).contiguous()
    value = differences(rows_of(logits), (1.0,), (0.1,), seeded(3))["difference_random@T=1,eps=0.1"].value
    assert bool((value == value[:1]).all())
    assert len(set(value[0].tolist())) == 4


def test_sink_logits_follow_from_the_weights() -> None:
    logits, sink = random_rows(10, mask="some").logits, torch.tensor([0.5, 3.0, -2.0, 1.0], dtype=torch.float64)
    known, inferred = rows_of(logits, sink), rows_of(logits, sink, known=False)
    wanted = differences(known, (0.1, 1.0, 10.0), STEPS, seeded(4))
    for name, reading in differences(inferred, (0.1, 1.0, 10.0), STEPS, seeded(4)).items():
        torch.testing.assert_close(reading.value, wanted[name].value, rtol=1e-8, atol=1e-12, msg=name)


def test_a_sink_that_leaves_no_weight_leaves_no_difference() -> None:
    """All weights are 0: the sink's logit is not known, only that it lies far above."""
    logits = torch.randn(1, 3, 5, generator=seeded(1))
    rows = rows_of(logits, torch.tensor([500.0]), known=False)
    assert not bool(rows.weights.any())
    for reading in differences(rows, (0.1, 1.0), (1e-3, 0.1), seeded(4)).values():
        assert bool(reading.defined.all())
        assert float(reading.value.max()) < 1e-30


def test_one_key_cannot_move_unless_there_is_a_sink() -> None:
    logits = torch.full((1, 3, 4), -math.inf, dtype=torch.float64)
    logits[0, 0, 2], logits[0, 1, 0] = 1.5, -3.0  # the third row has no key
    names = ("difference_random@T=1,eps=0.1", "difference_pair@T=1,eps=0.1")
    alone = differences(rows_of(logits), (1.0,), (0.1,), seeded(5))
    beside = differences(rows_of(logits, torch.zeros(1, dtype=torch.float64)), (1.0,), (0.1,), seeded(5))
    for measured in (alone, beside):
        for name in names:
            assert measured[name].defined.tolist() == [[True, True, False]]
            assert bool((measured[name].value == 0).all()) or (measured is beside and name == names[0])
    assert bool((beside[names[0]].value[0, :2] > 1e-3).all())


@given(st.integers(0, 10**6), st.lists(st.integers(1, 11), max_size=4, unique=True), st.booleans())
def test_blocks_give_the_same_as_all_at_once(seed: int, cuts: list[int], sink: bool) -> None:
    logits = random_rows(seed, heads=2, queries=12, keys=9, mask="some").logits
    sinks = torch.tensor([0.5, 1.0], dtype=torch.float64) if sink else None
    whole = update({}, differences(rows_of(logits, sinks), (0.1, 1.0), (0.1, 10.0), seeded(6)))
    draw, state = seeded(6), State()
    for start, stop in pairwise([0, *sorted(cuts), 12]):
        state = update(state, differences(rows_of(logits[:, start:stop], sinks), (0.1, 1.0), (0.1, 10.0), draw))
    assert state.keys() == whole.keys()
    for name, part in whole.items():
        torch.testing.assert_close(state[name], part, rtol=1e-12, atol=1e-15, msg=name)


def test_order_of_the_keys_does_not_matter_to_the_pair() -> None:
    logits = random_rows(11, heads=2, queries=5, keys=9, mask="some").logits
    logits[0, 2] = 1.0  # ties
    turn = torch.randperm(9, generator=seeded(1))
    name = "difference_pair@T=0.5,eps=2"
    one, other = (differences(rows_of(x), (0.5,), (2.0,), seeded(0))[name].value for x in (logits, logits[..., turn]))
    torch.testing.assert_close(one, other, rtol=1e-12, atol=0)


def test_low_precision_is_measured_at_the_logits_given() -> None:
    rows = as_type(random_rows(12, mask="some"), torch.bfloat16)
    wanted = differences(rows_of(rows.logits.double()), TEMPERATURES, STEPS, seeded(0))
    for name, reading in differences(rows, TEMPERATURES, STEPS, seeded(0)).items():
        if "pair" in name:
            assert torch.equal(reading.value, wanted[name].value)
        assert bool((reading.value <= reading.limit * (1 + 1e-9)).all())


def test_names_quantiles_and_no_graph() -> None:
    rows = random_rows(13)
    rows.logits.requires_grad_()
    readings = differences(rows, (1, 0.1, 1.00000001), (1e-3, 10), seeded(0))
    assert all(not reading.value.requires_grad for reading in readings.values())
    parts = {f"{u}_{part}" for u in ("random", "pair") for part in ("mean", "p95", "max")}
    at = {f"@T={t},eps={step}" for t in ("1", "0.1", "1.00000001") for step in ("0.001", "10")}
    assert set(summarize(readings)) == {f"difference_{part}{suffix}" for part in parts for suffix in at}
    listed = {info.name: info for info in list_measures()}
    for part in parts:
        info = listed[f"difference_{part}"]
        assert (info.by_size, info.unit, info.meaning[:10]) == (False, "weight per logit", "high means")
        assert ", low " in info.meaning
    largest: Reading = readings["difference_pair@T=0.1,eps=10"]
    summary = summarize(readings)["difference_pair_max@T=0.1,eps=10"]
    torch.testing.assert_close(summary.value, largest.value.amax(1))


@pytest.mark.parametrize("bad", [(0,), (-1.0,), (math.nan,), (math.inf,), ("1",), (True,)])
def test_bad_temperatures_and_steps_are_refused(bad: tuple[float, ...]) -> None:
    rows = random_rows(14)
    with pytest.raises(abbe.AbbeError, match="temperatures must be positive finite numbers, got"):
        differences(rows, bad, (0.1,), seeded(0))
    with pytest.raises(abbe.AbbeError, match="steps must be positive finite numbers, got"):
        differences(rows, (1.0,), bad, seeded(0))


def test_doubles_and_other_normalizers_are_refused() -> None:
    rows = random_rows(15)
    with pytest.raises(abbe.AbbeError, match=r"temperatures must be different numbers, got \[1.0, 2.0, 1.0\]"):
        differences(rows, (1, 2, 1.0), (0.1,), seeded(0))
    with pytest.raises(abbe.AbbeError, match="steps must be different numbers"):
        differences(rows, (1.0,), (0.1, 0.1), seeded(0))
    with pytest.raises(abbe.AbbeError, match="measured for softmax only"):
        differences(random_rows(16, spec="sparsemax"), (1.0,), (0.1,), seeded(0))
