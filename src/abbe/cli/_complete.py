"""Shell completion. It must not wait for torch, so only light modules are used."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ._names import DEVICE_MAPS, DEVICES, DTYPES, FIGURES, STATEMENTS, normalizer_names

PULLABLE = ("smollm2", "minilm")  # as in abbe.models, which would load torch; a test compares


def models(incomplete: str) -> list[str]:
    """The embedded model, those that can be pulled, folders and GGUF files."""
    return _starting(("embedded", *PULLABLE), incomplete) + _on_disk(incomplete)


def pullable(incomplete: str) -> list[str]:
    return _starting(PULLABLE, incomplete)


def normalizers(incomplete: str) -> list[str]:
    return _starting(normalizer_names(), incomplete)


def one_of(names: Sequence[str]) -> Callable[[str], list[str]]:
    def complete(incomplete: str) -> list[str]:
        return _starting(names, incomplete)

    return complete


statements, devices, device_maps, dtypes = map(one_of, (STATEMENTS, DEVICES, DEVICE_MAPS, DTYPES))


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
    return [before + name for path in paths if (name := _offered(path, start))]


def _offered(path: Path, start: str) -> str:
    if path.name.startswith(".") and not start.startswith("."):
        return ""
    if path.is_dir():
        return path.name if (path / "config.json").is_file() else f"{path.name}/"
    return path.name if path.suffix == ".gguf" else ""
