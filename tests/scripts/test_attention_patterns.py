"""Attention patterns: against loops over eager models, planted heads, uniform heads, and what counts as learned."""

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
from polars.testing import assert_frame_equal
from small_tokenizers import begin_tokenizer, encoder_tokenizer
from tiny_models import byte_tokenizer
from torch import Tensor

import abbe
from abbe.models import LoadedModel, wrap

_patterns = script("attention_patterns")
attention_patterns, learned_attention = _patterns.attention_patterns, _patterns.learned_attention
PATTERNS, targets_of, weight_on = _patterns.PATTERNS, _patterns.targets_of, _patterns.weight_on

TEXT = abbe.Text("prose", " ".join(f"word {i * i % 97} and {i % 13};" for i in range(400)))


def model(family: str = "gpt2") -> LoadedModel:
    network = getattr(tiny_models, family.replace("-", "_"))(vocab_size=256)
    return wrap(network, byte_tokenizer(), f"tiny {family}")


# Which key a pattern expects


def expected_key(pattern: str, tokens: list[int], query: int) -> int | None:
    """By definition, with loops."""
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
    keys = targets_of(torch.tensor(tokens))
    assert set(keys) == set(PATTERNS)
    for pattern, targets in keys.items():
        want = [expected_key(pattern, tokens, query) for query in range(len(tokens))]
        assert targets.tolist() == [-1 if key is None else key for key in want], pattern


def test_repeated_passage_has_one_key_for_every_query_of_the_second_time() -> None:
    passage = [4, 9, 7, 2]
    targets = targets_of(torch.tensor([1, *passage, *passage]))
    assert targets["same_token"].tolist() == [-1] * 5 + [1, 2, 3, 4]
    assert targets["induction"].tolist() == [-1] * 5 + [2, 3, 4, 5]


@given(st.lists(st.integers(0, 5), min_size=1, max_size=12), st.integers(0, 2**31))
def test_weight_on_targets(tokens: list[int], seed: int) -> None:
    length = len(tokens)
    weights = torch.rand(3, length, length, generator=torch.Generator().manual_seed(seed))
    for pattern, targets in targets_of(torch.tensor(tokens)).items():
        weight = weight_on(weights, targets)
        for head in range(3):
            keys = [expected_key(pattern, tokens, query) for query in range(length)]
            want = sum(float(weights[head, query, key]) for query, key in enumerate(keys) if key is not None)
            assert weight[head].item() == pytest.approx(want, rel=1e-6)


# The whole way, against an eager model


def plain_scores(tiny: LoadedModel, sequences: list[Tensor], patterns: tuple[str, ...]) -> dict[str, Tensor]:
    """Means over queries of the model's own attention matrices, and of uniform ones, with loops."""
    twin: Any = tiny_models.eager_twin(tiny.network)
    values: dict[str, list[Tensor]] = {}
    for tokens in sequences:
        with torch.no_grad():
            matrices = torch.stack(twin(input_ids=tokens[None], output_attentions=True).attentions)[:, 0].double()
        seen = matrices > 0
        for pattern in patterns:
            for query in range(len(tokens)):
                key = expected_key(pattern, tokens.tolist(), query)
                if key is not None:
                    values.setdefault(pattern, []).append(matrices[:, :, query, key])
                    uniform = seen[:, :, query, key].double() / seen[:, :, query].sum(-1)
                    values.setdefault(f"{pattern}_chance", []).append(uniform)
    return {name: torch.stack(parts).mean(0).flatten() for name, parts in values.items()}


@pytest.mark.quick(1)
@pytest.mark.parametrize("family", ["gpt2", "llama", "mistral", "gemma2", "gpt-oss"])
def test_scores_are_those_of_the_eager_model(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Grouped heads, sliding windows, soft caps and sinks included."""
    tiny, read = model(family), []
    run = _patterns.run_model
    monkeypatch.setattr(_patterns, "run_model", lambda who, tokens: read.append(tokens) or run(who, tokens))
    patterns = attention_patterns(tiny, tokens=12, repeats=3, seed=5, text=TEXT)
    cut = abbe.windows(TEXT, [24], 3, 5, tokenizer=tiny.tokenizer)
    assert len(read) == 6
    assert all(torch.equal(a, b.tokens) for a, b in zip(read[:3], cut, strict=True))
    assert all(torch.equal(tokens[:12], tokens[12:]) for tokens in read[3:])
    want = plain_scores(tiny, read[:3], ("previous_token", "first_token"))
    want |= plain_scores(tiny, read[3:], ("induction", "same_token"))
    assert patterns.columns[2:] == [name for pattern in PATTERNS for name in (pattern, f"{pattern}_chance")]
    for name, values in want.items():
        torch.testing.assert_close(torch.tensor(patterns[name].to_list()).double(), values, rtol=2e-5, atol=1e-6)


def test_one_row_a_head_in_order() -> None:
    patterns = attention_patterns(model(), tokens=5, repeats=1, text=TEXT)
    assert patterns.select("layer", "head").rows() == [(layer, head) for layer in range(2) for head in range(4)]
    assert patterns.schema["layer"] == patterns.schema["head"] == pl.Int64


def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = attention_patterns(model("mistral"), tokens=9, text=TEXT)
    for block in (1, 4 * 18 * 5):
        monkeypatch.setattr(_patterns, "BLOCK", block)
        assert_frame_equal(attention_patterns(model("mistral"), tokens=9, text=TEXT), whole, rel_tol=1e-6)


def test_seed_decides() -> None:
    same = [attention_patterns(model(), tokens=9, seed=seed, text=TEXT) for seed in (1, 1, 2)]
    assert same[0].equals(same[1])
    for pattern in PATTERNS:
        assert not same[0][pattern].equals(same[2][pattern])


# Heads whose answer is known


def planted(shift: int) -> LoadedModel:
    """In layer 0 query i looks at key i - shift, or at key 0 if there is none; in layer 1 at all keys equally."""
    config = transformers.GPT2Config(
        vocab_size=256, n_positions=64, n_embd=64, n_layer=2, n_head=1, bos_token_id=0, eos_token_id=0
    )
    network = transformers.GPT2LMHeadModel(config).eval().requires_grad_(False)
    network.transformer.wte.weight.normal_(0, 1e-3)
    network.transformer.wpe.weight.copy_(torch.eye(64))
    for layer in network.transformer.h:
        layer.attn.c_attn.weight.zero_()
    attention = network.transformer.h[0].attn.c_attn
    moved = torch.eye(64)[[max(place - shift, 0) for place in range(64)]]
    attention.weight[:, :64] = 20 * moved
    attention.weight[:, 64:128] = torch.eye(64)
    # The layer norm makes 8 (e_i - 1/64) of the unit vector e_i: give the queries back what it takes.
    attention.bias[:64] = 20 * 8 * moved.mean(0)
    return wrap(network, byte_tokenizer(), "planted")


@pytest.mark.parametrize(
    ("shift", "pattern"), [(1, "previous_token"), (9, "induction"), (10, "same_token"), (64, "first_token")]
)
def test_planted_head_is_found(shift: int, pattern: str) -> None:
    patterns = attention_patterns(planted(shift), tokens=10, text=TEXT)
    passage = [*range(10), *range(10)]
    for other in PATTERNS:
        keys = [(query, expected_key(other, passage, query)) for query in range(20)]
        hits = [max(query - shift, 0) == key for query, key in keys if key is not None]
        assert patterns[other][0] == pytest.approx(sum(hits) / len(hits), abs=1e-3), other
        assert patterns[other][1] == pytest.approx(patterns[f"{other}_chance"][1], rel=1e-5)
    assert patterns[pattern][0] > 0.999


def test_uniform_heads_are_at_chance_and_chance_has_a_closed_form() -> None:
    tiny = model()
    for layer in tiny.network.transformer.h:  # type: ignore[union-attr]
        layer.attn.c_attn.weight.data.zero_()  # type: ignore[union-attr]
        layer.attn.c_attn.bias.data.zero_()  # type: ignore[union-attr]
    patterns = attention_patterns(tiny, tokens=20, repeats=2, text=TEXT)
    all_queries = sum(1 / keys for keys in range(2, 41)) / 39
    second_time = sum(1 / keys for keys in range(21, 41)) / 20
    for pattern, chance in zip(PATTERNS, (all_queries, second_time, all_queries, second_time), strict=True):
        assert patterns[pattern].to_list() == pytest.approx([chance] * 8, rel=1e-5)
        assert patterns[f"{pattern}_chance"].to_list() == pytest.approx([chance] * 8, rel=1e-5)


def test_huge_logits_stay_finite() -> None:
    tiny = model()
    for layer in tiny.network.transformer.h:  # type: ignore[union-attr]
        layer.attn.c_attn.weight.data.mul_(1e4)  # type: ignore[union-attr]
    patterns = attention_patterns(tiny, tokens=8, text=TEXT)
    for pattern in PATTERNS:
        assert patterns[pattern].is_finite().all()
        assert patterns[pattern].is_between(0, 1 + 1e-6).all()


# Random tokens


def test_random_tokens_are_different_plain_and_follow_the_begin_token(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer, read = begin_tokenizer(), []
    tiny = wrap(tiny_models.llama(vocab_size=300), tokenizer, "tiny")
    run = _patterns.run_model
    monkeypatch.setattr(_patterns, "run_model", lambda who, tokens: read.append(tokens.tolist()) or run(who, tokens))
    attention_patterns(tiny, tokens=31, repeats=40, text=TEXT)
    sequences = [tokens for tokens in read if tokens[1:32] == tokens[32:]]
    assert len(sequences) == 40
    special = set(tokenizer.all_special_ids)
    assert len(special) == 3
    for tokens in read:
        assert tokens[0] == tokenizer.bos_token_id
    for tokens in sequences:
        assert len(set(tokens[1:32])) == 31
        assert not special & set(tokens[1:])
        assert max(tokens) < len(tokenizer)
    # 1240 draws from 257 tokens: none is left out for good.
    assert len({token for tokens in sequences for token in tokens}) > 240
    # The begin token takes its place in windows of text and in the context, too.
    assert {len(tokens) for tokens in read} == {63}
    with pytest.raises(abbe.AbbeError, match="has at most 31"):
        attention_patterns(tiny, tokens=32, text=TEXT)


def test_passage_may_use_the_whole_vocabulary_and_no_more() -> None:
    tiny = wrap(tiny_models.gpt2(vocab_size=9, n_positions=64), byte_tokenizer(), "tiny")
    passages = _patterns._repeated_passages(_patterns._plain_tokens(tiny), [], 9, 2, 0)
    assert [sorted(passage.tolist()) for passage in passages] == [sorted([*range(9)] * 2)] * 2
    with pytest.raises(abbe.AbbeError, match="tokens is 10, but the tokenizer has only 9"):
        attention_patterns(tiny, tokens=10)


# Bad input


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tokens": 33}, "comes twice in the 64 tokens of tiny gpt2's context has at most 32"),
        ({"tokens": 1}, "tokens is 1, but must be a whole number >= 2"),
        ({"tokens": 4.0}, "tokens is 4.0"),
        ({"repeats": 0}, "repeats is 0"),
        ({"seed": -1}, "seed is -1"),
        ({"text": abbe.Text("note", "short")}, "note has 5 tokens, too few"),
    ],
)
def test_mistakes_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(abbe.AbbeError, match=message) as caught:
        attention_patterns(model(), **({"tokens": 8, "text": TEXT} | options))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("family", "kind"), [("bert", "encoder"), ("t5", "encoder-decoder")])
def test_only_decoders(family: str, kind: str) -> None:
    with pytest.raises(abbe.AbbeError, match=f"tiny {family} is an {kind}: attention patterns are for causal decoders"):
        attention_patterns(model(family), tokens=8)


def test_network_that_sees_later_tokens_is_refused() -> None:
    bert = tiny_models.bert(vocab_size=256)
    claimed = LoadedModel("claimed", bert, byte_tokenizer(), "decoder", 64, "", "")
    forward = bert.forward
    bert.forward = lambda use_cache=None, **inputs: forward(**inputs)  # an encoder has no cache
    with pytest.raises(abbe.AbbeError, match="sees later tokens"):
        attention_patterns(claimed, tokens=8, text=TEXT)


def test_encoder_tokenizer_has_its_begin_token() -> None:
    assert _patterns._begin_tokens(encoder_tokenizer()) == [2]
    assert _patterns._begin_tokens(byte_tokenizer()) == []


# What counts as learned


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
    assert learned.answer is answer
    assert bool(learned) is answer
    assert learned.sentence.startswith("has learned" if answer else "has not learned")
    assert "layer 1 head 5" in learned.sentence
    assert "layer 0 head 3" in learned.sentence


@pytest.mark.parametrize("seed", range(3))
def test_random_model_of_the_embedded_shape_has_learned_nothing(seed: int) -> None:
    torch.manual_seed(seed)
    config = transformers.GPT2Config(
        vocab_size=256, n_positions=1024, n_embd=256, n_layer=6, n_head=8, bos_token_id=0, eos_token_id=0
    )
    random = wrap(transformers.GPT2LMHeadModel(config).eval(), byte_tokenizer(), "random")
    patterns = attention_patterns(random, tokens=128, repeats=2)
    assert not learned_attention(patterns)
    for pattern in PATTERNS:
        # By a wide margin: a tenth above chance at most, where ten times chance would be needed.
        assert (patterns[pattern] < 1.15 * patterns[f"{pattern}_chance"]).all()


def test_embedded_model_has_learned_attention() -> None:
    learned = learned_attention(attention_patterns(abbe.load("embedded")))
    assert learned, learned.sentence
