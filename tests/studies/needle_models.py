"""A tokenizer of whole words, and networks that answer by a rule: they copy by key, spot what occurs, or guess."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import SimpleNamespace
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast

from abbe import Text
from abbe.models import LoadedModel

LETTERS = "bcdfghjklmnprstvwz"
WORDS = [f"{a}{b}{c}" for a in LETTERS for b in "aeiou" for c in LETTERS if f"{a}{b}{c}" != "for"][:900]
MARKS = ["<pad>", "\u2581end", "\n", ".", ":", "Remember", "the", "word", "for", "is", "<unk>"]
TEXT = Text("words", " ".join(WORDS[i * i % 90] for i in range(3000)))


def word_tokenizer() -> Any:
    """Every word one token, marked as following a space; small words of the sentence are words of their own."""
    names = [*MARKS, *(f"\u2581{word}" for word in WORDS), *("\u2581the", "\u2581word", "\u2581for", "\u2581is")]
    tokenizer = Tokenizer(models.WordLevel({name: place for place, name in enumerate(names)}, unk_token="<unk>"))
    newline = pre_tokenizers.Split("\n", "isolated")
    space = pre_tokenizers.Metaspace(replacement="\u2581", prepend_scheme="never")
    punctuation = pre_tokenizers.Punctuation()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([newline, space, punctuation])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", eos_token="\u2581end", model_max_length=4096
    )


class _Network(nn.Module, ABC):
    """Gives logits after the last token only through `answer`."""

    device = torch.device("cpu")

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.vocabulary = vocabulary

    def forward(self, input_ids: Tensor, use_cache: bool = False) -> Any:
        logits = torch.zeros(*input_ids.shape, self.vocabulary)
        for place, tokens in enumerate(input_ids):
            logits[place, -1] = self.answer(tokens)
        return SimpleNamespace(logits=logits)

    @abstractmethod
    def answer(self, tokens: Tensor) -> Tensor: ...


class Copier(_Network):
    """Finds the last tokens earlier in the text, as many as agree, and says what followed."""

    def answer(self, tokens: Tensor) -> Tensor:
        logits = torch.zeros(self.vocabulary)
        for width in range(6, 0, -1):
            end = tokens[-width:]
            for start in range(len(tokens) - width - 1, -1, -1):
                if torch.equal(tokens[start : start + width], end):
                    logits[tokens[start + width]] = 3.0
                    return logits
        return logits


class Spotter(_Network):
    """Random logits, but far larger ones for every token that stands in the text: it looks at no key."""

    def answer(self, tokens: Tensor) -> Tensor:
        logits = _noise(tokens, self.vocabulary)
        logits[tokens.unique()] += 100.0
        return logits


class Guesser(_Network):
    """Random logits, of the tokens alone."""

    def answer(self, tokens: Tensor) -> Tensor:
        return _noise(tokens, self.vocabulary)


def _noise(tokens: Tensor, vocabulary: int) -> Tensor:
    seed = int((tokens * torch.arange(1, len(tokens) + 1)).sum())
    return torch.randn(vocabulary, generator=torch.Generator().manual_seed(seed))


def model(network: type[_Network]) -> LoadedModel:
    tokenizer = word_tokenizer()
    return LoadedModel("rule", network(len(tokenizer)), tokenizer, "decoder", None, "", "")
