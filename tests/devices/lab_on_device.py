"""Checks of the training lab: its runs on a device beside those of the CPU, which are given the same data."""

from __future__ import annotations

from typing import Any
from unittest import mock

import polars as pl
import torch
from device_checks import DEVICE, Checks, torch_path, without_double
from device_models import same_tables

import abbe
from abbe.lab import run
from abbe.lab.tasks import make_task

checks = Checks()
# Optimizers divide by sizes of gradients: after some steps weights differ by more than a rounding.
TRAINED = 1e-4
SIZES: dict[str, dict[str, Any]] = {
    "recall": {"pairs": 8, "symbols": 16},
    "mqar": {"pairs": 2, "symbols": 16, "length": 16},
    "maximum": {"longest": 8, "lengths": (8, 32)},
    "text": {"length": 16},
}
TEXT = abbe.Text("cycle", "hello word, as if" * 200)


@checks.add("train recall")
def recalled() -> None:
    """A whole experiment, by its public name."""

    def work(device: str) -> abbe.Experiment:
        return abbe.train_recall(
            normalizers=["softmax", "sparsemax"], rates=0.01, seeds=2, steps=10, workers=1, device=device,
            progress=False,
        )  # fmt: skip

    with torch_path():
        wanted = work("cpu")
    result = work(DEVICE)
    same_tables(result.curves, wanted.curves, TRAINED)
    same_tables(result.table, wanted.table, TRAINED)
    assert (result.manifest["model"]["device"], result.manifest["identity"]["device"]) == (DEVICE, DEVICE)
    assert wanted.manifest["identity"]["device"] == "cpu"


def trained(task: str, read_on: str = DEVICE, **changed: Any) -> None:
    """One run of two seeds: curves, alerts, accuracy and learned temperatures."""

    usual: dict[str, Any] = {
        "normalizer": "softmax", "temperature": "1", "optimizer": "adamw", "rate": 0.01, "heads": 1,
        "seeds": (0, 1), "steps": 8, "batch": 8, "width": 16, "readings": 4, "test_size": 16,
    }  # fmt: skip
    choice = run.Configuration(**(usual | changed))

    def work(device: str) -> tuple[pl.DataFrame, pl.DataFrame]:
        content = run.train(make_task(task, SIZES[task], TEXT), choice, device=torch.device(device))
        seeds = [
            one | {f"{n} {i}": x for n, values in one["lengths"].items() for i, x in enumerate(values)}
            | {"temperature": one["temperature"][0]}
            for one in content["seeds"]
        ]  # fmt: skip
        kept = [{k: v for k, v in one.items() if isinstance(v, int | float)} | one["alerts"] for one in seeds]
        curves = [{"loss": one["losses"]} | one["quantities"] for one in seeds]
        return pl.DataFrame(kept), pl.concat(
            [pl.DataFrame(one, strict=False) for one in curves], how="vertical_relaxed"
        )

    with torch_path():
        wanted = work("cpu")
    with mock.patch.object(run, "measure_layers", wraps=run.measure_layers) as measured:
        result = work(DEVICE)
    places = {layer.logits.device.type for call in measured.call_args_list for layer in call.args[0]}
    assert places == {read_on}
    for on_device, on_cpu in zip(result, wanted, strict=True):
        same_tables(on_device, on_cpu, TRAINED)


RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "recall with softmax": ("recall", {}),
    "recall with sparsemax": ("recall", {"normalizer": "sparsemax"}),
    "recall by muon, compensated": ("recall", {"optimizer": "muon", "temperature": "0.1", "compensated": True}),
    "mqar with a map that learns": ("mqar", {"normalizer": "entmax:alpha=1.5,learn=true", "optimizer": "muon"}),
    "maximum, tested with another map": (
        "maximum", {"normalizer": "adaptive-temperature", "trained_with": "softmax", "optimizer": "sgd"},
    ),
    "text at a learned temperature": ("text", {"temperature": "learned", "qk_norm": True, "heads": 2}),
}  # fmt: skip
for _name, (_task, _changed) in RUNS.items():
    checks.add(f"one run of {_name}")(lambda task=_task, changed=_changed: trained(task, **changed))


@checks.add("one run of mqar without float64")
def trained_without_double() -> None:
    """What is read is measured on the CPU."""
    with without_double():
        trained("mqar", "cpu", normalizer="entmax:alpha=1.5,learn=true", temperature="learned")
