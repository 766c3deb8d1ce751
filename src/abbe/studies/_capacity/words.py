"""The size of a capacity in words."""

from __future__ import annotations

from typing import Any

from ...words.numbers import interval, number

Row = dict[str, Any]


def needed_keys(row: Row) -> str:
    """ "61 keys (55 to 70)"; a smaller N at which the loss holds, too, is named."""
    remarks = [interval(row["low"], row["high"])] if row["low"] is not None else []
    remarks += [] if row["monotone"] else [f"the first N that holds is {row['first']:,}"]
    keys = f"{number(row['capacity'], 3)} {'key' if row['capacity'] == 1 else 'keys'}"
    return f"{keys} ({'; '.join(remarks)})" if remarks else keys
