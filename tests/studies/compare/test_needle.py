"""Needle prompts and their scores: exact lengths and depths, one right answer, known models."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import polars as pl
import pytest
import scipy.stats
import small_tokenizers
import torch
from compare_runs import from_records
from inside import prompts as source
from needle_models import TEXT, WORDS, Copier, Guesser, Spotter, model, word_tokenizer

from abbe import Text

LENGTHS = (64, 129, 300)
CANDIDATES, DECOYS, DEPTHS, KINDS = source.CANDIDATES, source.DECOYS, source.DEPTHS, source.KINDS
Prompt = Any


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


@pytest.mark.parametrize(("length", "pairs"), [(6, 0), (7, 2), (9, 2), (10, 3)])
def test_a_key_value_prompt_has_two_pairs_or_more(length: int, pairs: int) -> None:
    all_prompts = of_kind(maker().make((length,), 1), "key-value")
    assert {len(prompt.candidates) for prompt in all_prompts} == ({pairs} if pairs else set())


# -- The table, of planted answers: Wilson's intervals, exact ones of gains, and the test of McNemar -------------------

PROMPTS = [(kind, length, depth) for kind in KINDS for length in (31, 40) for depth in DEPTHS for _ in range(3)]
BASELINE = [1.0 if place % 3 else -2.0 for place in range(len(PROMPTS))]


def tabled(*margins: Sequence[float | None], **options: Any) -> pl.DataFrame:
    return from_records(*({"margins": list(each)} for each in margins), windows=1, prompts=3, **options).needle


def of_cell(row: Mapping[str, Any], margins: Sequence[float | None]) -> list[float | None]:
    """The margins of the prompts of a row."""
    wanted = row["kind"], row["length"], row["depth"]
    return [
        margin
        for prompt, margin in zip(PROMPTS, margins, strict=True)
        if all(own in (None, value) for own, value in zip(wanted, prompt, strict=True))
    ]


@pytest.mark.parametrize("level", [0.8, 0.95])
def test_every_cell_counts_its_prompts_and_zero_is_left_out_where_mcnemar_rejects(level: float) -> None:
    """Alternatives gain and lose at random, some of them mostly one of the two."""
    chance = random.Random(0)
    others = [
        [(1.0 if chance.random() < share else -1.0) * chance.random() for _ in PROMPTS]
        for share in (0.0, 0.1, 0.4, 0.6, 0.7, 0.8, 0.95, 1.0)
    ]
    answers = dict(zip(["baseline", *(f"topk:k={k}" for k in range(1, 9))], [BASELINE, *others], strict=True))
    table = tabled(*answers.values(), level=level)
    assert table.height == len(answers) * (1 + 2 * (1 + 2 + 5 + 2 * 5))
    sides, z = set(), scipy.stats.norm.isf((1 - level) / 2)
    for row in table.iter_rows(named=True):
        own, mine = (of_cell(row, answers[name]) for name in ("baseline", row["normalizer"]))
        count, right = len(mine), sum(margin > 0 for margin in mine)
        assert (row["prompts"], row["accuracy"]) == (count, pytest.approx(right / count))
        assert row["margin"] == pytest.approx(sum(mine) / count)
        assert min(mine) - 1e-9 <= row["margin_low"] <= row["margin_high"] <= max(mine) + 1e-9
        for end in (row["accuracy_low"], row["accuracy_high"]):  # the score test: |share - p| = z sqrt(p (1 - p) / n)
            assert abs(right / count - end) == pytest.approx(z * math.sqrt(end * (1 - end) / count), abs=1e-9)
        if row["normalizer"] == "baseline":
            assert row["gain"] is row["gain_low"] is row["gain_high"] is None
            continue
        gained = sum(a <= 0 < b for a, b in zip(own, mine, strict=True))
        lost = sum(b <= 0 < a for a, b in zip(own, mine, strict=True))
        assert row["gain"] == pytest.approx((gained - lost) / count)
        if not gained + lost:
            assert row["gain_low"] is row["gain_high"] is None
            continue
        theta = scipy.stats.binomtest(gained, gained + lost).proportion_ci(level, "exact")
        exact = [(2 * end - 1) * (gained + lost) / count for end in (theta.low, theta.high)]
        assert [row["gain_low"], row["gain_high"]] == pytest.approx(exact)
        left_out = (row["gain_low"] > 0) - (row["gain_high"] < 0)
        rejected = scipy.stats.binomtest(gained, gained + lost, 0.5).pvalue < 1 - level
        assert left_out == rejected * (1 if gained > lost else -1)
        sides.add(left_out)
    assert sides == {-1, 0, 1}


def test_an_answer_without_a_margin_is_wrong_and_chance_is_the_mean() -> None:
    table = tabled([None, *BASELINE[1:]], [1.0] * len(PROMPTS))
    whole = table.row(0, named=True)
    assert whole["accuracy"] == pytest.approx(40 / 60)
    assert whole["margin"] is None
    kinds = {kind: table.filter(kind=kind, normalizer="baseline", length=31)["chance"][0] for kind in KINDS}
    assert kinds == pytest.approx({"key-value": 1 / 10, "needle": 1 / CANDIDATES})
