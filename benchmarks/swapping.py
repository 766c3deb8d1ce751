"""Speed of swapped, exported and named models, against the model's own SDPA or against the swap, in the same run."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import abbe

Row = dict[str, object]

LENGTH = 1024
LONG = 2048  # keys of a step in which the original is matched
SPECS = ("softmax", "entmax:alpha=1.5", "entmax:alpha=1.25", "sparsemax", "topk:k=32", "topp:p=0.9", "sink:b=2")
CARRIED = "entmax:alpha=1.5"


@torch.no_grad()
def swap_rows(emit: Callable[[Row], None], best_times: Callable[..., list[float]], budget: float) -> None:
    """The embedded model at its full context, beside a second one with other normalizers; then SmolLM2, if pulled."""
    own: Any = abbe.load("embedded")
    other: Any = abbe.load("embedded")
    tokens = own.tokenizer(abbe.read_text().content[: 4 * LENGTH], return_tensors="pt").input_ids[:, :LENGTH]
    for spec in SPECS:
        with abbe.swap(other, spec):
            for label, make in ((f"forward 1x{LENGTH}", _whole), (f"a token at {LENGTH}", _step)):
                plain, swapped = best_times([make(own.network, tokens), make(other.network, tokens)], 4 * budget)
                emit({"part": "swap", "name": spec, "shape": label, "ratio": swapped / plain})
    _shipped("embedded", tokens, emit, best_times, budget)
    if abbe.models.is_pulled("smollm2"):
        model: Any = abbe.load("smollm2")
        text = abbe.read_text().content
        tokens = model.tokenizer(text[: 8 * LONG], return_tensors="pt").input_ids[:, :LONG]
        _shipped("smollm2", tokens, emit, best_times, budget)


def _shipped(
    name: str, tokens: torch.Tensor, emit: Callable[[Row], None], best_times: Callable[..., list[float]], budget: float
) -> None:
    """The exported folder and the named model over the swap, and the swap over the original, with equal weights."""
    own: Any = abbe.load(name)
    other: Any = abbe.load(name)
    named: Any = abbe.load(name)
    named.network.set_attn_implementation("abbe:entmax-1.5")
    with tempfile.TemporaryDirectory() as work:
        exported: Any = abbe.load(abbe.export(name, CARRIED, Path(work) / "exported").folder)
        with abbe.swap(other, CARRIED):
            for label, make in ((f"forward 1x{tokens.shape[1]}", _whole), (f"a token at {tokens.shape[1]}", _step)):
                networks = [each.network for each in (own, other, exported, named)]
                plain, swap, export, by_name = best_times([make(one, tokens) for one in networks], 8 * budget)
                shape = f"{name}, {label}"
                for what, ratio in (
                    ("swap/original", swap / plain),
                    ("export/swap", export / swap),
                    ("named/swap", by_name / swap),
                ):
                    emit({"part": "swap", "name": what, "shape": shape, "ratio": ratio})


def _whole(network: Any, tokens: torch.Tensor) -> Callable[[], object]:
    return lambda: network(input_ids=tokens, use_cache=False, logits_to_keep=1)


def _step(network: Any, tokens: torch.Tensor) -> Callable[[], object]:
    """The last token after a cache of all before it, which is cut back so that every call is the same."""
    from transformers import DynamicCache

    cache = DynamicCache(config=network.config)
    network(input_ids=tokens[:, :-1], past_key_values=cache, logits_to_keep=1)

    def run() -> None:
        network(input_ids=tokens[:, -1:], past_key_values=cache)
        cache.crop(-1)

    return run
