"""Converted GGUF files in the user's cache: by the sha256 of the file, complete or absent, checked when read.

Dequantising 270 million weights and building a vocabulary of 262,144 words takes a minute, reading the result seconds.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

from .._pull.cache import ABOUT, cache_folder

FORMAT = 1  # raised whenever abbe converts the same file differently
_CONVERTERS = ("transformers", "gguf")


def converted_folder(path: Path, convert: Callable[[Path], bool]) -> Path | None:
    """The folder that `convert(folder)` has filled from this file, now or before; None if the cache cannot hold it.

    `convert` returns whether it wrote the whole model. A folder that is damaged, or was converted by other versions of
    the packages, is replaced.
    """
    from safetensors import SafetensorError

    digest = _sha256(path)
    folder = cache_folder() / "gguf" / digest
    facts = {"format": FORMAT, "sha256": digest} | {name: version(name) for name in _CONVERTERS}
    if _is_intact(folder, facts):
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{digest[:8]}-", dir=folder.parent) as work:
            new = Path(work) / "model"
            new.mkdir()
            if not convert(new):
                return None
            files = {file.name: _sha256(file) for file in sorted(new.iterdir())}
            (new / ABOUT).write_text(json.dumps(facts | {"files": files}, indent=1) + "\n", encoding="utf-8")
            _put(new, folder, Path(work) / "old")
    except (OSError, SafetensorError):  # read-only or full: the model can still be read without a cache
        return None
    return folder if _is_intact(folder, facts) else None


def _put(new: Path, folder: Path, aside: Path) -> None:
    """By renaming, so that the folder is complete or absent; another process may do the same at any moment."""
    with suppress(FileNotFoundError):
        os.rename(folder, aside)
    try:
        os.rename(new, folder)
    except OSError:
        if not folder.is_dir():
            raise
    shutil.rmtree(aside, ignore_errors=True)


def _is_intact(folder: Path, facts: dict[str, Any]) -> bool:
    """Whether the folder has these facts, and every file is as it was written."""
    try:
        stored = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
        files = stored.pop("files")
        return bool(stored == facts and files) and all(_sha256(folder / name) == files[name] for name in files)
    except (OSError, ValueError, KeyError, AttributeError, TypeError, RecursionError):
        return False


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
