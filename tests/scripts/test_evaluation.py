"""Losses in overlapping windows, shared passages, and the files of a model: against loops and by reading them back."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_models
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from load_scripts import script
from safetensors.torch import load_file

import abbe

corpus, evaluation, export = script("corpus"), script("evaluation"), script("export")

CONTEXT = 8


def network(**settings: Any) -> Any:
    return tiny_models.gpt2(vocab_size=300, n_positions=CONTEXT, **settings)


# Losses


def window_start(target: int) -> int:
    """Start of the first window of CONTEXT tokens, one every half context, that predicts this place."""
    start = 0
    while target > start + CONTEXT:
        start += CONTEXT // 2
    return start


@pytest.mark.parametrize("length", [1, 2, 3, 8, 9, 10, 12, 13, 14, 30, 33])
def test_every_token_is_scored_once_with_its_window(length: int) -> None:
    model, stream = network(), np.random.default_rng(length).integers(0, 300, length)
    losses = evaluation.network_losses(model, stream, CONTEXT)
    assert losses.shape == (length - 1,)
    for target in range(1, length):
        start = window_start(target)
        assert target - start >= min(target, CONTEXT // 2)
        with torch.no_grad():
            logits = model(torch.from_numpy(stream[start:target])[None]).logits[0, -1]
        want = -float(torch.log_softmax(logits.double(), -1)[stream[target]])
        assert losses[target - 1] == pytest.approx(want, rel=1e-4)


def test_scores_count_bytes_and_tokens() -> None:
    scores = evaluation.scores("äb", np.array([0, 5, 6, 7]), {"one": lambda stream: np.full(len(stream) - 1, 2.0)})
    assert scores == {"held_out_bytes": 3, "tokens": 3, "one": 6.0}
    assert evaluation.total([scores, scores], ["one"]) == {"held_out_bytes": 6, "tokens": 6, "one": 12.0}


# Passages that come twice


@settings(max_examples=40)
@given(st.lists(st.lists(st.sampled_from("ab"), min_size=0, max_size=60), min_size=2, max_size=4))
def test_repeated_share_is_that_of_sets(texts: list[list[str]]) -> None:
    books = [corpus.Book(str(place), " ".join(words), " ".join(words[:25])) for place, words in enumerate(texts)]
    books[0] = corpus.Book("0", "", books[0].held_out)
    known = {passage for book in books for passage in passages(book.training)}
    seen = [passage for book in books for passage in passages(book.held_out)]
    want = sum(passage in known for passage in seen) / len(seen) if seen else 0.0
    assert evaluation.repeated_share(books) == pytest.approx(want)


def passages(text: str) -> list[tuple[str, ...]]:
    words = text.split()
    return [tuple(words[place : place + 10]) for place in range(len(words) - 9)]


# Files


@pytest.fixture
def tokenizer(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(corpus, "VOCABULARY", 300)
    return corpus.train_tokenizer([corpus.Book("one", "the lens and the grid and the lens " * 50, "")])


def test_written_files_load_in_float32_with_rounded_weights(tokenizer: Any, tmp_path: Path) -> None:
    original = network()
    export.write_files(original, tokenizer, tmp_path, corpus.END_OF_TEXT)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(export.FILES)
    assert all(path.stat().st_mode & 0o044 == 0o044 for path in tmp_path.iterdir())
    assert "lm_head.weight" not in load_file(tmp_path / "model.safetensors")
    plain: Any = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    ours: Any = abbe.load(tmp_path).network
    for loaded in (plain, ours):
        assert loaded.lm_head.weight is loaded.transformer.wte.weight
        for name, weight in original.named_parameters():
            assert torch.equal(loaded.get_parameter(name), weight.half().float()), name
    read_tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    text = "the lens, Ünïcode\n  and\tthe 🙂 grid"
    assert read_tokenizer(text)["input_ids"] == tokenizer.encode(text).ids
    assert read_tokenizer.decode(read_tokenizer(text)["input_ids"]) == text
    assert read_tokenizer.all_special_ids == [tokenizer.token_to_id(corpus.END_OF_TEXT)]
    assert {parameter.dtype for parameter in original.parameters()} == {torch.float32}


def test_too_many_bytes_fail_loudly(tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = 2 * sum(parameter.numel() for parameter in network().parameters())
    monkeypatch.setattr(export, "LARGEST", size - 1)
    with pytest.raises(SystemExit, match="nothing was written"):
        export.write_files(network(), tokenizer, tmp_path, corpus.END_OF_TEXT)
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr(export, "LARGEST", size)  # the header of the file comes on top
    with pytest.raises(SystemExit, match="make the network smaller"):
        export.write_files(network(), tokenizer, tmp_path, corpus.END_OF_TEXT)


@pytest.mark.parametrize("value", [1e6, math.nan, -math.inf])
def test_numbers_that_float16_cannot_hold(value: float, tokenizer: Any, tmp_path: Path) -> None:
    damaged = network()
    damaged.transformer.h[1].mlp.c_fc.weight.data[2, 3] = value
    with pytest.raises(SystemExit, match=r"h\.1\.mlp\.c_fc\.weight holds NaN or numbers too large"):
        export.write_files(damaged, tokenizer, tmp_path, corpus.END_OF_TEXT)
    assert not list(tmp_path.iterdir())


# -- N-grams ----------------------------------------------------------------------------------------------------------


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


@given(STREAMS, st.integers(1, 60).flatmap(lambda n: STREAMS.map(lambda stream: stream[:n])), st.integers(1, 5))
def test_losses_are_those_of_the_single_tokens(training: np.ndarray, stream: np.ndarray, order: int) -> None:
    model = ngrams.KneserNey(training, 5, order)
    losses = model.losses(stream)
    want = [
        -np.log(model.probability(stream[None, :place], stream[place : place + 1])[0])
        for place in range(1, len(stream))
    ]
    assert losses.tolist() == pytest.approx(want)


@pytest.mark.parametrize(("arguments", "message"), [((4096, 6), "do not fit"), ((10, 9), "holds no 9-gram")])
def test_what_cannot_be_counted(arguments: tuple[int, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ngrams.KneserNey(np.arange(8), *arguments)
