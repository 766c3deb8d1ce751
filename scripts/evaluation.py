"""What a written model can do on text it has not seen, beside models that only count, and what its heads look at."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from attention_patterns import attention_patterns, learned_attention
from corpus import Book, token_stream
from ngrams import KneserNey, Unigrams

from abbe.models import load, read_text, wrap

PASSAGE = 10  # words


def evaluate(folder: Path, books: Sequence[Book], untrained: Any) -> dict[str, Any]:
    """Everything measured of the files in a folder; `untrained` is the network before its first step."""
    model = load(folder)
    network: Any = model.network
    tokenizer = model.tokenizer.backend_tokenizer
    training = token_stream([book.training for book in books], tokenizer)
    size = network.config.vocab_size
    models = {
        "model": lambda stream: network_losses(network, stream, network.config.n_positions),
        "five_gram": KneserNey(training, size).losses,
        "unigram": Unigrams(training, size).losses,
    }
    rows = [
        about_book(book) | scores(book.held_out, token_stream([book.held_out], tokenizer), models) for book in books
    ]
    sample = read_text().content
    patterns, before = (
        attention_patterns(model),
        attention_patterns(wrap(untrained.eval(), model.tokenizer, "untrained")),
    )
    return {
        "books": rows,
        "held_out": total(rows, list(models)),
        "sample": scores(sample, token_stream([sample], tokenizer), models),
        "repeated_passages": repeated_share(books),
        "training_tokens": len(training),
        "training_bytes": sum(row["bytes"] - row["held_out_bytes"] for row in rows),
        "parameters": sum(parameter.numel() for parameter in network.parameters()),
        "patterns": patterns,
        "untrained_patterns": before,
        "learned": learned_attention(patterns).sentence,
        "untrained_learned": learned_attention(before).sentence,
    }


@torch.no_grad()
def network_losses(network: Any, stream: np.ndarray, context: int) -> np.ndarray:
    """Negative log likelihood of every token but the first, in nats, each scored once.

    Windows as long as the context begin every half context: a token has at least half a context before it, except in
    the first window.
    """
    tokens, stride = torch.from_numpy(np.asarray(stream)), context // 2
    losses = np.empty(len(stream) - 1)
    done = 0
    for start in range(0, len(stream), stride):
        if done == len(losses):
            break
        window = tokens[start : start + context + 1]
        logits = network(window[None, :-1], use_cache=False).logits[0, done - start :].float()
        nats = torch.nn.functional.cross_entropy(logits, window[1 + done - start :], reduction="none")
        losses[done : done + len(nats)] = nats.double().numpy()
        done += len(nats)
    return losses


def scores(text: str, stream: np.ndarray, models: dict[str, Any]) -> dict[str, Any]:
    """Bytes and tokens of a text, and the nats that each model needs for all of it after the end-of-text token."""
    sizes: dict[str, Any] = {"held_out_bytes": len(text.encode()), "tokens": len(stream) - 1}
    return sizes | {name: float(losses(stream).sum()) for name, losses in models.items()}


def total(rows: Sequence[dict[str, Any]], models: Sequence[str]) -> dict[str, Any]:
    return {name: sum(row[name] for row in rows) for name in ("held_out_bytes", "tokens", *models)}


def bits_per_byte(row: dict[str, Any], model: str) -> float:
    return float(row[model] / math.log(2) / row["held_out_bytes"])


def nats_per_token(row: dict[str, Any], model: str) -> float:
    return float(row[model] / row["tokens"])


def about_book(book: Book) -> dict[str, Any]:
    whole = (book.training + book.held_out).encode()
    return {"name": book.name, "bytes": len(whole), "sha256": hashlib.sha256(whole).hexdigest()}


def repeated_share(books: Sequence[Book]) -> float:
    """Share of the held-out passages of ten words that also stand in some training part: known by heart, maybe."""
    numbers: dict[str, int] = {}
    training = [_passages(book.training, numbers) for book in books]
    held_out = np.concatenate([_passages(book.held_out, numbers) for book in books])
    return float(np.isin(held_out, np.concatenate(training)).mean()) if len(held_out) else 0.0


def _passages(text: str, numbers: dict[str, int]) -> np.ndarray:
    """A hash of every ten words in a row."""
    words = np.array([numbers.setdefault(word, len(numbers)) for word in text.split()], dtype=np.uint64)
    if len(words) < PASSAGE:
        return np.empty(0, dtype=np.uint64)
    hashes = np.zeros(len(words) - PASSAGE + 1, dtype=np.uint64)
    for place in range(PASSAGE):
        hashes = (hashes * np.uint64(0x9E3779B97F4A7C15)) ^ (words[place : place + len(hashes)] + np.uint64(1))
        hashes ^= hashes >> np.uint64(29)
    return hashes
