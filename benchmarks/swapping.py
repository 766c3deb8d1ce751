"""Speed of swapped models: a forward pass and a token with cache, against the model's own SDPA in the same run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import abbe

Row = dict[str, object]

LENGTH = 1024
SPECS = ("softmax", "entmax:alpha=1.5", "entmax:alpha=1.25", "sparsemax", "topk:k=32", "topp:p=0.9", "sink:b=2")


@torch.no_grad()
def swap_rows(emit: Callable[[Row], None], best_times: Callable[..., list[float]], budget: float) -> None:
    """The embedded model at its full context, beside a second one with other normalizers."""
    own: Any = abbe.load("embedded")
    other: Any = abbe.load("embedded")
    tokens = own.tokenizer(abbe.read_text().content[: 4 * LENGTH], return_tensors="pt").input_ids[:, :LENGTH]
    for spec in SPECS:
        with abbe.swap(other, spec):
            for label, make in ((f"forward 1x{LENGTH}", _whole), (f"a token at {LENGTH}", _step)):
                plain, swapped = best_times([make(own.network, tokens), make(other.network, tokens)], 4 * budget)
                emit({"part": "swap", "name": spec, "shape": label, "ratio": swapped / plain})


def _whole(network: Any, tokens: torch.Tensor) -> Callable[[], object]:
    return lambda: network(input_ids=tokens, use_cache=False)


def _step(network: Any, tokens: torch.Tensor) -> Callable[[], object]:
    """The last token after a cache of all before it, which is cut back so that every call is the same."""
    from transformers import DynamicCache

    cache = DynamicCache(config=network.config)
    network(input_ids=tokens[:, :-1], past_key_values=cache)

    def run() -> None:
        network(input_ids=tokens[:, -1:], past_key_values=cache)
        cache.crop(-1)

    return run
