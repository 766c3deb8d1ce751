"""The texts that the embedded model is trained on: what is read, what is kept out, how text becomes windows."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

HELD_OUT_SHARE = 0.05
VOCABULARY = 2048
END_OF_TEXT = "<|endoftext|>"
WRAPPED_LINE = 50  # characters: prose that was broken into lines has a mean above this, verse and drama are below
PASSAGE = (1 / 16, 7 / 16)  # its shortest and longest length, as a part of the window


@dataclass(frozen=True)
class Book:
    name: str
    training: str
    held_out: str  # its last 5 %, cut at a line


def read_books(folder: Path) -> list[Book]:
    """All .txt files below a folder, in the order of their names."""
    books = []
    for path in sorted(folder.rglob("*.txt")):
        text = path.read_text(encoding="utf-8", errors="replace").replace("\r\n", "\n")
        cut = text.rfind("\n", 0, int(len(text) * (1 - HELD_OUT_SHARE))) + 1
        books.append(Book(path.stem, text[:cut], text[cut:]))
    if not books:
        raise SystemExit(f"no .txt file in {folder}: name the folder with the training texts (--texts)")
    return books


def unwrapped(text: str) -> str:
    """Prose with one line a paragraph; verse, drama and lists keep their lines."""
    return "\n\n".join(_one_line(paragraph) for paragraph in re.split(r"\n{2,}", text))


def _one_line(paragraph: str) -> str:
    lines = paragraph.split("\n")
    broken = lines[:-1]
    if not broken or sum(map(len, broken)) / len(broken) < WRAPPED_LINE:
        return paragraph
    return " ".join(line.strip() for line in lines)


def train_tokenizer(books: list[Book]) -> Any:
    """Byte-pair merges learned from the training parts alone; every byte is a token: any text can be written."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator((unwrapped(book.training) for book in books), trainer)
    return tokenizer


def token_stream(texts: list[str], tokenizer: Any) -> np.ndarray:
    """The texts one after the other, each with the end-of-text token in front."""
    end = tokenizer.token_to_id(END_OF_TEXT)
    pieces = [np.array([end, *encoding.ids], dtype=np.int64) for encoding in tokenizer.encode_batch(texts)]
    return np.concatenate(pieces)


class Stage(NamedTuple):
    """First batch of a stage, the length of its windows, and the share of rows in which a passage comes twice."""

    first: int
    length: int
    repeated: float


class Batches:
    """Batch number k is the same in every run: a run that was stopped goes on with the windows it would have seen.

    All batches have as many tokens; the first ones are of short windows.
    """

    def __init__(self, books: list[Book], tokenizer: Any, tokens: int, stages: Sequence[Stage], seed: int) -> None:
        training = [book.training for book in books]
        self.streams = [
            token_stream(training, tokenizer),
            token_stream([unwrapped(text) for text in training], tokenizer),
        ]
        self.tokens, self.stages, self.seed = tokens, stages, seed

    def __getitem__(self, number: int) -> torch.Tensor:
        stage = [stage for stage in self.stages if stage.first <= number][-1]
        rows = self.tokens // stage.length
        random = np.random.default_rng((self.seed, number))
        batch = np.stack([_window(self.streams[row % len(self.streams)], stage.length, random) for row in range(rows)])
        for row in range(round(rows * stage.repeated)):
            repeat_a_passage(batch[(number + row) % rows], random)
        return torch.from_numpy(batch)


def _window(stream: np.ndarray, length: int, random: np.random.Generator) -> np.ndarray:
    start = random.integers(len(stream) - length)
    return stream[start : start + length + 1].copy()


def repeat_a_passage(window: np.ndarray, random: np.random.Generator) -> None:
    """Write the first tokens of a window again at a later place, so that looking back for them pays."""
    shortest, longest = (int(part * (len(window) - 1)) for part in PASSAGE)
    length = int(random.integers(shortest, longest))
    place = int(random.integers(length, len(window) - length + 1))
    window[place : place + length] = window[:length].copy()
