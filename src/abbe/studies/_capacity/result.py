"""The result of `capacity`: how many keys the model needs, the losses behind it, and whether geometry agrees."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import polars as pl

from ...results import Result
from ...runs.loss import targets_words
from ...views import TextTable, View
from ...words.finding import Finding
from ...words.frames import HIGH, LOW, Cell, column, frame
from ...words.manifest import model_name, text_name
from ...words.names import DELETION, RENORMALISED
from ...words.numbers import interval, number, percent

Row = dict[str, Any]
WAYS = (DELETION, RENORMALISED)

_GROWTH = "Growth with the length: N* ~ L^g"
_percent, _hundredths = partial(percent, digits=2), "{:.2f}".format
_LENGTH = column("length", int, "tokens of the windows")
_WAY = column("way", str, "deletion or renormalised: whether the kept weights are scaled up")
_OF_LAYER = column("layer", int, "truncated alone; null for the whole model")
_RISES = (
    column("tau", float, "relative rise of the loss, as requested", show=_percent),
    column("allowed", float, "relative rise that is allowed: tau, for a layer also its equal share of tau"),
)
_NOTE = (
    "tau: rise of the loss that is allowed; separability: share of the top N tokens in a ball around their sum that "
    "holds no other token; random sets: the same for N random tokens"
)


def reported_way(ways: Sequence[str]) -> str:
    """The way that sentences on layers report: renormalised, unless only deletion was measured."""
    return RENORMALISED if RENORMALISED in ways else ways[0]


def at_equal_share(rows: pl.DataFrame, tau: float) -> pl.DataFrame:
    """The rows of this tau at the smallest allowed rise."""
    return rows.filter(tau=tau).filter(pl.col("allowed") == pl.col("allowed").min())


def of_model(table: pl.DataFrame) -> pl.DataFrame:
    return table.filter(pl.col("layer").is_null())


def of_layers(table: pl.DataFrame) -> pl.DataFrame:
    return table.filter(pl.col("layer").is_not_null())


@dataclass(frozen=True, eq=False, kw_only=True)
class Capacity(Result, study="capacity", drawn=True):
    """The result of `capacity`.

    Attributes:
        table: a row for each length, way and tau of the whole model (layer is null), and of each layer truncated alone.
            `capacity` is N*: the least N at which the loss rises by at most `allowed`, which for the model is tau; a
            layer has a row for tau and one for its equal share, tau over the number of layers. `share` is N*/L.
            `monotone` is false where a smaller N also held; `first` is then the least N tried that holds, else N*
            rounded up. `separability` is that of `separability_n` selected tokens, `control` that of as many random
            ones, both on all windows; layers are truncated on `windows` of them, evenly spaced.
        curve: every loss that was evaluated, with the baseline, the relative rise and its interval.
        growth: the exponent of N* (before rounding up) in L for each way and allowed rise, of the model and of each
            layer; empty with one length.
        correlation: over layers, the rank correlation of capacity and separability at a common size, for each way,
            length and allowed rise.
        findings: what it means, each with its rule and numbers.
        manifest: versions, seeds, hashes, settings, self-check errors, times, what was skipped and why.
    """

    files: ClassVar[Mapping[str, str]] = {
        "curves/": "which curves are complete: what an interrupted run resumes from",
        "losses/": "the losses of the windows: what an interrupted run resumes from",
        "separability/": "a run folder (`abbe.open_run` reads it) with the geometry",
    }

    table: pl.DataFrame = frame(
        "a length, way and tau, of the whole model and of each layer truncated alone",
        *(_OF_LAYER, _LENGTH, _WAY, *_RISES),
        column("capacity", float, "N*: the least N at which the loss rises by at most `allowed`; high: many keys used"),
        *(LOW, HIGH, column("share", float, "N* over the length", label="N*/L", show=partial(percent, digits=3))),
        *(column("monotone", bool, "false if a smaller N held, too"), column("first", int, "least N tried that holds")),
        column("windows", int, "that it was measured on"),
        column("separability_n", int, "size of the sets of `separability`"),
        column("separability", float, "share of that many selected tokens in a ball without others", interval=True),
        column("control", float, "separability of as many random tokens", label="random sets", share=True),
    )
    curve: pl.DataFrame = frame(
        "a loss that was evaluated",
        *(_OF_LAYER, _LENGTH, _WAY, column("n", int, "keys kept per query")),
        *(column("loss", float, "with these keys alone"), column("baseline", float, "loss of the unchanged model")),
        *(column("rise", float, "loss over baseline, minus 1"), LOW, HIGH),
    )
    growth: pl.DataFrame = frame(
        "a way and an allowed rise, of the model and of each layer",
        *(_OF_LAYER, _WAY, *_RISES),
        column("exponent", float, "of N* in the length; below 1: the share N*/L falls", label="g", show=_hundredths),
        *(LOW, HIGH, column("lengths", int, "number of lengths fitted")),
    )
    correlation: pl.DataFrame = frame(
        "a way, length and allowed rise, over layers",
        *(_WAY, *_RISES, _LENGTH, column("separability_n", int, "common size of the sets")),
        column("correlation", float, "Spearman's, of capacity and separability"),
        *(column("p_value", float, "two-sided"), column("exact", bool, "whether all permutations were counted")),
        column("layers", int, "how many"),
    )
    findings: tuple[Finding, ...]
    manifest: Mapping[str, Any]

    @property
    def layers(self) -> pl.DataFrame:
        """Rows of the single layers at their equal share of the smallest tau."""
        return at_equal_share(of_layers(self.table), min(self.manifest["settings"]["taus"]))

    @property
    def scored(self) -> str:
        """Which targets the loss is over, in words."""
        return targets_words(self.manifest["settings"]["targets"])

    def view(self) -> View:
        model, growth, whole = of_model(self.table), of_model(self.growth), ("way", "interval", _BALL)
        shown = ("length", "way", "tau", ("N*", _needed), ("interval", _ends), "share", _IN_BALL, "control")
        return self._view(
            f"How many keys per query does {model_name(self.manifest)} need?",
            f"on {text_name(self.manifest)}; only the top N* keys per query are kept",
            f"loss over {self.scored}",
            tables=[
                self._shown("Whole model", *shown, rows=model, missing="", note=_NOTE, whole=whole),
                self._shown(_GROWTH, "tau", "way", "exponent", _EXPONENTS, table="growth", rows=growth),
                *self._by_layer(),
            ],
        )

    def _by_layer(self) -> list[TextTable]:
        """A table per way at the longest length; the last one's note explains g and where the other lengths are.

        A column per rise allowed: tau, and its equal share among the layers; g is for the smallest.
        """
        rows, tables = of_layers(self.table), []
        longest = rows.filter(pl.col("length") == pl.col("length").max())
        *_, least = allowed = sorted({*longest["allowed"]}, reverse=True) or [0.0]
        for (way, length), at in longest.group_by("way", "length", maintain_order=True):
            grown = of_layers(self.growth).filter(way=way, allowed=least).select("layer", "exponent")
            shown = at.filter(allowed=allowed[0]).sort("layer").join(grown, on="layer", how="left")
            keys = [*(_keys_for(rise, at) for rise in allowed), *([_G] if len(grown) else []), _IN_BALL]
            title = f"Each layer alone, {way}, {length:,} tokens: keys for a rise of at most"
            tables.append(self._shown(title, "layer", *keys, "control", rows=shown, missing="", whole=(_BALL,)))
        if others := ", ".join(f"{length:,}" for length in sorted({*rows["length"]} - {*longest["length"]})):
            note = f"g: growth at {_percent(least)}; layers at {others} tokens are in table.csv and --json"
            tables[-1] = replace(tables[-1], note=note)
        return tables


def _needed(row: Row) -> str:
    """N*; if a smaller N also sufficed, a mark and the first one."""
    return number(row["capacity"], 3) + ("" if row["monotone"] else f"? (first {row['first']:,})")


def _ends(row: Row) -> str:
    """The interval, widened to whole numbers."""
    low, high = row["low"], row["high"]
    return "" if low is None or high is None else f"{math.floor(low):,} to {math.ceil(high):,}"


def _in_the_ball(row: Row) -> str:
    """ "80 % of 20"."""
    return "" if row["separability"] is None else f"{percent(row['separability'])} of {row['separability_n']}"


def _keys_for(rise: float, rows: pl.DataFrame) -> Cell:
    """A column: the keys that each layer needs."""
    needed = {row["layer"]: _needed(row) for row in rows.filter(allowed=rise).to_dicts()}
    return _percent(rise), lambda row: needed[row["layer"]]


_BALL = "separability"
_IN_BALL: Cell = (_BALL, _in_the_ball)
_EXPONENTS: Cell = ("interval", lambda row: interval(row["low"], row["high"], _hundredths))
_G: Cell = ("g", lambda row: _hundredths(row["exponent"]))
