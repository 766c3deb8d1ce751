"""Shell completion. It must not wait for torch, so only light modules are used."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

# As in the modules that use them, which would load torch; a test compares.
PULLABLE, FIGURES = ("smollm2", "minilm"), ("2a", "2b", "2c", "3", "4")
_NORMALIZERS = Path(__file__).parents[1] / "normalizers"
_NAME = re.compile(
    r'^    name = "([^"]+)"\n(?:    aliases.*\n)?    meaning', re.MULTILINE
)  # of a normalizer in the registry


def models(incomplete: str) -> list[str]:
    """The embedded model, those that can be pulled, folders and GGUF files."""
    return _starting(("embedded", *PULLABLE), incomplete) + _on_disk(incomplete)


def normalizers(incomplete: str) -> list[str]:
    """Read from the sources: importing them would load torch."""
    sources = [file.read_text("utf-8") for file in _NORMALIZERS.rglob("*.py")]
    return _starting(sorted(name for source in sources for name in _NAME.findall(source)), incomplete)


def one_of(names: Sequence[str]) -> Callable[[str], list[str]]:
    def complete(incomplete: str) -> list[str]:
        return _starting(names, incomplete)

    return complete


def figures(incomplete: str) -> list[str]:
    """One figure, all, or the next one of a comma-separated list."""
    before, comma, start = incomplete.rpartition(",")
    if not comma:
        return _starting(("all", *FIGURES), incomplete)
    left = [name for name in FIGURES if name not in before.split(",")]
    return [f"{before},{name}" for name in _starting(left, start)]


def _starting(names: Any, start: str) -> list[str]:
    return [name for name in names if name.startswith(start)]


def _on_disk(incomplete: str) -> list[str]:
    """Folders that hold a model, GGUF files, and other folders with a trailing slash."""
    start = incomplete.rpartition("/")[2]
    before = incomplete.removesuffix(start)
    try:
        paths = sorted(path for path in Path(before or ".").expanduser().iterdir() if path.name.startswith(start))
    except OSError:
        return []
    shown = [path for path in paths if start.startswith(".") or not path.name.startswith(".")]
    return [
        before + path.name + ("/" if path.is_dir() and not (path / "config.json").is_file() else "")
        for path in shown
        if path.is_dir() or path.suffix == ".gguf"
    ]
