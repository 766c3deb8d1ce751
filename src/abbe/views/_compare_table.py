"""A comparison in the terminal: the recommendation, and one row for every normalizer."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ..studies._compare_parts import Comparison
from ._compare import judgement_rows, measured_line, name_of
from ._compare_words import BY_NAME, PARTS, interval, told
from ._reproduction_table import plain

_SHOWN = ("loss", "loss_rise", "active", "told_apart", "capacity", "sensitivity_ratio", "needle_accuracy", "time_ratio")


def compare_table(comparison: Comparison) -> RenderableType:
    """Numbers with their intervals below; readable from 100 columns on, in narrower terminals it wraps."""
    finding = comparison.recommendation
    parts: list[RenderableType] = [
        Text(plain(measured_line(comparison)), style="dim"),
        _numbers(comparison),
        _judgements(comparison),
        Text(plain(finding.sentence), style="bold"),
        Padding(Text(plain(finding.rule), style="dim"), (0, 0, 0, 2)),
    ]
    skipped = comparison.manifest.get("skipped") or ()
    return Group(*parts, *(Text(f"skipped: {plain(str(why))}", style="dim") for why in skipped))


def _numbers(comparison: Comparison) -> Table:
    table = Table(box=SIMPLE_HEAD, header_style="bold", pad_edge=False)
    table.add_column("normalizer", min_width=16, overflow="fold")
    for name in _SHOWN:
        table.add_column(BY_NAME[name].label, justify="right", overflow="fold")
    for row in comparison.table.to_dicts():
        cells = []
        for name in _SHOWN:
            ends = interval(BY_NAME[name], row)
            cells.append(Text.assemble(told(BY_NAME[name], row[name]), (f"\n{ends}" if ends else "", "dim")))
        table.add_row(Text(plain(name_of(row["normalizer"]))), *cells)
    return table


def _judgements(comparison: Comparison) -> Table:
    table = Table(box=SIMPLE_HEAD, header_style="bold", pad_edge=False)
    table.add_column("alternative")
    for words in PARTS.values():
        table.add_column(words, justify="center")
    for name, held in judgement_rows(comparison):
        table.add_row(Text(plain(name)), *(Text("✓", style="green") if one else Text("✗", style="dim") for one in held))
    return table
