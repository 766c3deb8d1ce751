"""Numbers of a study of capacity in words."""

from __future__ import annotations

from typing import Any

Row = dict[str, Any]


def amount(tau: float) -> str:
    """ "1 %", "0.5 %", "0.17 %"."""
    return f"{100 * tau:.2g} %"


def needed_keys(row: Row) -> str:
    """ "61 keys (55 to 70)"; of a layer the number may lie between whole ones. A smaller N that holds is told."""
    value = f"{row['capacity']:.3g}" if row["capacity"] < 100 else f"{row['capacity']:,.0f}"
    noun = "key" if row["capacity"] == 1 else "keys"
    told = [] if row["low"] is None else [f"{row['low']:.3g} to {row['high']:.3g}"]
    told += [] if row["monotone"] else [f"the first N that holds is {row['first']}"]
    return f"{value} {noun}" + (f" ({'; '.join(told)})" if told else "")
