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
    forward, whole = [], []
    for number in range(rounds + 1):
        start = time.perf_counter()
        settings = abbe.compare(model, progress=False).manifest["settings"]
        taken = time.perf_counter() - start
        plain = _plain_seconds(model, settings)
        if number:  # the first compiles the kernels
            whole.append(taken)
            forward.append(plain)
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
