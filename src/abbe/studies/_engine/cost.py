"""What a run will cost, shown before it starts."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...models import LoadedModel, checked_logits
from ...words.numbers import about
from .loss import LOGITS_AT_ONCE
from .window import BLOCK

DIAGNOSIS = 1.5  # time with measures over time without; `make bench ARGS="--part diagnose"` measures it

# Bytes, measured as the peak of processes of their own: one test compares estimate and peak of three models.
_KERNELS = 150e6  # numba, compiled kernels and what is mapped of their libraries, once per process: 110 to 190 MB
_PER_MEASURED_LOGIT = 36  # of a block: logits, weights, orders, and the dot products of all set sizes
_PER_COMPARED_LOGIT = 8  # float32, of two passes
_PER_PIECE = 22e6  # of the comparison, in float64
_PER_LOST_LOGIT = 8  # float32, and its logarithm
_STATES = 10  # as large as the hidden states, at once within a layer


@dataclass(frozen=True)
class Cost:
    """An estimate: seconds, and megabytes beyond the model."""

    windows: int
    tokens: int
    seconds: float
    megabytes: float

    def __str__(self) -> str:
        taken = f"about {about(self.seconds)} and {self.megabytes:.0f} MB beside the model"
        return f"{self.windows} windows, {self.tokens:,} tokens: {taken}"

    def __add__(self, other: Cost) -> Cost:
        """One after the other."""
        return Cost(
            self.windows + other.windows,
            self.tokens + other.tokens,
            self.seconds + other.seconds,
            max(self.megabytes, other.megabytes),
        )


def estimate(
    model: LoadedModel, lengths: Sequence[int], tokens: int, seconds: float, overhead: float = DIAGNOSIS, *,
    queries: int | None = None, losses: bool = False, warm: bool = False,
) -> Cost:  # fmt: skip
    """Scale the time of a forward pass on so many tokens by the operations of windows of these lengths.

    `queries` of a window are measured, None: all. With `losses` the logits of all tokens are needed, too. In a `warm`
    process the kernels were loaded before the study began.
    """
    a_unit = seconds / _operations(model, tokens)
    needed = overhead * a_unit * sum(_operations(model, length) for length in lengths)
    memory = bytes_beside(model, max(lengths, default=0), tokens, queries=queries, losses=losses, warm=warm)
    return Cost(len(lengths), sum(lengths), needed, memory / 1e6)


def bytes_beside(
    model: LoadedModel, length: int, tokens: int, *, queries: int | None = None, losses: bool = False,
    warm: bool = False,
) -> float:  # fmt: skip
    """Memory beside the model for windows of at most this length, after a self-check on so many tokens."""
    return _bytes(model, length, tokens, queries, losses) + (0 if warm else _KERNELS)


def kernels_loaded() -> bool:
    """Whether this process has paid for the kernels."""
    return "numba" in sys.modules


def _operations(model: LoadedModel, length: int) -> float:
    """Those of the linear maps, and those of the attention scores, which grow with the square."""
    config = _text_config(model)
    linear = sum(p.numel() for p in model.network.parameters() if p.dim() == 2)
    return float(length * (linear + length * config.hidden_size * config.num_hidden_layers))


def _bytes(model: LoadedModel, length: int, tokens: int, queries: int | None, losses: bool) -> float:
    """The larger of the self-check on so many tokens, and of the largest window."""
    compared = checked_logits(model.network, tokens)
    check = compared * _PER_COMPARED_LOGIT + min(1.0, compared / (1 << 20)) * _PER_PIECE + _pass(model, tokens)
    measured = min(BLOCK, min(queries or length, length) * length * _text_config(model).num_attention_heads)
    window = measured * _PER_MEASURED_LOGIT + _pass(model, length)
    if losses:
        window += min(LOGITS_AT_ONCE, length * _text_config(model).vocab_size) * _PER_LOST_LOGIT
    return float(max(check, window))


def _pass(model: LoadedModel, length: int) -> float:
    """The activations of one layer; nothing is kept from layer to layer but the hidden states."""
    config = _text_config(model)
    inner = getattr(config, "intermediate_size", None) or 4 * config.hidden_size
    mask = length * length if getattr(config, "sliding_window", None) else 0
    return float(4 * length * (_STATES * config.hidden_size + 3 * inner) + mask)


def _text_config(model: LoadedModel) -> Any:
    network: Any = model.network
    return network.config.get_text_config()
