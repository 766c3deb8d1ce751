"""Dispersion against plain Python, its limits, floors and controls."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from inside import measures_rows
from plain import plain_row
from row_cases import as_type, changed, nasty_rows, random_rows, seeded
from torch import Tensor

import abbe
from abbe import AbbeError
from abbe.measures import Rows, Sets, choose_sets, dispersion, patterns, selection, summarize, update

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
    expected = measures_rows.reference_facts(as_type(rows, torch.float64))
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


# -- Patterns ---------------------------------------------------------------------------------------------------------


PATTERNS = ("previous_token", "induction")
token_lists = st.lists(st.integers(0, 5), min_size=1, max_size=24)


def expected_key(pattern: str, tokens: list[int], query: int) -> int | None:
    """By definition, with loops."""
    if pattern == "previous_token":
        return query - 1 if query else None
    earlier = [place for place in range(query) if tokens[place] == tokens[query]]
    return earlier[-1] + 1 if earlier and earlier[-1] + 1 < query else None


def rows_of(weights: Tensor, hidden: Tensor | None = None) -> Rows:
    """Rows with these weights (head, query, key); only which keys are visible is read from the logits."""
    shown = torch.zeros_like(weights) if hidden is None else torch.zeros_like(weights).masked_fill(hidden, -math.inf)
    return Rows(shown, weights, torch.ones(1, weights.shape[-1], 1, dtype=weights.dtype))


def causal(length: int) -> Tensor:
    return torch.ones(length, length, dtype=torch.bool).triu(1)


@pytest.mark.parametrize("mask", ["causal", "window", "all", "some"])
@settings(max_examples=25)
@given(tokens=token_lists, seed=st.integers(0, 99))
def test_patterns_by_loops(mask: str, tokens: list[int], seed: int) -> None:
    length = len(tokens)
    rows = random_rows(seed, heads=2, queries=length, keys=length, mask=mask)
    readings = patterns(rows, torch.arange(length), torch.tensor(tokens))
    assert set(readings) == set(PATTERNS)
    for name, reading in readings.items():
        for head in range(rows.heads):
            for query in range(length):
                key = expected_key(name, tokens, query)
                seen = key is not None and bool(rows.visible[head, query, key])
                assert bool(reading.defined[head, query]) is seen
                if seen and reading.control is not None and reading.limit is not None:
                    assert reading.value[head, query] == rows.weights[head, query, key]
                    assert reading.control[head, query] == 1 / int(rows.visible[head, query].sum())
                    assert float(reading.value[head, query]) <= float(reading.limit[head, query]) * (1 + 1e-12)


@settings(max_examples=25)
@given(tokens=token_lists, step=st.integers(1, 5))
def test_blocks_of_some_queries_give_the_same_sums(tokens: list[int], step: int) -> None:
    length = len(tokens)
    rows = random_rows(3, heads=2, queries=length, keys=length)
    chosen = torch.arange(0, length, 2)
    whole = update({}, patterns(part(rows, chosen), chosen, torch.tensor(tokens)))
    state: dict[str, Tensor] = {}
    for block in torch.split(chosen, step):
        state = update(state, patterns(part(rows, block), block, torch.tensor(tokens)))
    for name, want in whole.items():
        torch.testing.assert_close(state[name], want)


def part(rows: Rows, queries: Tensor) -> Rows:
    return Rows(rows.logits[:, queries], rows.weights[:, queries], rows.vectors, softmax=True)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_planted_head_has_all_its_weight_there(pattern: str) -> None:
    tokens = [7, 3, 5, 7, 3, 9, 5, 7]
    weights = torch.zeros(2, 8, 8, dtype=torch.float64)
    for query in range(8):
        key = expected_key(pattern, tokens, query)
        weights[0, query, query if key is None else key] = 1.0
        weights[1, query, : query + 1] = 1 / (query + 1)
    rows = rows_of(weights, causal(8).expand(2, -1, -1))
    means = summarize(patterns(rows, torch.arange(8), torch.tensor(tokens)))
    assert means[pattern].value[0] == 1
    for summary in means.values():
        assert summary.control is not None
        assert summary.value[1] == pytest.approx(summary.control[1])  # uniform: at its control
    assert means["previous_token"].rows.tolist() == [7, 7]
    assert means["induction"].rows.tolist() == [4, 4]  # positions 3, 4, 6 and 7


def test_later_copies_do_not_count_where_keys_are_seen_on_both_sides() -> None:
    weights = torch.full((1, 4, 4), 0.25)
    reading = patterns(rows_of(weights), torch.arange(4), torch.tensor([1, 2, 1, 2]))["induction"]
    assert reading.defined.tolist() == [[False, False, True, True]]


@pytest.mark.parametrize("tokens", [[4], [4, 4], [1, 2, 3], [4, 4, 4]])
def test_no_induction_without_an_earlier_copy_that_another_token_follows(tokens: list[int]) -> None:
    length = len(tokens)
    rows = rows_of(torch.full((1, length, length), 1 / length))
    means = summarize(patterns(rows, torch.arange(length), torch.tensor(tokens)))
    assert means["induction"].value.isnan().all()
    assert bool(means["previous_token"].value.isnan().all()) == (length == 1)


def test_key_beyond_a_sliding_window_does_not_count() -> None:
    hidden = causal(6) | causal(6).mT.roll(-1, 1).tril(-2)
    weights = torch.softmax(torch.zeros(1, 6, 6).masked_fill(hidden, -math.inf), -1)
    readings = patterns(rows_of(weights, hidden[None]), torch.arange(6), torch.tensor([1, 2, 3, 1, 2, 3]))
    assert readings["previous_token"].defined.tolist() == [[False] + [True] * 5]
    assert not readings["induction"].defined.any()


def test_rows_without_any_key_count_nowhere() -> None:
    rows = rows_of(torch.zeros(1, 3, 3), torch.ones(1, 3, 3, dtype=torch.bool))
    for reading in patterns(rows, torch.arange(3), torch.tensor([1, 2, 1])).values():
        assert not reading.defined.any()


def test_tokens_must_be_those_of_the_keys() -> None:
    rows = rows_of(torch.full((1, 2, 3), 1 / 3))
    with pytest.raises(abbe.AbbeError, match=r"must be \(2 queries,\) and \(3 keys,\), got \(2,\) and \(4,\)"):
        patterns(rows, torch.arange(2), torch.arange(4))
