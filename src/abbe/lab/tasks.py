"""Tasks: endless batches from a generator or a text, a network that can solve them, and the accuracy of guessing."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from .._arguments import whole
from .._errors import AbbeError
from ..models import Text, read_text
from .network import AttentionSettings, Decoder, Generators, SetReader, SymbolReader


@dataclass(frozen=True, eq=False)
class Batch:
    """Inputs of a network, and the right class for every question."""

    inputs: tuple[Tensor, ...]
    targets: Tensor


class Task(ABC):
    """One task at one size.

    Attributes:
        steps, batch: a usual training run.
        width, heads: of a usual network.
        chance: accuracy of guessing.
        test_lengths: lengths at which accuracy is also measured, if the task has any.
        ordered: whether its keys are in causal order.
    """

    name: ClassVar[str]
    meaning: str
    steps: int
    batch: int
    width: int
    heads: int
    chance: float
    test_lengths: tuple[int, ...] = ()
    ordered: ClassVar[bool] = False

    @abstractmethod
    def network(self, generators: Generators, settings: AttentionSettings) -> nn.Module:
        """An untrained network with this attention, in float64."""

    @abstractmethod
    def sample(self, generator: torch.Generator, size: int, length: int | None = None, *, held_out: bool) -> Batch:
        """`size` sequences, determined by the state of the generator; `length` for tasks with several lengths."""

    def training_length(self, generator: torch.Generator) -> int | None:
        """Length of the next batch, for tasks with several lengths."""
        return None

    def facts(self) -> dict[str, Any]:
        """Sizes and, for a text, its fingerprint: they identify the task of a run."""
        return {"task": self.name, **{size: getattr(self, size) for size in inspect.signature(type(self)).parameters}}


def stacked(batches: Sequence[Batch]) -> Batch:
    """The batches of all seeds as one, (seed, batch, ...)."""
    parts = zip(*(batch.inputs for batch in batches), strict=True)
    return Batch(tuple(torch.stack(part) for part in parts), torch.stack([batch.targets for batch in batches]))


_MOST_SYMBOLS, _LONGEST = 1 << 17, 1 << 12  # a table of scores and rows of logits have to fit


class Recall(Task):
    """Pairs of symbols, then every key in another order: one head has to find the value of each.

    Keys of a sequence are distinct; the table from keys to values is new in every sequence, so nothing but attention
    can solve it.
    """

    name = "recall"
    steps, batch, width, heads = 600, 32, 16, 1

    def __init__(self, pairs: int = 24, symbols: int = 128) -> None:
        self.pairs = whole("pairs", pairs, least=1)
        self.symbols = whole("symbols", symbols, least=pairs, most=_MOST_SYMBOLS)  # keys are distinct
        self.meaning = f"key-value recall ({pairs} pairs of {symbols:,} symbols) with one head"
        self.chance = 1 / symbols

    def network(self, generators: Generators, settings: AttentionSettings) -> nn.Module:
        return SymbolReader(generators, settings, self.symbols)

    def sample(self, generator: torch.Generator, size: int, length: int | None = None, *, held_out: bool) -> Batch:
        pairs = length or self.pairs
        keys = _distinct(generator, size, self.symbols, pairs)
        values = torch.randint(self.symbols, (size, pairs), generator=generator)
        order = _distinct(generator, size, pairs, pairs)
        return Batch((keys.gather(1, order), keys, values), values.gather(1, order))


class Mqar(Task):
    """Multi-query associative recall (arXiv 2312.04927): k v k v ... then blanks, with the keys again among them.

    The answer is due at the position of the repeated key. The first half of the symbols are keys, the second values;
    the last one is the blank. The smallest setting there has 8,192 symbols and 64 tokens.
    """

    name = "mqar"
    steps, batch, width, heads = 1000, 32, 64, 1
    ordered = True

    def __init__(self, pairs: int = 4, symbols: int = 64, length: int = 32, layers: int = 2) -> None:
        self.pairs = whole("pairs", pairs, least=1)
        self.symbols = whole("symbols", symbols, least=2 * pairs + 1, most=_MOST_SYMBOLS)
        self.length = whole("length", length, least=3 * pairs, most=_LONGEST)  # the pairs, then every key again
        self.layers = layers
        self.kinds = (symbols - 1) // 2  # as many keys as values, and a blank
        sizes = f"{pairs} pairs of {symbols:,} symbols in {length:,} tokens"
        self.meaning = f"multi-query associative recall ({sizes}) with a causal transformer"
        self.chance = 1 / pairs  # by copying any value of the sequence

    def network(self, generators: Generators, settings: AttentionSettings) -> nn.Module:
        sizes = {"tokens": self.symbols, "context": self.length, "layers": self.layers}
        return Decoder(generators, settings, **sizes, hidden=2 * settings.width)

    def sample(self, generator: torch.Generator, size: int, length: int | None = None, *, held_out: bool) -> Batch:
        pairs, whole = self.pairs, length or self.length
        keys = _distinct(generator, size, self.kinds, pairs)
        values = self.kinds + torch.randint(self.kinds, (size, pairs), generator=generator)
        tokens = torch.full((size, whole), self.symbols - 1)
        tokens[:, 0 : 2 * pairs : 2], tokens[:, 1 : 2 * pairs : 2] = keys, values
        places = 2 * pairs + _distinct(generator, size, whole - 2 * pairs, pairs)
        return Batch((tokens.scatter(1, places, keys), places), values)


def _distinct(generator: torch.Generator, size: int, of: int, count: int) -> torch.Tensor:
    """`count` different whole numbers below `of`, for each sequence."""
    return torch.rand(size, of, generator=generator).argsort(1)[:, :count]


class Maximum(Task):
    """Items with a priority in (0, 1) and one of ten classes; trained on up to 16 items, tested on many more."""

    name = "maximum"
    steps, batch, width, heads = 3000, 128, 32, 1
    test_lengths: tuple[int, ...] = (16, 64, 256, 1024, 4096, 16384)

    def __init__(self, longest: int = 16, classes: int = 10, lengths: Sequence[int] | None = None) -> None:
        self.longest, self.classes = longest, classes
        self.test_lengths = self.test_lengths if lengths is None else tuple(lengths)
        tested = f"tested on up to {max(self.test_lengths):,}"
        self.meaning = f"maximum retrieval, trained on up to {longest} items and {tested}"
        self.chance = 1 / classes

    def network(self, generators: Generators, settings: AttentionSettings) -> nn.Module:
        return SetReader(generators, settings, 1 + self.classes, self.classes)

    def training_length(self, generator: torch.Generator) -> int:
        return int(torch.randint(1, self.longest + 1, (), generator=generator))

    def sample(self, generator: torch.Generator, size: int, length: int | None = None, *, held_out: bool) -> Batch:
        items = length or self.longest
        priority = torch.rand(size, items, generator=generator)
        kind = torch.randint(self.classes, (size, items), generator=generator)
        one_hot = nn.functional.one_hot(kind, self.classes).to(priority.dtype)
        best = priority.argmax(1, keepdim=True)
        return Batch((torch.cat([priority[..., None], one_hot], -1),), kind.gather(1, best))

    @property
    def lengths(self) -> list[int]:
        return list(self.test_lengths)


_HELD_OUT = 0.1
_MOST = 256  # symbols; the rarest characters share one


class NextCharacter(Task):
    """Windows of a text, predicted character by character."""

    name = "text"
    meaning = "a character model of a text"
    steps, batch, width, heads = 400, 16, 128, 4
    ordered = True

    def __init__(self, text: Text, length: int = 96, layers: int = 2) -> None:
        self.text, self.length, self.layers = text, length, layers
        common = [character for character, _ in Counter(text.content).most_common(_MOST - 1)]
        code = {character: number for number, character in enumerate(sorted(common), 1)}  # 0: all others
        self.symbols = len(code) + 1
        codes = torch.tensor([code.get(character, 0) for character in text.content])
        cut = len(codes) - int(_HELD_OUT * len(codes))
        self.parts = {False: codes[:cut], True: codes[cut:]}
        if len(self.parts[True]) < 2 * (length + 1):
            least = int(2 * (length + 1) / _HELD_OUT)
            raise AbbeError(
                f"{text.name} has {len(codes):,} characters, too few for windows of {length}: give at least {least:,}"
            )
        counts = torch.bincount(self.parts[True])
        self.chance = float(counts.max() / counts.sum())  # by always guessing the most common character

    def network(self, generators: Generators, settings: AttentionSettings) -> nn.Module:
        sizes = {"tokens": self.symbols, "context": self.length, "layers": self.layers}
        return Decoder(generators, settings, **sizes, hidden=4 * settings.width)

    def sample(self, generator: torch.Generator, size: int, length: int | None = None, *, held_out: bool) -> Batch:
        codes, window = self.parts[held_out], length or self.length
        starts = torch.randint(len(codes) - window, (size,), generator=generator)
        windows = codes[starts[:, None] + torch.arange(window + 1)]
        return Batch((windows[:, :-1],), windows[:, 1:])

    def facts(self) -> dict[str, Any]:
        return super().facts() | {"text": self.text.fingerprint}


TASKS: dict[str, type[Task]] = {task.name: task for task in (Recall, Mqar, Maximum, NextCharacter)}


def make_task(name: str, sizes: Mapping[str, Any] | None = None, text: Text | None = None) -> Task:
    """One of `TASKS`, with the given sizes in place of the usual ones."""
    if name not in TASKS:
        raise AbbeError(f"there is no task {name!r}: choose one of {', '.join(TASKS)}")
    arguments = dict(sizes or {})
    if name == NextCharacter.name:
        arguments["text"] = read_text(None) if text is None else text
    unknown = [size for size in arguments if size not in inspect.signature(TASKS[name]).parameters]
    if unknown:
        raise AbbeError(f"task {name} has no size {', '.join(unknown)}: leave it out")
    return TASKS[name](**arguments)
