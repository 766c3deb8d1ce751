"""A study of capacity in the terminal: what it means, then N* by length, by layer, and how it grows."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import polars as pl
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ...words.numbers import interval, number, percent
from .._shared.terminal import bullets, new_table, plain, skipped_lines

if TYPE_CHECKING:
    from ...studies import Capacity

_WHOLE = ("way", "interval", "separability")  # single words, or numbers that are read together


def capacity_table(study: Capacity) -> RenderableType:
    """Readable from 80 columns on."""
    manifest = study.manifest
    parts: list[RenderableType] = [
        Text(f"How many tokens does {plain(manifest['model']['name'])} need?", style="bold"),
        Text(f"on {plain(manifest['text']['name'])}; only the top N* keys per query are kept", style="dim"),
        Text(f"loss over {study.scored}", style="dim"),
        _by_length(study),
    ]
    if study.growth["layer"].is_null().any():
        parts.append(_growth(study))
    parts += _by_layer(study)
    parts.append(Text("What it means", style="bold"))
    return Group(*parts, *bullets(study.findings), *skipped_lines(manifest))


def _table(title: str, first: str, *others: str) -> Table:
    table = new_table(title=title, title_justify="left")
    table.add_column(first, justify="right")
    for name in others:
        table.add_column(name, justify="left" if name == "way" else "right", no_wrap=name in _WHOLE)
    return table


def _by_length(study: Capacity) -> Table:
    table = _table("Whole model", "length", "way", "tau", "N*", "interval", "N*/L", "separability", "random sets")
    for row in study.table.filter(pl.col("layer").is_null()).iter_rows(named=True):
        table.add_row(
            f"{row['length']:,}", row["way"], percent(row["tau"], 2), _needed(row), _ends(row, "low", "high"),
            percent(row['share'], 3), _beside(row), _share(row["control"]),
        )  # fmt: skip
    return table


def _growth(study: Capacity) -> Table:
    table = _table("Growth, N* ~ L^g", "tau", "way", "g", "interval")
    for row in study.growth.filter(pl.col("layer").is_null()).iter_rows(named=True):
        table.add_row(percent(row["tau"], 2), row["way"], *_exponent(row))
    return table


def _exponent(row: dict[str, Any]) -> tuple[str, str]:
    return f"{row['exponent']:.2f}", interval(row["low"], row["high"], "{:.2f}".format)


def _by_layer(study: Capacity) -> list[RenderableType]:
    """A table for each way, at the longest length; then what g is, and where the other lengths are."""
    rows = study.table.filter(pl.col("layer").is_not_null())
    longest = rows.filter(pl.col("length") == pl.col("length").max())
    tables = [
        _layers_of(longest.filter(pl.col("way") == way), study.growth)
        for way in longest["way"].unique(maintain_order=True)
    ]
    others = sorted(set(rows["length"].unique()) - set(longest["length"].unique()))
    if not others:
        return [*tables]
    listed = ", ".join(f"{length:,}" for length in others)
    smallest = percent(min(rows["allowed"].to_list()), 2)
    note = f"g: growth at {smallest}; layers at {listed} tokens: --json, or table.csv of --out"
    return [*tables, Text(f"{note}\n", style="dim")]


def _layers_of(rows: pl.DataFrame, growth: pl.DataFrame) -> Table:
    """A column for every rise that is allowed: tau, and its equal share among the layers; g is for the smallest."""
    allowed = sorted(rows["allowed"].unique().to_list(), reverse=True)
    way, length = rows["way"][0], rows["length"][0]
    grown = growth.filter(pl.col("layer").is_not_null() & (pl.col("way") == way) & (pl.col("allowed") == allowed[-1]))
    exponents = dict(grown.select("layer", "exponent").iter_rows())
    title = f"Each layer alone, {way}, {length:,} tokens: keys for a rise of at most"
    more = ["g"] if exponents else []
    table = _table(title, "layer", *(percent(one, 2) for one in allowed), *more, "separability", "random sets")
    for layer in sorted(rows["layer"].unique().to_list()):
        some = {row["allowed"]: row for row in rows.filter(pl.col("layer") == layer).iter_rows(named=True)}
        any_row = next(iter(some.values()))
        cells = [_needed(some[one]) for one in allowed] + [f"{exponents[layer]:.2f}" for _ in more]
        table.add_row(str(layer), *cells, _beside(any_row), _share(any_row["control"]))
    return table


def _needed(row: dict[str, Any]) -> str:
    """N*; where a smaller N held as well, a mark and the first one."""
    value = number(row["capacity"], 3)
    return value if row["monotone"] else f"{value}? (first {row['first']:,})"


def _ends(row: dict[str, Any], low: str, high: str) -> str:
    """Whole numbers that hold the interval."""
    return "" if row[low] is None else f"{math.floor(row[low]):,} to {math.ceil(row[high]):,}"


def _beside(row: dict[str, Any]) -> str:
    """The share, and of how many tokens."""
    return "" if row["separability"] is None else f"{_share(row['separability'])} of {row['separability_n']}"


def _share(value: float | None) -> str:
    return "" if value is None else percent(value)
