"""Needle prompts and their scores: exact lengths and depths, one right answer, known models."""

from __future__ import annotations

import math
from dataclasses import astuple, replace
from functools import cache
from typing import Any

import polars as pl
import pytest
import scipy.stats
import small_tokenizers
import torch
from compare_runs import SETTINGS
from inside import compare_rules
from inside import prompts as source
from needle_models import TEXT, WORDS, Copier, Guesser, Spotter, model, word_tokenizer

from abbe import Text
from abbe.results import Estimate

LENGTHS = (64, 129, 300)
CANDIDATES, DECOYS, DEPTHS, KINDS = source.CANDIDATES, source.DECOYS, source.DEPTHS, source.KINDS
paired_gain, share_right = compare_rules.paired_gain, compare_rules.share_right
Prompt = Any
FEW = replace(SETTINGS, resamples=20)


def maker(text: Text = TEXT, seed: int = 0) -> Any:
    return source.PromptMaker(word_tokenizer(), text, seed)


@pytest.fixture(scope="module")
def prompts() -> list[Prompt]:
    return maker().make(LENGTHS, 3)


def of_kind(prompts: list[Prompt], kind: str) -> list[Prompt]:
    return [prompt for prompt in prompts if prompt.kind == kind]


def test_lengths_are_exact_and_the_answer_stands_once(prompts: list[Prompt]) -> None:
    words = set(source.plain_words(word_tokenizer()))
    for prompt in prompts:
        assert len(prompt.tokens) == prompt.length
        assert (prompt.tokens == prompt.answer).sum() == 1
        assert prompt.candidates.count(prompt.answer) == 1
        assert len(set(prompt.candidates)) == len(prompt.candidates)
        assert set(prompt.candidates) <= words
        assert prompt.chance == 1 / len(prompt.candidates)


def test_key_value_prompts_are_pairs_and_ask_at_the_depth(prompts: list[Prompt]) -> None:
    newline = word_tokenizer()("\n", add_special_tokens=False)["input_ids"]
    for prompt in of_kind(prompts, "key-value"):
        pairs, left = divmod(prompt.length - 1, 3)
        body = prompt.tokens[left:-1].view(pairs, 3)
        assert prompt.tokens[:left].tolist() == newline * left
        assert body[:, 2].tolist() == newline * pairs
        assert len(torch.unique(body[:, :2])) == 2 * pairs  # no word twice
        asked = round(prompt.depth * (pairs - 1))
        assert prompt.tokens[-1] == body[asked, 0]
        assert prompt.answer == body[asked, 1]
        assert prompt.candidates == tuple(body[:, 1].tolist())


SENTENCE = 11  # tokens: 8 that begin it, its word and 2 behind


@cache
def ids(text: str) -> list[int]:
    numbers: list[int] = word_tokenizer()(text, add_special_tokens=False)["input_ids"]
    return numbers


def planted(prompt: Prompt) -> tuple[list[int], dict[int, tuple[int, int]]]:
    """The user's text in a needle prompt, and after how many of its tokens which word stands for which key."""
    begin, middle, end = (ids(part) for part in ("\nRemember: the word for", " is", ".\n"))
    tokens, hay, needles = prompt.tokens.tolist()[:-8], [], {}
    while tokens:
        if tokens[:6] == begin:
            key, word = tokens[6], tokens[8]
            assert tokens[:SENTENCE] == [*begin, key, *middle, word, *end]
            needles[key] = len(hay), word
            tokens = tokens[SENTENCE:]
        else:
            hay.append(tokens.pop(0))
    assert prompt.tokens[-8:].tolist() == [*begin, int(prompt.tokens[-2]), *middle]
    return hay, needles


def test_needles_stand_at_their_depth_in_the_text(prompts: list[Prompt]) -> None:
    text = ids(TEXT.content)
    for prompt in of_kind(prompts, "needle"):
        hay, needles = planted(prompt)
        place, word = needles[int(prompt.tokens[-2])]  # the key that is asked for
        assert word == prompt.answer
        assert place == round(prompt.depth * len(hay))
        assert any(text[start : start + len(hay)] == hay for start in range(len(text) - len(hay) + 1))
        assert len(prompt.candidates) == CANDIDATES
        assert not set(prompt.candidates) & {*hay, *needles}


def test_decoys_stand_at_other_depths_and_their_words_are_candidates(prompts: list[Prompt]) -> None:
    for prompt in of_kind(prompts, "needle"):
        hay, needles = planted(prompt)
        words = {word for _, word in needles.values()}
        assert len(needles) == len(words) == 1 + DECOYS == 4
        assert words == set(prompt.candidates) & set(prompt.tokens.tolist())
        assert len({place for place, _ in needles.values()}) == 4
        assert {place for place, _ in needles.values()} <= {round(depth * len(hay)) for depth in DEPTHS}


@pytest.mark.parametrize(("length", "decoys"), [(27, 0), (33, 0), (34, 1), (44, 1), (45, 2), (56, 3)])
def test_short_prompts_have_fewer_decoys_and_tell(length: int, decoys: int) -> None:
    """One sentence and the question are 19 tokens; with decoys 4 tokens of text stand between them."""
    made = maker()
    all_prompts = of_kind(made.make((length,), 1), "needle")
    assert {len(planted(prompt)[1]) for prompt in all_prompts} == {1 + decoys}
    reasons = [why for why in made.skipped if "decoys" in why]
    short = f"needle prompts of {length} tokens: {decoys} of 3 decoys have room"
    assert reasons == ([short] if decoys < 3 else [])


def test_a_model_that_only_spots_what_occurs_is_right_one_time_in_four() -> None:
    prompts = of_kind(maker().make((64,), 80), "needle")
    right = sum(margin > 0 for margin in source.margins(model(Spotter), prompts))
    assert abs(right - len(prompts) / 4) < 3.5 * math.sqrt(len(prompts) * 3 / 16)


def test_same_seed_same_prompts_and_another_seed_others(prompts: list[Prompt]) -> None:
    again, other = maker().make(LENGTHS, 3), maker(seed=1).make(LENGTHS, 3)
    assert all(torch.equal(a.tokens, b.tokens) for a, b in zip(prompts, again, strict=True))
    assert not any(torch.equal(a.tokens, b.tokens) for a, b in zip(prompts, other, strict=True))


def test_a_model_that_guesses_is_right_by_chance() -> None:
    prompts = [*maker().make((31,), 40), *maker(seed=1).make((31,), 40), *maker(seed=2).make((60,), 40)]
    values = source.margins(model(Guesser), prompts)
    for kind in KINDS:
        right = [margin > 0 for margin, prompt in zip(values, prompts, strict=True) if prompt.kind == kind]
        chances = [prompt.chance for prompt in of_kind(prompts, kind)]
        spread = math.sqrt(sum(p * (1 - p) for p in chances))
        assert abs(sum(right) - sum(chances)) < 3.5 * spread
        assert sum(right) > 0


def test_a_model_that_copies_is_always_right_and_a_tie_is_not(prompts: list[Prompt]) -> None:
    class Silent(Guesser):
        def answer(self, tokens: torch.Tensor) -> torch.Tensor:
            return torch.zeros(self.vocabulary)

    assert source.margins(model(Copier), prompts) == [3.0] * len(prompts)
    assert source.margins(model(Silent), maker().make((31,), 1)) == [0.0] * 10


def test_batches_hold_one_length_and_all_prompts_in_order(prompts: list[Prompt]) -> None:
    groups = source.batches(prompts)
    assert [prompt for batch in groups for prompt in batch] == prompts
    assert all(len({prompt.length for prompt in batch}) == 1 for batch in groups)
    assert all(len(batch) * batch[0].length <= 4096 for batch in groups)
    assert len(groups) < len(prompts) / 4
    seen: list[int] = []
    source.margins(model(Guesser), prompts[:7], seen.append)
    assert sum(seen) == 7


def test_what_cannot_be_made_is_reported() -> None:
    made = maker(Text("short", " ".join(WORDS[:30])))
    all_prompts = made.make((4, 128, 4000), 1)
    assert {(prompt.kind, prompt.length) for prompt in all_prompts} == {("key-value", 128)}
    assert len(made.skipped) == 6  # with that of the words of the vocabulary
    assert "needle prompts of 128 tokens: short has only 30 tokens" in made.skipped
    assert any(
        why.startswith("key-value prompts of 4000 tokens: ") and "903 plain words" in why for why in made.skipped
    )


def test_whole_words_are_counted_between_characters_that_are_no_letters() -> None:
    tokenizer = word_tokenizer()
    words = dict(zip(("bab", "bac", "bad", "baf"), source.plain_words(tokenizer)[:4], strict=True))
    assert [f"\u2581{word}" for word in words] == tokenizer.convert_ids_to_tokens(list(words.values()))
    text = "bab, (bab)\nbab7 babc xbab \u00e9bab bac Bad bad_bad"
    counted = source.word_counts(tokenizer, list(words.values()), text)
    assert {word: counted[token] for word, token in words.items()} == {"bab": 3, "bac": 1, "bad": 2, "baf": 0}


WORDS_WANTED = {
    "twice": ([*WORDS[:300], *WORDS[300:320], *WORDS[:300]], range(300), []),
    "once": ([*WORDS[:200], *WORDS[:5]], range(200), []),
    "bare": (WORDS[:10] * 20, range(len(WORDS) + 3), [
        "words of the whole vocabulary, because only 10 of them stand in bare as whole words"
    ]),
}  # fmt: skip


@pytest.mark.parametrize("name", WORDS_WANTED)
def test_words_are_those_that_the_text_has_twice_else_once_else_of_the_vocabulary(name: str) -> None:
    words, wanted, why = WORDS_WANTED[name]
    made = maker(Text(name, " ".join(words)))
    all_prompts = made.make((64,), 2)
    assert made.skipped == [f"{kind} prompts of 64 tokens: {line}" for line in why for kind in KINDS]
    assert len(all_prompts) == len(KINDS) * len(DEPTHS) * 2
    used = {word for prompt in all_prompts for word in prompt.candidates}
    assert len(used) > 10
    assert used <= {source.plain_words(word_tokenizer())[place] for place in wanted}


def test_plain_words_are_whole_and_not_special() -> None:
    tokenizer = word_tokenizer()
    words = tokenizer.convert_ids_to_tokens(source.plain_words(tokenizer))
    assert words[: len(WORDS)] == [f"\u2581{word}" for word in WORDS]
    assert set(words[len(WORDS) :]) == {"\u2581the", "\u2581word", "\u2581for"}  # not "is": two letters
    assert source.plain_words(small_tokenizers.encoder_tokenizer()) == []


@pytest.mark.parametrize(("right", "total"), [(0, 20), (20, 20), (7, 20), (1, 3)])
def test_wilson_solves_the_score_test(right: int, total: int) -> None:
    """Its ends p satisfy |share - p| = z sqrt(p (1 - p) / n)."""
    z, share = 1.959963984540054, right / total
    measured = share_right(right, total, 0.95)
    assert measured.value == share
    for end in (measured.low, measured.high):
        assert abs(share - end) == pytest.approx(z * math.sqrt(end * (1 - end) / total), abs=1e-9)
    assert share_right(right, total, 0.5).low >= measured.low


def test_the_numbers_of_a_cell() -> None:
    made = [replace(prompt, kind="needle", depth=0.5) for prompt in maker().make((31,), 1)[:4]]
    table = compare_rules.needle_table(made, {"baseline": [1.0, -2.0, 4.0, math.nan]}, FEW)
    assert table["accuracy"].to_list() == [0.5] * 5  # an answer without a margin is wrong
    whole = compare_rules.needle_table(made, {"baseline": [1.0, -2.0, 4.0, 0.0]}, FEW).row(0, named=True)
    assert (whole["prompts"], whole["accuracy"], whole["margin"]) == (4, 0.5, 0.75)
    assert -2 <= whole["margin_low"] < 0.75 < whole["margin_high"] <= 4
    assert compare_rules.needle_table(made[:1], {"baseline": [1.0]}, FEW)["margin_low"][0] is None


def test_the_table_counts_every_prompt_once_in_each_view(prompts: list[Prompt]) -> None:
    right = [1.0 if prompt.depth == 0 else -1.0 for prompt in prompts]
    table = compare_rules.needle_table(prompts, {"baseline": right, "other": [1.0] * len(prompts)}, FEW)
    own = table.filter(pl.col("normalizer") == "baseline")
    whole = own.filter(pl.col("kind").is_null()).row(0, named=True)
    assert (whole["prompts"], whole["accuracy"]) == (len(prompts), 0.2)
    assert whole["chance"] == pytest.approx(sum(prompt.chance for prompt in prompts) / len(prompts))
    of_cells = own.filter(pl.col("length").is_not_null() & pl.col("depth").is_not_null())
    assert of_cells["prompts"].sum() == len(prompts)
    by_depth = own.filter((pl.col("kind") == "needle") & pl.col("length").is_null() & pl.col("depth").is_not_null())
    assert dict(by_depth.select("depth", "accuracy").iter_rows()) == {d: float(d == 0) for d in DEPTHS}
    assert table.filter(pl.col("normalizer") == "other")["accuracy"].unique().to_list() == [1.0]
    assert compare_rules.needle_table([], {"baseline": []}, FEW).is_empty()


def test_gains_are_over_the_baseline_on_the_prompts_of_the_cell(prompts: list[Prompt]) -> None:
    """The other is right where own is, but at depth 0 never, and at depth 1 always."""
    own = [1.0 if place % 3 else -1.0 for place in range(len(prompts))]
    depths = [prompt.depth for prompt in prompts]
    other = [{0.0: -1.0, 1.0: 1.0}.get(depth, before) for depth, before in zip(depths, own, strict=True)]
    table = compare_rules.needle_table(prompts, {"other": other, "baseline": own}, FEW)
    assert table.filter(pl.col("normalizer") == "baseline").select("gain", "gain_low", "gain_high").null_count().row(
        0
    ) == ((table.height // 2,) * 3)
    by_depth = table.filter(
        (pl.col("normalizer") == "other") & (pl.col("kind") == "needle") & pl.col("length").is_null()
        & pl.col("depth").is_not_null()
    )  # fmt: skip
    gains = {depth: tuple(ends) for depth, *ends in by_depth.select("depth", "gain", "gain_low", "gain_high").rows()}
    assert gains[0.5] == (0.0, None, None)
    count = len(LENGTHS) * 3  # prompts of a depth
    for depth, changed, sign in ((0.0, count * 2 // 3, -1), (1.0, count // 3, 1)):
        narrow = (2 * 0.025 ** (1 / changed) - 1) * changed / count
        expected = sorted((sign * narrow, sign * changed / count))
        assert gains[depth] == pytest.approx((sign * changed / count, *expected))


@pytest.mark.parametrize(("length", "pairs"), [(6, 0), (7, 2), (9, 2), (10, 3)])
def test_a_key_value_prompt_has_two_pairs_or_more(length: int, pairs: int) -> None:
    all_prompts = of_kind(maker().make((length,), 1), "key-value")
    assert {len(prompt.candidates) for prompt in all_prompts} == ({pairs} if pairs else set())


# -- Gains on the same prompts: exact intervals, and the test of McNemar ----------------------------------------------

LEVELS = (0.8, 0.9, 0.95, 0.99)


def answers(gained: int, lost: int, both: int = 3, neither: int = 4) -> tuple[list[bool], list[bool]]:
    """Of own and of another, in pairs."""
    own = [False] * gained + [True] * lost + [True] * both + [False] * neither
    return own, [True] * gained + [False] * lost + [True] * both + [False] * neither


@pytest.mark.quick(2)
@pytest.mark.parametrize("level", LEVELS)
def test_zero_is_left_out_exactly_where_mcnemar_rejects(level: float) -> None:
    sides = set()
    for gained in range(15):
        for lost in range(15):
            if not gained + lost:
                continue
            gain, low, high = astuple(paired_gain(*answers(gained, lost), level))
            assert low is not None
            assert high is not None
            assert low <= gain <= high
            left_out = 1 if low > 0 else -1 if high < 0 else 0
            rejected = scipy.stats.binomtest(gained, gained + lost, 0.5).pvalue < 1 - level
            assert abs(left_out) == rejected
            if rejected:
                assert (left_out > 0) == (gained > lost)
            sides.add(left_out)
    assert sides == {-1, 0, 1}


def test_a_gain_by_hand() -> None:
    """Three of eight changed answers are gains, among 15 prompts; without a changed answer there is no interval."""
    gain, low, high = astuple(paired_gain(*answers(3, 5)))
    assert gain == pytest.approx(-2 / 15)
    theta = scipy.stats.binomtest(3, 8).proportion_ci(0.95, "exact")
    assert (low, high) == pytest.approx(((2 * theta.low - 1) * 8 / 15, (2 * theta.high - 1) * 8 / 15))
    assert paired_gain(*answers(0, 0)) == Estimate(0.0)
