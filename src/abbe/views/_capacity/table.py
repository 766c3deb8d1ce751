"""A study of capacity in the terminal: what it means, then N* by length, by layer, and how it grows."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import polars as pl
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ...words.manifest import model_name, text_name
from ...words.numbers import interval, number, percent
from .._shared.terminal import TextTable, bullets, new_table, note_lines, plain, skipped_lines

if TYPE_CHECKING:
    from ...studies import Capacity

_WHOLE = ("way", "interval", "separability")  # single words, or numbers that belong together


def capacity_table(study: Capacity) -> RenderableType:
    """How many keys per query does the model need?

    N* by length, by layer, its growth, and what they mean. A small N* means that few keys do the work.

    Args:
        study: from `abbe.capacity`.

    Examples:
        >>> small = {"lengths": 32, "windows": 2, "grid": "coarse", "layers": False, "progress": False}
        >>> study = abbe.capacity("embedded", tau=0.05, way="renormalised", **small)
        >>> from rich import print
        >>> print(abbe.views.capacity_table(study))
        How many tokens does abbe-gpt2-5M need?
        ...
    """
    question, *about = capacity_lines(study)
    parts: list[RenderableType] = [Text(plain(question), style="bold"), *(Text(plain(x), style="dim") for x in about)]
    for table in capacity_tables(study):
        parts += [_drawn(table), *note_lines(table)]
    parts.append(Text("What it means", style="bold"))
    return Group(*parts, *bullets(study.findings), *skipped_lines(study.manifest))


def capacity_lines(study: Capacity) -> list[str]:
    """The question, then what was measured on what."""
    manifest = study.manifest
    return [
        f"How many tokens does {model_name(manifest)} need?",
        f"on {text_name(manifest)}; only the top N* keys per query are kept",
        f"loss over {study.scored}",
    ]


def capacity_tables(study: Capacity) -> list[TextTable]:
    """N* of the whole model, its growth, and a table of layers per way."""
    growth = [_growth(study)] if study.growth["layer"].is_null().any() else []
    return [_by_length(study), *growth, *_by_layer(study)]


def _drawn(table: TextTable) -> Table:
    drawn = new_table(title=table.title, title_justify="left")
    for place, name in enumerate(table.columns):
        drawn.add_column(name, justify="left" if name == "way" else "right", no_wrap=place > 0 and name in _WHOLE)
    for row in table.rows:
        drawn.add_row(*row)
    return drawn


def _by_length(study: Capacity) -> TextTable:
    rows = [
        (
            f"{row['length']:,}", row["way"], percent(row["tau"], 2), _needed(row), _ends(row),
            percent(row["share"], 3), _beside(row), _share(row["control"]),
        )
        for row in study.table.filter(pl.col("layer").is_null()).iter_rows(named=True)
    ]  # fmt: skip
    return TextTable(
        "Whole model", ("length", "way", "tau", "N*", "interval", "N*/L", "separability", "random sets"), rows
    )


def _growth(study: Capacity) -> TextTable:
    rows = [
        (
            percent(row["tau"], 2), row["way"], f"{row['exponent']:.2f}",
            interval(row["low"], row["high"], "{:.2f}".format),
        )
        for row in study.growth.filter(pl.col("layer").is_null()).iter_rows(named=True)
    ]  # fmt: skip
    return TextTable("Growth, N* ~ L^g", ("tau", "way", "g", "interval"), rows)


def _by_layer(study: Capacity) -> list[TextTable]:
    """A table per way at the longest length; the last one's note explains g and where the other lengths are."""
    rows = study.table.filter(pl.col("layer").is_not_null())
    longest = rows.filter(pl.col("length") == pl.col("length").max())
    tables = [
        _layers_of(longest.filter(pl.col("way") == way), study.growth)
        for way in longest["way"].unique(maintain_order=True)
    ]
    others = sorted(set(rows["length"].unique()) - set(longest["length"].unique()))
    if not others:
        return tables
    listed = ", ".join(f"{length:,}" for length in others)
    smallest = percent(min(rows["allowed"].to_list()), 2)
    note = f"g: growth at {smallest}; layers at {listed} tokens: --json, or table.csv of --out"
    return [*tables[:-1], replace(tables[-1], note=note)]


def _layers_of(rows: pl.DataFrame, growth: pl.DataFrame) -> TextTable:
    """A column per rise allowed: tau, and its equal share among the layers; g is for the smallest."""
    allowed = sorted(rows["allowed"].unique().to_list(), reverse=True)
    way, length = rows["way"][0], rows["length"][0]
    grown = growth.filter(pl.col("layer").is_not_null() & (pl.col("way") == way) & (pl.col("allowed") == allowed[-1]))
    exponents = dict(grown.select("layer", "exponent").iter_rows())
    more = ["g"] if exponents else []
    lines = []
    for layer in sorted(rows["layer"].unique().to_list()):
        some = {row["allowed"]: row for row in rows.filter(pl.col("layer") == layer).iter_rows(named=True)}
        any_row = next(iter(some.values()))
        needed = [_needed(some[one]) for one in allowed] + [f"{exponents[layer]:.2f}" for _ in more]
        lines.append((str(layer), *needed, _beside(any_row), _share(any_row["control"])))
    title = f"Each layer alone, {way}, {length:,} tokens: keys for a rise of at most"
    columns = ("layer", *(percent(one, 2) for one in allowed), *more, "separability", "random sets")
    return TextTable(title, columns, lines)


def _needed(row: dict[str, Any]) -> str:
    """N*; if a smaller N also sufficed, a mark and the first one."""
    value = number(row["capacity"], 3)
    return value if row["monotone"] else f"{value}? (first {row['first']:,})"


def _ends(row: dict[str, Any]) -> str:
    """The interval, widened to whole numbers."""
    return "" if row["low"] is None else f"{math.floor(row['low']):,} to {math.ceil(row['high']):,}"


def _beside(row: dict[str, Any]) -> str:
    """The share and the number of tokens."""
    return "" if row["separability"] is None else f"{_share(row['separability'])} of {row['separability_n']}"


def _share(value: float | None) -> str:
    return "" if value is None else percent(value)
