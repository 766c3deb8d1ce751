"""A page as its parts and the data that it holds, and text that would break one that does not escape it."""

from __future__ import annotations

import base64
import gzip
import json
import math
import re
from html.parser import HTMLParser

import polars as pl

from abbe.results import SCHEMA

HOSTILE = (
    "<script>alert(1)</script> <img src=x onerror=alert(2)> \"'&amp; ]]> </title> שלום \u202eabc 👩‍🔬 {{ 7*7 }} \u2028"
)


class Page(HTMLParser):
    """Tags, the addresses that are asked for, the scripts, and the text outside of scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.asks: list[tuple[str, str, str | None]] = []
        self.attributes: list[str] = []
        self.scripts: list[tuple[str | None, str]] = []
        self.text = ""
        self.policy = ""
        self._inside = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self._inside = tag
        given = dict(attributes)
        self.attributes += list(given)
        self.asks += [
            (tag, key, value) for key, value in attributes if key in ("src", "href", "srcset", "action", "data")
        ]
        if tag == "script":
            self.scripts.append((given.get("type"), ""))
        if given.get("http-equiv") == "Content-Security-Policy":
            self.policy = given["content"] or ""

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            self.scripts[-1] = (self.scripts[-1][0], self.scripts[-1][1] + data)
        elif self._inside != "style":
            self.text += data


def check_inert(hostile: str, plain: str, said: int) -> None:
    """A page with hostile words has the tags, scripts and policy of one without, and says the words."""
    parsed, usual = Page(hostile), Page(plain)
    assert "<script>alert" not in hostile
    assert "<img src=x" not in hostile
    assert not [name for name in parsed.attributes if name.startswith("on")]
    assert parsed.tags.count("script") == usual.tags.count("script")
    assert set(parsed.tags) <= {*usual.tags, "details", "summary", "dl", "dt", "dd", "p", "ul", "li", "bdi"}
    assert parsed.text.count("alert(1)") >= said
    assert "{{ 7*7 }}" in parsed.text
    assert parsed.policy == usual.policy


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
