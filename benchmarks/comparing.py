"""Speed of a default comparison of the embedded model, against one plain forward pass of the windows that it reads."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

import abbe
from abbe.models import windows as cut_windows

Row = dict[str, object]


@torch.no_grad()
def compare_rows(emit: Callable[[Row], None], rounds: int) -> None:
    """Best times of the whole call and of the plain pass, which alternate; loading the model is in neither."""
    model: Any = abbe.load("embedded")
    abbe.compare(model, length=256, windows=1, needle_lengths=[128], prompts=1, progress=False)  # compiles the kernels
    forward, whole = [], []
    for _ in range(rounds):
        start = time.perf_counter()
        settings = abbe.compare(model, progress=False).manifest["settings"]
        whole.append(time.perf_counter() - start)
        forward.append(_plain_seconds(model, settings))
    shape = f"{settings['windows']}x{settings['length']}"
    name = f"own and {len(settings['alternatives'])} alternatives"
    emit({"part": "compare", "name": name, "shape": shape, "seconds": min(whole), "ratio": min(whole) / min(forward)})


def _plain_seconds(model: Any, settings: dict[str, Any]) -> float:
    """Of the model's own forward passes over the windows of these settings, one by one as a comparison reads them."""
    read = cut_windows(
        abbe.read_text(), (settings["length"],), settings["windows"], settings["seed"],
        tokenizer=model.tokenizer, context=model.context,
    )  # fmt: skip
    start = time.perf_counter()
    for window in read:
        model.network(input_ids=window.tokens[None], use_cache=False)
    return time.perf_counter() - start
