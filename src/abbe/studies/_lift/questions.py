"""Questions about a text that was read once: with cached keys and values, a step of learning is cheap."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ...models import LoadedModel
from .pass_keys import Haystack


class ReadHaystack:
    """A haystack that the model has read, ready for its questions.

    What is special: keys and values of the text stay as they were when it was read, and get no gradient. A change of
    the attention affects only the rows of the questions, until the text is read again.
    """

    def __init__(self, model: LoadedModel, haystack: Haystack) -> None:
        self._model, self._haystack = model, haystack
        self._cache = _cache_after(model, haystack.body)

    @property
    def is_cached(self) -> bool:
        """Whether the model caches keys and values; if not, every question reads the whole text, with gradients."""
        return self._cache is not None

    @property
    def bytes(self) -> int:
        layers = self._cache.layers if self._cache is not None else ()
        return sum(x.numel() * x.element_size() for layer in layers for x in (layer.keys, layer.values))

    def learn(self) -> float:
        """Add the gradient of minus the mean log-probability to the learning parameters; returns the mean.

        Question by question, since each graph holds a copy of the cache.
        """
        mean = 0.0
        for question in self._haystack.questions:
            part = self.log_probability(*question) / len(self._haystack.questions)
            (-part).backward()  # type: ignore[no-untyped-call]
            mean += float(part.detach())
        return mean

    def log_probability(self, tokens: Tensor, width: int) -> Tensor:
        """Of the answer, the last `width` tokens of a question; with gradients of the learning parameters."""
        network: Any = self._model.network
        tokens = tokens if self.is_cached else torch.cat([self._haystack.body, tokens])
        tokens = tokens[None].to(self._model.device)
        past = {"past_key_values": _fresh(self._cache)} if self.is_cached else {}
        logits = network(input_ids=tokens, use_cache=self.is_cached, **past).logits[0, -width - 1 : -1].float()
        each: Tensor = logits.log_softmax(-1).gather(-1, tokens[0, -width:, None].to(logits.device))
        return each.sum()


def read_all(
    model: LoadedModel, haystacks: Sequence[Haystack], most_bytes: int, on_read: Callable[[], object] = lambda: None
) -> list[ReadHaystack]:
    """As many as fit into memory, at least one."""
    read: list[ReadHaystack] = []
    for haystack in haystacks:
        if read and sum(one.bytes for one in read) + read[-1].bytes > most_bytes:
            break
        read.append(ReadHaystack(model, haystack))
        on_read()
    return read


@torch.no_grad()
def _cache_after(model: LoadedModel, tokens: Tensor) -> Any:
    """None if the model does not cache keys and values by layer."""
    body: Any = model.network.base_model  # no logits are needed
    output = body(input_ids=tokens[None].to(model.device), use_cache=True)
    cache = getattr(output, "past_key_values", None)
    layers = getattr(cache, "layers", None) or (None,)
    return cache if all(isinstance(getattr(layer, "keys", None), Tensor) for layer in layers) else None


def _fresh(cache: Any) -> Any:
    """The same cache for one question. Shallow copies suffice: layers take new tensors when they grow."""
    fresh = copy.copy(cache)
    fresh.layers = [copy.copy(layer) for layer in cache.layers]
    return fresh
