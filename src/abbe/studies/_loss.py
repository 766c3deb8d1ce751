"""The loss of a causal language model on windows: what a change of its attention costs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from .._errors import AbbeError
from ..models import LoadedModel, Window, logits_in_pieces

LOGITS_AT_ONCE = 1 << 25  # numbers: 128 MiB in float32, and as much again for their logarithms


def check_causal(model: LoadedModel, what: str) -> None:
    """Refuse a model that does not predict the next token."""
    if model.kind != "decoder":
        raise AbbeError(f"{model.name} is an {model.kind}: {what} needs a causal language model, which has a loss")
    if model.network.get_output_embeddings() is None:  # type: ignore[operator]
        raise AbbeError(f"{model.name} has no language-model head: {what} needs its loss")


@torch.no_grad()
def window_losses(
    model: LoadedModel, windows: Sequence[Window], on_window: Callable[[Window], object] | None = None
) -> Tensor:
    """Mean loss of the next token in every window, in nats: (window,), float64."""
    found = []
    for window in windows:
        found.append(next_token_losses(model, window.tokens).mean())
        if on_window is not None:
            on_window(window)
    return torch.stack(found)


@torch.no_grad()
def next_token_losses(model: LoadedModel, tokens: Tensor) -> Tensor:
    """-ln p of every token but the first, given those before it: (tokens - 1,), float64 on the CPU."""
    network: Any = model.network
    parts, start = [], 1
    for logits in logits_in_pieces(network, tokens, LOGITS_AT_ONCE):
        wanted = tokens[start : start + len(logits)].to(logits.device)  # one fewer at the end: nothing follows
        parts.append(cross_entropy(logits[: len(wanted)].float(), wanted, reduction="none").double().cpu())
        start += len(logits)
    return torch.cat(parts)
