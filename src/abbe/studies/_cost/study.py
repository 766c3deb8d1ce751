"""cost: what a study of a model will take, from its shape and rates; no weights are read, nothing long is run."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl
import torch
from torch import nn

from ..._arguments import positive, shown, whole
from ..._errors import AbbeError
from ...models import LoadedModel, Shape, built, configuration, llama_configuration, shape_of
from ...runs.cost import KERNELS, Memory, memory_of
from ...runs.settings import REPORT_LENGTHS, REPORT_TEMPERATURES, Settings, settings_for
from ...runs.watch import watching
from ...words.numbers import number
from .probe import measured_rates
from .rates import Rates, rates_given
from .result import SCHEMA, Costs

STUDIES = ("diagnose", "report", "pass")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_STEP = 1.25  # factor of the length over which an exponent is taken: blocks of queries cause small jumps


def cost(
    model: str | os.PathLike[str] | Mapping[str, int] | LoadedModel | nn.Module = "embedded", *,
    lengths: int | Sequence[int] | None = None, windows: int = 8, queries: int | str = 64, study: str = "diagnose",
    dtype: str = "float32", flops: float | None = None, bandwidth: float | None = None, devices: int = 1,
    memory: float | None = None, progress: bool = True,
) -> Costs:  # fmt: skip
    """Estimate seconds and bytes of a study of a model, per head, token and window, without running it.

    Only the configuration is read. The rates are measured on this machine in a few seconds, on layers of that shape
    with random weights and on short windows, or follow from `flops` and `bandwidth` of a device.

    Args:
        model: a name as for `load` (a hub id must be in the cache), a folder with a config.json, a network, or a shape:
            `{"layers": 80, "heads": 64, "kv_heads": 8, "width": 8192, "mlp": 28672, "vocabulary": 128256}`.
        lengths: of windows in tokens; by default those of the study.
        windows: how many of each length.
        queries: how many per window, or "all".
        study: "diagnose", "report", or "pass" for the forward passes alone.
        dtype: of weights and activations: "float32", "bfloat16" or "float16".
        flops: operations per second that a device sustains; with `bandwidth`, nothing is measured.
        bandwidth: bytes per second of the memory of a device.
        devices: how many devices of that kind; the layers of a copy of the model are spread, and work in turn.
        memory: bytes of one device: as many copies as fit work at the same time. Without it, one copy takes all.
        progress: show a bar on standard error.

    Returns:
        Seconds and bytes by length, and their sums: a large share of one length says where fewer windows help most.

    Examples:
        >>> costs = abbe.cost("embedded", lengths=[64, 256], flops=1e12, bandwidth=1e11, progress=False)
        >>> costs.table["length"].to_list(), costs.seconds > 0
        ([64, 256], True)
    """
    name, hollow = _without_weights(model)
    if study not in STUDIES:
        raise AbbeError(f"study is {shown(study)}, but must be one of {', '.join(STUDIES)}")
    if dtype not in DTYPES:
        raise AbbeError(f"dtype is {shown(dtype)}, but must be one of {', '.join(DTYPES)}")
    settings = _settings(hollow.context, study, lengths, windows, queries)
    shape, size = shape_of(hollow.network, hollow.kind), DTYPES[dtype].itemsize
    is_described = _is_described(flops, bandwidth, devices, memory)
    if flops is not None and bandwidth is not None:
        rates = rates_given(float(flops), float(bandwidth), shape)
    else:
        with watching(progress) as watch:
            rates = measured_rates(hollow, settings, DTYPES[dtype], watch)
    kernels = 0.0 if is_described else KERNELS  # compiled for the CPU only
    needed = {length: memory_of(hollow, length, settings.queries, size=size) for length in settings.lengths}
    weights = float(shape.parameters * size)
    spread, copies = _placed(weights, max(one.peak for one in needed.values()) + kernels, devices, memory)
    prediction = _Prediction(shape, rates, settings, study, size, kernels, weights / spread)
    rows = [prediction.row(length, one) for length, one in needed.items()]
    table = pl.DataFrame(rows, schema=SCHEMA).with_columns(pl.col("seconds") / copies)
    described = {
        "study": study, "lengths": list(settings.lengths), "windows": settings.windows,
        "queries": settings.queries or "all", "dtype": dtype, "flops": flops, "bandwidth": bandwidth,
        "devices": devices, "memory": memory,
    }  # fmt: skip
    if isinstance(model, Mapping):
        name = f"Llama shape of {number(shape.parameters / 1e9, 3)} B parameters"
    return Costs(name, table, shape, weights, spread, copies, rates, described)


def _without_weights(model: Any) -> tuple[str, LoadedModel]:
    """Its name, and its network on the meta device."""
    if isinstance(model, Mapping):
        name, config = "this shape", llama_configuration(model)
    elif isinstance(model, LoadedModel | nn.Module):
        network: Any = model.network if isinstance(model, LoadedModel) else model
        config = getattr(network, "config", None)
        if not hasattr(config, "get_text_config"):
            raise AbbeError(f"{type(network).__name__} is no transformers model: it has no config")
        name = model.name if isinstance(model, LoadedModel) else type(model).__name__
    elif isinstance(model, str | os.PathLike) and isinstance(os.fspath(model), str):
        name, config = os.fspath(model), configuration(model)
    else:
        raise AbbeError(f"the model is {shown(model)}, but must be a name, a folder, a network or a shape")
    return name, built(config, name=name, hollow=True)


def _settings(context: int | None, study: str, lengths: Any, windows: int, queries: int | str) -> Settings:
    """As the study itself would set them."""
    if lengths is None and study == "report":
        lengths = [length for length in REPORT_LENGTHS if context is None or length <= context] or None
    settings = settings_for(
        context, lengths=lengths, windows=whole("windows", windows, least=1), queries=queries, sizes=None,
        vectors="value", normalizer=None, temperatures=REPORT_TEMPERATURES if study == "report" else (1.0,), seed=0,
        level=0.95, resamples=1,
    )  # fmt: skip
    if not settings.lengths or min(settings.lengths) < 2:
        raise AbbeError(f"lengths is {shown(list(settings.lengths))}, but must be a list of window lengths >= 2")
    if context is not None and max(settings.lengths) > context:
        raise AbbeError(f"window length {max(settings.lengths)} is above the model's context of {context} tokens")
    return settings


def _is_described(flops: float | None, bandwidth: float | None, devices: int, memory: float | None) -> bool:
    """Whether a device is described; else this machine is measured."""
    whole("devices", devices, least=1)
    for name, value in (("flops", flops), ("bandwidth", bandwidth), ("memory", memory)):
        if value is not None:
            positive(name, value, example=", such as 4e14" if name == "flops" else "")
    if flops is None and bandwidth is None:
        if devices > 1 or memory is not None:
            raise AbbeError("devices and memory are for a device that is described: give flops and bandwidth, too")
        return False
    if flops is None or bandwidth is None:
        lacking = "flops" if flops is None else "bandwidth"
        raise AbbeError(f"a device is described by flops and bandwidth: give {lacking}, too")
    return True


def _placed(weights: float, extra: float, devices: int, memory: float | None) -> tuple[int, int]:
    """Devices per copy of the model, and the number of copies."""
    if memory is None:
        return devices, 1
    if memory <= extra or math.ceil(weights / (memory - extra)) > devices:
        need = f"{weights / 1e9:.1f} GB of weights and {extra / 1e9:.1f} GB on top"
        raise AbbeError(
            f"{need} do not fit on {devices} devices of {memory / 1e9:.1f} GB: take more devices, shorter windows, "
            "or dtype bfloat16"
        )
    spread = math.ceil(weights / (memory - extra))
    return spread, devices // spread


@dataclass(frozen=True)
class _Prediction:
    """Everything that the rows of the table have in common."""

    shape: Shape
    rates: Rates
    settings: Settings
    study: str
    size: int
    kernels: float
    weights: float  # bytes on one device

    def row(self, length: int, memory: Memory) -> dict[str, Any]:
        of_pass, measures = self._window(length)
        seconds, only_pass = of_pass + measures, self.study == "pass"
        measured = 0.0 if only_pass else memory.measures
        extra = memory.activations if only_pass else memory.peak + self.kernels
        queries = min(self.settings.queries or length, length)
        return {
            "length": length,
            "windows": self.settings.windows,
            "tokens": self.settings.windows * length,
            "queries": 0 if only_pass else queries,
            "pass_seconds": of_pass,
            "measure_seconds": measures,
            "seconds_per_token": seconds / length,
            "seconds_per_head": seconds / (self.shape.layers * self.shape.heads),
            "exponent": math.log(self._total(_STEP * length) / self._total(length / _STEP)) / (2 * math.log(_STEP)),
            "seconds": self.settings.windows * seconds,
            "activation_bytes": memory.activations,
            "measure_bytes": measured,
            "extra_bytes": extra,
            "bytes_per_token": (memory.activations + measured) / length,
            "device_bytes": self.weights + extra,
        }

    def _window(self, length: float) -> tuple[float, float]:
        """Seconds of its pass and of its measures."""
        of_pass = self.rates.of_pass(self.shape, length, self.size)
        if self.study == "pass":
            return of_pass, 0.0
        return of_pass, self.rates.of_measures(self.shape, length, self.settings.queries)

    def _total(self, length: float) -> float:
        return sum(self._window(length))
