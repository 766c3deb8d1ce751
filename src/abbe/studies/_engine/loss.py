"""The loss of a causal language model on windows, which shows what a change of its attention costs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from ..._errors import AbbeError
from ...models import LoadedModel, Window, logits_in_pieces

LOGITS_AT_ONCE = 1 << 25  # numbers: 128 MiB in float32, and as much again for their logarithms
_LOGITS_FOR_A_LOOK = 1 << 24  # numbers: with a vocabulary of 262,144 the last 63 targets


def check_causal(model: LoadedModel, what: str) -> None:
    """Refuse a model that does not predict the next token."""
    if model.kind != "decoder":
        raise AbbeError(f"{model.name} is an {model.kind}: {what} needs a causal language model, which has a loss")
    if not _has_head(model):
        raise AbbeError(f"{model.name} has no language-model head: {what} needs its loss")


def _has_head(model: LoadedModel) -> bool:
    network: Any = model.network
    return network.get_output_embeddings() is not None


def loss_and_guessing(model: LoadedModel, window: Window) -> tuple[float | None, float | None]:
    """Next-token loss of a window, and that of guessing among all tokens, ln V; None for a model without a loss.

    With a large vocabulary only the last targets are scored, so that the logits stay small.
    """
    if model.kind != "decoder" or not _has_head(model) or window.length < 2:
        return None, None
    network: Any = model.network
    vocabulary = network.config.get_text_config().vocab_size
    last = min(window.length - 1, max(1, _LOGITS_FOR_A_LOOK // vocabulary - 1))
    loss = float(next_token_losses(model, window.tokens, last).mean())
    return (loss, math.log(vocabulary)) if math.isfinite(loss) else (None, None)


@torch.no_grad()
def window_losses(
    model: LoadedModel, windows: Sequence[Window], on_window: Callable[[Window], object] = lambda window: None,
    last: int | None = None,
) -> Tensor:  # fmt: skip
    """Mean next-token loss per window in nats, over all or only the `last` targets: (window,), float64."""
    losses = []
    for window in windows:
        losses.append(next_token_losses(model, window.tokens, last).mean())
        on_window(window)
    return torch.stack(losses)


@torch.no_grad()
def next_token_losses(model: LoadedModel, tokens: Tensor, last: int | None = None) -> Tensor:
    """-ln p of every token except the first, given those before it: (tokens - 1,), float64 on the CPU.

    With `last`, only of that many tokens at the end: (last,).
    """
    network: Any = model.network
    first = 0 if last is None else len(tokens) - 1 - last
    parts, start = [], first + 1
    for logits in logits_in_pieces(network, tokens, LOGITS_AT_ONCE, first):
        wanted = tokens[start : start + len(logits)].to(logits.device)  # one fewer at the end: nothing follows
        # Half precision would round a loss to three digits.
        parts.append(cross_entropy(logits[: len(wanted)].float(), wanted, reduction="none").cpu().double())
        start += len(logits)
    return torch.cat(parts)
