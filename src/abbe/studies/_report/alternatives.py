"""What another normalizer would do with the same logits: how much weight is separable, how far outputs move.

An estimate: nothing is trained, and later layers see the outputs of the baseline.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import polars as pl
import torch
from torch import Tensor

from ... import normalizers
from ..._tensors import where_double
from ...measures import Rows, active_keys, bootstrap_interval, by_groups, dispersion, sensitivity, separable_weight
from ...models import AttentionCall, LoadedModel, Window
from ...normalizers import Normalizer
from ...runs.inputs import Settings
from ...runs.window import (
    PassReader,
    parts_by_rule,
    query_positions,
    row_blocks,
    seeded,
    token_vectors,
    vectors_of_heads,
)
from ...words.frames import EACH_HEAD, Frame, column
from ...words.names import BASELINE

MOST_WINDOWS = 4
QUERIES = 32
SPARSE = ("entmax:alpha=1.25", "entmax:alpha=1.5", "sparsemax", "topk:k=32", "topp:p=0.9", "threshold:rel=0.1")
SHARPER = "softmax:temperature=0.7"  # the control: as dense as the baseline, only sharper
ALTERNATIVES = (*SPARSE, SHARPER)

_MEANS = ("separable", "active", "effective_tokens", "sensitivity")
ALTERNATIVES_FRAME = Frame(
    "a head and an alternative normalizer, given the same logits",
    (
        *EACH_HEAD,
        column("normalizer", str, "its spec"),
        column("separable", float, "share of the weight on tokens strictly inside the ball of the selected",
               label="separable weight", interval=True),
        column("gain", float, "separable weight minus that of the baseline, on paired windows", interval=True),
        column("output_change", float, "root of the squared change of the output over the squared output; high means "
               "that later layers would see something different", label="change of the output"),
        column("active", float, "keys with a weight above 0; low means sparse", label="active tokens"),
        column("effective_tokens", float, "1 over the sum of squared weights"),
        column("sensitivity", float, "worst sensitivity"),
    ),
    "alternatives.parquet",
)  # fmt: skip
_COLUMNS = list(ALTERNATIVES_FRAME.schema)[3:]

Sums = dict[str, Tensor]  # (normalizer, head); the baseline comes first


def alternatives_windows(windows: Sequence[Window], most_windows: int = MOST_WINDOWS) -> list[Window]:
    """The first few of the longest length."""
    longest = max((window.length for window in windows), default=0)
    return [window for window in windows if window.length == longest][:most_windows]


class AlternativesReader(PassReader):
    """Gives the logits of every layer to all normalizers; the sums of each window are kept as a part."""

    def __init__(
        self, model: LoadedModel, windows: Sequence[Window], settings: Settings, specs: Sequence[str] = ALTERNATIVES,
        queries: int = QUERIES, most_windows: int = MOST_WINDOWS,
    ) -> None:  # fmt: skip
        self.model, self.settings, self.specs = model, replace(settings, queries=queries), specs
        self.names = list(map(_name, alternatives_windows(windows, most_windows)))
        self.normalizers = [normalizers.normalizer(spec) for spec in specs]

    def wants(self, window: Window) -> bool:
        return _name(window) in self.names and self.parts.tensors(_name(window)) is None

    def begin(self, window: Window) -> None:
        self.sums: Sums = {}  # of the window that is read, each name after its layer

    def done(self, window: Window) -> None:
        self.parts.keep_tensors(_name(window), self.sums)

    def table(self) -> pl.DataFrame:
        """After all windows."""
        by_layer: dict[int, list[Sums]] = {}
        for kept in map(self.parts.tensors, self.names):
            assert kept is not None
            names = [key.partition("/")[::2] for key in kept[0]]
            for layer in sorted({int(layer) for layer, _ in names}):
                sums = {name: kept[0][f"{layer}/{name}"] for number, name in names if int(number) == layer}
                by_layer.setdefault(layer, []).append(sums)
        return alternatives_table([BASELINE, *self.specs], by_layer, self.settings)

    def read(self, call: AttentionCall, window: Window, *weights_of: object) -> None:
        vectors = token_vectors(self.settings.vectors, call, self.model.network, window.tokens[None])
        if vectors is None:
            return
        layer, positions = call.place, query_positions(call.query.shape[-2], self.settings, window)
        values = where_double(call.value[0].float())
        count = call.query.shape[1]
        for heads, part, normalizer in parts_by_rule(call):
            directions = seeded(self.settings, window, f"directions of alternatives in layer {layer}")
            of_heads, some = (vectors_of_heads(x, heads, count) for x in (vectors, values))
            for _, rows in row_blocks(part, positions, of_heads):
                for name, x in block_sums(rows, some, normalizer, self.normalizers, directions).items():
                    sums = self.sums.setdefault(f"{layer}/{name}", x.new_zeros(len(x), count))
                    sums[:, slice(None) if heads is None else list(heads)] += x


def _name(window: Window) -> str:
    return f"alternatives/{window.length}-{window.index}"


def block_sums(
    baseline: Rows, values: Tensor, own: Normalizer, others: Sequence[Normalizer], generator: torch.Generator
) -> Sums:
    """Sums over the queries of a block for the baseline and the others, and the numbers of queries that count."""
    logits, listed = baseline.logits, list[Sums]()
    for normalizer in (own, *others):
        rows = baseline
        if listed:
            rows = Rows(logits, normalizer(logits), baseline.vectors, softmax=str(normalizer) == "softmax")
        readings = {
            "separable": separable_weight(rows),
            "active": active_keys(rows),
            "effective_tokens": dispersion(rows)["effective_tokens"],
            "sensitivity": sensitivity(rows, normalizer, (1.0,), generator)["sensitivity_worst"],
        }
        sums: Sums = {"changed": _squares(rows.weights - baseline.weights, values)}
        sums["output"] = _squares(baseline.weights, values)
        for name, reading in readings.items():
            sums[name] = torch.where(reading.defined, reading.value, 0.0).sum(1, dtype=torch.float64)
            sums[f"{name}/rows"] = reading.defined.sum(1)
        listed.append(sums)
    return {name: torch.stack([sums[name] for sums in listed]).cpu() for name in listed[0]}


def _squares(weights: Tensor, values: Tensor) -> Tensor:
    """||sum over keys of a_i v_i||^2, summed over the queries: (head,)."""
    return (by_groups(weights, values).double() ** 2).sum((1, 2))


def alternatives_table(
    names: Sequence[str], of_layers: Mapping[int, Sequence[Sums]], settings: Settings
) -> pl.DataFrame:
    """From the sums of every window, (normalizer, head), to a row for every layer, head and normalizer.

    The baseline is the normalizer that the head computes with, with its sink, whatever the run's normalizer; an
    alternative replaces both. Means are over queries, then over windows.

    separable: share of the weight on separable tokens, see `measures.separable_weight`; on the run's vectors.
    gain: separable minus the baseline's (there 0, without an interval); its interval is over paired windows.
    output_change: root of (sum of ||o - b||^2 over sum of ||b||^2), o = sum a_i v_i with values v, b the baseline's o.
    active: keys with a weight above 0. effective_tokens, sensitivity (worst direction, T = 1): as in the run.

    Numbers that no query defines are null, and intervals of a single window. Cross attention without vectors has no
    rows.
    """
    parts = [ALTERNATIVES_FRAME.of([])]
    for layer, windows in sorted(of_layers.items()):
        numbers = _numbers({name: torch.stack([sums[name] for sums in windows]) for name in windows[0]}, settings)
        heads = numbers["gain"].shape[1]
        columns: dict[str, Any] = {"layer": layer, "head": [head for head in range(heads) for _ in names]}
        columns |= {"normalizer": list(names) * heads}
        columns |= {name: numbers[name].T.reshape(-1).tolist() for name in _COLUMNS}
        parts.append(
            pl.DataFrame(columns, schema=ALTERNATIVES_FRAME.schema).with_columns(pl.col(_COLUMNS).fill_nan(None))
        )
    return pl.concat(parts)


def _numbers(sums: Sums, settings: Settings) -> dict[str, Tensor]:
    """All columns, (normalizer, head), from the sums of windows (window, normalizer, head); NaN where undefined."""
    counts = {name: sums[f"{name}/rows"] for name in _MEANS}
    means = {name: sums[name] / torch.where(count > 0, count, torch.nan) for name, count in counts.items()}
    columns = {name: x.nanmean(0) for name, x in means.items()}
    gains = means["separable"] - means["separable"][:, :1]
    columns["gain"] = gains.nanmean(0)
    for name, x in (("separable", means["separable"]), ("gain", gains)):
        columns[f"{name}_low"], columns[f"{name}_high"] = bootstrap_interval(
            x, level=settings.level, resamples=settings.resamples, seed=settings.seed
        )
    for end in ("gain_low", "gain_high"):
        columns[end][0] = torch.nan
    output = sums["output"].sum(0)
    columns["output_change"] = (sums["changed"].sum(0) / torch.where(output > 0, output, torch.nan)).sqrt()
    return columns
