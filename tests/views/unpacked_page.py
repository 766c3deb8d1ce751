"""What the page of a report holds, read independently of the page's script."""

from __future__ import annotations

import base64
import gzip
import json
import math
import re

import polars as pl

from abbe.results import SCHEMA


def unpacked(text: str, name: str) -> bytes:
    """What an element of the page holds."""
    (packed,) = re.findall(rf'<script type="application/octet-stream" id="{name}-data">([^<]*)</script>', text)
    return gzip.decompress(base64.b64decode(packed))


def unpacked_table(content: bytes) -> pl.DataFrame:
    """Read by another way than the page's: a number at a time, by its decimal text."""
    head, _, rest = content.partition(b"\n")
    about = json.loads(head)
    rows, place, columns = about["rows"], 0, {}

    def number(start: int, planes: int, row: int) -> int:
        return sum(rest[start + plane * rows + row] << (8 * plane) for plane in range(planes))

    for column in about["columns"]:
        if column["kind"] == "codes":
            values = [column["values"][number(place, column["planes"], row)] for row in range(rows)]
            place += column["planes"] * rows
        else:
            marks = {0: None, 1: math.nan, 2: math.inf, 3: -math.inf}
            pairs = [(number(place, 3, row) - 2**23, number(place + 3 * rows, 2, row)) for row in range(rows)]
            values = [marks[p] if p in marks else float(f"{m}e{p - 1000}") for m, p in pairs]
            place += 5 * rows
        columns[column["name"]] = values
    assert place == len(rest)
    return pl.DataFrame(columns, schema={name: SCHEMA.get(name, pl.Float64) for name in columns})
