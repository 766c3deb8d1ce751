"""Speed of swapped models: a forward pass and a token with cache, against the model's own SDPA in the same run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import abbe

Row = dict[str, object]

LENGTH = 1024
SPECS = ("softmax", "entmax:alpha=1.5", "entmax:alpha=1.25", "sparsemax", "topk:k=32", "topp:p=0.9", "sink:b=2")


def swap_rows(emit: Callable[[Row], None], best_times: Callable[..., list[float]], budget: float) -> None:
    """The embedded model at its full context; own attention and swapped one alternate."""
    model: Any = abbe.load("embedded")
    tokens = model.tokenizer(abbe.read_text().content[: 8 * LENGTH], return_tensors="pt").input_ids[:, :LENGTH]
    for spec in SPECS:
        with torch.no_grad():
            whole, step = _whole(model.network, tokens), _step(model.network, tokens)
            for label, run, least in (("forward 1x1024", whole, 4 * budget), ("a token at 1023", step, 2 * budget)):
                own, swapped = best_times([run, _swapped(model.network, spec, run)], least)
                emit({"part": "swap", "name": spec, "shape": label, "ratio": swapped / own})


def _whole(network: Any, tokens: torch.Tensor) -> Callable[[], object]:
    return lambda: network(input_ids=tokens, use_cache=False)


def _step(network: Any, tokens: torch.Tensor) -> Callable[[], object]:
    """The last token after a cache of all before it, which is cut back so that every call is the same."""
    from transformers import DynamicCache

    cache = DynamicCache(config=network.config)
    network(input_ids=tokens[:, :-1], past_key_values=cache)

    def run() -> None:
        network(input_ids=tokens[:, -1:], past_key_values=cache)
        cache.crop(LENGTH - 1)

    return run


def _swapped(network: Any, spec: str, run: Callable[[], object]) -> Callable[[], object]:
    """Installing and restoring is part of the call, and small beside it only for a forward pass."""

    def swapped() -> None:
        with abbe.swap(network, spec):
            run()

    return swapped
