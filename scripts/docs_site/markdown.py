"""Markdown from data: tables, escaped cells, links to papers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_PAPER = re.compile(r"\b(\d{4}\.\d{5})\b")


def table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Columns that are empty in all rows are left out."""
    kept = [tuple(row) for row in rows]
    shown = [place for place, _ in enumerate(titles) if any(row[place] for row in kept)]
    lines = [[titles[place] for place in shown], ["---"] * len(shown)]
    lines += [[row[place] for place in shown] for row in kept]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def code(text: str) -> str:
    return f"`{text}`".replace("|", r"\|") if text else ""


def cell(text: str) -> str:
    """Plain text of the code in a cell: nothing in it is markup but `code`."""
    parts = " ".join(text.split()).split("`")
    for place in range(0, len(parts), 2):
        parts[place] = re.sub(r"([\\*_|\[\]$])", r"\\\1", parts[place]).replace("<", "&lt;")
    return "`".join(parts)


def papers(text: str) -> str:
    """arXiv ids become links."""
    return _PAPER.sub(r"[\1](https://arxiv.org/abs/\1)", text)


def sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def page(title: str, *parts: str) -> str:
    return "\n\n".join([f"# {title}", *(part for part in parts if part)]) + "\n"
