"""cost: what a study of a model will take, from its shape and rates; no weights are read, nothing long is run.

The rates are those of a described device, or are measured on this machine: a few layers of that shape with random
weights, timed on short windows in a few seconds. Memory is estimated as a run announces it (`runs.cost`).
"""

from __future__ import annotations

import copy
import json
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import polars as pl
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from .._arguments import positive, shown, whole
from .._errors import AbbeError
from ..models import LoadedModel, Shape, Window, built, configuration, llama_configuration, shape_of, tap
from ..results import finite
from ..runs.cost import memory_of
from ..runs.inputs import LENGTHS, REPORT_LENGTHS, REPORT_TEMPERATURES, Settings, settings_for
from ..runs.watch import Watch, watching
from ..runs.window import Passes, WindowReader, model_inputs, rows_at_once, run_model
from ..views import TextTable, View
from ..words.numbers import about, data_size, many, number

STUDIES = ("diagnose", "report", "pass")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_STEP = 1.25  # factor of the length over which an exponent is taken: blocks of queries cause small jumps
# Time and memory of all windows, or of one; `extra_bytes` beyond the model, `device_bytes` with the weights.
_COUNTS = ("length", "windows", "tokens", "queries")
_AMOUNTS = (
    *("pass_seconds", "measure_seconds", "seconds_per_token", "seconds_per_head", "exponent", "seconds"),
    *("activation_bytes", "measure_bytes", "extra_bytes", "bytes_per_token", "device_bytes"),
)
SCHEMA = dict.fromkeys(_COUNTS, pl.Int64) | dict.fromkeys(_AMOUNTS, pl.Float64)

# Of the measures without compiled kernels, which are for the CPU: counted with torch's dispatcher, as a test repeats.
TRAFFIC = 9200.0, 1436.0  # bytes read and written per query, key and head: plain, and per number of a vector
OPERATIONS = 2600.0, 1275.0  # of torch per block of queries of a layer: plain, and per head
_LAUNCH = 1e-5  # seconds of one operation on a device, however small
_IN_A_LAYER = 30.0  # operations of a pass


@dataclass(frozen=True)
class Rates:
    """Fixed seconds per layer, however short the window, and rates of everything that grows with it.

    Attributes:
        layer: seconds per layer of a pass.
        matrix: operations per second of matrix products.
        attention: operations per second of attention.
        memory: bytes per second.
        measured_block: seconds of the measures per block of queries of a layer.
        measured_query: seconds of the measures per query and head.
        measured_key: seconds of the measures per query, key and head.
        source: where the numbers come from.
    """

    layer: float
    matrix: float
    attention: float
    memory: float
    measured_block: float
    measured_query: float
    measured_key: float
    source: str

    def of_pass(self, shape: Shape, length: float, size: int) -> float:
        """Seconds of a pass: reading the weights or multiplying with them, whichever is slower, and attention."""
        matrices = max(shape.operations(length) / self.matrix, shape.parameters * size / self.memory)
        return shape.layers * self.layer + matrices + shape.attention(length) / self.attention

    def of_measures(self, shape: Shape, length: float, queries: int | None) -> float:
        """Seconds of measuring this many queries of a window (None: all) in all layers."""
        rows = min(queries or length, length)
        blocks = math.ceil(rows / rows_at_once(shape.heads, round(length)))
        per_row = shape.heads * (self.measured_query + length * self.measured_key)
        return shape.layers * (blocks * self.measured_block + rows * per_row)

    @classmethod
    def given(cls, flops: float, bandwidth: float, shape: Shape) -> Rates:
        """Rates of a described device: memory bandwidth and the launch of operations bound the measures."""
        block = (OPERATIONS[0] + OPERATIONS[1] * shape.heads) * _LAUNCH
        per_key = (TRAFFIC[0] + TRAFFIC[1] * shape.head_width) / bandwidth
        return cls(_IN_A_LAYER * _LAUNCH, flops, flops, bandwidth, block, 0.0, per_key, "given")


@dataclass(frozen=True)
class Costs:
    """An estimate of the windows of a study; loading, tables and pages come on top.

    Attributes:
        model: its name, or its shape.
        table: one row per length.
        shape: sizes of the model.
        weights: bytes of its weights.
        devices: on how many devices one copy of the model lies.
        copies: how many copies work at the same time.
        rates: of the machine, and where they come from.
        settings: of the estimated study.
    """

    model: str
    table: pl.DataFrame
    shape: Shape
    weights: float
    devices: int
    copies: int
    rates: Rates
    settings: Mapping[str, Any]

    @property
    def seconds(self) -> float:
        """Seconds for all windows of all lengths, shared by the copies."""
        return float(self.table["seconds"].sum())

    @property
    def megabytes(self) -> float:
        """Beyond the model."""
        return max(self.table["extra_bytes"].to_list(), default=0.0) / 1e6

    def formula(self) -> dict[str, list[float]]:
        """Seconds of a window of n tokens, q of which are measured in b blocks: a + b n + c n^2, d b + e q + f q n."""
        rates, shape = self.rates, self.shape
        heads = shape.layers * shape.heads
        passes = [shape.layers * rates.layer, shape.operations(1) / rates.matrix, shape.attention(1) / rates.attention]
        measures = [shape.layers * rates.measured_block, heads * rates.measured_query, heads * rates.measured_key]
        return {"pass": passes, "measures": measures if self.settings["study"] != "pass" else [0.0, 0.0, 0.0]}

    def __str__(self) -> str:
        windows, tokens = int(self.table["windows"].sum()), int(self.table["tokens"].sum())
        needs = f"about {about(self.seconds)} and {data_size(1e6 * self.megabytes)} on top of the model"
        line = f"{self.model}: {many(windows, 'window')}, {tokens:,} tokens: {needs} of {data_size(self.weights)}"
        if self.devices == self.copies == 1:
            return line
        each = data_size(max(self.table["device_bytes"].to_list(), default=0.0))
        copies = "one copy" if self.copies == 1 else f"{self.copies} copies"
        return f"{line}, in {copies} of {many(self.devices, 'device')} with {each} on each"

    def view(self) -> View:
        """Seconds per window, head and token, and memory, by length; near n^2, long windows dominate the time."""
        seconds = ("pass_seconds", "measure_seconds", "seconds", "seconds_per_head", "seconds_per_token")
        rows = [
            (f"{row['length']:,}", *(_seconds(row[name]) for name in seconds), f"n^{row['exponent']:.2f}",
             data_size(row["extra_bytes"]))
            for row in self.table.to_dicts()
        ]  # fmt: skip
        matrix, attention = (number(rate / 1e9, 3) for rate in (self.rates.matrix, self.rates.attention))
        speed = f"{matrix} billion operations per second in matrices, {attention} in attention"
        columns = ("tokens", "pass", "measures", "all", "per head", "per token", "grows as", "memory")
        return View(
            study="cost", question=str(self), about=(f"An estimate; rates {self.rates.source}: {speed}.",),
            tables=(TextTable("", columns, rows),),
        )  # fmt: skip

    def to_json(self) -> str:
        """What `--json` prints; NaN and infinity become null."""
        facts = {
            "model": self.model, "estimate": True, "settings": dict(self.settings), "shape": asdict(self.shape),
            "weight_bytes": self.weights, "devices": self.devices, "copies": self.copies, "seconds": self.seconds,
            "megabytes": self.megabytes, "rates": asdict(self.rates), "formula": self.formula(),
            "lengths": self.table.to_dicts(),
        }  # fmt: skip
        return json.dumps(finite(facts), indent=1, allow_nan=False)


def _seconds(value: float) -> str:
    if value >= 60:
        return about(value)
    unit, size = next((x for x in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)) if value >= x[1]), ("ns", 1e-9))
    return "0" if value == 0 else f"{number(value / size, 3)} {unit}"


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
        lengths: window lengths in tokens; by default those of the study.
        windows: windows per length.
        queries: queries per window, or "all".
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
    for what, given, known in (("study", study, STUDIES), ("dtype", dtype, DTYPES)):
        if given not in known:
            raise AbbeError(f"{what} is {shown(given)}, but must be one of {', '.join(known)}")
    settings = _settings(hollow.context, study, lengths, windows, queries)
    shape, size, is_pass = shape_of(hollow.network, hollow.kind), DTYPES[dtype].itemsize, study == "pass"
    _check_device(flops, bandwidth, devices, memory)
    if flops is not None and bandwidth is not None:
        rates = Rates.given(float(flops), float(bandwidth), shape)
    else:
        with watching(progress) as watch:
            rates = measured_rates(hollow, settings, DTYPES[dtype], watch)
    warm = flops is not None  # compiled kernels are for the CPU only
    needed = {n: memory_of(hollow, n, settings.queries, size=size, warm=warm) for n in settings.lengths}
    weights = float(shape.parameters * size)
    spread, copies = _placed(weights, max(each.peak for each in needed.values()), devices, memory)

    def seconds(length: float) -> tuple[float, float]:
        """Seconds for the pass of a window, and for its measures."""
        measures = 0.0 if is_pass else rates.of_measures(shape, length, settings.queries)
        return rates.of_pass(shape, length, size), measures

    rows = []
    for length, bytes_of in needed.items():
        of_pass, of_measures = seconds(length)
        of_window, growth = of_pass + of_measures, sum(seconds(_STEP * length)) / sum(seconds(length / _STEP))
        measured, extra = (0.0, bytes_of.activations) if is_pass else (bytes_of.measures, bytes_of.peak)
        rows.append({
            "length": length, "windows": settings.windows, "tokens": settings.windows * length,
            "queries": 0 if is_pass else min(settings.queries or length, length),
            "pass_seconds": of_pass, "measure_seconds": of_measures, "seconds_per_token": of_window / length,
            "seconds_per_head": of_window / (shape.layers * shape.heads),
            "exponent": math.log(growth) / (2 * math.log(_STEP)), "seconds": settings.windows * of_window / copies,
            "activation_bytes": bytes_of.activations, "measure_bytes": measured, "extra_bytes": extra,
            "bytes_per_token": (bytes_of.activations + measured) / length, "device_bytes": weights / spread + extra,
        })  # fmt: skip
    described = {
        "study": study, "lengths": list(settings.lengths), "windows": settings.windows,
        "queries": settings.queries or "all", "dtype": dtype, "flops": flops, "bandwidth": bandwidth,
        "devices": devices, "memory": memory,
    }  # fmt: skip
    if isinstance(model, Mapping):
        name = f"Llama shape of {number(shape.parameters / 1e9, 3)} B parameters"
    return Costs(name, pl.DataFrame(rows, schema=SCHEMA), shape, weights, spread, copies, rates, described)


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
    """Settings as the study itself would make them."""
    usual, temperatures = (REPORT_LENGTHS, REPORT_TEMPERATURES) if study == "report" else (LENGTHS, (1.0,))
    settings = settings_for(
        context, lengths=lengths, usual=usual, windows=whole("windows", windows, least=1), queries=queries,
        temperatures=temperatures, resamples=1,
    )  # fmt: skip
    if not settings.lengths or min(settings.lengths) < 2:
        raise AbbeError(f"lengths is {shown(list(settings.lengths))}, but must be a list of window lengths >= 2")
    if context is not None and max(settings.lengths) > context:
        raise AbbeError(f"window length {max(settings.lengths)} is above the model's context of {context} tokens")
    return settings


def _check_device(flops: float | None, bandwidth: float | None, devices: int, memory: float | None) -> None:
    """A device is described by both rates or not at all; without, this machine is measured."""
    whole("devices", devices, least=1)
    for name, value in (("flops", flops), ("bandwidth", bandwidth), ("memory", memory)):
        if value is not None:
            positive(name, value, example=", such as 4e14" if name == "flops" else "")
    lacking = [name for name, value in (("flops", flops), ("bandwidth", bandwidth)) if value is None]
    if len(lacking) == 1:
        raise AbbeError(f"a device is described by flops and bandwidth: give {lacking[0]}, too")
    if lacking and (devices > 1 or memory is not None):
        raise AbbeError("devices and memory are for a device that is described: give flops and bandwidth, too")


def _placed(weights: float, extra: float, devices: int, memory: float | None) -> tuple[int, int]:
    """Devices per copy of the model, and the number of copies."""
    if memory is None:
        return devices, 1
    spread = math.ceil(weights / (memory - extra)) if memory > extra else devices + 1
    if spread > devices:
        raise AbbeError(
            f"{weights / 1e9:.1f} GB of weights and {extra / 1e9:.1f} GB on top do not fit on {devices} devices of "
            f"{memory / 1e9:.1f} GB: take more devices, shorter windows, or dtype bfloat16"
        )
    return spread, devices // spread


# -- Rates of this machine --------------------------------------------------------------------------------------------

SECONDS = 3.0  # of timing; every piece is timed at least three times
_ROUNDS = 3
_LENGTHS = (32, 128, 384)
_QUERIES = (16, 64)
_WEIGHTS = 16e6  # in the layers that are built: as many layers as fit, or part of one
_VOCABULARY = 1024  # of the probe: embeddings are only looked up
_ATTENTION = 1024  # tokens, where the quadratic part dominates
_COPIED = 1 << 24  # numbers, more than any cache holds


def clock() -> float:
    """The time of the process with one thread, which other processes do not lengthen; else wall time."""
    return time.process_time() if torch.get_num_threads() == 1 else time.perf_counter()


def measured_rates(model: LoadedModel, settings: Settings, dtype: torch.dtype, watch: Watch) -> Rates:
    """Time pieces in turn, and take the best of each: disturbances only slow them down."""
    part = _part(model, shape_of(model.network, model.kind))
    part.network.to(dtype)
    shape = shape_of(part.network, part.kind)
    points = [(length, queries) for length in _LENGTHS[1:] for queries in _QUERIES]
    vectors = torch.randn(1, shape.heads, _ATTENTION, shape.head_width, dtype=dtype)
    source, target = torch.ones(_COPIED), torch.empty(_COPIED)
    with torch.no_grad(), tap(part) as open_tap:
        open_tap.check(**model_inputs(part, _tokens(_LENGTHS[0])))  # learns the layers
        reader, passes_of = WindowReader(part, open_tap, settings), Passes(part, open_tap)
        pieces: list[Callable[[], object]] = [lambda n=n: run_model(part, _tokens(n)) for n in _LENGTHS]  # type: ignore[misc]
        pieces += [lambda n=n, q=q: _measure(passes_of, reader, n, q) for n, q in points]  # type: ignore[misc]
        pieces.append(lambda: scaled_dot_product_attention(vectors, vectors, vectors, is_causal=shape.causal))
        best = _best([*pieces, lambda: target.copy_(source)], watch)
    passes, measured, (attending, copying) = best[: len(_LENGTHS)], best[len(_LENGTHS) : -2], best[-2:]
    attention = shape.attention(_ATTENTION) / shape.layers / attending
    attended = [shape.attention(length) / attention for length in _LENGTHS]
    layer, per_operation = _fitted([(shape.layers, shape.operations(n)) for n in _LENGTHS], passes, attended)
    at = dict(zip(_LENGTHS, passes, strict=True))
    terms = [tuple(shape.layers * shape.heads * x for x in (1 / shape.heads, q, q * n)) for n, q in points]
    per_block, per_query, per_key = _fitted(terms, measured, [at[length] for length, _ in points])
    copied = 2 * 4 * _COPIED / copying
    here = f"measured here with {many(torch.get_num_threads(), 'thread')}"
    return Rates(layer, 1 / per_operation, attention, copied, per_block, per_query, per_key, here)


def _part(model: LoadedModel, shape: Shape) -> LoadedModel:
    """The same network with few enough layers to be timed quickly; a narrower layer if one is too large."""
    network: Any = model.network
    depth = int(_WEIGHTS * shape.layers / max(1.0, shape.linear))
    whole_depth = depth >= shape.layers or model.kind == "encoder-decoder"
    if whole_depth and shape.linear > 10 * _WEIGHTS:
        raise AbbeError(f"{model.name} is too large to be timed here: give flops and bandwidth of its device")
    if depth == 0 and not whole_depth:
        return built(llama_configuration(_narrower(shape)), name=model.name)
    return built(_shortened(network.config, None if whole_depth else depth), name=model.name)


def _shortened(config: Any, depth: int | None) -> Any:
    short = copy.deepcopy(config)
    text = short.get_text_config()
    for name, value in vars(text).items():
        if depth is not None and isinstance(value, list) and len(value) == text.num_hidden_layers:
            setattr(text, name, value[:depth])  # an entry per layer
        if name.endswith("_token_id") and isinstance(value, int) and value >= _VOCABULARY:
            setattr(text, name, None)
    text.num_hidden_layers = depth or text.num_hidden_layers
    text.vocab_size = min(text.vocab_size, _VOCABULARY)
    if isinstance(getattr(text, "max_position_embeddings", None), int):  # random weights have no context limit
        text.max_position_embeddings = max(text.max_position_embeddings, _LENGTHS[-1] + 2)
    return short


def _narrower(shape: Shape) -> dict[str, int]:
    """One layer of a Llama: matrix products of that size are as fast as larger ones."""
    factor = math.sqrt(_WEIGHTS * shape.layers / shape.linear)
    width, mlp = (max(64, round(x * factor)) for x in (shape.width, shape.mlp))
    sizes = {"layers": 1, "heads": max(1, round(shape.heads * factor)), "head_width": shape.head_width}
    return sizes | {"width": width, "mlp": mlp, "vocabulary": _VOCABULARY}


def _tokens(length: int) -> Tensor:
    return torch.arange(length) % (_VOCABULARY // 2) + 4  # no padding among them


def _measure(passes: Passes, reader: WindowReader, length: int, queries: int) -> None:
    reader.settings = replace(reader.settings, queries=queries)
    passes.read(Window(length, 0, _tokens(length), 0, 0), reader, run=run_model)


def _best(pieces: Sequence[Callable[[], object]], watch: Watch) -> list[float]:
    watch.expect(_ROUNDS)
    for piece in pieces:  # compiles and warms up
        piece()
    times: list[list[float]] = [[] for _ in pieces]
    end = time.perf_counter() + SECONDS
    while len(times[0]) < _ROUNDS or time.perf_counter() < end:
        for piece, seconds in zip(pieces, times, strict=True):
            start = clock()
            piece()
            seconds.append(clock() - start)
        if len(times[0]) <= _ROUNDS:
            watch.step("timing this machine")
    return [max(min(seconds), 1e-9) for seconds in times]  # a coarse clock may show 0, and rates are inverse times


def _fitted(terms: Sequence[Sequence[float]], seconds: Sequence[float], known: Sequence[float]) -> list[float]:
    """Coefficients >= 0 of the terms, which together with the known part add up to these seconds.

    Minimises relative errors: a long window must not drown the short ones.
    """
    from scipy.optimize import nnls  # slow to import

    times = np.asarray(seconds)
    matrix = np.asarray(terms, dtype=float) / times[:, None]
    scale = matrix.max(axis=0)  # else the terms would lie ten orders of magnitude apart
    coefficients, _ = nnls(matrix / scale, 1 - np.asarray(known) / times)
    # Never 0: everything takes some time, and a rate is its inverse.
    return [float(one) for one in np.maximum(coefficients, 1e-6) / scale]
