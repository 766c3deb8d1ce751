"""The measures of some rows of one attention call, by the functions that `abbe diagnose` uses.

What is special: the random sets of the control are the same for every sequence of a batch, so that the numbers do not
depend on how a batch is cut into micro-batches or spread over processes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .._errors import AbbeError
from .._float64 import where_double
from .._seeding import generator_named
from ..measures import Reading, Rows, Sets, State, dispersion, geometry, random_order, sensitivity, update
from ..models import HeardCall, self_check_tolerance
from ..normalizers import Normalizer, Softmax
from ._quantities import SATURATED

_BLOCK = 1 << 20  # logits measured at once; the measures need some hundred bytes for each
_OF_WEIGHTS = ("entropy", "effective_tokens", "max_weight", "sink_mass")


def seeded(seed: int, step: int, use: str) -> torch.Generator:
    """A generator that depends on seed, step and use alone: the same on every rank, and never the global one."""
    return generator_named(f"abbe monitor, seed {seed}, step {step}, {use}")


def query_positions(length: int, wanted: int, generator: torch.Generator) -> Tensor:
    """One position drawn from each of as many equal stretches as rows are wanted, or all.

    The first position is left out: a causal query sees one key there, and every measure of one key is trivial.
    """
    first = min(1, length - 1)
    if wanted >= length - first:
        return torch.arange(first, length)
    edges = first + torch.arange(wanted + 1) * (length - first) // wanted
    draws = torch.rand(wanted, generator=generator, dtype=torch.float64, device="cpu")
    return edges[:-1] + (draws * (edges[1:] - edges[:-1])).long()


@dataclass(frozen=True)
class Largest:
    """The largest of (head, row); -inf where no row is defined."""

    value: Tensor
    defined: Tensor

    def sums(self) -> dict[str, Tensor]:
        return {"largest": torch.where(self.defined, self.value.double(), -torch.inf).amax(1)}


def read_rows(
    heard: HeardCall, positions: Tensor, real: Tensor | None, sizes: tuple[int, ...], seed: int, step: int
) -> State:
    """Sums over these rows of all sequences, by head; `real` (batch, length) is False for padding."""
    batch, heads, keys = heard.query.shape[0], heard.query.shape[1], heard.key.shape[-2]
    at_once = max(1, _BLOCK // (heads * len(positions) * keys))
    chance = torch.rand(
        len(positions), heads, min(sizes[-1], keys), dtype=torch.float64, device="cpu",
        generator=seeded(seed, step, f"random sets of layer {heard.layer}"),
    )  # fmt: skip
    state: State = {}
    for start in range(0, batch, at_once):
        call = heard.rows(positions, start, start + at_once)
        device = call.query.device
        logits, values = call.logits(torch.arange(len(positions))).float(), call.value.float()
        sink = None if call.sink is None else where_double(call.sink.float())
        kept = None if real is None else real[start : start + at_once].to(device)[:, positions.to(device)]
        kept = None if kept is None else where_double(kept)
        state = update(state, row_readings(where_double(logits), where_double(values), kept, sizes, chance, sink=sink))
    return state


def row_readings(
    logits: Tensor, values: Tensor, real: Tensor | None, sizes: tuple[int, ...], chance: Tensor, *,
    sink: Tensor | None = None, normalizer: Normalizer | None = None,
) -> dict[str, Reading | Largest]:  # fmt: skip
    """Measures of logits (batch, head, query, key), -inf for hidden keys, and values (batch, key head, key, feature).

    `real` (batch, query) is False for padding; `chance` (query, head, size) draws the random sets; the normalizer is
    softmax by default, with the learned logits `sink` (head,).
    """
    batch, heads, queries = logits.shape[:3]
    some = torch.ones(batch, 1, queries, dtype=torch.bool, device=logits.device) if real is None else real[:, None]
    bad = _nonfinite(logits, values)
    if bool(bad.any()):  # these rows are counted, but not measured
        logits = torch.where(bad[..., None] & (logits != -torch.inf), 0.0, logits)
        values = torch.nan_to_num(values, 0.0, 0.0, 0.0)
    rows = _rows(logits, values, sink, normalizer)

    def by_head(x: Tensor) -> Tensor:
        """(batch * head, query, ...) as (head, batch * query, ...)."""
        return x.reshape(batch, heads, *x.shape[1:]).transpose(0, 1).flatten(1, 2)

    counted = some.expand(batch, heads, queries).flatten(0, 1)
    used = counted & ~bad.flatten(0, 1)

    def reading(measure: Reading, place: int | None = None) -> Reading:
        def part(x: Tensor) -> Tensor:
            return by_head(x if place is None else x[..., place])

        limit = None if measure.limit is None else part(measure.limit)
        control = None if measure.control is None else part(measure.control)
        return Reading(part(measure.value), part(measure.defined) & by_head(used), limit, control)

    of_weights = dispersion(rows)
    # The random direction that `sensitivity` also measures is not reported, so its seed has no effect.
    generator = torch.Generator().manual_seed(0)
    worst = sensitivity(rows, normalizer or Softmax(), (1.0,), generator)["sensitivity_worst"]
    draws = chance.transpose(0, 1).repeat(batch, 1, 1).to(logits.device)
    sets = Sets(sizes, rows.order(sizes[-1]), random_order(rows, draws))
    separability = geometry(rows, sets)["separability"]
    visible = rows.count > 0
    saturated = (rows.facts.largest > SATURATED).double()
    largest = torch.where(visible, rows.logits.amax(-1), 0.0)
    return {
        **{name: reading(of_weights[name]) for name in _OF_WEIGHTS},
        **{f"separability@N={size}": reading(separability, place) for place, size in enumerate(sizes)},
        "sensitivity_worst_mean": reading(worst),
        "sensitivity_worst_max": Largest(by_head(worst.value), by_head(worst.defined & used)),
        "saturated": reading(Reading(saturated, visible)),
        "max_logit": Largest(by_head(largest), by_head(visible & used)),
        "nonfinite": Reading(by_head(bad.flatten(0, 1).double()), by_head(counted)),
    }


def _nonfinite(logits: Tensor, values: Tensor) -> Tensor:
    """(batch, head, query): whether a logit is NaN or +inf (-inf hides a key), or a value is not finite."""
    of_values = ~values.isfinite().flatten(2).all(-1)
    of_values = of_values.repeat_interleave(logits.shape[1] // values.shape[1], 1)
    return ~(logits.amax(-1) < torch.inf) | of_values[..., None]  # the comparison is false for NaN, too


def _rows(logits: Tensor, values: Tensor, sink: Tensor | None, normalizer: Normalizer | None) -> Rows:
    """All sequences side by side: (batch * head, query, key), with the values of (batch * key head)."""
    flat, vectors = logits.flatten(0, 1), values.flatten(0, 1)
    if normalizer is not None:
        is_softmax = str(normalizer) == "softmax"
        return Rows(flat, normalizer(logits).flatten(0, 1).contiguous(), vectors, softmax=is_softmax)
    if sink is None:
        return Rows(flat, Softmax()(flat), vectors, softmax=True)
    sinks = sink.repeat(len(logits))
    with_sink = torch.cat([flat, sinks[:, None, None].expand(-1, flat.shape[1], 1)], -1)
    weights = torch.softmax(with_sink, -1)[..., :-1].contiguous()
    return Rows(flat, weights, vectors, sink=True, sink_logits=sinks)


def self_check(heard: HeardCall, positions: Tensor) -> float | None:
    """How far the attention of the first sequence's rows, rebuilt from the reading, is from what the model computed.

    Relative to the standard deviation of the output; None with dropout, which makes the output random. Too large a
    difference is an AbbeError: the reading would not describe the model.
    """
    output = heard.output
    if output is None or heard.dropout > 0:
        return None
    call = heard.rows(positions, 0, 1)
    weights, values = call.weights(torch.arange(len(positions))).float(), call.value.float()
    values = values.repeat_interleave(weights.shape[1] // values.shape[1], 1)
    rebuilt = (weights @ values).transpose(1, 2)[0]
    computed = output.detach()[0].float()
    if computed.shape[1:] != rebuilt.shape[1:] or not bool(computed.isfinite().all()):
        return None
    seen = call.visible(torch.arange(len(positions))).any(-1).any(1)[0]
    differences = (computed[positions.to(computed.device)] - rebuilt)[seen].abs()
    # Outputs that are all equal have no spread to be relative to: any difference from them is then too large.
    error = float(differences.max() / computed.std().clamp(min=1e-12)) if bool(seen.any()) else 0.0
    allowed = max(self_check_tolerance(x.dtype) for x in (heard.query, heard.value, output))
    if not error <= allowed:
        raise AbbeError(
            f"self-check failed: attention rebuilt from {heard.name} differs from the model's by {error:.2g} of its "
            f"standard deviation (allowed {allowed:g})"
        )
    return error
