"""The navigation: six groups; pages of the reference and of the examples enter by themselves."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

START = ["index.md", "gallery.md"]
MORE = ["other-tools.md", "contributing.md", "changelog.md"]
HOW_TO = (
    *("report", "measuring", "normalizers", "swapping", "comparing", "calibrating", "lifting", "exporting"),
    *("evaluating", "capacity", "diff", "training", "checkpoints", "scale", "tap", "own-network", "entmax"),
)
EXPLANATION = (
    *("measures", "intervals", "theory", "reproducing", "report-rules", "normalizers", "comparing", "capacity"),
    *("lifting", "lab", "monitoring", "precision", "cost", "run-folders", "architecture"),
)
RESULTS = ("reproducing", "normalizers", "capacity", "lifting", "lifting-by-hand", "evaluating", "lab", "speed")
_REGISTRIES = (
    *("normalizers", "measures", "columns", "files", "training", "statements", "proofs", "architectures"),
    "embedded-model",
)


def navigation(docs: Path, reference: Iterable[str]) -> list[Any]:
    pages = list(reference)
    examples = sorted(path.relative_to(docs).as_posix() for path in (docs / "examples").rglob("*.md"))
    return [
        {"Start": [*START, *MORE]},
        {"Examples": examples},
        {"How-to": _in_order("how-to", HOW_TO, docs)},
        {"Explanation": _in_order("explanation", EXPLANATION, docs)},
        {"Results": _in_order("results", RESULTS, docs)},
        {
            "Reference": [
                "reference/index.md",
                {"Python": _titled(pages, r"reference/python/(.+)\.md", "{}")},
                {
                    "Commands": [
                        "reference/commands/index.md",
                        *_titled(pages, r"reference/commands/(?!index)(.+)\.md", "abbe {}"),
                    ]
                },
                *(f"reference/{name}.md" for name in _REGISTRIES),
            ]
        },
    ]


def _in_order(folder: str, names: Iterable[str], docs: Path) -> list[str]:
    """Pages of a folder: those named first, in this order, then all others."""
    there = sorted(path.stem for path in (docs / folder).glob("*.md"))
    listed = [name for name in names if name in there]
    return [f"{folder}/{name}.md" for name in [*listed, *(name for name in there if name not in listed)]]


def _titled(pages: Iterable[str], pattern: str, title: str) -> list[dict[str, str]]:
    matches = [match for path in pages if (match := re.fullmatch(pattern, path))]
    return [{title.format(_words(match[1])): match[0]} for match in matches]


def _words(name: str) -> str:
    return name if name.startswith(("abbe", "words")) else name.replace("-", " ")
