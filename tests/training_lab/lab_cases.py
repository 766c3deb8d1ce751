"""Small tasks and runs of the lab."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import nn

from abbe.lab.network import AttentionSettings
from abbe.lab.run import Configuration, _generator
from abbe.lab.tasks import Task, make_task, stacked
from abbe.models import Text

CYCLE = "hello word, as if" * 200  # the next character is no function of the last one, but of the last two
ORDERED = "abcdefgh" * 400  # here it is one

SIZES: dict[str, dict[str, Any]] = {
    "recall": {"pairs": 8, "symbols": 16},
    "mqar": {"pairs": 2, "symbols": 16, "length": 16},
    "maximum": {"longest": 8, "lengths": (8, 32)},
    "text": {"length": 16},
}
WIDTHS = {"recall": 8, "mqar": 16, "maximum": 16, "text": 16}


def small(name: str, **sizes: Any) -> Task:
    return make_task(name, SIZES[name] | sizes, Text("cycle", CYCLE) if name == "text" else None)


def choice(name: str = "recall", **changed: Any) -> Configuration:
    usual = Configuration(
        normalizer="softmax", temperature="1", optimizer="adamw", rate=0.01, seeds=(0,), steps=20, batch=8,
        width=WIDTHS[name], heads=1, readings=6, test_size=32,
    )  # fmt: skip
    return replace(usual, **changed)


def untrained(task: Task, width: int, seeds: int = 1, heads: int = 1, **more: Any) -> nn.Module:
    settings = AttentionSettings(width, heads, **more)
    return task.network([_generator(seed, "weights") for seed in range(seeds)], settings, torch.float64)


@torch.no_grad()
def accuracy(task: Task, network: nn.Module, length: int | None = None, size: int = 64) -> float:
    """Of a network with one seed, on data that is never trained on."""
    batch = stacked([task.sample(torch.Generator().manual_seed(5), size, length, held_out=True)])
    scores = network(*(x.double() if x.is_floating_point() else x for x in batch.inputs))
    return float((scores.argmax(-1) == batch.targets).double().mean())


def put(parameter: torch.Tensor, value: torch.Tensor) -> None:
    """Into the only seed of a parameter, the rest 0."""
    with torch.no_grad():
        parameter.zero_()
        parameter[0, : value.shape[0], : value.shape[1]] = value


def without_times(content: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in content.items() if name != "seconds"}
