"""The estimate of `abbe cost` in the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.text import Text

from ..words.numbers import about, data_size, number
from ._shared.terminal import new_table, plain

if TYPE_CHECKING:
    from ..studies import Costs

_COLUMNS = ("pass", "measures", "all", "per head", "per token", "grows as", "memory")


def cost_table(costs: Costs) -> RenderableType:
    """What will a study cost, per length?

    Seconds per window, head and token, memory, their sum, and where the rates come from. A high exponent, near 2, means
    that long windows dominate; near 1, time grows with the tokens.

    Args:
        costs: from `abbe.cost`.

    Examples:
        >>> costs = abbe.cost("embedded", lengths=[64, 256], flops=1e12, bandwidth=1e11, progress=False)
        >>> from rich.console import Console
        >>> Console(width=100).print(abbe.views.cost_table(costs))
        tokens      pass ...
        ...
    """
    table = new_table(*_COLUMNS, first="tokens")
    for row in costs.table.to_dicts():
        table.add_row(
            f"{row['length']:,}",
            _seconds(row["pass_seconds"]),
            _seconds(row["measure_seconds"]),
            _seconds(row["seconds"]),
            _seconds(row["seconds_per_head"]),
            _seconds(row["seconds_per_token"]),
            f"n^{row['exponent']:.2f}",
            data_size(row["extra_bytes"]),
        )
    rates = costs.rates
    speed = f"{number(rates.matrix / 1e9, 3)} billion operations per second in matrices"
    source = f"An estimate; rates {rates.source}: {speed}, {number(rates.attention / 1e9, 3)} in attention."
    return Group(table, Text(plain(str(costs)), style="bold"), Text(source, style="dim"))


def _seconds(value: float) -> str:
    if value >= 60:
        return about(value)
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if value >= size:
            return f"{number(value / size, 3)} {unit}"
    return "0" if value == 0 else f"{number(value / 1e-9, 3)} ns"
