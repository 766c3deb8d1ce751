"""What was made of GGUF files, in the user's cache: by the sha256 of the file, complete or absent, checked when read.

Dequantising 270 million weights and building a vocabulary of 262,144 words takes a minute,
reading the outcome a few seconds.
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

FORMAT = 1  # raised whenever abbe makes something else of the same file
_MAKERS = ("transformers", "gguf")


def converted_folder(path: Path, convert: Callable[[Path], bool]) -> Path | None:
    """The folder that `convert(folder)` has filled from this file, now or before; None where nothing can be kept.

    `convert` says whether what it wrote is the whole model. What is damaged, or was made by other versions of the
    packages that convert, is made again.
    """
    from safetensors import SafetensorError

    digest = _sha256(path)
    folder = cache_folder() / "gguf" / digest
    facts = {"format": FORMAT, "sha256": digest} | {name: version(name) for name in _MAKERS}
    if _is_intact(folder, facts):
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{digest[:8]}-", dir=folder.parent) as work:
            made = Path(work) / "model"
            made.mkdir()
            if not convert(made):
                return None
            files = {file.name: _sha256(file) for file in sorted(made.iterdir())}
            (made / ABOUT).write_text(json.dumps(facts | {"files": files}, indent=1) + "\n", encoding="utf-8")
            _put(made, folder, Path(work) / "old")
    except (OSError, SafetensorError):  # read-only, full: the model can still be had
        return None
    return folder if _is_intact(folder, facts) else None


def _put(made: Path, folder: Path, aside: Path) -> None:
    """Renamed, so that the folder is complete or absent; another process may put the same one there at any moment."""
    with suppress(FileNotFoundError):
        os.rename(folder, aside)
    try:
        os.rename(made, folder)
    except OSError:
        if not folder.is_dir():
            raise
    shutil.rmtree(aside, ignore_errors=True)


def _is_intact(folder: Path, facts: dict[str, Any]) -> bool:
    """Whether these facts made the folder, and every file is as it was written."""
    try:
        kept = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
        files = kept.pop("files")
        return bool(kept == facts and files) and all(_sha256(folder / name) == files[name] for name in files)
    except (OSError, ValueError, KeyError, AttributeError, TypeError, RecursionError):
        return False


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
