"""The counting models: they are distributions, agree with loops over the definition, and learn Markov chains."""

from __future__ import annotations

from collections import Counter, defaultdict
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from load_scripts import script

ngrams = script("ngrams")

STREAMS = st.lists(st.integers(0, 4), min_size=5, max_size=60).map(lambda tokens: np.array(tokens, dtype=np.int64))


# The definition, with loops


def plain_probability(stream: list[int], vocabulary: int, order: int, context: list[int], token: int) -> float:
    """Chen and Goodman's formulas, word by word."""
    counts = [Counter[tuple[int, ...]]() for _ in range(order + 1)]
    for place in range(len(stream) - order + 1):
        counts[order][tuple(stream[place : place + order])] += 1
    for length in range(order - 1, 0, -1):
        before = defaultdict(set)
        for gram in counts[length + 1]:
            before[gram[1:]].add(gram[0])
        for gram, different in before.items():
            counts[length][gram] = len(different)

    def p(length: int, history: tuple[int, ...]) -> float:
        if length == 0:
            return 1 / vocabulary
        history = history[len(history) - length + 1 :]
        known = {gram[-1]: count for gram, count in counts[length].items() if gram[:-1] == history}
        shorter = p(length - 1, history)
        if not known:
            return shorter
        discount = plain_discounts(counts[length])
        total = sum(known.values())
        own = known[token] - discount[min(known[token], 3)] if token in known else 0.0
        given_away = sum(discount[min(count, 3)] for count in known.values())
        return (own + given_away * shorter) / total

    return p(min(order, len(context) + 1), tuple(context))


def plain_discounts(counts: Counter[tuple[int, ...]]) -> dict[int, float]:
    n = Counter(counts.values())
    half = {1: 0.5, 2: 0.5, 3: 0.5}
    if not all(n[count] for count in (1, 2, 3, 4)):
        return half
    y = n[1] / (n[1] + 2 * n[2])
    discounts = {count: count - (count + 1) * y * n[count + 1] / n[count] for count in (1, 2, 3)}
    return discounts if all(0 < discounts[count] <= count for count in discounts) else half


@settings(max_examples=60)
@given(STREAMS, st.integers(1, 4), st.lists(st.integers(0, 5), max_size=5), st.integers(0, 5))
def test_probability_is_the_definition(stream: np.ndarray, order: int, context: list[int], token: int) -> None:
    model = ngrams.KneserNey(stream, 6, order)
    probability = model.probability(np.array([context], dtype=np.int64).reshape(1, -1), np.array([token]))[0]
    assert probability == pytest.approx(plain_probability(stream.tolist(), 6, order, context, token), rel=1e-12)


def test_estimated_discounts_are_used() -> None:
    """A stream long enough that all orders have n-grams of counts 1 to 4."""
    random = np.random.default_rng(3)
    stream = (random.geometric(0.25, 400) - 1).clip(0, 11)
    model = ngrams.KneserNey(stream, 12, 3)
    _, counts = np.unique(model._keys(stream, 3), return_counts=True)
    assert not np.array_equal(ngrams.discounts_of(counts), ngrams.HALF)
    for place in range(40, 60):
        context, token = stream[place - 2 : place], int(stream[place])
        want = plain_probability(stream.tolist(), 12, 3, context.tolist(), token)
        assert model.probability(context[None], np.array([token]))[0] == pytest.approx(want, rel=1e-12)


def test_discounts_by_hand() -> None:
    # n1 = 4, n2 = 2, n3 = 1, n4 = 1: Y = 1/2.
    discounts = ngrams.discounts_of(np.array([1, 1, 1, 1, 2, 2, 3, 4, 9]))
    half = Fraction(1, 2)
    assert discounts[1:].tolist() == [float(value) for value in (1 - 2 * half / 2, 2 - 3 * half / 2, 3 - 4 * half)]


def test_bigrams_by_hand() -> None:
    """0 1 0 2 0 1: bigrams 01 (twice), 10, 02, 20; every discount is one half."""
    model = ngrams.KneserNey(np.array([0, 1, 0, 2, 0, 1]), 4, 2)
    # Different tokens before 0: two, before 1 and 2: one each; three times one half goes to the uniform quarter.
    unigram = {0: 1.5 / 4 + 1.5 / 16, 1: 0.5 / 4 + 1.5 / 16, 2: 0.5 / 4 + 1.5 / 16, 3: 1.5 / 16}
    for token, want in unigram.items():
        assert model.probability(np.zeros((1, 0), dtype=int), np.array([token]))[0] == pytest.approx(want)
    after_0 = {0: 0.0, 1: 1.5 / 3, 2: 0.5 / 3, 3: 0.0}
    for token, own in after_0.items():
        want = own + unigram[token] / 3
        assert model.probability(np.array([[0]]), np.array([token]))[0] == pytest.approx(want)
    # 3 was never seen: as without a context.
    assert model.probability(np.array([[3]]), np.array([1]))[0] == pytest.approx(unigram[1])


# Distributions


@pytest.mark.parametrize("order", [1, 2, 5])
@pytest.mark.parametrize("vocabulary", [50, 64, 2048])
def test_probabilities_sum_to_one(order: int, vocabulary: int) -> None:
    random = np.random.default_rng(order)
    stream = (random.zipf(1.3, 20_000) - 1) % vocabulary
    model = ngrams.KneserNey(stream, vocabulary, order)
    seen = [stream[place : place + 4] for place in random.integers(0, 19_000, 10)]
    unseen = [random.integers(0, vocabulary, 4) for _ in range(10)]
    mixed = [np.concatenate([random.integers(0, vocabulary, 2), stream[place : place + 2]]) for place in range(10)]
    for context in (*seen, *unseen, *mixed):
        probabilities = model.probability(np.tile(context, (vocabulary, 1)), np.arange(vocabulary))
        assert probabilities.sum() == pytest.approx(1, abs=1e-9)
        assert (probabilities > 0).all()


def test_unigrams_sum_to_one_and_count() -> None:
    model = ngrams.Unigrams(np.array([2, 2, 0]), 5)
    assert model.probabilities.tolist() == pytest.approx([2 / 8, 1 / 8, 3 / 8, 1 / 8, 1 / 8])
    assert model.losses(np.array([0, 2, 1])).tolist() == pytest.approx([-np.log(3 / 8), -np.log(1 / 8)])


# Losses of a stream


@given(STREAMS, STREAMS, st.integers(1, 5))
def test_losses_are_those_of_the_single_tokens(training: np.ndarray, stream: np.ndarray, order: int) -> None:
    model = ngrams.KneserNey(training, 5, order)
    losses = model.losses(stream)
    want = [
        -np.log(model.probability(stream[None, :place], stream[place : place + 1])[0])
        for place in range(1, len(stream))
    ]
    assert losses.tolist() == pytest.approx(want)


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5])
def test_short_streams(length: int) -> None:
    model = ngrams.KneserNey(np.arange(40) % 7, 7, 5)
    assert len(model.losses(np.arange(length))) == length - 1


def test_longer_contexts_pay_on_a_markov_chain() -> None:
    """Every token follows from the two before it, with noise: trigrams are right, longer ones cost some of the gain."""
    random = np.random.default_rng(0)
    table = random.dirichlet(np.full(20, 0.05), size=(20, 20))
    stream = [0, 1]
    for draw in random.random(60_000):
        row = table[stream[-2], stream[-1]]
        stream.append(int(min(np.searchsorted(row.cumsum(), draw), 19)))
    training, held_out = np.array(stream[:50_000]), np.array(stream[50_000:])
    entropy = -np.mean([np.log(table[a, b, c]) for a, b, c in zip(held_out, held_out[1:], held_out[2:], strict=False)])
    loss = {order: ngrams.KneserNey(training, 20, order).losses(held_out).mean() for order in (1, 2, 3, 5)}
    single = ngrams.Unigrams(training, 20).losses(held_out).mean()
    assert loss[1] == pytest.approx(single, abs=0.05)
    assert single > loss[2] + 0.2
    assert loss[2] > loss[3] + 0.2
    assert entropy < loss[3] < entropy + 0.05
    assert loss[3] < loss[5] < loss[2] - 0.2


@pytest.mark.parametrize(("arguments", "message"), [((4096, 6), "do not fit"), ((10, 9), "holds no 9-gram")])
def test_what_cannot_be_counted(arguments: tuple[int, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ngrams.KneserNey(np.arange(8), *arguments)
