"""Dispersion against plain Python, its limits, floors and controls."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from inside import reference_facts
from plain import plain_row
from row_cases import as_type, changed, nasty_rows, random_rows, seeded

from abbe import AbbeError
from abbe.measures import Rows, Sets, choose_sets, dispersion, selection, summarize

SPECS = ["softmax", "sparsemax", "sink:b=0.5", "sigmoid", "topk:k=3", "relu"]


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("mask", ["all", "causal", "window", "some"])
def test_values_are_those_of_plain_python(spec: str, mask: str) -> None:
    rows = random_rows(1, spec=spec, mask=mask)
    readings = dispersion(rows)
    for head, query in itertools.product(range(rows.heads), range(rows.queries)):
        seen = rows.visible[head, query]
        weights = rows.weights[head, query, seen]
        for name, reading in readings.items():
            alive = len(weights) > 0 and (
                bool((weights > 0).any()) or name in ("max_weight", "logit_range", "sink_mass")
            )
            assert bool(reading.defined[head, query]) == alive, name
            if alive and not name.endswith("_floor") and bool((weights > 0).any()):
                expected = plain_row(rows.logits[head, query, seen], weights)[name]
                assert float(reading.value[head, query]) == pytest.approx(expected, rel=1e-11, abs=1e-12), name
    assert ("learned_sink_mass" in readings) == rows.sink
    assert ("entropy_floor" in readings) == rows.softmax


@pytest.mark.parametrize("spec", [*SPECS, "negative"])
@pytest.mark.parametrize("mask", ["all", "causal", "window", "some"])
def test_kernel_facts_are_those_of_the_reference(spec: str, mask: str, kernels: None) -> None:
    rows = random_rows(2, keys=83, spec="softmax" if spec == "negative" else spec, mask=mask, dtype=torch.float32)
    if spec == "negative":
        rows = changed(rows, weights=torch.where(rows.visible, rows.weights - 0.02, 0.0))
    assert rows.fused
    expected = reference_facts(as_type(rows, torch.float64))
    for name, got in rows.facts._asdict().items():
        want = getattr(expected, name)
        if want.dtype == torch.int64:
            assert torch.equal(got, want), name
        else:
            torch.testing.assert_close(got.double(), want, rtol=2e-6, atol=2e-6, msg=name)


def test_sets_of_tiny_weights_share_them_as_any_others(kernels: None) -> None:
    """From the least weights that softmax gives, 2e-38, down to the least of all."""
    weights = torch.tensor([[[1.0, 4e-38, 4e-38, 2e-38, 1e-40, 1e-40, 0.0]]])
    rows = Rows(torch.zeros_like(weights), weights, torch.ones(1, 7, 1))
    order = torch.tensor([[[1, 2, 3]]]), torch.tensor([[[4, 5, 6]]])
    divergence = selection(rows, Sets((1, 2, 3), *order))["selected_divergence"]
    shares = torch.tensor([0.4, 0.4, 0.2], dtype=torch.float64)
    uneven = math.log(3) + float(torch.xlogy(shares, shares).sum())
    assert divergence.value[0, 0].tolist() == pytest.approx([0, 0, uneven], abs=1e-4)
    assert divergence.control[0, 0].tolist() == pytest.approx([0, 0, math.log(3 / 2)], abs=1e-4)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", nasty_rows())
def test_nothing_exceeds_its_limit_or_is_below_its_floor(name: str, dtype: torch.dtype, kernels: None) -> None:
    rows = nasty_rows(dtype)[name]
    readings = dispersion(rows) | selection(rows, choose_sets(rows, (1, 2, 5), seeded(0)))
    slack = 1e-11 if dtype == torch.float64 else 2e-6
    for measure, reading in readings.items():
        assert bool(torch.isfinite(reading.value[reading.defined]).all()), measure
        if reading.limit is not None:
            over = reading.value - reading.limit * (1 + slack) - slack
            assert bool((over[reading.defined] <= 0).all()), measure
    for floor in ("entropy", "effective_tokens"):
        under = readings[f"{floor}_floor"].value - readings[floor].value * (1 + slack) - slack
        assert bool((under[readings[floor].defined] <= 0).all()), floor


@given(st.integers(0, 10**6), st.floats(0.01, 40), st.integers(1, 30))
def test_bounds_hold_for_random_rows(seed: int, scale: float, keys: int) -> None:
    rows = random_rows(seed, keys=keys, scale=scale, mask="all")
    readings = dispersion(rows)
    for name in ("entropy", "effective_tokens", "max_weight"):
        limit = readings[name].limit
        assert limit is not None
        assert bool((readings[name].value <= limit * (1 + 1e-10) + 1e-12).all())
    assert bool((readings["entropy_floor"].value <= readings["entropy"].value + 1e-10).all())
    assert bool((readings["effective_tokens_floor"].value <= readings["effective_tokens"].value * (1 + 1e-10)).all())


def test_limits_are_reached() -> None:
    """Equal logits reach ln n and n; two-level logits reach the ceilings of the weights."""
    flat, two = nasty_rows()["ties"], nasty_rows()["two levels"]
    values = dispersion(flat)
    torch.testing.assert_close(values["entropy"].value, values["entropy"].limit, rtol=1e-12, atol=0)
    torch.testing.assert_close(values["effective_tokens"].value, values["effective_tokens"].limit, rtol=1e-12, atol=0)
    mass = selection(two, choose_sets(two, (1, 2), seeded(0)))["top_mass"]
    assert mass.limit is not None
    torch.testing.assert_close(mass.value[..., 1], mass.limit[..., 1], rtol=1e-12, atol=0)
    single = torch.zeros(1, 1, 12, dtype=torch.float64)
    single[..., 3] = 2.5
    top = dispersion(Rows(single, torch.softmax(single, -1), two.vectors, softmax=True))["max_weight"]
    torch.testing.assert_close(top.value, top.limit, rtol=1e-12, atol=0)


def test_controls_are_equal_shares_and_the_range_limit_is_passed_on() -> None:
    rows = random_rows(3, mask="causal")
    limit = torch.rand(rows.heads, rows.queries, generator=seeded(1))
    given_limit = Rows(rows.logits, rows.weights, rows.vectors, range_limit=limit, softmax=True)
    readings = dispersion(given_limit)
    assert readings["logit_range"].limit is limit
    for name in ("max_weight", "sink_mass"):
        torch.testing.assert_close(readings[name].control, 1 / rows.count.double())
    mass = selection(rows, choose_sets(rows, (1, 4), seeded(0)))["top_mass"]
    torch.testing.assert_close(mass.control, torch.tensor([1.0, 4.0]).double() / rows.count[..., None])


def test_rows_without_keys_or_with_bad_weights() -> None:
    rows = random_rows(4, mask="some")
    assert all(not bool(reading.defined[0, 0]) for reading in dispersion(rows).values())
    assert all(not bool(s.value.isnan().any()) for s in summarize(dispersion(rows)).values())
    for bad in (math.nan, math.inf):
        weights = rows.weights.clone()
        weights[1, 2, 3] = bad
        with pytest.raises(AbbeError, match="weights must be finite, got NaN or infinity at head 1, query 2"):
            dispersion(changed(rows, weights=weights))
    shown = rows.weights.clone()
    shown[0, 0, 5] = 0.1
    with pytest.raises(AbbeError, match=r"weights must be 0 at invisible keys .* head 0, query 0"):
        dispersion(changed(rows, weights=shown))


@pytest.mark.parametrize("bad", [math.nan, 0.25])
def test_kernels_refuse_the_same(bad: float, kernels: None) -> None:
    rows = random_rows(4, mask="some", dtype=torch.float32)
    weights = rows.weights.clone()
    weights[0, 0, 5] = bad
    with pytest.raises(AbbeError, match="at head 0, query 0"):
        dispersion(changed(rows, weights=weights))


@pytest.mark.parametrize("case", ["random", "ties", "negative", "zeros of both signs"])
@pytest.mark.parametrize("mask", ["all", "causal", "window", "some"])
def test_order_is_that_of_a_stable_sort(case: str, mask: str, kernels: None) -> None:
    rows = random_rows(5, heads=3, queries=9, keys=70, mask=mask, dtype=torch.float32)
    weights = rows.weights
    if case == "ties":
        weights = (weights * 20).round() / 20
    if case == "negative":
        weights = torch.where(rows.visible, torch.randn(weights.shape, generator=seeded(1)), 0.0)
    if case == "zeros of both signs":
        weights = torch.where(torch.rand(weights.shape, generator=seeded(2)) < 0.5, 0.0, -0.0)
    rows = changed(rows, weights=weights)
    for largest in (1, 13, 500):
        order = rows.order(largest)
        assert order.shape[-1] == min(largest, 70)
        for head, query in itertools.product(range(3), range(9)):
            seen = rows.visible[head, query].nonzero().flatten().tolist()
            expected = sorted(seen, key=lambda j: (-float(weights[head, query, j]), j))[:largest]
            assert order[head, query, : len(expected)].tolist() == expected


def test_bad_shapes_are_refused() -> None:
    rows = random_rows(6)
    short, odd = rows.weights[..., :-1], rows.vectors[:3]
    for parts, message in (
        ({"weights": short}, "logits and weights must have the same shape"),
        ({"vectors": odd}, "vectors have 3 groups, which do not divide 4 heads"),
        ({"vectors": rows.vectors[:, :-1]}, "vectors must be \\(group, 20 keys, feature\\)"),
        ({"vectors": rows.vectors.float()}, "must have the same floating-point type"),
    ):
        with pytest.raises(AbbeError, match=message):
            changed(rows, **parts)
    with pytest.raises(AbbeError, match="range_limit must be \\(head, query\\)"):
        Rows(rows.logits, rows.weights, rows.vectors, range_limit=torch.ones(3))
    with pytest.raises(AbbeError, match="cannot go with sink=True"):
        Rows(rows.logits, rows.weights, rows.vectors, softmax=True, sink=True)
