"""The logits of a causal language model in pieces: those of all tokens may be larger than the model itself."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

from .._errors import AbbeError
from ._load.device import input_device


def logits_in_pieces(network: Any, tokens: Tensor, most: int, first: int = 0) -> Iterator[Tensor]:
    """The logits of one row of tokens in pieces: those of all may be larger than the model itself.

    The body of the model runs once. For each piece the model runs again with a stand-in for its body, which returns the
    states of these tokens: so the model itself computes their logits, with everything that it does besides the head.

    Args:
        network: a causal language model of transformers.
        tokens: ids, (tokens,).
        most: approximate number of logits in a piece.
        first: number of the first token whose logits are wanted.

    Yields:
        Logits (tokens of the piece, vocabulary).

    Examples:
        >>> network = abbe.load("embedded").network
        >>> pieces = abbe.models.logits_in_pieces(network, torch.arange(16), most=4 * network.config.vocab_size)
        >>> [len(piece) for piece in pieces]
        [4, 4, 4, 4]
    """
    batch = tokens[None].to(input_device(network))
    head, body = network.get_output_embeddings(), network.base_model_prefix
    # The packed weights of a quantised head do not have the shape of the logits.
    vocabulary = getattr(head, "out_features", None) or len(head.weight)
    rows, wanted = max(1, most // vocabulary), len(tokens) - first
    if rows >= wanted or not isinstance(network._modules.get(body), nn.Module):
        some = {"logits_to_keep": wanted} if first and makes_some_logits(network) else {}
        yield network(input_ids=batch, use_cache=False, **some).logits[0, -wanted:]
        return
    original = network._modules[body]
    result = original(input_ids=batch, use_cache=False)
    states = result.last_hidden_state
    try:
        network._modules[body] = _StandIn(result)
        for start in range(first, len(tokens), rows):
            result.last_hidden_state = states[:, start : start + rows]
            logits = network(input_ids=batch, use_cache=False).logits[0]
            if len(logits) != result.last_hidden_state.shape[1]:
                raise AbbeError(f"unsupported: {type(network).__name__} does not give one row of logits per token")
            yield logits
    finally:
        network._modules[body] = original


def makes_some_logits(network: Any) -> bool:
    """Whether the model can skip the logits of earlier tokens."""
    return "logits_to_keep" in inspect.signature(network.forward).parameters


class _StandIn(nn.Module):
    def __init__(self, result: Any) -> None:
        super().__init__()
        self._result = result

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._result
