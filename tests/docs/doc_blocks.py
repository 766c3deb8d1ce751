"""The documents that a reader follows, and what in them is meant to be typed: blocks of code, commands, links."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_OF_THE_SITE = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md"))
DOCUMENTS = ("README.md", "CONTRIBUTING.md", *_OF_THE_SITE)
INDENTED = "indented"  # the language of a block that has no fence
COMMANDS = (INDENTED, "sh")


@dataclass(frozen=True)
class Block:
    """A block of code: the language after its fence, its text, and the line of the document on which it begins.

    `not_run` is why it cannot run here, from a comment above it: `<!-- not run: needs a GPU -->`.
    """

    language: str
    text: str
    line: int
    not_run: str = ""


@dataclass(frozen=True)
class Document:
    """What a document shows as code, and the text around it, in which a code span is one line."""

    name: str
    blocks: tuple[Block, ...]
    prose: str

    def of(self, *languages: str) -> list[Block]:
        return [block for block in self.blocks if block.language in languages]

    @property
    def texts(self) -> set[Path]:
        """Text files that the reader has, such as "book.txt"."""
        code = "\n".join([*(block.text for block in self.blocks), *self.spans])
        return {Path(name) for name in re.findall(r"\b[\w-]+\.txt\b", code)}

    @property
    def spans(self) -> list[str]:
        """Inline code, without its backticks."""
        return [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", self.prose)]


def read(name: str) -> Document:
    """Split a document into blocks and prose; every line belongs to exactly one of them."""
    blocks: list[Block] = []
    prose: list[str] = [""]
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    at = 0
    while at < len(lines):
        if lines[at].startswith("```"):
            language = lines[at].removeprefix("```").strip() or "no language"
            length = lines[at + 1 :].index("```")  # a fence that is not closed is a ValueError
            text = "\n".join(lines[at + 1 : at + 1 + length])
            blocks.append(Block(language, text, at + 2, _reason(lines[:at])))
            at += length + 2
        elif lines[at].startswith("    ") and not prose[-1].strip():
            length = next((n for n, line in enumerate(lines[at:]) if line and not line.startswith("    ")), len(lines))
            text = "\n".join(line[4:] for line in lines[at : at + length]).rstrip()
            blocks.append(Block(INDENTED, text, at + 1))
            at = min(at + length, len(lines))
        else:
            prose.append(lines[at])
            at += 1
    return Document(name, tuple(blocks), "\n".join(prose))


def _reason(above: list[str]) -> str:
    """Reason that the comment just above a block gives."""
    last = next((line for line in reversed(above) if line.strip()), "")
    comment = re.fullmatch(r"<!-- not run: (.+) -->", last)
    return comment[1] if comment else ""


def commands(block: Block) -> list[str]:
    """The commands of a block, one per line; a backslash carries a line over."""
    return [line for line in block.text.replace("\\\n", " ").splitlines() if line.strip()]
