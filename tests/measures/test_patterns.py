"""Attention patterns: against loops, planted heads, and rows at the edges."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from row_cases import random_rows
from torch import Tensor

import abbe
from abbe.measures import Rows, patterns, summarize, update

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
