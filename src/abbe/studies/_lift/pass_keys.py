"""Pass keys in the user's text: a search for retrieval measures directly whether a model finds them.

A sentence gives the key of a name, others of the same form give the keys of other names (decoys), and the end of the
prompt asks for one. Measured are the log-probability of the digits, and whether greedy decoding gives all of them.
Judging uses another part of the text than the search, and other phrasings, names, keys and depths.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...models import LoadedModel, special_tokens
from .thirds import JUDGE, Portion

DECOYS = 2
_READ = 1_600_000  # characters of the text that hay is taken from
_DIGITS = 5
_TOKENS_AT_ONCE = 4096  # of a batch
SEARCHED = ((" The pass key of the {} is", "."), ("\nRemember: the pass key of the {} is", ".\n"))
JUDGED = ((" The secret number for the {} is", "."), ("\nNote that the code of the {} is", ".\n"))
_NAMES = {
    False: ("red door", "north gate", "old garden", "blue room", "stone bridge", "high tower"),
    True: ("green box", "south wall", "small cellar", "white house", "iron chest", "long hall"),
}
_DEPTHS = {False: (0.05, 0.3, 0.55, 0.8), True: (0.0, 0.1, 0.2, 0.4, 0.5, 0.7, 0.9, 1.0)}


@dataclass(frozen=True, eq=False)
class PassKey:
    """Tokens that end with the answer."""

    length: int
    depth: float
    tokens: Tensor
    answer: int  # how many tokens at the end are the key


@dataclass(frozen=True, eq=False)
class Haystack:
    """A text with planted sentences and a question for each: one pass over the text serves all questions."""

    body: Tensor
    questions: tuple[tuple[Tensor, int], ...]  # tokens that end with the answer, and how many the answer has
    depths: tuple[float, ...]


def pass_keys(tokenizer: Any, portion: Portion, lengths: Sequence[int], prompts: int) -> list[PassKey]:
    """`prompts` per length and depth; lengths for which the portion is too short are left out."""
    maker = _Maker(tokenizer, portion)
    places = [(n, depth, number) for n in lengths for depth in _DEPTHS[maker.judged] for number in range(prompts)]
    return [prompt for place in places if (prompt := maker.pass_key(*place)) is not None]


def haystacks(tokenizer: Any, portion: Portion, length: int, count: int) -> list[Haystack]:
    """`count` haystacks, with sentences at evenly spread depths; none if the portion is too short."""
    maker = _Maker(tokenizer, portion)
    return [one for number in range(count) if (one := maker.haystack(length, number, count)) is not None]


class _Maker:
    def __init__(self, tokenizer: Any, portion: Portion) -> None:
        self._tokenizer, self._seed, self.judged = tokenizer, portion.seed, portion.name == JUDGE
        self._before = special_tokens(tokenizer)[0]
        self._hay = self._ids(portion.text.content[:_READ])

    def pass_key(self, length: int, depth: float, number: int) -> PassKey | None:
        chance = random.Random(f"abbe pass key, seed {self._seed}, {length} {depth} {number}")
        planted, questions = self._sentences(chance)
        question, answer = questions[0]
        hay = self._drawn(chance, length - len(question), planted)
        if hay is None:
            return None
        # Decoys lie at random depths on both sides, so that the position gives nothing away.
        depths = [depth, *(chance.random() for _ in range(DECOYS))]
        tokens = torch.tensor([*self._buried(hay, depths, planted), *question])
        return PassKey(length, depth, tokens, answer)

    def haystack(self, length: int, number: int, count: int) -> Haystack | None:
        chance = random.Random(f"abbe haystack, seed {self._seed}, {length} {number}")
        planted, questions = self._sentences(chance)
        hay = self._drawn(chance, length - max(len(tokens) for tokens, _ in questions), planted)
        if hay is None:
            return None
        depths = [(place + (number + 0.5) / count) / len(planted) for place in range(len(planted))]
        chance.shuffle(depths)
        tensors = tuple((torch.tensor(tokens), answer) for tokens, answer in questions)
        return Haystack(torch.tensor(self._buried(hay, depths, planted)), tensors, tuple(depths))

    def _sentences(self, chance: random.Random) -> tuple[list[list[int]], list[tuple[list[int], int]]]:
        """The planted sentences, the needle first; for each, question and answer, and the number of answer tokens."""
        begin, end = chance.choice(JUDGED if self.judged else SEARCHED)
        names = chance.sample(_NAMES[self.judged], DECOYS + 1)
        begun = [self._ids(begin.format(name)) for name in names]
        keys = [self._ids(f" {chance.randrange(10 ** (_DIGITS - 1), 10**_DIGITS)}") for _ in names]
        pairs = list(zip(begun, keys, strict=True))
        return [[*words, *key, *self._ids(end)] for words, key in pairs], [([*w, *key], len(key)) for w, key in pairs]

    def _drawn(self, chance: random.Random, length: int, planted: Sequence[Sequence[int]]) -> list[int] | None:
        """Hay that fills up `length` tokens around the sentences."""
        room = length - len(self._before) - sum(map(len, planted))
        if room < 2 * (DECOYS + 1) or room > len(self._hay):
            return None
        start = chance.randrange(len(self._hay) - room + 1)
        return self._hay[start : start + room]

    def _buried(self, hay: Sequence[int], depths: Sequence[float], planted: Sequence[Sequence[int]]) -> list[int]:
        body = list(self._before)
        done = 0
        places = [round(depth * len(hay)) for depth in depths]
        for place, sentence in sorted(zip(places, planted, strict=True), key=lambda pair: pair[0]):
            body += [*hay[done:place], *sentence]
            done = place
        return [*body, *hay[done:]]

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer(
            text, add_special_tokens=False, truncation=False, padding=False, return_attention_mask=False,
            return_token_type_ids=False, verbose=False,
        )["input_ids"]  # fmt: skip
        return ids


@torch.no_grad()
def answers(model: LoadedModel, prompts: Sequence[PassKey]) -> tuple[list[float], list[bool]]:
    """For each prompt the log-probability of its key, and whether greedy decoding gives it."""
    network: Any = model.network
    keeps = "logits_to_keep" in inspect.signature(network.forward).parameters
    log_probabilities: list[float] = []
    right: list[bool] = []
    for batch in _batches(prompts):
        width = batch[0].answer
        tokens = torch.stack([prompt.tokens for prompt in batch]).to(network.device)
        more = {"logits_to_keep": width + 1} if keeps else {}
        logits = network(input_ids=tokens, use_cache=False, **more).logits[:, -width - 1 : -1].float()
        wanted = tokens[:, -width:]
        of_tokens = logits.log_softmax(-1).gather(-1, wanted[..., None])[..., 0]
        log_probabilities += of_tokens.double().sum(-1).tolist()
        right += (logits.argmax(-1) == wanted).all(-1).tolist()
    return log_probabilities, right


def _batches(prompts: Sequence[PassKey]) -> list[list[PassKey]]:
    """Neighbours of the same shape, as many as fit."""
    batches: list[list[PassKey]] = []
    for prompt in prompts:
        last = batches[-1] if batches else []
        same = last and (last[0].length, last[0].answer) == (prompt.length, prompt.answer)
        if same and (len(last) + 1) * prompt.length <= _TOKENS_AT_ONCE:
            last.append(prompt)
        else:
            batches.append([prompt])
    return batches
