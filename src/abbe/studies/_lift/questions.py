"""Questions on top of a text that was read once: with the cache of keys and values a step of learning is cheap."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ...models import LoadedModel
from .pass_keys import Haystack


class Asked:
    """A haystack as the model reads it now, ready for its questions.

    What is special: keys and values of the text are those of the moment when it was read, and get no gradient. A change
    of the attention reaches the rows of the questions alone, until the text is read again.
    """

    def __init__(self, model: LoadedModel, haystack: Haystack) -> None:
        self._model, self._haystack = model, haystack
        self._cache = _cache_after(model, haystack.body)

    @property
    def is_cached(self) -> bool:
        """Whether the model keeps keys and values; without, every question reads the whole text, with gradients."""
        return self._cache is not None

    @property
    def bytes(self) -> int:
        layers = self._cache.layers if self._cache is not None else ()
        return sum(x.numel() * x.element_size() for layer in layers for x in (layer.keys, layer.values))

    def log_probabilities(self) -> Tensor:
        """Of the answer to each question, (questions,), with a gradient of what learns."""
        return torch.stack([self._answered(*question) for question in self._haystack.questions])

    def learn(self) -> float:
        """Add the gradient of minus the mean log-probability to what learns; returns the mean.

        Question by question: the graph of each holds a copy of the cache.
        """
        mean = 0.0
        for question in self._haystack.questions:
            part = self._answered(*question) / len(self._haystack.questions)
            (-part).backward()  # type: ignore[no-untyped-call]
            mean += float(part.detach())
        return mean

    def _answered(self, tokens: Tensor, width: int) -> Tensor:
        network: Any = self._model.network
        given = tokens if self.is_cached else torch.cat([self._haystack.body, tokens])
        given = given[None].to(self._model.device)
        kept = {"past_key_values": _fresh(self._cache)} if self.is_cached else {}
        logits = network(input_ids=given, use_cache=self.is_cached, **kept).logits[0, -width - 1 : -1].float()
        each: Tensor = logits.log_softmax(-1).gather(-1, given[0, -width:, None].to(logits.device))
        return each.sum()


def read_all(
    model: LoadedModel, some: Sequence[Haystack], most_bytes: int, on_read: Callable[[], object] = lambda: None
) -> list[Asked]:
    """As many as there is room for, one at least."""
    asked: list[Asked] = []
    for haystack in some:
        if asked and sum(one.bytes for one in asked) + asked[-1].bytes > most_bytes:
            break
        asked.append(Asked(model, haystack))
        on_read()
    return asked


@torch.no_grad()
def _cache_after(model: LoadedModel, tokens: Tensor) -> Any:
    """None from a model that keeps no keys and values by layer."""
    body: Any = model.network.base_model  # no logits are needed
    read = body(input_ids=tokens[None].to(model.device), use_cache=True)
    cache = getattr(read, "past_key_values", None)
    layers = getattr(cache, "layers", None) or (None,)
    return cache if all(isinstance(getattr(layer, "keys", None), Tensor) for layer in layers) else None


def _fresh(cache: Any) -> Any:
    """The same cache for one question: its layers take other tensors when they grow, so that shallow copies do."""
    one = copy.copy(cache)
    one.layers = [copy.copy(layer) for layer in cache.layers]
    return one
