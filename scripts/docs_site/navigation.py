"""The navigation: four groups; pages of the reference and of the examples enter by themselves."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

START = ["index.md", "gallery.md"]
MORE = ["other-tools.md", "changelog.md"]
HOW_TO = (
    *("report", "measuring", "normalizers", "swapping", "comparing", "calibrating", "lifting", "lifting-by-hand"),
    *("exporting", "capacity", "diff", "training", "scale", "entmax"),
)
EXPLANATION = (
    *("measures", "intervals", "theory", "reproducing", "report-rules", "normalizers", "comparing", "capacity"),
    *("lab", "precision", "cost", "run-folders"),
)
_REGISTRIES = (
    *("normalizers", "measures", "columns", "files", "training", "statements", "architectures", "embedded-model"),
)


def navigation(docs: Path, reference: Iterable[str]) -> list[Any]:
    pages = list(reference)
    examples = sorted(path.relative_to(docs).as_posix() for path in (docs / "examples").rglob("*.md"))
    return [
        {"Start": [*START, *([{"Examples": examples}] if examples else []), *MORE]},
        {"How-to": _in_order("how-to", HOW_TO, docs)},
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
        {"Explanation": [*_in_order("explanation", EXPLANATION, docs), "speed.md"]},
    ]


def _in_order(folder: str, names: Iterable[str], docs: Path) -> list[str]:
    """Those named first; a page that nobody has named yet stands at the end."""
    there = sorted(path.stem for path in (docs / folder).glob("*.md"))
    listed = [name for name in names if name in there]
    return [f"{folder}/{name}.md" for name in [*listed, *(name for name in there if name not in listed)]]


def _titled(pages: Iterable[str], pattern: str, title: str) -> list[dict[str, str]]:
    matches = [match for path in pages if (match := re.fullmatch(pattern, path))]
    return [{title.format(_words(match[1])): match[0]} for match in matches]


def _words(name: str) -> str:
    return name if name.startswith(("abbe", "words")) else name.replace("-", " ")
