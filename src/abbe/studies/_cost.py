"""What a run will cost, told before it starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..models import LoadedModel
from ._window import BLOCK

DIAGNOSIS = 1.5  # time with measures over time without; `make bench ARGS="--part diagnose"` measures it
_BYTES_A_LOGIT = 130  # of a block: logits, weights, orders, and the dot products of all set sizes


@dataclass(frozen=True)
class Cost:
    """An estimate: seconds, and megabytes beyond the model."""

    windows: int
    tokens: int
    seconds: float
    megabytes: float

    def __str__(self) -> str:
        time_needed = f"{self.seconds:.0f} s" if self.seconds < 120 else f"{self.seconds / 60:.0f} min"
        return (
            f"{self.windows} windows, {self.tokens:,} tokens: about {time_needed} and {self.megabytes:.0f} MB "
            "beside the model"
        )


def estimate(
    model: LoadedModel, lengths: Sequence[int], tokens: int, seconds: float, overhead: float = DIAGNOSIS
) -> Cost:
    """Scale the time of a forward pass on so many tokens by the operations of windows of these lengths."""
    a_unit = seconds / _operations(model, tokens)
    needed = overhead * a_unit * sum(_operations(model, length) for length in lengths)
    return Cost(len(lengths), sum(lengths), needed, _megabytes(model, max(lengths, default=0)))


def _operations(model: LoadedModel, length: int) -> float:
    """Those of the linear maps, and those of the attention scores, which grow with the square."""
    config = _text_config(model)
    linear = sum(p.numel() for p in model.network.parameters() if p.dim() == 2)
    return float(length * (linear + length * config.hidden_size * config.num_hidden_layers))


def _megabytes(model: LoadedModel, length: int) -> float:
    """A block of the measures, and the activations of one layer."""
    config = _text_config(model)
    block = min(BLOCK, length * length * config.num_attention_heads)
    return float(block * _BYTES_A_LOGIT + 20 * 4 * length * config.hidden_size) / 1e6


def _text_config(model: LoadedModel) -> Any:
    network: Any = model.network
    return network.config.get_text_config()
