"""The loss of a causal language model on windows: what a change of its attention costs."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from .._errors import AbbeError
from ..models import LoadedModel, Window

_LOGITS_AT_ONCE = 1 << 26  # numbers: a quarter of a gigabyte in float32
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
    """Loss of the next token in a window, and that of guessing among all tokens, ln V; None without such a loss.

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
    model: LoadedModel,
    windows: Sequence[Window],
    on_window: Callable[[Window], object] | None = None,
    last: int | None = None,
) -> Tensor:
    """Mean loss of the next token in every window, in nats: (window,), float64; of its last targets, if given."""
    found = []
    for window in windows:
        found.append(next_token_losses(model, window.tokens, last).mean())
        if on_window is not None:
            on_window(window)
    return torch.stack(found)


@torch.no_grad()
def next_token_losses(model: LoadedModel, tokens: Tensor, last: int | None = None) -> Tensor:
    """-ln p of every token but the first, given those before it: (tokens - 1,), float64 on the CPU.

    With `last` only of so many tokens at the end: (last,).
    """
    network: Any = model.network
    batch = tokens[None].to(network.device)
    wanted = batch[0, 1:] if last is None else batch[0, -last:]
    logits = network(input_ids=batch, use_cache=False, **_kept_logits(network, last)).logits[0, -len(wanted) - 1 : -1]
    rows = max(1, _LOGITS_AT_ONCE // logits.shape[-1])
    parts = [
        cross_entropy(some.float(), right, reduction="none").double().cpu()
        for some, right in zip(torch.split(logits, rows), torch.split(wanted, rows), strict=True)
    ]
    return torch.cat(parts)


def _kept_logits(network: Any, last: int | None) -> dict[str, int]:
    """Most models can leave out the logits of earlier positions, which for a large vocabulary cost the most."""
    if last is None or "logits_to_keep" not in inspect.signature(network.forward).parameters:
        return {}
    return {"logits_to_keep": last + 1}  # the last position predicts beyond the window
