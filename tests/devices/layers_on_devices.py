"""Checks of a network whose layers are on several devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import polars as pl
import tiny_models
import tiny_runs
import torch
import torch.utils._pytree as tree
from device_checks import DEVICE, Checks, torch_path
from device_models import ROUNDING, Model, compared, model, same_tables, word_model
from torch import Tensor

import abbe

checks = Checks()


def sent(given: Any, place: str) -> Any:
    """Tensors in any nesting on another device, with the graph of their gradients."""
    return tree.tree_map_only(Tensor, lambda x: x.to(place), given, is_leaf=lambda x: isinstance(x, Tensor))


def spread(made: Model, places: list[str]) -> Model:
    """Layers on several devices, as transformers' device_map places them: states follow by hooks before each layer."""
    network: Any = made.network
    for layer, place in zip(network.model.layers, places, strict=True):
        layer.to(place)
        layer.register_forward_pre_hook(lambda _, *given, place=place: sent(given, place), with_kwargs=True)
    network.model.norm.register_forward_pre_hook(lambda _, args: sent(args, str(network.device)))
    return made


def spread_diagnosis(places: list[str], first: str) -> None:
    """Every layer is measured where it lives."""
    seen: list[str] = []

    def work(made: Model) -> pl.DataFrame:
        with abbe.tap(made.network) as tap:
            tap.listen(lambda call: seen.append(str(call.weights(torch.tensor([3])).device)))
            with torch.no_grad():
                made.network(input_ids=torch.arange(2, 14)[None].to(made.network.device))
        options = {"lengths": [16]} | tiny_runs.QUICK | {"windows": 2, "queries": 4, "sizes": (1, 3)}
        return abbe.diagnose(made, tiny_runs.TEXT, **options).table

    with torch_path():
        wanted = work(model("llama", "cpu"))
        seen.clear()
        result = work(spread(model("llama", first), places))
    assert seen == places
    same_tables(result, wanted)


checks.add("diagnose a network on two devices", ["pretend:0", "pretend:1"], "pretend:0", quick=True)(spread_diagnosis)
checks.add("diagnose a network on CPU and device", ["pretend:0", "cpu"], "pretend:0")(spread_diagnosis)
checks.add("diagnose a network on device and CPU", ["cpu", "pretend:0"], "cpu")(spread_diagnosis)


def llama(device: str) -> Model:
    return model("llama", device)


def on_two_devices(
    work: Callable[[Model], pl.DataFrame], rel: float = ROUNDING, make: Callable[[str], Model] = llama
) -> None:
    """A study of a network with its second layer on the CPU, which can also be differentiated."""
    with torch_path():
        wanted = work(make("cpu"))
        result = work(spread(make(DEVICE), ["pretend:0", "cpu"]))
    same_tables(result, wanted, rel)


@checks.add("report of a network on CPU and device")
def spread_report() -> None:
    options = tiny_runs.QUICK | {"lengths": [16, 40], "temperatures": (0.1, 1.0)}
    on_two_devices(lambda made: abbe.report(made, tiny_runs.TEXT, **options).run.table)


@checks.add("capacity of a network on CPU and device")
def spread_capacity() -> None:
    options: dict[str, Any] = {"lengths": [16], "windows": 2, "queries": 8, "resamples": 50, "progress": False}
    on_two_devices(lambda made: abbe.capacity(made, tiny_runs.TEXT, **options).table)


@checks.add("calibrate a network on CPU and device")
def spread_calibration() -> None:
    options: dict[str, Any] = {
        "normalizer": "entmax:alpha=1.5", "windows": 3, "held_out": 2, "length": 32, "queries": 8, "steps": 2,
        "finetune": 2, "resamples": 50, "progress": False,
    }  # fmt: skip
    on_two_devices(lambda made: abbe.calibrate(made, tiny_runs.TEXT, **options).table, 1e-3)


@checks.add("compare normalizers of a network on CPU and device")
def spread_comparison() -> None:
    def words(device: str) -> Model:
        return word_model(device, tiny_models.llama)

    on_two_devices(lambda made: compared(made, ["sparsemax", "entmax:alpha=1.5,learn=true"]), make=words)
