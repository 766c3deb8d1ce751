"""Measure one window: a forward pass with a tap; every layer is read in blocks of queries, then dropped.

Several readers share a pass, and so several tables.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from .. import measures, normalizers
from .._errors import AbbeError
from .._tensors import generator_named, where_double
from ..measures import BlockNumbers, Reading, Rows, Sets, State
from ..models import AttentionCall, LoadedModel, Swap, Tap, Window, class_name, input_device, shape_of
from ..normalizers import Normalizer
from .inputs import Settings, Vectors
from .parts import Parts
from .tables import QueryDistances, Record, layer_record, window_record

T = TypeVar("T")


class PassReader(ABC):
    """Reads the attention calls of forward passes, which it may share; what it keeps are parts of a run."""

    parts: Parts
    layers: int

    def start(self, parts: Parts, layers: int) -> None:
        """The folder is claimed, and the number of layers is known."""
        self.parts, self.layers = parts, layers

    def wants(self, window: Window) -> bool:
        """Whether it still needs this window."""
        return True

    def begin(self, window: Window) -> None:  # noqa: B027 - nothing to do for most
        """A pass over this window follows."""

    @abstractmethod
    def read(self, call: AttentionCall, window: Window, *weights_of: Callable[[Tensor], Tensor]) -> None:
        """One layer of the pass; a swap also gives a function for its weights."""

    def done(self, window: Window) -> None:  # noqa: B027 - nothing to do for most
        """The pass is over: the whole window was read."""


class Passes:
    """Forward passes whose attention calls go to some readers; a tap or swap keeps its listeners."""

    def __init__(self, model: LoadedModel, source: Tap | Swap) -> None:
        self._model, self._readers = model, tuple[PassReader, ...]()
        source.listen(self._hear)

    @torch.no_grad()
    def read(self, window: Window, *readers: PassReader, run: Callable[[LoadedModel, Tensor], T]) -> T:
        """What `run`, which makes a pass, returns for the window."""
        for reader in readers:
            reader.begin(window)
        self._window, self._readers = window, readers
        try:
            result = run(self._model, window.tokens)
        finally:
            self._readers = ()  # later passes are of somebody else
        for reader in readers:
            reader.done(window)
        return result

    def _hear(self, call: AttentionCall, *weights_of: Callable[[Tensor], Tensor]) -> None:
        for reader in self._readers:
            reader.read(call, self._window, *weights_of)


def run_model(model: LoadedModel, tokens: Tensor) -> Any:
    """One forward pass without the language-model head, if there is one."""
    network: Any = model.network
    return network.base_model(**model_inputs(model, tokens))


def model_inputs(model: LoadedModel, tokens: Tensor) -> dict[str, Any]:
    """The arguments of a forward pass on one row of tokens; an encoder-decoder reads it with both halves."""
    batch = tokens[None].to(model.device)
    if model.kind == "encoder-decoder":
        return {"input_ids": batch, "decoder_input_ids": batch, "use_cache": False}
    return {"input_ids": batch} if model.kind == "encoder" else {"input_ids": batch, "use_cache": False}


def token_vectors(which: Vectors, call: AttentionCall, network: nn.Module, tokens: Tensor) -> Tensor | None:
    """(1, key heads or heads; key; feature), float32, for the keys of one attention layer.

    None for cross attention, whose keys are another stack's states: they have no vectors among this stack's tokens.

    embedding: the model's input embeddings divided by their norm (as in arXiv 2508.17821); hidden: the layer's input
    states; value: its values; output: its values as the output projection adds them to the stream.
    """
    if call.kind == "cross" and which in ("embedding", "hidden"):
        return None
    if which == "value":
        return call.value[0].float()
    if which == "output":
        return _as_projected(call)
    if which == "hidden":
        if call.hidden is None:
            raise AbbeError(f"{call.name}: its input states were not captured; use value vectors instead")
        return call.hidden[:1].float()
    embed: Any = network.get_input_embeddings()  # type: ignore[operator]
    # In a model spread over devices, the embedding may lie on another device than the layer.
    return normalize(embed(tokens.to(input_device(network))).float(), dim=-1).to(call.value.device)


def _as_projected(call: AttentionCall) -> Tensor:
    """Vectors with the lengths and angles of v_i W (W: a head's part of the projection) in the few dimensions of v.

    With the symmetric root C of W W^T, (v C)(u C)^T = v W W^T u^T for all v and u, so every distance is the same.
    """
    weight = where_double(call.value_to_output()).double()
    gram = weight @ weight.mT
    values, basis = torch.linalg.eigh(gram)
    # Negative eigenvalues of a Gram matrix are rounding.
    root = (basis * values.clamp(min=0).sqrt().unsqueeze(-2)) @ basis.mT
    per_head = where_double(call.value[0]).repeat_interleave(len(root) // call.value.shape[1], 0)
    projected: Tensor = per_head.float() @ root.float()
    return projected


def window_part(window: Window) -> str:
    return f"windows/{window.length}-{window.index}"


BLOCK = 1 << 20  # logits of one block of queries; the measures need a few hundred bytes per logit
ROWS_THAT_WAIT = 1 << 12  # rows of a few layers: their numbers and measures take a few kilobytes per row


def rows_at_once(heads: int, keys: int) -> int:
    """Queries per block: at least one, however long the window."""
    return max(1, BLOCK // (heads * keys))


Heads = tuple[int, ...] | None  # of a layer; None for all


class Waiting(NamedTuple):
    """The numbers of a layer without a record so far, or of those of its heads (all: `of`) that share a normalizer."""

    layer: int
    heads: Heads
    of: int
    normalizer: Normalizer
    numbers: BlockNumbers

    @property
    def kind(self) -> tuple[object, ...]:
        """Numbers of one kind can be joined: the limits of one normalizer hold for all of them."""
        learns = next(self.normalizer.parameters(), None) is not None
        return (id(self.normalizer) if learns else str(self.normalizer), *self.numbers.kind)


class WindowReader(PassReader):
    """Reads the attention calls of forward passes and keeps only sums per layer.

    One reader serves several kinds of vectors at once: only the geometry differs between them. `kept` are the parts of
    a run for each kind; `records[kind][layer]` holds the means of a layer, numbered as in `tap.layers`.
    """

    def __init__(
        self, model: LoadedModel, tap: Tap, settings: Settings, kinds: Sequence[Vectors] = (),
        kept: Sequence[Parts] = (),
    ) -> None:  # fmt: skip
        self.model, self.settings = model, settings
        self.kinds = tuple(kinds) or (settings.vectors,)
        self.kept = dict(zip(self.kinds, kept, strict=False))
        self.layers = len(tap.layers)
        self.normalizer = normalizers.normalizer(settings.normalizer or "softmax")
        self.skipped: dict[str, None] = {}  # an ordered set
        # glibc keeps a freed block for reuse if one as large was freed before; else it returns the block to the system.
        # Every layer frees blocks of a few megabytes: returning and requesting them again costs a tenth of the time.
        torch.empty(31 << 20, dtype=torch.uint8)  # freed at once; 32 MiB is the largest size that glibc learns from

    def wants(self, window: Window) -> bool:
        return bool(self._missing(window))

    def _missing(self, window: Window) -> list[Vectors]:
        return [kind for kind, parts in self.kept.items() if window_part(window) not in parts]

    def begin(self, window: Window) -> None:
        self.begun = time.perf_counter()
        self.records: dict[Vectors, dict[int, Record]] = {kind: {} for kind in self.kinds}
        self.waiting: list[Waiting] = []  # layers without a record so far
        self.distances = {kind: QueryDistances() for kind in self.kinds}
        self.positions: dict[int, Tensor] = {}  # of the queries, by query length: the same in most layers
        self.expected = measures.pattern_keys(window.tokens)  # keys that attention patterns predict

    def done(self, window: Window) -> None:
        """Keep the record of every run that lacks it."""
        self._settle()
        missing = self._missing(window)
        notes = {"seconds": round((time.perf_counter() - self.begun) / max(1, len(missing)), 3)}
        for kind in missing:
            record = window_record(self.records[kind], self.layers)
            record |= self.distances[kind].tests(window.length, self.settings.sizes)
            self.kept[kind].keep_tensors(window_part(window), record, notes | {"skipped": list(self.skipped)})

    def read(self, call: AttentionCall, window: Window, *_: object) -> None:
        vectors = dict[Vectors, Tensor]()
        for kind in self.kinds:
            of_kind = token_vectors(kind, call, self.model.network, window.tokens[None])
            if of_kind is None:
                self.skipped[f"{call.name}: cross attention reads another stack's states, not {kind}s"] = None
            else:
                vectors[kind] = of_kind
        if not vectors:
            return
        self.heads, length = call.query.shape[1], call.query.shape[-2]
        if length not in self.positions:
            self.positions[length] = query_positions(length, self.settings, window)
        positions = self.positions[length]
        swapped = None if self.settings.normalizer is None else self.normalizer
        if swapped is not None and call.sink is not None:
            self.skipped[f"learned sinks: {self.normalizer} replaces softmax together with its sink"] = None
        expected = self.expected if is_over(call, window.length) else None
        for heads, part, normalizer in [(None, call, swapped)] if swapped is not None else parts_by_rule(call):
            self._read_part(heads, part, normalizer, window, vectors, positions, expected)

    def _read_part(
        self, heads: Heads, call: AttentionCall, normalizer: Normalizer, window: Window,
        vectors: Mapping[Vectors, Tensor], positions: Tensor, expected: Mapping[str, Tensor] | None,
    ) -> None:  # fmt: skip
        """The heads of a layer that share a normalizer; `heads` are their numbers, None for all."""
        number = call.place
        chance, directions, steps = (
            seeded(self.settings, window, f"{use} of layer {number}") for use in ("random sets", "directions", "steps")
        )
        vectors = {kind: vectors_of_heads(points, heads, self.heads) for kind, points in vectors.items()}
        swapped = None if self.settings.normalizer is None else self.normalizer
        states: dict[Vectors, State] = {kind: {} for kind in vectors}
        for block, rows in row_blocks(call, positions, next(iter(vectors.values())), swapped):
            sets = measures.choose_sets(rows, self.settings.sizes, chance)
            numbers = measures.block_numbers(
                rows, sets, vectors, normalizer, self.settings.temperatures, directions, block, expected
            )
            if len(block) == len(positions) and not self.settings.reads_rows:
                self._wait(Waiting(number, heads, self.heads, normalizer, numbers))
                return
            self._update(states, numbers, normalizer, rows, sets, vectors, steps)
        for kind, state in states.items():
            self.distances[kind].end_layer(positions)
            self._keep(kind, number, heads, self.heads, layer_record(state))

    def _keep(self, kind: Vectors, layer: int, heads: Heads, count: int, record: Record) -> None:
        """The record of all `count` heads of a layer, or of some: those of another normalizer may lack measures."""
        if heads is None:
            self.records[kind][layer] = record
            return
        whole = self.records[kind].setdefault(layer, {})
        for name, x in record.items():
            if name not in whole:
                whole[name] = x.new_full((count, *x.shape[1:]), torch.nan, dtype=torch.float64)
            whole[name][list(heads)] = x.double()

    def _wait(self, one: Waiting) -> None:
        """Collect the numbers of layers with a single block, to process several layers at once."""
        if self.waiting and one.kind != self.waiting[-1].kind:
            self._settle()
        self.waiting.append(one)
        if sum(waiting.numbers.rows.count.numel() for waiting in self.waiting) >= ROWS_THAT_WAIT:
            self._settle()

    def _settle(self) -> None:
        """Make the records of the waiting layers."""
        if not self.waiting:
            return
        waiting, self.waiting = self.waiting, []
        blocks = [one.numbers for one in waiting]
        joined, sizes = measures.join_heads(blocks), [block.heads for block in blocks]
        for kind in (kind for kind in self.kinds if kind in joined.geometry):
            record = layer_record(measures.update({}, joined.readings(kind, waiting[0].normalizer)))
            parts = {name: torch.split(x, sizes) for name, x in record.items()}
            for place, one in enumerate(waiting):
                of_one = {name: split[place] for name, split in parts.items()}
                self._keep(kind, one.layer, one.heads, one.of, of_one)

    def _update(
        self, states: dict[Vectors, State], numbers: BlockNumbers, normalizer: Normalizer, rows: Rows, sets: Sets,
        vectors: Mapping[Vectors, Tensor], steps: torch.Generator,
    ) -> None:  # fmt: skip
        """Add a block of queries, with the measures that read the rows, which only some studies need."""
        moved = {}
        if self.settings.steps and str(normalizer) != "softmax":
            self.skipped[f"finite differences are measured for softmax alone, not for {normalizer}"] = None
        elif self.settings.steps:
            moved = measures.differences(rows, self.settings.temperatures, self.settings.steps, steps)
        for kind, points in vectors.items():
            placed = rows if points is rows.vectors else rows.with_vectors(points)
            readings = numbers.readings(kind, normalizer) | moved
            if self.settings.expected:
                readings |= measures.expected_distance(placed, sets)
            if self.settings.readings:
                formula, distance = measures.distance_formula(placed, sets), readings["distance"]
                assert isinstance(distance, Reading)
                self.distances[kind].add(distance, formula["expected_distance_low"])
                readings |= formula
            states[kind] = measures.update(states[kind], readings)


def rows_of_call(call: AttentionCall, queries: Tensor, vectors: Tensor, normalizer: Normalizer | None = None) -> Rows:
    """The rows of some queries in a layer, weighted by its own rule with its sink, or by this normalizer."""
    # One window per pass: the batch has one element.
    logits = call.logits(queries)[0].float()
    limit = _range_limit(call, queries)
    sink = None if call.sink is None or normalizer is not None else call.sink.float()
    weights = call.weights_for(logits[None])[0] if normalizer is None else normalizer(logits)
    names = {group.normalizer for group in call.rule or ()} if normalizer is None else {normalizer}
    plain = sink is None and all(str(one or "softmax") == "softmax" for one in names)
    return Rows(logits, weights, vectors, limit, softmax=plain, sink=sink is not None, sink_logits=sink)


def parts_by_rule(call: AttentionCall) -> list[tuple[Heads, AttentionCall, Normalizer]]:
    """The heads of a layer that share a normalizer, as calls of their own, with the normalizer."""
    softmax = normalizers.normalizer("softmax")
    if call.rule is None or len(call.rule) == 1:
        return [(None, call, softmax if call.rule is None else call.rule[0].normalizer or softmax)]
    return [(one.heads, call.of_heads(one.heads), one.normalizer or softmax) for one in call.rule]


def vectors_of_heads(vectors: Tensor, heads: Heads, count: int) -> Tensor:
    """The vectors (group, key, feature) of some of `count` heads."""
    if heads is None or len(vectors) == 1:
        return vectors
    return vectors.repeat_interleave(count // len(vectors), 0)[list(heads)]


def row_blocks(
    call: AttentionCall, positions: Tensor, vectors: Tensor, normalizer: Normalizer | None = None
) -> Iterator[tuple[Tensor, Rows]]:
    """The rows of these queries, in blocks that fit into memory, each with its queries."""
    step = rows_at_once(call.query.shape[1], call.key.shape[-2])
    for start in range(0, len(positions), step):
        block = positions[start : start + step]
        yield block, rows_of_call(call, block, vectors, normalizer)


def is_over(call: AttentionCall, tokens: int) -> bool:
    """Whether this is self-attention whose queries and keys are the tokens of the window, position by position."""
    return call.kind == "self" and call.query.shape[-2] == call.key.shape[-2] == tokens


def query_positions(length: int, settings: Settings, window: Window) -> Tensor:
    """All positions, or one from each of `settings.queries` equal stretches of the window.

    The first positions, which see at most `settings.more_than` keys, are left out.
    """
    first, wanted = min(settings.more_than, length), settings.queries or length
    return one_per_stretch(first, length, wanted, seeded(settings, window, "queries"))


def one_per_stretch(first: int, length: int, wanted: int, generator: torch.Generator) -> Tensor:
    """One position drawn from each of `wanted` equal stretches between two positions, or all if there are fewer."""
    if wanted >= length - first:
        return torch.arange(first, length)
    edges = first + torch.arange(wanted + 1) * (length - first) // wanted
    draws = torch.rand(wanted, generator=generator, dtype=torch.float64, device="cpu")
    return edges[:-1] + (draws * (edges[1:] - edges[:-1])).long()


def seeded(settings: Settings, window: Window, use: str) -> torch.Generator:
    """A generator that depends on seed, window and use alone, so that windows can be measured in any order."""
    return generator_named(f"abbe, seed {settings.seed}, length {window.length}, window {window.index}, {use}")


def _range_limit(call: AttentionCall, queries: Tensor) -> Tensor | None:
    """2 scale |q| max |k| per head and query: no logits can lie farther apart; a soft cap bounds them, too."""
    if call.position_bias is not None or (call.mask is not None and call.mask.dtype != torch.bool):
        return None
    longest = torch.linalg.vector_norm(call.key[0].float(), dim=-1).amax(-1)
    longest = longest.repeat_interleave(call.query.shape[1] // len(longest))
    lengths = torch.linalg.vector_norm(call.query[0][:, queries].float(), dim=-1)
    bound: Tensor = abs(call.scale) * lengths * longest[:, None]
    if call.softcap is not None:
        bound = call.softcap * torch.tanh(bound / call.softcap)
    return 2 * bound


def check_tokens(model: LoadedModel, windows: Sequence[Window]) -> Tensor:
    """Tokens for the self-check: the start of the longest window, 128 tokens or enough to fill a sliding window."""
    reach = shape_of(model.network, model.kind).reach
    longest = max(windows, key=lambda window: window.length)
    return longest.tokens[: max(128, math.ceil(1.25 * reach))]


def check_model(model: LoadedModel, source: Tap | Swap, tokens: Tensor) -> float:
    """The self-check of a tap or swap; a failure names the model."""
    try:
        return source.check(**model_inputs(model, tokens))
    except AbbeError as error:
        raise AbbeError(f"{model.name}: {error}") from None
    except Exception as error:  # of the network itself, which may need more than a text
        reason = " ".join(str(error).split()) or type(error).__name__
        raise AbbeError(f"{model.name} ({class_name(model.network)}) fails on tokens alone: {reason}") from error
