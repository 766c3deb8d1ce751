"""Numbers of a study of capacity in words."""

from __future__ import annotations

from typing import Any

Row = dict[str, Any]


def amount(tau: float) -> str:
    """ "1 %", "0.5 %", "0.17 %"."""
    return f"{100 * tau:.2g} %"


def keys_number(keys: float) -> str:
    """ "7.25", "61", "1,500": of a layer the number may lie between whole ones."""
    return f"{keys:.3g}" if keys < 100 else f"{keys:,.0f}"


def needed_keys(row: Row) -> str:
    """ "61 keys (55 to 70)". A smaller N that holds is told."""
    noun = "key" if row["capacity"] == 1 else "keys"
    told = [] if row["low"] is None else [f"{keys_number(row['low'])} to {keys_number(row['high'])}"]
    told += [] if row["monotone"] else [f"the first N that holds is {row['first']:,}"]
    return f"{keys_number(row['capacity'])} {noun}" + (f" ({'; '.join(told)})" if told else "")
