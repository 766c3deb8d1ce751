"""The loss of a causal language model on windows: what a change of its attention costs."""

from __future__ import annotations

import inspect
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
