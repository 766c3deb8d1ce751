"""The loss of a causal language model on windows, which shows what a change of its attention costs.

Scored are all next tokens of a window or only the last N. Early queries see few keys, and a query that sees at most N
of them loses nothing by keeping N: the mean over all targets rises less than over the last ones, whose queries see
nearly the whole window. arXiv 2609.37879 scores the last 128 targets at every length to make lengths comparable.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from .._errors import AbbeError
from ..models import LoadedModel, Window, logits_in_pieces

LOGITS_AT_ONCE = 1 << 25  # numbers: 128 MiB in float32, and as much again for their logarithms
_LOGITS_FOR_A_LOOK = 1 << 24  # numbers: with a vocabulary of 262,144 the last 63 targets


def check_causal(model: LoadedModel, what: str) -> None:
    """Refuse a model that does not predict the next token."""
    if model.kind != "decoder":
        raise AbbeError(f"{model.name} is an {model.kind}: {what} needs a causal language model, which has a loss")
    if not _has_head(model):
        own = "; give loss=..., of every token" if hasattr(model.network, "token_losses") else ""
        raise AbbeError(f"{model.name} has no language-model head: {what} needs its loss{own}")


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
    if not vocabulary:  # of a loss that was given
        return None, None
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
    given = getattr(network, "token_losses", None)  # of a network that is not from transformers
    if given is not None and (losses := given(tokens[None].to(model.device))) is not None:
        part: Tensor = losses[first:].cpu().double()
        return part
    parts, start = [], first + 1
    for logits in logits_in_pieces(network, tokens, LOGITS_AT_ONCE, first):
        wanted = tokens[start : start + len(logits)].to(logits.device)  # one fewer at the end: nothing follows
        # Half precision would round a loss to three digits.
        parts.append(cross_entropy(logits[: len(wanted)].float(), wanted, reduction="none").cpu().double())
        start += len(logits)
    return torch.cat(parts)


ALL = "all"
_LAST = "last:"


def last_targets(targets: str) -> int | None:
    """128 of "last:128", None of "all"."""
    if targets == ALL:
        return None
    number = targets.removeprefix(_LAST) if isinstance(targets, str) and targets.startswith(_LAST) else ""
    if not (number.isascii() and number.isdigit() and int(number) >= 1):
        raise AbbeError(
            f"targets is {targets!r}, but must be all, or last:N with a whole number N >= 1, such as last:128"
        )
    return int(number)


def check_targets(targets: str, length: int) -> None:
    """A window has one target fewer than tokens: nothing precedes its first token."""
    last = last_targets(targets)
    if last is not None and last > length - 1:
        raise AbbeError(
            f"targets is {targets!r}, but windows of {length} tokens have only {length - 1} targets: name longer "
            "lengths, or fewer targets"
        )


def targets_words(targets: str) -> str:
    last = last_targets(targets)
    if last is None:
        return "all next tokens of each window"
    return "the last target of each window" if last == 1 else f"the last {last:,} targets of each window"
