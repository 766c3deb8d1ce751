"""The loss of a causal language model on windows: what a change of its attention costs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from .._errors import AbbeError
from ..models import LoadedModel, Window

_LOGITS_AT_ONCE = 1 << 26  # numbers: a quarter of a gigabyte in float32


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
    batch = tokens[None].to(network.device)
    logits = network(input_ids=batch, use_cache=False).logits[0, :-1]
    rows = max(1, _LOGITS_AT_ONCE // logits.shape[-1])
    parts = [
        cross_entropy(some.float(), wanted, reduction="none").double().cpu()
        for some, wanted in zip(torch.split(logits, rows), torch.split(batch[0, 1:], rows), strict=True)
    ]
    return torch.cat(parts)
