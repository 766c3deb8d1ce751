"""Measure one window: a forward pass with a tap, every layer read in blocks of queries, then forgotten."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..._attention.scores import beside_sink
from ..._chance import generator_named
from ..._errors import AbbeError
from ...measures import (
    Reading,
    Rows,
    State,
    choose_sets,
    decay,
    differences,
    dispersion,
    distance_formula,
    expected_distance,
    geometry,
    pattern_keys,
    patterns,
    selection,
    sensitivity,
    update,
)
from ...models import AttentionCall, LoadedModel, Tap, Window, self_check_tolerance
from ...normalizers import Normalizer
from ...normalizers import normalizer as make_normalizer
from .passes import PassReader, model_inputs, read_window
from .readings import QueryDistances
from .settings import Settings, Vectors
from .tables import Record, layer_record, window_record
from .vectors import token_vectors

BLOCK = 1 << 20  # logits of one block of queries; the measures need some hundred bytes for each


def rows_at_once(heads: int, keys: int) -> int:
    """Queries of one block: at least one, however long it is."""
    return max(1, BLOCK // (heads * keys))


class WindowReader:
    """Takes the attention calls of forward passes and keeps, for each layer, only sums.

    One reader serves several kinds of vectors at once: only the geometry differs between them. `records[kind][layer]`
    holds the means of a layer, which is numbered as in `tap.layers`.
    """

    def __init__(self, model: LoadedModel, tap: Tap, settings: Settings, kinds: Sequence[Vectors] = ()) -> None:
        self.model, self.settings = model, settings
        self.kinds = tuple(kinds) or (settings.vectors,)
        self.numbers = {name: number for number, name in enumerate(tap.layers)}
        self.normalizer = make_normalizer(settings.normalizer or "softmax")
        self.skipped: dict[str, None] = {}  # a set that keeps its order
        self.window: Window | None = None
        self.expected: dict[str, Tensor] = {}  # keys that attention patterns expect, of the window
        self._start()
        tap.listen(self._read)
        _keep_freed_memory()

    def _start(self) -> None:
        self.records: dict[Vectors, dict[int, Record]] = {kind: {} for kind in self.kinds}
        self.distances = {kind: QueryDistances() for kind in self.kinds}
        self.positions: dict[int, Tensor] = {}  # of the queries, by their number: most layers have the same

    def wants(self, window: Window) -> bool:
        return True

    def done(self, window: Window) -> None:
        """What was read stays until the next window."""

    def parts_of(self, window: Window) -> Sequence[str]:
        return ()

    def measure(self, window: Window, beside: Sequence[PassReader] = ()) -> dict[Vectors, Record]:
        """Run the model on one window; its record for each kind of vectors. Readers beside it share the pass."""
        self._start()
        self.expected = pattern_keys(window.tokens)
        read_window(self.model, window, [self, *beside])
        return {
            kind: window_record(self.records[kind], len(self.numbers))
            | self.distances[kind].tests(window.length, self.settings.sizes)
            for kind in self.kinds
        }

    def _read(self, call: AttentionCall) -> None:
        if self.window is None:
            return
        number, tokens = self.numbers[call.name], self.window.tokens.to(call.query.device)
        vectors = {}
        for kind in self.kinds:
            if lacks_vectors(call, kind):
                self._skip(f"{call.name}: cross attention reads another stack's states, not {kind}s")
            else:
                vectors[kind] = token_vectors(kind, call, self.model.network, tokens[None])
        if not vectors:
            return
        length = call.query.shape[-2]
        if length not in self.positions:
            self.positions[length] = query_positions(length, self.settings, self.window)
        positions = self.positions[length]
        chance = seeded(self.settings, self.window, f"random sets of layer {number}")
        directions = seeded(self.settings, self.window, f"directions of layer {number}")
        steps = seeded(self.settings, self.window, f"steps of layer {number}")
        keyed = is_over(call, len(tokens))
        step = rows_at_once(call.query.shape[1], call.key.shape[-2])
        states: dict[Vectors, State] = {kind: {} for kind in vectors}
        for start in range(0, len(positions), step):
            block = positions[start : start + step]
            rows = self._rows(call, block, next(iter(vectors.values())))
            of_tokens = patterns(rows, block, tokens, self.expected) if keyed else {}
            self._update(states, rows, of_tokens, vectors, chance, directions, steps)
        for kind, state in states.items():
            self.distances[kind].end_layer(positions)
            self.records[kind][number] = layer_record(state)

    def _skip(self, why: str) -> None:
        self.skipped[why] = None

    def _update(
        self, states: dict[Vectors, State], rows: Rows, of_tokens: dict[str, Reading],
        vectors: Mapping[Vectors, Tensor], chance: torch.Generator, directions: torch.Generator,
        steps: torch.Generator,
    ) -> None:  # fmt: skip
        """Add a block of queries: what the weights alone decide once, the geometry for each kind of vectors."""
        sets = choose_sets(rows, self.settings.sizes, chance)
        of_weights = dispersion(rows) | of_tokens | selection(rows, sets) | decay(rows)
        if self.settings.temperatures:
            of_weights |= sensitivity(rows, self.normalizer, self.settings.temperatures, directions)
        if self.settings.steps:
            of_weights |= differences(rows, self.settings.temperatures, self.settings.steps, steps)
        for kind, points in vectors.items():
            placed = rows if points is rows.vectors else rows.with_vectors(points)
            readings = geometry(placed, sets)
            if self.settings.expected:
                readings |= expected_distance(placed, sets)
            if self.settings.readings:
                readings |= distance_formula(placed, sets)
                self.distances[kind].add(readings["distance"], readings["expected_distance_low"])
            states[kind] = update(states[kind], {**of_weights, **readings})

    def _rows(self, call: AttentionCall, queries: Tensor, vectors: Tensor) -> Rows:
        if self.settings.normalizer is None:
            return rows_of_call(call, queries, vectors)
        if call.sink is not None:
            self._skip(f"learned sinks: {self.normalizer} replaces softmax together with its sink")
        return rows_of_call(call, queries, vectors, self.normalizer)


def _keep_freed_memory() -> None:
    """glibc keeps a freed block for the next use if a block as large was freed before; else the system takes it back.

    Every layer frees blocks of some megabytes: taking them back and giving them out again costs a tenth of the time.
    """
    torch.empty(31 << 20, dtype=torch.uint8)  # freed at once; 32 MiB is the largest size that it learns from


def rows_of_call(call: AttentionCall, queries: Tensor, vectors: Tensor, normalizer: Normalizer | None = None) -> Rows:
    """The rows of some queries in a layer, weighted by the model's own softmax with its sink, or by this normalizer."""
    # One window per pass: there is one element in the batch.
    logits = call.logits(queries)[0].float()
    limit = _range_limit(call, queries)
    sink = None if call.sink is None or normalizer is not None else call.sink.float()
    chosen = make_normalizer("softmax") if normalizer is None else normalizer
    weights = beside_sink(chosen, logits, sink)
    plain = sink is None and str(chosen) == "softmax"
    return Rows(logits, weights, vectors, limit, softmax=plain, sink=sink is not None, sink_logits=sink)


def is_over(call: AttentionCall, tokens: int) -> bool:
    """Self-attention whose queries and keys are the tokens of the window, place by place."""
    return call.kind == "self" and call.query.shape[-2] == call.key.shape[-2] == tokens


def lacks_vectors(call: AttentionCall, kind: Vectors) -> bool:
    """Cross attention reads another stack's states: they have no vectors among those of this stack's tokens."""
    return call.kind == "cross" and kind in ("embedding", "hidden")


def query_positions(length: int, settings: Settings, window: Window) -> Tensor:
    """All positions, or one drawn from each of as many equal stretches of the window as queries are wanted.

    The first positions, which see no more keys than a causal query should, are left out.
    """
    first = min(settings.more_than, length)
    if settings.queries is None or settings.queries >= length - first:
        return torch.arange(first, length)
    edges = first + torch.arange(settings.queries + 1) * (length - first) // settings.queries
    draws = torch.rand(settings.queries, generator=seeded(settings, window, "queries"), dtype=torch.float64)
    return edges[:-1] + (draws * (edges[1:] - edges[:-1])).long()


def seeded(settings: Settings, window: Window, use: str) -> torch.Generator:
    """A generator that depends on seed, window and use alone, so that windows can be measured in any order."""
    return generator_named(f"abbe, seed {settings.seed}, length {window.length}, window {window.index}, {use}")


def _range_limit(call: AttentionCall, queries: Tensor) -> Tensor | None:
    """2 scale |q| max |k| for every head and query: no logits can lie farther apart; a soft cap bounds them, too."""
    if call.position_bias is not None or (call.mask is not None and call.mask.dtype != torch.bool):
        return None
    longest = torch.linalg.vector_norm(call.key[0].float(), dim=-1).amax(-1)
    longest = longest.repeat_interleave(call.query.shape[1] // len(longest))
    lengths = torch.linalg.vector_norm(call.query[0][:, queries].float(), dim=-1)
    bound: Tensor = abs(call.scale) * lengths * longest[:, None]
    if call.softcap is not None:
        bound = call.softcap * torch.tanh(bound / call.softcap)
    return 2 * bound


def check_tokens(model: LoadedModel, windows: list[Window]) -> Tensor:
    """Tokens for the self-check: the start of the longest window, up to 128 tokens or what a sliding window needs."""
    config: Any = model.network.config
    reach = getattr(config.get_text_config(), "sliding_window", None) or 0
    longest = max(windows, key=lambda window: window.length)
    return longest.tokens[: max(128, math.ceil(1.25 * reach))]


def allowed_error(model: LoadedModel) -> float:
    """The self-check error that rounding explains: that of the coarsest weights."""
    dtypes = {weight.dtype for weight in model.network.parameters() if weight.is_floating_point()}
    return max(self_check_tolerance(dtype) for dtype in dtypes or {torch.float32})


def check_model(model: LoadedModel, tap: Tap, tokens: Tensor) -> float:
    """The self-check of the tap; a failure says which model."""
    try:
        return tap.check(**model_inputs(model, tokens))
    except AbbeError as error:
        raise AbbeError(f"{model.name}: {error}") from None
    except Exception as error:  # of the network itself, which may want more than a text
        said = " ".join(str(error).split()) or type(error).__name__
        raise AbbeError(f"{model.name} ({type(model.network).__name__}) fails on tokens alone: {said}") from error
