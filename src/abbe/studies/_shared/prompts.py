"""Prompts with one right answer: key-value lists, a needle in the user's text, and pass keys.

Lists and needles: keys and values are words of the user's text that are one token each, so that every answer is a
single familiar token, and every length is exact. Measured is the margin of the right word over the best wrong one.
Pass keys: a sentence gives the key of a name, others of the same form give the keys of other names (decoys), and the
end of the prompt asks for one. Measured are the log-probability of the digits, and whether greedy decoding gives all.
A haystack has a question for each of its sentences, for learning: with cached keys and values a step is cheap.
"""

from __future__ import annotations

import copy
import inspect
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, TypeVar

import torch
from torch import Tensor

from ..._arguments import is_whole, several, shown
from ..._errors import AbbeError
from ..._tensors import generator_named
from ...models import LoadedModel, Text, special_tokens

KINDS = ("key-value", "needle")
DEPTHS = (0.0, 0.25, 0.5, 0.75, 1.0)
CANDIDATES = 20  # the right word and others, from which the answer of a needle is chosen
DECOYS = 3  # sentences of the same form with other keys: without them, the only candidate in sight is the answer
_READ = 400_000  # characters of the text that hay and words are taken from
_SEPARATORS = ("\n", ".", ",", ";")
_BEGIN, _MIDDLE, _END = "\nRemember: the word for", " is", ".\n"
_TOKENS_AT_ONCE = 4096  # per batch: its activations stay small

# Pass keys for the test text (True) share no phrasing, name or depth with those of the search (False).
KEY_DECOYS = 2
_KEY_READ = 1_600_000  # characters: haystacks are long
_DIGITS = 5
KEY_SENTENCES = {
    False: ((" The pass key of the {} is", "."), ("\nRemember: the pass key of the {} is", ".\n")),
    True: ((" The secret number for the {} is", "."), ("\nNote that the code of the {} is", ".\n")),
}
_KEY_NAMES = {
    False: ("red door", "north gate", "old garden", "blue room", "stone bridge", "high tower"),
    True: ("green box", "south wall", "small cellar", "white house", "iron chest", "long hall"),
}
_KEY_DEPTHS = {False: (0.05, 0.3, 0.55, 0.8), True: (0.0, 0.1, 0.2, 0.4, 0.5, 0.7, 0.9, 1.0)}


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


def rising_lengths(name: str, given: Any, context: int | None, least: int = 1) -> tuple[int, ...]:
    """Lengths of prompts as they were given; refused unless they rise and fit into the context."""
    lengths = several(name, given)
    if not lengths or any(not is_whole(n) or n < least for n in lengths) or sorted(set(lengths)) != list(lengths):
        raise AbbeError(
            f"{name} must be whole numbers from {least} in rising order, such as 128,512; got {shown(list(lengths))}"
        )
    if context is not None and lengths[-1] > context:
        words = name.removesuffix("s").replace("_", " ")
        raise AbbeError(f"{words} {lengths[-1]} is above the model's context of {context} tokens")
    return lengths


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
        places = [(depth, number) for depth in depths for number in range(prompts)]
        makers = dict(zip(KINDS, (self._key_value, self._needle), strict=True))
        each = ((kind, length, make) for kind, make in makers.items() for length in lengths)
        return [prompt for kind, length, make in each for prompt in self._of_length(kind, length, make, places)]

    def _of_length(self, kind: str, length: int, make: Maker, places: Sequence[tuple[float, int]]) -> list[Prompt]:
        """Prompts of words that occur twice in the text, else once, else of the vocabulary, noted in `skipped`."""
        about = f"{kind} prompts of {length} tokens"
        for words in (self.twice, self.once, self.words):
            tried = [make(words, length, *place) for place in places]
            prompts = [prompt for prompt in tried if prompt is not None]
            if prompts and len(prompts) == len(tried):  # all of them, or none at all
                if words is self.words:
                    self.skipped.append(
                        f"{about}: words of the whole vocabulary, because only {len(self.once)} of them stand in "
                        f"{self._text} as whole words"
                    )
                if kind == KINDS[1] and (decoys := self._decoys(length)) < DECOYS:
                    self.skipped.append(f"{about}: {decoys} of {DECOYS} decoys have room")
                return prompts
        why = f"they are too short, or the {len(self.words)} plain words of the vocabulary too few"
        if kind == KINDS[1] and length > len(self._hay):
            why = f"{self._text} has only {len(self._hay)} tokens"
        self.skipped.append(f"{about}: {why}")
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
        planted = [(round(at * room), [*self._question(key), word, *self._end]) for at, key, word in pairs]
        tokens = [*self._before, *_with_planted(hay, planted), *self._question(keys[0])]
        return Prompt(KINDS[1], length, depth, torch.tensor(tokens), candidates[0], tuple(candidates))

    def _depths(self, name: str, depth: float, decoys: int) -> list[float]:
        """Depth of the target sentence, then of its decoys."""
        others = [other for other in DEPTHS if other != depth]
        return [depth, *(others[i] for i in self._draw(f"depths of {name}", range(len(others)), decoys))]

    def _question(self, key: int) -> list[int]:
        return [*self._begin, key, *self._middle]

    def _room(self, length: int, decoys: int) -> int:
        """Tokens of a needle prompt left for the user's text."""
        question = len(self._question(0))
        return length - len(self._before) - question - (1 + decoys) * (question + 1 + len(self._end))

    def _decoys(self, length: int) -> int:
        """How many fit, with text between all of them."""
        return next((count for count in range(DECOYS, 0, -1) if self._room(length, count) >= len(DEPTHS) - 1), 0)

    def _generator(self, use: str) -> torch.Generator:
        return generator_named(f"abbe needle, seed {self._seed}, {use}")

    def _draw(self, use: str, words: Sequence[int], count: int) -> list[int]:
        return [words[place] for place in torch.randperm(len(words), generator=self._generator(use))[:count].tolist()]


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


class PassKeyMaker:
    """Makes pass keys and haystacks from a text; `for_test`: none like those of the search."""

    def __init__(self, tokenizer: Any, text: Text, seed: int, for_test: bool = False) -> None:
        self._tokenizer, self._seed, self._for_test = tokenizer, seed, for_test
        self._before = special_tokens(tokenizer)[0]
        self._hay = _ids(tokenizer, text.content[:_KEY_READ])

    def pass_keys(self, lengths: Sequence[int], prompts: int) -> list[PassKey]:
        """`prompts` per length and depth; lengths for which the text is too short are left out."""
        depths = _KEY_DEPTHS[self._for_test]
        cells = [(length, depth, number) for length in lengths for depth in depths for number in range(prompts)]
        return [prompt for cell in cells if (prompt := self._pass_key(*cell)) is not None]

    def haystacks(self, length: int, count: int) -> list[Haystack]:
        """`count` haystacks, with sentences at evenly spread depths; none if the text is too short."""
        return [made for number in range(count) if (made := self._haystack(length, number, count)) is not None]

    def _pass_key(self, length: int, depth: float, number: int) -> PassKey | None:
        chance = random.Random(f"abbe pass key, seed {self._seed}, {length} {depth} {number}")
        planted, questions = self._sentences(chance)
        question, answer = questions[0]
        hay = self._drawn(chance, length - len(question), planted)
        if hay is None:
            return None
        # Decoys lie at random depths on both sides, so that the position gives nothing away.
        depths = [depth, *(chance.random() for _ in range(KEY_DECOYS))]
        tokens = torch.tensor([*self._buried(hay, depths, planted), *question])
        return PassKey(length, depth, tokens, answer)

    def _haystack(self, length: int, number: int, count: int) -> Haystack | None:
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
        begin, end = chance.choice(KEY_SENTENCES[self._for_test])
        names = chance.sample(_KEY_NAMES[self._for_test], KEY_DECOYS + 1)
        begun = [_ids(self._tokenizer, begin.format(name)) for name in names]
        keys = [_ids(self._tokenizer, f" {chance.randrange(10 ** (_DIGITS - 1), 10**_DIGITS)}") for _ in names]
        pairs = list(zip(begun, keys, strict=True))
        after = _ids(self._tokenizer, end)
        return [[*words, *key, *after] for words, key in pairs], [([*words, *key], len(key)) for words, key in pairs]

    def _drawn(self, chance: random.Random, length: int, planted: Sequence[Sequence[int]]) -> list[int] | None:
        """Hay that fills up `length` tokens around the sentences."""
        room = length - len(self._before) - sum(map(len, planted))
        if room < 2 * (KEY_DECOYS + 1) or room > len(self._hay):
            return None
        start = chance.randrange(len(self._hay) - room + 1)
        return self._hay[start : start + room]

    def _buried(self, hay: Sequence[int], depths: Sequence[float], planted: Sequence[Sequence[int]]) -> list[int]:
        places = [round(depth * len(hay)) for depth in depths]
        return [*self._before, *_with_planted(hay, list(zip(places, planted, strict=True)))]


def _ids(tokenizer: Any, text: str) -> list[int]:
    ids: list[int] = tokenizer(
        text, add_special_tokens=False, truncation=False, padding=False, return_attention_mask=False,
        return_token_type_ids=False, verbose=False,
    )["input_ids"]  # fmt: skip
    return ids


def _with_planted(hay: Sequence[int], planted: Sequence[tuple[int, Sequence[int]]]) -> Iterator[int]:
    """The text with every sentence planted after the given number of its tokens."""
    done = 0
    for after, sentence in sorted(planted, key=lambda pair: pair[0]):
        yield from hay[done:after]
        yield from sentence
        done = after
    yield from hay[done:]


# -- Answers ----------------------------------------------------------------------------------------------------------

AnyPrompt = TypeVar("AnyPrompt", Prompt, PassKey)


def batches(prompts: Sequence[AnyPrompt]) -> list[list[AnyPrompt]]:
    """Consecutive prompts of the same length, and pass keys of as many tokens, as many as fit."""
    filled: list[list[AnyPrompt]] = []
    for _, alike in groupby(prompts, lambda prompt: (prompt.length, isinstance(prompt, PassKey) and prompt.answer)):
        group = list(alike)
        size = max(1, _TOKENS_AT_ONCE // group[0].length)
        filled += [group[start : start + size] for start in range(0, len(group), size)]
    return filled


@torch.no_grad()
def margins(
    model: LoadedModel, prompts: Sequence[Prompt], on_batch: Callable[[int], object] = lambda size: None
) -> list[float]:
    """The logit of each right answer minus that of the best wrong candidate; above 0 the answer is right."""
    by_prompt: list[float] = []
    for batch in batches(prompts):
        rows = _last_logits(model, torch.stack([prompt.tokens for prompt in batch]), 1)[:, -1].cpu().double()
        for logits, prompt in zip(rows, batch, strict=True):
            wrong = torch.tensor([word for word in prompt.candidates if word != prompt.answer])
            by_prompt.append(float(logits[prompt.answer] - logits[wrong].max()))
        on_batch(len(batch))
    return by_prompt


@torch.no_grad()
def answers(model: LoadedModel, prompts: Sequence[PassKey]) -> tuple[list[float], list[bool]]:
    """Per prompt the log-probability of its key, and whether greedy decoding gives it."""
    log_probabilities: list[float] = []
    right: list[bool] = []
    for batch in batches(prompts):
        width = batch[0].answer
        tokens = torch.stack([prompt.tokens for prompt in batch])
        logits = _last_logits(model, tokens, width + 1)[:, -width - 1 : -1].float()
        wanted = tokens[:, -width:].to(logits.device)
        of_tokens = logits.log_softmax(-1).gather(-1, wanted[..., None])[..., 0]
        log_probabilities += of_tokens.double().sum(-1).tolist()
        right += (logits.argmax(-1) == wanted).all(-1).tolist()
    return log_probabilities, right


def _last_logits(model: LoadedModel, tokens: Tensor, count: int) -> Tensor:
    """(prompt, token, vocabulary) after at least the last `count` tokens; others are skipped if the model can."""
    network: Any = model.network
    keep = {"logits_to_keep": count} if "logits_to_keep" in inspect.signature(network.forward).parameters else {}
    logits: Tensor = network(input_ids=tokens.to(model.device), use_cache=False, **keep).logits
    return logits


class ReadHaystack:
    """A haystack that the model has read, ready for its questions.

    What is special: keys and values of the text stay as they were when it was read, and get no gradient. A change of
    the attention affects only the rows of the questions, until the text is read again.
    """

    def __init__(self, model: LoadedModel, haystack: Haystack) -> None:
        self._model, self._haystack = model, haystack
        self._cache = _cache_after(model, haystack.body)
        self.is_cached = self._cache is not None  # if not, every question reads the whole text, with gradients

    @property
    def bytes(self) -> int:
        layers = self._cache.layers if self.is_cached else ()
        return sum(x.numel() * x.element_size() for layer in layers for x in (layer.keys, layer.values))

    def learn(self) -> float:
        """Add the gradient of minus the mean log-probability to the learning parameters; returns the mean.

        Question by question, since each graph holds a copy of the cache.
        """
        mean = 0.0
        for question in self._haystack.questions:
            part = self.log_probability(*question) / len(self._haystack.questions)
            (-part).backward()  # type: ignore[no-untyped-call]
            mean += float(part.detach())
        return mean

    def log_probability(self, tokens: Tensor, width: int) -> Tensor:
        """Log-probability of the answer, the last `width` tokens of a question, with gradients."""
        network: Any = self._model.network
        tokens = tokens if self.is_cached else torch.cat([self._haystack.body, tokens])
        tokens = tokens[None].to(self._model.device)
        past = {"past_key_values": _fresh(self._cache)} if self.is_cached else {}
        logits = network(input_ids=tokens, use_cache=self.is_cached, **past).logits[0, -width - 1 : -1].float()
        each: Tensor = logits.log_softmax(-1).gather(-1, tokens[0, -width:, None].to(logits.device))
        return each.sum()


def read_all(
    model: LoadedModel, haystacks: Sequence[Haystack], most_bytes: int, on_read: Callable[[], object] = lambda: None
) -> list[ReadHaystack]:
    """Read as many as fit into memory, at least one."""
    read: list[ReadHaystack] = []
    for haystack in haystacks:
        if read and sum(each.bytes for each in read) + read[-1].bytes > most_bytes:
            break
        read.append(ReadHaystack(model, haystack))
        on_read()
    return read


@torch.no_grad()
def _cache_after(model: LoadedModel, tokens: Tensor) -> Any:
    """None if the model does not cache keys and values by layer."""
    body: Any = model.network.base_model  # no logits are needed
    output = body(input_ids=tokens[None].to(model.device), use_cache=True)
    cache = getattr(output, "past_key_values", None)
    layers = getattr(cache, "layers", None) or (None,)
    return cache if all(isinstance(getattr(layer, "keys", None), Tensor) for layer in layers) else None


def _fresh(cache: Any) -> Any:
    """The same cache for one question. Shallow copies suffice: layers take new tensors when they grow."""
    fresh = copy.copy(cache)
    fresh.layers = [copy.copy(layer) for layer in cache.layers]
    return fresh
