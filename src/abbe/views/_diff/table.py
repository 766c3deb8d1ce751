"""A diff as lines and tables, for the terminal and the page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import polars as pl
from rich.console import Group, RenderableType
from rich.text import Text

from ...words.manifest import text_name
from ...words.measures import measure_words, usual_size
from ...words.numbers import interval, many, number
from .._shared.terminal import TextTable, bullets, new_table, note_lines, plain, skipped_lines

if TYPE_CHECKING:
    from ...studies import Difference

_IN_TERMINAL, _ON_PAGE = 12, 60
_MOST_HEADS = 400  # for which a page holds all main measures
_LEFT = ("measure", "where")
_OF_HEAD = (
    "effective_tokens", "max_weight", "separability", "top_mass", "sink_mass", "previous_token", "induction",
    "sensitivity_worst_mean", "decay_exponent",
)  # fmt: skip


def diff_table(diff: Difference) -> RenderableType:
    """What changed from one model to the other?

    The largest changes of single heads, then the means over all heads. A small q value marks a change beyond chance.

    Args:
        diff: from `abbe.diff`.

    Examples:
        >>> half = abbe.load("embedded", dtype="bfloat16")
        >>> diff = abbe.diff("embedded", half, lengths=32, windows=2, queries=4, sizes=5, progress=False)
        >>> from rich import print
        >>> print(abbe.views.diff_table(diff))
        What changes from ...?
        ...
    """
    question, *about = diff_lines(diff)
    parts: list[RenderableType] = [Text(plain(question), style="bold"), *(Text(plain(x), style="dim") for x in about)]
    for table in diff_tables(diff, _IN_TERMINAL):
        drawn = new_table(title=table.title, title_justify="left")
        for name in table.columns:
            drawn.add_column(name, justify="left" if name in _LEFT else "right")
        for row in table.rows:
            drawn.add_row(*map(plain, row))
        parts += [drawn, *note_lines(table)]
    parts.append(Text("What changed", style="bold"))
    return Group(*parts, *bullets(diff.findings), *skipped_lines(diff.manifest))


def diff_lines(diff: Difference) -> list[str]:
    """The question, then what was measured on what."""
    settings, names = diff.manifest["settings"], diff.names
    lengths = ", ".join(f"{length:,}" for length in settings["lengths"])
    between = f"; {many(len(names) - 2, 'checkpoint')} between them" if len(names) > 2 else ""
    return [
        f"What changes from {names[0]} to {names[-1]}?",
        f"{many(diff.heads, 'head')} on {text_name(diff.manifest)}, {many(settings['windows'], 'window')} of {lengths} "
        f"tokens, the same for all{between}",
        f"intervals are paired over windows; a change counts at a q value of at most {1 - settings['level']:g} "
        "(Benjamini and Hochberg over all heads and measures)",
    ]


def diff_tables(diff: Difference, most: int = _ON_PAGE) -> list[TextTable]:
    """The largest changes of single heads, and all heads together."""
    names = diff.names[0], diff.names[-1]
    single, changed = diff.of_heads, diff.changed
    # One row per head and measure: the largest change over sizes and lengths.
    once = (changed if len(changed) else single.filter(pl.col("difference") != 0)).unique(
        ["layer", "head", "measure"], keep="first", maintain_order=True
    )
    rows, long = once.head(most), len(diff.manifest["settings"]["lengths"]) > 1
    left = len(once) - len(rows)
    note = f"{left:,} more, and other set sizes: .table and --json hold all" if left > 0 and len(changed) else ""
    title = "Largest changes of single heads" if len(changed) else "Largest differences, none beyond chance"
    columns = ("where", "measure", *names, "difference", "interval", "q value")
    tables = [TextTable(title, columns, [_row(row, long) for row in rows.to_dicts()], note)] if len(rows) else []
    together = diff.table.filter(pl.col("head").is_null()).unique("measure", keep="first", maintain_order=True)
    lines = [_row(row, long)[1:] for row in together.head(most).to_dicts()]
    tables.append(TextTable("On average over all heads", columns[1:], lines))
    return tables


def head_table(diff: Difference) -> TextTable:
    """The main measures of every head, at the largest length and one set size; heads that change most come first."""
    single = diff.of_heads
    size = usual_size(single.with_columns(value=pl.col("first")))
    usual = pl.col("measure").is_in(_OF_HEAD) & (pl.col("n").is_null() | (pl.col("n") == (size or 0)))
    at = pl.col("length").is_null() | (pl.col("length") == pl.col("length").max())
    rows = single.filter(usual & at)
    order = {name: place for place, name in enumerate(_OF_HEAD)}
    heads: dict[tuple[int, int], list[dict[str, Any]]] = {}  # the table has the largest changes first
    for row in rows.to_dicts():
        heads.setdefault((row["layer"], row["head"]), []).append(row)
    shown = list(heads.values())[:_MOST_HEADS]
    lines = [_row(row, False) for some in shown for row in sorted(some, key=lambda row: order[row["measure"]])]
    left = len(heads) - len(shown)
    note = "Heads that change most come first; a click on a map also selects a head."
    note += f" {left:,} more heads: .table and --json hold all." if left > 0 else ""
    columns = ("where", "measure", diff.names[0], diff.names[-1], "difference", "interval", "q value")
    return TextTable("One head", columns, lines, note, "head")


def _row(row: Mapping[str, Any], long: bool) -> tuple[str, ...]:
    where = "" if row["head"] is None else f"layer {row['layer']}, head {row['head']}"
    words = measure_words(row["measure"]).label + ("" if row["n"] is None else f", N = {row['n']}")
    words += f", L = {row['length']}" if long and row["length"] else ""
    return (
        where, words, number(row["first"], 3), number(row["second"], 3),
        number(row["difference"], 3, signed=True),
        interval(row["low"], row["high"], lambda end: number(end, 3, signed=True)),
        "" if row["q_value"] is None else number(row["q_value"], 2),
    )  # fmt: skip
