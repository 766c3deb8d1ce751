"""A study of capacity in the terminal: what it means, then N* by length, by layer, and how it grows."""

from __future__ import annotations

import math
from typing import Any

import polars as pl
from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ..studies._capacity_findings import amount
from ..studies._capacity_parts import Capacity
from ._reproduction_table import plain


def capacity_table(found: Capacity) -> RenderableType:
    """Readable from 80 columns on."""
    manifest = found.manifest
    parts: list[RenderableType] = [
        Text(f"How many tokens does {plain(manifest['model']['name'])} need?", style="bold"),
        Text(f"on {plain(manifest['text']['name'])}; N* keys of largest weight, kept at every query", style="dim"),
        _by_length(found),
    ]
    if found.growth.height:
        parts.append(_growth(found))
    if found.table["layer"].is_not_null().any():
        parts.append(_by_layer(found))
    told = [Padding(Text(f"• {plain(one.sentence)}"), (0, 0, 0, 2)) for one in found.findings]
    skipped = [Text(f"skipped: {plain(str(why))}", style="dim") for why in manifest.get("skipped") or ()]
    return Group(*parts, Text("What it means", style="bold"), *told, *skipped)


def _table(title: str, first: str, *others: str) -> Table:
    table = Table(box=SIMPLE_HEAD, header_style="bold", pad_edge=False, title=title, title_justify="left")
    table.add_column(first, justify="right")
    for name in others:
        table.add_column(name, justify="left" if name == "way" else "right")
    return table


def _by_length(found: Capacity) -> Table:
    table = _table("Whole model", "length", "way", "tau", "N*", "interval", "N*/L", "separability", "random sets")
    for row in found.table.filter(pl.col("layer").is_null()).iter_rows(named=True):
        value = f"{row['capacity']:,.0f}" + ("" if row["monotone"] else " ?")
        table.add_row(
            f"{row['length']:,}", row["way"], amount(row["tau"]), value, _ends(row, "low", "high"),
            f"{100 * row['share']:.1f} %", _beside(row), _share(row["control"]),
        )  # fmt: skip
    return table


def _growth(found: Capacity) -> Table:
    table = _table("Growth, N* ~ L^g", "tau", "way", "g", "interval")
    for row in found.growth.iter_rows(named=True):
        ends = "" if row["low"] is None else f"{row['low']:.2f} to {row['high']:.2f}"
        table.add_row(amount(row["tau"]), row["way"], f"{row['exponent']:.2f}", ends)
    return table


def _by_layer(found: Capacity) -> Table:
    """A column for every rise that is allowed: tau, and its equal share among the layers."""
    rows = found.table.filter(pl.col("layer").is_not_null())
    allowed = sorted(rows["allowed"].unique().to_list(), reverse=True)
    way, length = rows["way"][0], rows["length"][0]
    title = f"Each layer truncated alone, {way}, {length:,} tokens: keys for a rise of at most"
    table = _table(title, "layer", *(amount(one) for one in allowed), "separability", "random sets")
    for layer in sorted(rows["layer"].unique().to_list()):
        some = {row["allowed"]: row for row in rows.filter(pl.col("layer") == layer).iter_rows(named=True)}
        any_row = next(iter(some.values()))
        needed = [f"{some[one]['capacity']:.3g}" for one in allowed]
        table.add_row(str(layer), *needed, _beside(any_row), _share(any_row["control"]))
    return table


def _ends(row: dict[str, Any], low: str, high: str) -> str:
    """Whole numbers that hold the interval."""
    return "" if row[low] is None else f"{math.floor(row[low]):,} to {math.ceil(row[high]):,}"


def _beside(row: dict[str, Any]) -> str:
    """The share, and of how many tokens."""
    return "" if row["separability"] is None else f"{_share(row['separability'])} of {row['separability_n']}"


def _share(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.0f} %"
