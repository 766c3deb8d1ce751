"""A comparison in the terminal: the recommendation, and one row per normalizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from .._shared.terminal import new_table, plain, skipped_lines
from .page import judgement_rows, jumps_remark, measured_line
from .words import BY_NAME, PARTS, cell_text, interval, name_of

if TYPE_CHECKING:
    from ...studies import Comparison

_SHOWN = (  # three tables, so that intervals have room in a terminal of 80 columns
    ("loss", "loss_rise", "time_ratio"),
    ("active", "separable", "capacity"),
    ("sensitivity_ratio", "needle_accuracy", "needle_gain"),
)

_NAME = 24  # columns for a name: longer ones wrap


def _least(comparison: Comparison) -> int:
    """Columns that the names need."""
    return min(_NAME, max(len(name_of(name)) for name in comparison.table["normalizer"]))


def compare_table(comparison: Comparison) -> RenderableType:
    """What would replacing softmax change?

    One row per normalizer with intervals below the numbers, then the recommendation. A rise of the loss above 0 and a
    time ratio above 1 are costs; few active keys and a high needle accuracy are gains.

    Args:
        comparison: from `abbe.compare`.

    Examples:
        >>> comparison = abbe.compare(
        ...     normalizers="topk:k=8", length=32, windows=2, queries=4, needle_lengths=64, prompts=1, progress=False
        ... )
        >>> from rich import print
        >>> print(abbe.views.compare_table(comparison))
        1 alternative to the model's attention as it is, ...
        ...
    """
    finding = comparison.recommendation
    tables = [*(_numbers(comparison, names) for names in _SHOWN), _judgements(comparison)]
    remark = jumps_remark(comparison)
    parts: list[RenderableType] = [
        Text(plain(measured_line(comparison)), style="dim"),
        *(Padding(table, (1, 0, 0, 0)) for table in tables),
        *([Text(remark, style="dim")] if remark else []),
        Text(""),
        Text(plain(finding.sentence), style="bold"),
        Padding(Text(plain(finding.rule), style="dim"), (0, 0, 0, 2)),
    ]
    return Group(*parts, *skipped_lines(comparison.manifest))


def _numbers(comparison: Comparison, names: Sequence[str]) -> Table:
    table = new_table(pad_edge=True, show_edge=False, padding=(0, 1, 0, 0))
    table.add_column("normalizer", overflow="fold", width=_least(comparison))
    for name in names:
        table.add_column(BY_NAME[name].label, justify="right", overflow="fold")
    for row in comparison.table.to_dicts():
        cells = []
        for name in names:
            ends = interval(BY_NAME[name], row)
            cells.append(Text.assemble(cell_text(BY_NAME[name], row), (f"\n{ends}" if ends else "", "dim")))
        table.add_row(Text(plain(name_of(row["normalizer"]))), *cells)
    return table


def _judgements(comparison: Comparison) -> Table:
    table = new_table(pad_edge=True, show_edge=False, padding=(0, 1, 0, 0))
    table.add_column("alternative", overflow="fold", width=min(18, _least(comparison)))
    for words in PARTS.values():
        table.add_column(words, justify="center")
    for name, held in judgement_rows(comparison):
        table.add_row(Text(plain(name)), *(Text("✓", style="green") if one else Text("✗", style="dim") for one in held))
    return table
