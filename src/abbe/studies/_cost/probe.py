"""Rates of this machine for a shape: a few layers with random weights, timed on short windows in a few seconds."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from ..._errors import AbbeError
from ...models import LoadedModel, Shape, Window, built, llama_configuration, shape_of, tap
from ...runs.settings import Settings
from ...runs.watch import Watch
from ...runs.window import WindowReader, model_inputs, run_model
from ...words.numbers import many
from .rates import Rates

SECONDS = 3.0  # of timing; every piece is timed at least three times
_ROUNDS = 3
_LENGTHS = (32, 128, 384)
_QUERIES = (16, 64)
_WEIGHTS = 16e6  # in the layers that are built: as many layers as fit, or part of one
_VOCABULARY = 1024  # of the probe: embeddings are only looked up
_ATTENTION = 1024  # tokens, where the quadratic part dominates
_COPIED = 1 << 24  # numbers, more than any cache holds


def clock() -> float:
    """With one thread the time of the process, which other processes do not lengthen; else wall time."""
    return time.process_time() if torch.get_num_threads() == 1 else time.perf_counter()


def measured_rates(model: LoadedModel, settings: Settings, dtype: torch.dtype, watch: Watch) -> Rates:
    """Time pieces in turn, and take the best of each: disturbances only slow them down."""
    shape = shape_of(model.network, model.kind)
    part = _part(model, shape)
    part.network.to(dtype)
    of_part = shape_of(part.network, part.kind)
    lengths = _LENGTHS
    points = [(length, queries) for length in lengths[1:] for queries in _QUERIES]
    with torch.no_grad(), tap(part) as open_tap:
        open_tap.check(**model_inputs(part, _tokens(lengths[0])))  # learns the layers
        reader = WindowReader(part, open_tap, settings)
        pieces: list[Callable[[], object]] = [lambda n=n: run_model(part, _tokens(n)) for n in lengths]  # type: ignore[misc]
        pieces += [lambda n=n, q=q: _measure(reader, settings, n, q) for n, q in points]  # type: ignore[misc]
        pieces += [_attending(of_part, dtype), _copying()]
        best = _best(pieces, watch)
    passes, measured, (attending, copying) = best[: len(lengths)], best[len(lengths) : -2], best[-2:]
    attention = of_part.attention(_ATTENTION) / of_part.layers / attending
    layer, per_operation = _fitted(
        [(of_part.layers, of_part.operations(length)) for length in lengths],
        passes,
        [of_part.attention(length) / attention for length in lengths],
    )
    at = dict(zip(lengths, passes, strict=True))
    per_block, per_query, per_key = _fitted(
        [tuple(of_part.layers * of_part.heads * x for x in (1 / of_part.heads, q, q * n)) for n, q in points],
        measured,
        [at[length] for length, _ in points],
    )
    return Rates(
        layer, 1 / per_operation, attention, 2 * 4 * _COPIED / copying, per_block, per_query, per_key,
        f"measured here with {many(torch.get_num_threads(), 'thread')}",
    )  # fmt: skip


def _part(model: LoadedModel, shape: Shape) -> LoadedModel:
    """The same network with few enough layers to be timed quickly; a narrower layer if one is too large."""
    network: Any = model.network
    depth = int(_WEIGHTS * shape.layers / max(1.0, shape.linear))
    if depth >= shape.layers or model.kind == "encoder-decoder":
        if shape.linear > 10 * _WEIGHTS:
            raise AbbeError(f"{model.name} is too large to be timed here: give flops and bandwidth of its device")
        return built(_shortened(network.config, None), name=model.name)
    if depth >= 1:
        return built(_shortened(network.config, depth), name=model.name)
    return built(llama_configuration(_narrower(shape)), name=model.name)


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
    return {
        "layers": 1,
        "heads": max(1, round(shape.heads * factor)),
        "head_width": shape.head_width,
        "width": max(64, round(shape.width * factor)),
        "mlp": max(64, round(shape.mlp * factor)),
        "vocabulary": _VOCABULARY,
    }


def _tokens(length: int) -> Tensor:
    return torch.arange(length) % (_VOCABULARY // 2) + 4  # no padding among them


def _measure(reader: WindowReader, settings: Settings, length: int, queries: int) -> None:
    reader.settings = replace(settings, queries=queries)
    reader.measure(Window(length, 0, _tokens(length), 0, 0))


def _attending(shape: Shape, dtype: torch.dtype) -> Callable[[], object]:
    vectors = torch.randn(1, shape.heads, _ATTENTION, shape.head_width, dtype=dtype)
    return lambda: scaled_dot_product_attention(vectors, vectors, vectors, is_causal=shape.causal)


def _copying() -> Callable[[], object]:
    source, target = torch.ones(_COPIED), torch.empty(_COPIED)
    return lambda: target.copy_(source)


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
    import numpy as np
    from scipy.optimize import nnls

    times = np.asarray(seconds)
    matrix = np.asarray(terms, dtype=float) / times[:, None]
    scale = matrix.max(axis=0)  # else the terms would lie ten orders of magnitude apart
    coefficients, _ = nnls(matrix / scale, 1 - np.asarray(known) / times)
    # Never 0: everything takes some time, and a rate is its inverse.
    return [float(one) for one in np.maximum(coefficients, 1e-6) / scale]
