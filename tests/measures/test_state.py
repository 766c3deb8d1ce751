"""Streaming: any chunking, any order of merging, quantiles, saving; undefined rows count nowhere."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from row_cases import nasty_rows, random_rows, seeded
from safetensors.torch import load_file, save_file

import abbe
from abbe.measures import (
    BlockNumbers,
    Reading,
    Rows,
    State,
    Summary,
    block_numbers,
    choose_sets,
    compute,
    decay,
    differences,
    dispersion,
    expected_distance,
    geometry,
    join_heads,
    list_measures,
    merge,
    pattern_keys,
    patterns,
    selection,
    sensitivity,
    summarize,
    update,
)

GRID = (1, 2, 4, 30)


def state_of(rows: Rows, sets_from: torch.Generator, directions_from: torch.Generator, state: State) -> State:
    sets = choose_sets(rows, GRID, sets_from)
    readings = dispersion(rows) | selection(rows, sets) | geometry(rows, sets)
    readings |= sensitivity(rows, abbe.normalizer("softmax"), (1.0, 0.5), directions_from)
    readings |= expected_distance(rows, sets)
    return update(state, readings | decay(rows))


def part_of(rows: Rows, start: int, stop: int) -> Rows:
    return Rows(rows.logits[:, start:stop], rows.weights[:, start:stop], rows.vectors, softmax=True)


def assert_same(a: State, b: State, close: float = 1e-12) -> None:
    assert a.keys() == b.keys()
    for name in a:
        torch.testing.assert_close(a[name], b[name], rtol=close, atol=close, equal_nan=True, msg=name)


@settings(max_examples=25)
@given(st.integers(0, 10**6), st.lists(st.integers(1, 11), max_size=4, unique=True))
def test_blocks_give_the_same_as_all_at_once(seed: int, cuts: list[int]) -> None:
    """The random sets and directions, too: they are drawn query by query."""
    rows = random_rows(seed, heads=2, queries=12, keys=16, mask="some")
    whole = state_of(rows, seeded(1), seeded(2), {})
    edges = [0, *sorted(cuts), 12]
    sets_from, directions_from, state = seeded(1), seeded(2), State()
    for start, stop in pairwise(edges):
        state = state_of(part_of(rows, start, stop), sets_from, directions_from, state)
    assert_same(whole, state)


@pytest.mark.parametrize("rows_at_once", [1, 7, 32])
def test_blocks_through_the_kernels(rows_at_once: int, kernels: None) -> None:
    rows = random_rows(3, heads=3, queries=32, keys=50, width=9, dtype=torch.float32)
    whole = state_of(rows, seeded(1), seeded(2), {})
    sets_from, directions_from, state = seeded(1), seeded(2), State()
    for start in range(0, 32, rows_at_once):
        state = state_of(part_of(rows, start, start + rows_at_once), sets_from, directions_from, state)
    assert_same(whole, state, 1e-6)


@settings(max_examples=20)
@given(st.lists(st.integers(0, 10**6), min_size=3, max_size=3))
def test_merging_is_associative_and_has_a_neutral_element(seeds: list[int]) -> None:
    a, b, c = (state_of(random_rows(s, heads=2, queries=3, keys=9), seeded(s), seeded(s), {}) for s in seeds)
    assert_same(merge(merge(a, b), c), merge(a, merge(b, c)))
    assert_same(merge(a, b), merge(b, a))
    assert_same(merge({}, a), merge(a, {}))


def test_states_of_other_measures_or_shapes_are_refused() -> None:
    a = update({}, dispersion(random_rows(0)))
    with pytest.raises(abbe.AbbeError, match="different measures cannot be merged: 'sink_mass/control' is in only one"):
        merge(a, {name: x for name, x in a.items() if name != "sink_mass/control"})
    with pytest.raises(abbe.AbbeError, match="different shapes cannot be merged"):
        merge(a, update({}, dispersion(random_rows(0, heads=2))))


def test_state_does_not_grow_and_can_be_saved(tmp_path: Path) -> None:
    small, large = (
        state_of(random_rows(1, queries=n, keys=k), seeded(0), seeded(0), {}) for n, k in ((2, 10), (40, 90))
    )
    assert {name: x.shape for name, x in small.items()} == {name: x.shape for name, x in large.items()}
    save_file(large, tmp_path / "state.safetensors")
    assert_same(large, load_file(tmp_path / "state.safetensors"), 0)


def test_undefined_rows_count_nowhere() -> None:
    value = torch.tensor([[1.0, math.nan, 3.0], [math.nan, math.nan, math.inf]])
    defined = torch.tensor([[True, False, True], [False, False, False]])
    limit = torch.tensor([[2.0, math.nan, 4.0], [1.0, 1.0, 1.0]])
    control = torch.tensor([[math.nan, 9.0, 5.0], [1.0, 1.0, 1.0]])
    summaries = summarize({"x": Reading(value, defined, limit, control, quantiles=True)})
    mean = summaries["x_mean"]
    assert mean.rows.tolist() == [2, 0]
    for name, part, expected in (
        ("x_mean", "value", 2.0),
        ("x_mean", "limit", 3.0),
        ("x_mean", "control", 5.0),  # only where there is a control
        ("x_max", "value", 3.0),
        ("x_max", "limit", 4.0),
        ("x_p95", "value", 3.0),
    ):
        got = getattr(summaries[name], part)
        assert float(got[0]) == pytest.approx(expected, rel=5e-3), (name, part)
        assert math.isnan(float(got[1])), (name, part)


def test_one_row_without_a_limit_leaves_none() -> None:
    value, limit = torch.ones(1, 3), torch.tensor([[2.0, math.nan, 4.0]])
    defined = torch.ones(1, 3, dtype=torch.bool)
    assert math.isnan(float(summarize({"x": Reading(value, defined, limit)})["x"].limit))
    defined[0, 1] = False
    assert float(summarize({"x": Reading(value, defined, limit)})["x"].limit) == 3


@given(st.integers(0, 10**6), st.integers(1, 300), st.floats(-6, 3))
def test_quantiles_are_right_within_half_a_percent(seed: int, rows: int, power: float) -> None:
    values = torch.randn(2, rows, generator=seeded(seed), dtype=torch.float64).exp() * 10**power
    summaries = summarize({"x@T=2": Reading(values, torch.ones(2, rows, dtype=torch.bool), quantiles=True)})
    expected = values.sort(1).values[:, math.ceil(0.95 * rows) - 1]
    torch.testing.assert_close(summaries["x_p95@T=2"].value, expected, rtol=5.1e-3, atol=0)
    torch.testing.assert_close(summaries["x_max@T=2"].value, values.amax(1))


def test_zeros_have_quantile_zero() -> None:
    zeros = torch.zeros(1, 5)
    summaries = summarize({"x": Reading(zeros, torch.ones(1, 5, dtype=torch.bool), quantiles=True)})
    assert float(summaries["x_p95"].value) == 0


def test_every_measure_is_listed_and_explained() -> None:
    softmax, sink = random_rows(1), random_rows(1, spec="sink:b=0.5")
    names = {name.partition("@")[0] for name in compute(state_of(softmax, seeded(0), seeded(0), {}))}
    names |= set(summarize(dispersion(sink))) | {"decay_exponent"}
    names |= set(patterns(softmax, torch.arange(softmax.queries), torch.arange(softmax.keys)))
    names |= {name.partition("@")[0] for name in summarize(differences(softmax, (1.0,), (0.1,), seeded(0)))}
    listed = {info.name: info for info in list_measures()}
    assert listed.keys() == names
    sized = compute(state_of(softmax, seeded(0), seeded(0), {}))
    for name, info in listed.items():
        assert info.meaning.startswith("high"), name
        assert "low" in info.meaning
        assert info.by_size == (name in sized and sized[name].value.ndim == 2)


# -- Numbers of blocks ------------------------------------------------------------------------------------------------


SIZES = (1, 2, 5, 11)
TEMPERATURES = (1.0, 0.5)


def tokens_of(rows: Rows) -> tuple[torch.Tensor, torch.Tensor]:
    """Positions of the queries, and tokens that repeat."""
    return torch.linspace(0, rows.keys - 1, rows.queries).round().long(), torch.arange(rows.keys) % 4


def numbers_of(rows: Rows, spec: str = "softmax") -> BlockNumbers:
    positions, tokens = tokens_of(rows)
    sets = choose_sets(rows, SIZES, seeded(1))
    return block_numbers(
        rows, sets, {"value": rows.vectors}, abbe.normalizer(spec), TEMPERATURES, seeded(2), positions,
        pattern_keys(tokens),
    )  # fmt: skip


def by_functions(rows: Rows, spec: str = "softmax") -> dict[str, Summary]:
    """One measure at a time, as a reader of the documentation would."""
    sets = choose_sets(rows, SIZES, seeded(1))
    of_weights = dispersion(rows) | patterns(rows, *tokens_of(rows)) | selection(rows, sets)
    of_changes = sensitivity(rows, abbe.normalizer(spec), TEMPERATURES, seeded(2))
    state: dict[str, torch.Tensor] = {}
    for name, reading in (of_weights | of_changes | geometry(rows, sets)).items():
        state |= update({}, {name: reading})
    return compute(state | update({}, decay(rows)))


def check_equal(summaries: dict[str, Summary], expected: dict[str, Summary], heads: slice = slice(None)) -> None:
    assert set(summaries) == set(expected)
    for name, want in expected.items():
        for part in ("value", "limit", "control", "rows"):
            got, right = getattr(summaries[name], part), getattr(want, part)
            assert (got is None) == (right is None), (name, part)
            if right is not None:  # sums of float64 in another order
                torch.testing.assert_close(got[heads], right, rtol=1e-13, atol=0, equal_nan=True, msg=f"{name} {part}")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@settings(max_examples=10)
@given(
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=4),
    mask=st.sampled_from(["all", "causal", "window", "some"]),
    spec=st.sampled_from(["softmax", "sparsemax", "sigmoid"]),
    seed=st.integers(0, 99),
)
def test_joined_heads_have_the_measures_of_each_layer(
    dtype: torch.dtype, sizes: list[int], mask: str, spec: str, seed: int
) -> None:
    layers = [random_rows(seed + i, heads=h, spec=spec, mask=mask, dtype=dtype) for i, h in enumerate(sizes)]
    made = abbe.normalizer(spec)
    blocks = [numbers_of(rows, spec) for rows in layers]
    together = compute(update({}, join_heads(blocks).readings("value", made)))
    start = 0
    for rows in layers:
        check_equal(together, by_functions(rows, spec), slice(start, start + rows.heads))
        start += rows.heads


@pytest.mark.parametrize("name", nasty_rows())
def test_rows_at_the_edges(name: str) -> None:
    rows = nasty_rows()[name]
    blocks = [numbers_of(rows)] * 2
    together = compute(update({}, join_heads(blocks).readings("value", abbe.normalizer("softmax"))))
    check_equal(together, by_functions(rows), slice(rows.heads))
    check_equal(together, by_functions(rows), slice(rows.heads, None))


def test_kinds_tell_what_can_be_joined() -> None:
    """Layers with more heads can; other queries, normalizers and types cannot."""
    plain = numbers_of(random_rows(heads=3)).kind
    assert plain == numbers_of(random_rows(heads=5, keys=30)).kind
    for rows in (random_rows(queries=4), random_rows(spec="sparsemax"), random_rows(dtype=torch.float32)):
        assert plain != numbers_of(rows).kind
