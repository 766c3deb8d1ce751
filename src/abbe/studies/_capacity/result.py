"""The result of `capacity`: how many keys the model needs, the losses behind it, and whether geometry agrees."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import polars as pl

from ...results import Result
from ...runs.loss import targets_words
from ...views import TextTable, View
from ...views.theme import ThemeName
from ...words.finding import Finding
from ...words.frames import HIGH, LOW, column, frame
from ...words.manifest import model_name, text_name
from ...words.names import DELETION, RENORMALISED
from ...words.numbers import interval, number, percent

Row = dict[str, Any]
WAYS = (DELETION, RENORMALISED)

_LENGTH = column("length", int, "tokens of the windows")
_WAY = column("way", str, "deletion or renormalised: whether the kept weights are scaled up")
_OF_LAYER = column("layer", int, "truncated alone; null for the whole model")
_RISES = (
    column("tau", float, "relative rise of the loss, as requested"),
    column("allowed", float, "relative rise that is allowed: tau, for a layer also its equal share of tau"),
)
_NOTE = (
    "tau: rise of the loss that is allowed; separability: share of the top N tokens in a ball around their sum that "
    "holds no other token; random sets: the same for N random tokens"
)
_hundredths = "{:.2f}".format


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
class Capacity(Result, study="capacity"):
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
        *(LOW, HIGH, column("share", float, "N* over the length")),
        column("monotone", bool, "false if a smaller N held, too"),
        column("first", int, "the least N tried that holds"),
        column("windows", int, "that it was measured on"),
        column("separability_n", int, "size of the sets of `separability`"),
        column("separability", float, "share of that many selected tokens in a ball without others", interval=True),
        column("control", float, "separability of as many random tokens"),
    )
    curve: pl.DataFrame = frame(
        "a loss that was evaluated",
        *(_OF_LAYER, _LENGTH, _WAY, column("n", int, "keys kept per query")),
        column("loss", float, "with these keys alone"),
        column("baseline", float, "loss of the unchanged model"),
        *(column("rise", float, "loss over baseline, minus 1"), LOW, HIGH),
    )
    growth: pl.DataFrame = frame(
        "a way and an allowed rise, of the model and of each layer",
        *(_OF_LAYER, _WAY, *_RISES),
        column("exponent", float, "of N* in the length; below 1 means that the share N*/L falls"),
        *(LOW, HIGH, column("lengths", int, "number of lengths fitted")),
    )
    correlation: pl.DataFrame = frame(
        "a way, length and allowed rise, over layers",
        *(_WAY, *_RISES, _LENGTH, column("separability_n", int, "common size of the sets")),
        column("correlation", float, "Spearman's, of capacity and separability"),
        column("p_value", float, "two-sided"),
        column("exact", bool, "whether all permutations were counted"),
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
        about = f"on {text_name(self.manifest)}; only the top N* keys per query are kept", f"loss over {self.scored}"
        return View(
            study=self.study,
            question=f"How many keys per query does {model_name(self.manifest)} need?",
            about=about,
            findings=self.findings,
            tables=[_by_length(self), _growth(self), *_by_layer(self)],
            charts=self._charts,
            manifest=self.manifest,
        )

    def _charts(self, theme: ThemeName) -> dict[str, Any]:
        from .charts import capacity_chart  # altair belongs to an extra

        return {"capacity": capacity_chart(self, theme)}


# -- Tables for people ------------------------------------------------------------------------------------------------


def _by_length(result: Capacity) -> TextTable:
    rows = [
        (f"{row['length']:,}", row["way"], percent(row["tau"], 2), _needed(row), *_ends(row), *_in_the_ball(row))
        for row in of_model(result.table).to_dicts()
    ]
    columns = ("length", "way", "tau", "N*", "interval", "N*/L", "separability", "random sets")
    whole = ("way", "interval", "separability")
    return TextTable("Whole model", columns, rows, note=_NOTE, left=("way",), whole=whole)


def _growth(result: Capacity) -> TextTable:
    numbers = of_model(result.growth).select("tau", "way", "exponent", "low", "high").iter_rows()
    rows = [
        (percent(tau, 2), way, _hundredths(g), interval(low, high, _hundredths)) for tau, way, g, low, high in numbers
    ]
    return TextTable("Growth with the length: N* ~ L^g", ("tau", "way", "g", "interval"), rows, left=("way",))


def _by_layer(result: Capacity) -> list[TextTable]:
    """A table per way at the longest length; the last one's note explains g and where the other lengths are."""
    rows = of_layers(result.table)
    longest = rows.filter(pl.col("length") == pl.col("length").max())
    tables = [_layers_of(longest.filter(way=way), result.growth) for way in longest["way"].unique(maintain_order=True)]
    if others := ", ".join(f"{length:,}" for length in sorted({*rows["length"]} - {*longest["length"]})):
        at = percent(min(rows["allowed"].to_list()), 2)
        note = f"g: growth at {at}; layers at {others} tokens are in table.csv and --json"
        tables[-1] = replace(tables[-1], note=note)
    return tables


def _layers_of(rows: pl.DataFrame, growth: pl.DataFrame) -> TextTable:
    """A column per rise allowed: tau, and its equal share among the layers; g is for the smallest."""
    way, length, by_layer = rows["way"][0], rows["length"][0], defaultdict[int, dict[float, Row]](dict)
    for row in rows.sort("layer").to_dicts():
        by_layer[row["layer"]][row["allowed"]] = row
    allowed = sorted({*rows["allowed"]}, reverse=True)
    grown = of_layers(growth).filter(way=way, allowed=allowed[-1])
    exponents = {layer: (_hundredths(g),) for layer, g in grown.select("layer", "exponent").iter_rows()}
    lines = [
        (str(layer), *(_needed(at[rise]) for rise in allowed), *exponents.get(layer, ()), *_in_the_ball(at[allowed[0]]))
        for layer, at in by_layer.items()
    ]
    more = (*(("g",) if exponents else ()), "separability", "random sets")
    title = f"Each layer alone, {way}, {length:,} tokens: keys for a rise of at most"
    return TextTable(title, ("layer", *(percent(rise, 2) for rise in allowed), *more), lines, whole=("separability",))


def _needed(row: Row) -> str:
    """N*; if a smaller N also sufficed, a mark and the first one."""
    return number(row["capacity"], 3) + ("" if row["monotone"] else f"? (first {row['first']:,})")


def _ends(row: Row) -> tuple[str, str]:
    """The interval, widened to whole numbers, and N*/L."""
    low, high = row["low"], row["high"]
    ends = "" if low is None or high is None else f"{math.floor(low):,} to {math.ceil(high):,}"
    return ends, percent(row["share"], 3)


def _in_the_ball(row: Row) -> tuple[str, str]:
    """Separability as "80 % of 20", and that of random sets."""
    share = "" if row["separability"] is None else f"{percent(row['separability'])} of {row['separability_n']}"
    return share, "" if row["control"] is None else percent(row["control"])
