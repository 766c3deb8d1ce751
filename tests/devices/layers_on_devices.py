"""Checks of a network whose layers are on several devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import polars as pl
import pytest
import tiny_models
import tiny_runs
import torch
import torch.utils._pytree as tree
from device_checks import DEVICE, Checks, has_double, torch_path, without_double
from device_models import ROUNDING, Model, compared, model, same_tables, word_model
from torch import Tensor

import abbe

checks = Checks()


def sent(given: Any, place: str) -> Any:
    """Tensors in any nesting on another device, with the graph of their gradients."""
    return tree.tree_map_only(Tensor, lambda x: x.to(place), given, is_leaf=lambda x: isinstance(x, Tensor))


def spread(made: Model, places: list[str], head: str | None = None) -> Model:
    """Layers on several devices, as transformers' device_map places them: states follow by hooks before each layer."""
    network: Any = made.network
    parts = dict(zip(network.model.layers, places, strict=True))
    parts |= dict.fromkeys((network.model.norm, network.lm_head), head or str(network.device))
    for part, place in parts.items():
        part.to(place)
        part.register_forward_pre_hook(lambda _, *given, place=place: sent(given, place), with_kwargs=True)
    return made


def spread_diagnosis(places: list[str], first: str, head: str | None = None, vectors: str = "value") -> None:
    """Every layer is measured where it lives."""
    seen: list[str] = []

    def work(made: Model) -> pl.DataFrame:
        with abbe.tap(made.network) as tap:
            tap.listen(lambda call: seen.append(str(call.weights(torch.tensor([3])).device)))
            with torch.no_grad():
                made.network(input_ids=torch.arange(2, 14)[None].to(made.network.device))
        options = {"lengths": [16]} | tiny_runs.QUICK | {"windows": 2, "queries": 4, "sizes": (1, 3)}
        table = abbe.diagnose(made, tiny_runs.TEXT, **options, vectors=vectors).table
        # Equal tokens have equal embeddings: ties, which rounding decides.
        plain = pl.col("measure").is_in(["entropy", "top_mass", "distance"])
        return table.filter(plain) if vectors == "embedding" else table

    with torch_path():
        plain = model("llama", "cpu")
        wanted = work(plain)
        seen.clear()
        moved = spread(model("llama", first), places, head)
        assert (str(moved.device), moved.devices) == (first, "+".join(sorted({first, *places})))
        assert moved.fingerprint == plain.fingerprint
        result = work(moved)
    assert seen == [place if has_double() else "cpu" for place in places]
    same_tables(result, wanted)


TWO = ["pretend:0", "pretend:1"]
checks.add("diagnose a network on two devices", TWO, "pretend:0", quick=True)(spread_diagnosis)
checks.add("diagnose a network on CPU and device", ["pretend:0", "cpu"], "pretend:0")(spread_diagnosis)
checks.add("diagnose a network on device and CPU", ["cpu", "pretend:0"], "cpu")(spread_diagnosis)
for _vectors in ("value", "embedding", "output"):
    _name = f"diagnose {_vectors}s of a network with its head on the second device"
    checks.add(_name, TWO, "pretend:0", "pretend:1", _vectors)(spread_diagnosis)


def llama(device: str) -> Model:
    return model("llama", device)


def words(device: str) -> Model:
    return word_model(device, tiny_models.llama)


def on_two_devices(work: Callable[[Model], pl.DataFrame], rel: float, make: Callable[[str], Model]) -> None:
    """A study of a network with its second layer on the CPU, which can also be differentiated."""
    with torch_path():
        wanted = work(make("cpu"))
        result = work(spread(make(DEVICE), ["pretend:0", "cpu"]))
    same_tables(result, wanted, rel)


SHORT: dict[str, Any] = {"windows": 2, "queries": 8, "resamples": 50, "progress": False}
REPORT = tiny_runs.QUICK | {"lengths": [16, 40], "temperatures": (0.1, 1.0)}
FITTED = SHORT | {
    "normalizer": "entmax:alpha=1.5", "windows": 3, "held_out": 2, "length": 32, "steps": 2, "finetune": 2
}  # fmt: skip
BOTH = ["sparsemax", "entmax:alpha=1.5,learn=true"]
STUDIES: dict[str, tuple[Callable[[Model], pl.DataFrame], float, Callable[[str], Model]]] = {
    "report of": (lambda made: abbe.report(made, tiny_runs.TEXT, **REPORT).run.table, ROUNDING, llama),
    "capacity of": (lambda made: abbe.capacity(made, tiny_runs.TEXT, lengths=[16], **SHORT).table, ROUNDING, llama),
    "calibrate": (lambda made: abbe.calibrate(made, tiny_runs.TEXT, **FITTED).table, 1e-3, llama),
    "compare normalizers of": (lambda made: compared(made, BOTH), ROUNDING, words),
}
for _name, _given in STUDIES.items():
    checks.add(f"{_name} a network on CPU and device", *_given)(on_two_devices)


@checks.add("calibrate says that float64 is missing")
def no_calibration() -> None:
    why = f"{DEVICE}:0 has no float64, which the fit needs for its sums: calibrate with device cpu"
    with without_double(), pytest.raises(abbe.AbbeError, match=why):
        abbe.calibrate(llama(DEVICE), tiny_runs.TEXT, length=24, held_out=2, windows=2, steps=2, progress=False)
