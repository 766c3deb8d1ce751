"""Attention patterns: against loops over an eager model, and what counts as learned."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
import tiny_models
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from load_scripts import script
from tiny_models import byte_tokenizer
from torch import Tensor

import abbe
from abbe.models import LoadedModel, wrap

_patterns = script("attention_patterns")
attention_patterns, learned_attention = _patterns.attention_patterns, _patterns.learned_attention
PATTERNS = _patterns.PATTERNS


def model() -> LoadedModel:
    return wrap(tiny_models.gpt2(vocab_size=256), byte_tokenizer(), "tiny gpt2")


def expected_key(pattern: str, tokens: list[int], query: int) -> int | None:
    """The definition, with loops."""
    earlier = [place for place in range(query) if tokens[place] == tokens[query]]
    if pattern == "previous_token":
        return query - 1 if query else None
    if pattern == "first_token":
        return 0 if query else None
    if not earlier:
        return None
    if pattern == "same_token":
        return earlier[-1]
    return earlier[-1] + 1 if earlier[-1] + 1 < query else None


@given(st.lists(st.integers(0, 5), min_size=1, max_size=30))
def test_expected_keys(tokens: list[int]) -> None:
    keys = _patterns.targets_of(torch.tensor(tokens))
    assert set(keys) == set(PATTERNS)
    for pattern, targets in keys.items():
        want = [expected_key(pattern, tokens, query) for query in range(len(tokens))]
        assert targets.tolist() == [-1 if key is None else key for key in want], pattern


def plain_scores(tiny: LoadedModel, sequences: list[Tensor], patterns: tuple[str, ...]) -> dict[str, Tensor]:
    """Means over queries of the model's own attention matrices, and of uniform ones, with loops."""
    twin: Any = tiny_models.eager_twin(tiny.network)
    values: dict[str, list[Tensor]] = {}
    for tokens in sequences:
        with torch.no_grad():
            matrices = torch.stack(twin(input_ids=tokens[None], output_attentions=True).attentions)[:, 0].double()
        for pattern in patterns:
            for query in range(len(tokens)):
                key = expected_key(pattern, tokens.tolist(), query)
                if key is not None:
                    values.setdefault(pattern, []).append(matrices[:, :, query, key])
                    uniform = torch.full_like(matrices[:, :, query, key], 1 / (query + 1))
                    values.setdefault(f"{pattern}_chance", []).append(uniform)
    return {name: torch.stack(parts).mean(0).flatten() for name, parts in values.items()}


def test_scores_are_those_of_the_eager_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """On windows of the sample and on passages of different tokens that come twice; one row per head, in order."""
    tiny, read = model(), []
    run = _patterns.run_model
    monkeypatch.setattr(_patterns, "run_model", lambda who, tokens: read.append(tokens) or run(who, tokens))
    patterns = attention_patterns(tiny, tokens=12, repeats=3, seed=5)
    cut = abbe.windows(abbe.read_text(), [24], 3, 5, tokenizer=tiny.tokenizer)
    assert len(read) == 6
    assert all(torch.equal(a, b.tokens) for a, b in zip(read[:3], cut, strict=True))
    assert all(torch.equal(tokens[:12], tokens[12:]) and len(tokens.unique()) == 12 for tokens in read[3:])
    want = plain_scores(tiny, read[:3], ("previous_token", "first_token"))
    want |= plain_scores(tiny, read[3:], ("induction", "same_token"))
    assert patterns.columns[2:] == [name for pattern in PATTERNS for name in (pattern, f"{pattern}_chance")]
    assert patterns.select("layer", "head").rows() == [(layer, head) for layer in range(2) for head in range(4)]
    for name, values in want.items():
        torch.testing.assert_close(torch.tensor(patterns[name].to_list()).double(), values, rtol=2e-5, atol=1e-6)


def table(induction: float, previous: float, chance: float = 0.01) -> pl.DataFrame:
    """Two heads, each with one of the two patterns."""
    heads = {"layer": [0, 1], "head": [3, 5], "induction": [0.0, induction], "previous_token": [previous, 0.0]}
    return pl.DataFrame(heads).with_columns(induction_chance=pl.lit(chance), previous_token_chance=pl.lit(chance))


@pytest.mark.parametrize(
    ("patterns", "answer"),
    [
        (table(0.2, 0.3), True),
        (table(0.199, 0.9), False),
        (table(0.9, 0.299), False),
        (table(0.25, 0.9, chance=0.024), True),
        (table(0.25, 0.9, chance=0.026), False),
        (table(0.9, 0.35, chance=0.036), False),
    ],
)
def test_rule(patterns: pl.DataFrame, answer: bool) -> None:
    learned = learned_attention(patterns)
    assert learned.answer is bool(learned) is answer
    assert learned.sentence.startswith("has learned" if answer else "has not learned")
    assert "layer 1 head 5" in learned.sentence
    assert "layer 0 head 3" in learned.sentence


def test_random_model_of_the_embedded_shape_has_learned_nothing_and_the_embedded_one_has() -> None:
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=256, n_positions=1024, n_embd=256, n_layer=6, n_head=8, bos_token_id=0, eos_token_id=0
    )
    random = wrap(transformers.GPT2LMHeadModel(config).eval(), byte_tokenizer(), "random")
    patterns = attention_patterns(random, tokens=128, repeats=2)
    assert not learned_attention(patterns)
    for pattern in PATTERNS:
        # By a wide margin: a tenth above chance at most, where ten times chance would be needed.
        assert (patterns[pattern] < 1.15 * patterns[f"{pattern}_chance"]).all()
    learned = learned_attention(attention_patterns(abbe.load("embedded")))
    assert learned, learned.sentence
