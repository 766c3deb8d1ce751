"""Prompts with one right answer: key-value lists, and a needle in the user's text.

Keys and values are words of the user's text that are one token each, so that every answer is a single familiar token,
and every length is exact.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...._seeding import generator_named
from ....models import Text, special_tokens

KINDS = ("key-value", "needle")
DEPTHS = (0.0, 0.25, 0.5, 0.75, 1.0)
CANDIDATES = 20  # the right word and others, from which the answer of a needle is chosen
DECOYS = 3  # sentences of the same form with other keys: without them, the only candidate in sight is the answer
_READ = 400_000  # characters of the text that hay and words are taken from
_SEPARATORS = ("\n", ".", ",", ";")
_BEGIN, _MIDDLE, _END = "\nRemember: the word for", " is", ".\n"


@dataclass(frozen=True, eq=False)
class Prompt:
    """Tokens that should be followed by `answer`; `candidates` are the words that it competes with."""

    kind: str
    length: int
    depth: float
    tokens: Tensor
    answer: int
    candidates: tuple[int, ...]  # the answer is among them

    @property
    def chance(self) -> float:
        return 1 / len(self.candidates)


Maker = Callable[[list[int], int, float, int], Prompt | None]  # from words, length, depth and number


class PromptMaker:
    """Makes prompts for one tokenizer and text; `skipped` lists those that cannot be made."""

    def __init__(self, tokenizer: Any, text: Text, seed: int) -> None:
        self.words = plain_words(tokenizer)  # of the vocabulary
        counted = word_counts(tokenizer, self.words, text.content[:_READ])
        self.twice, self.once = ([word for word in self.words if counted[word] >= least] for least in (2, 1))
        self.skipped: list[str] = []
        self._seed, self._text = seed, text.name
        self._before = special_tokens(tokenizer)[0]
        self._hay = _ids(tokenizer, text.content[:_READ])
        self._separator = next(([ids[0]] for s in _SEPARATORS if len(ids := _ids(tokenizer, s)) == 1), [])
        self._begin, self._middle, self._end = (_ids(tokenizer, part) for part in (_BEGIN, _MIDDLE, _END))

    def make(self, lengths: Sequence[int], prompts: int, depths: Sequence[float] = DEPTHS) -> list[Prompt]:
        """`prompts` of each kind, length and depth."""
        by_kind: list[Prompt] = []
        for kind, make in zip(KINDS, (self._key_value, self._needle), strict=True):
            for length in lengths:
                places = [(length, depth, number) for depth in depths for number in range(prompts)]
                by_kind += self._of_length(kind, length, make, places)
        return by_kind

    def _of_length(self, kind: str, length: int, make: Maker, places: Sequence[tuple[int, float, int]]) -> list[Prompt]:
        """From words that occur twice in the text, else once, else from the whole vocabulary, noted in `skipped`."""
        for words in (self.twice, self.once, self.words):
            if prompts := _all(make, words, places):
                if words is self.words:
                    self.skipped.append(
                        f"{kind} prompts of {length} tokens: words of the whole vocabulary, because only "
                        f"{len(self.once)} of them stand in {self._text} as whole words"
                    )
                if kind == KINDS[1] and (decoys := self._decoys(length)) < DECOYS:
                    self.skipped.append(f"{kind} prompts of {length} tokens: {decoys} of {DECOYS} decoys have room")
                return prompts
        self.skipped.append(f"{kind} prompts of {length} tokens: {self._why(kind, length)}")
        return []

    def _key_value(self, words: list[int], length: int, depth: float, number: int) -> Prompt | None:
        """key value separator, key value separator, ..., and one of the keys again."""
        width = 2 + len(self._separator)
        pairs, left = divmod(length - len(self._before) - 1, width)
        if pairs < 2 or 2 * pairs > len(words):
            return None
        drawn = self._draw(f"key-value {length} {depth} {number}", words, 2 * pairs)
        keys, values = drawn[:pairs], drawn[pairs:]
        target = round(depth * (pairs - 1))
        body = [token for key, value in zip(keys, values, strict=True) for token in (key, value, *self._separator)]
        filled = (self._separator or [words[0]]) * left
        tokens = [*self._before, *filled[:left], *body, keys[target]]
        return Prompt(KINDS[0], length, depth, torch.tensor(tokens), values[target], tuple(values))

    def _needle(self, words: list[int], length: int, depth: float, number: int) -> Prompt | None:
        """The user's text with sentences that each assign a word to a key, and the start of one of them at the end.

        The target is at this depth, the decoys at some of the other depths of the test: neither the presence of a word
        nor its position gives the answer away.
        """
        decoys = self._decoys(length)
        room = self._room(length, decoys)
        if room < 1 or room > len(self._hay):
            return None
        name = f"needle {length} {depth} {number}"
        start = int(torch.randint(len(self._hay) - room + 1, (), generator=self._generator(f"hay of {name}")))
        hay = self._hay[start : start + room]
        used = {*hay, *self._begin, *self._middle, *self._end}
        unused = [word for word in words if word not in used]
        if len(unused) < CANDIDATES + 1 + decoys:
            return None
        drawn = self._draw(name, unused, CANDIDATES + 1 + decoys)
        keys, candidates = drawn[: 1 + decoys], drawn[1 + decoys :]
        pairs = zip(self._depths(name, depth, decoys), keys, candidates[: 1 + decoys], strict=True)
        planted = [(round(at * room), self._sentence(key, word)) for at, key, word in pairs]
        tokens = [*self._before, *_with(hay, planted), *self._question(keys[0])]
        return Prompt(KINDS[1], length, depth, torch.tensor(tokens), candidates[0], tuple(candidates))

    def _depths(self, name: str, depth: float, decoys: int) -> list[float]:
        """Of the target sentence, then of its decoys."""
        others = [other for other in DEPTHS if other != depth]
        return [depth, *(others[i] for i in self._draw(f"depths of {name}", range(len(others)), decoys))]

    def _question(self, key: int) -> list[int]:
        return [*self._begin, key, *self._middle]

    def _sentence(self, key: int, word: int) -> list[int]:
        return [*self._question(key), word, *self._end]

    def _room(self, length: int, decoys: int) -> int:
        """Tokens of a needle prompt left for the user's text."""
        question, sentence = len(self._question(0)), len(self._sentence(0, 0))
        return length - len(self._before) - question - (1 + decoys) * sentence

    def _decoys(self, length: int) -> int:
        """How many fit, with text between all of them."""
        return next((count for count in range(DECOYS, 0, -1) if self._room(length, count) >= len(DEPTHS) - 1), 0)

    def _why(self, kind: str, length: int) -> str:
        if kind == KINDS[1] and length > len(self._hay):
            return f"{self._text} has only {len(self._hay)} tokens"
        return f"they are too short, or the {len(self.words)} plain words of the vocabulary too few"

    def _generator(self, use: str) -> torch.Generator:
        return generator_named(f"abbe needle, seed {self._seed}, {use}")

    def _draw(self, use: str, words: Sequence[int], count: int) -> list[int]:
        return [words[place] for place in torch.randperm(len(words), generator=self._generator(use))[:count].tolist()]


def _with(hay: Sequence[int], planted: Sequence[tuple[int, Sequence[int]]]) -> Iterator[int]:
    """The text with every sentence planted after the given number of its tokens."""
    done = 0
    for at, sentence in sorted(planted, key=lambda one: one[0]):
        yield from hay[done:at]
        yield from sentence
        done = at
    yield from hay[done:]


def _all(make: Maker, words: list[int], places: Sequence[tuple[int, float, int]]) -> list[Prompt]:
    """The prompt of every place, or none at all."""
    tried = [make(words, *place) for place in places]
    prompts = [prompt for prompt in tried if prompt is not None]
    return prompts if len(prompts) == len(tried) else []


def plain_words(tokenizer: Any) -> list[int]:
    """Tokens that are a whole word of at least three lower-case letters, with a leading space if any are."""
    special = set(tokenizer.all_special_ids)
    tokens = sorted((number, token) for token, number in tokenizer.get_vocab().items() if number not in special)

    def matching(pattern: str) -> list[int]:
        return [number for number, token in tokens if re.fullmatch(pattern, token)]

    # How byte-level and sentence-piece tokenizers write a space.
    return matching("[\u0120\u2581][a-z]{3,}") or matching("[a-z]{3,}")


def word_counts(tokenizer: Any, words: Sequence[int], text: str) -> dict[int, int]:
    """How often each of these tokens occurs in the text as a whole word."""
    counted = Counter(re.findall(r"[^\W\d_]+", text))
    names = tokenizer.convert_ids_to_tokens(list(words))
    return {word: counted[name.lstrip("\u0120\u2581")] for word, name in zip(words, names, strict=True)}


def _ids(tokenizer: Any, text: str) -> list[int]:
    ids: list[int] = tokenizer(
        text, add_special_tokens=False, truncation=False, padding=False, return_attention_mask=False,
        return_token_type_ids=False, verbose=False,
    )["input_ids"]  # fmt: skip
    return ids
