"""Tiny models on the CPU and on the pretend device, and how their numbers are compared.

The network is moved before abbe sees it. Its attention is torch's plain operations ("eager"), so that the CPU computes
what the device does; where other roundings remain, a check states how far numbers may differ.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import needle_models
import polars as pl
import tiny_models
import tiny_runs
import torch
from device_checks import DEVICE, torch_path
from torch import nn

import abbe
from abbe.models import LoadedModel, wrap

Model = LoadedModel
# Sums of float32 products that torch takes in another order, and what is drawn from their last digits.
ROUNDING = 2e-5


def model(family: str = "gpt2", device: str = DEVICE, dtype: torch.dtype = torch.float32) -> Model:
    made: Any = tiny_runs.model(family).network
    made.set_attn_implementation("eager")
    return wrap(made.to(dtype).to(device), tiny_models.byte_tokenizer(), f"tiny {family}")


def on_both(work: Callable[[Model], Any], make: Callable[[str], Model] = lambda device: model(device=device)) -> Any:
    """What the device and what the CPU without kernels give."""
    with torch_path():
        wanted = work(make("cpu"))
    return work(make(DEVICE)), wanted


def same_tables(
    on_device: pl.DataFrame, on_cpu: pl.DataFrame, rel: float = ROUNDING, skip: str = "^seconds.*$"
) -> None:
    """The same rows, numbers within `rel` of themselves or of 1."""
    a, b = on_device.select(pl.exclude(skip)), on_cpu.select(pl.exclude(skip))
    assert a.schema == b.schema
    assert a.height == b.height > 0
    for name, kind in a.schema.items():
        if not kind.is_float():
            assert a[name].equals(b[name], null_equal=True), name
            continue
        x, y = (torch.tensor(frame[name].fill_null(torch.nan).to_list(), dtype=torch.float64) for frame in (a, b))
        torch.testing.assert_close(x, y, rtol=rel, atol=rel, equal_nan=True, msg=lambda m, name=name: f"{name}: {m}")


def word_model(device: str, build: Callable[..., nn.Module] = tiny_models.gpt2) -> Model:
    tokenizer = needle_models.word_tokenizer()
    network: Any = build(vocab_size=len(tokenizer))
    network.set_attn_implementation("eager")
    return wrap(network.to(device), tokenizer, "tiny")


def compared(made: Model, normalizers: list[str]) -> pl.DataFrame:
    comparison = abbe.compare(
        made, needle_models.TEXT, normalizers=normalizers, length=40, windows=3, queries=6, needle_lengths=[31, 40],
        prompts=1, resamples=50, progress=False,
    )  # fmt: skip
    return comparison.table.select(pl.exclude("seconds", "time_ratio", "extra_megabytes"))
