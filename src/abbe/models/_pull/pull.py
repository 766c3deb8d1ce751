"""Pull a real pre-trained model into the user's cache: download, check and convert it once; complete or absent."""

from __future__ import annotations

import difflib
import errno
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from ..._errors import AbbeError
from .._load.quiet import quiet
from . import minilm as _pull_minilm
from . import smollm2 as _pull_smollm2
from .cache import ABOUT, is_pulled, pulled_folder

Step = Callable[[str], None]


class _Recipe(NamedTuple):
    """How to build a model: (folder for temporary files, folder to fill, progress) -> facts."""

    make: Callable[[Path, Path, Step], dict[str, Any]]
    bytes_needed: int


RECIPES = {
    "smollm2": _Recipe(_pull_smollm2.make_smollm2, _pull_smollm2.BYTES_NEEDED),
    "minilm": _Recipe(_pull_minilm.make_minilm, _pull_minilm.BYTES_NEEDED),
}


def pull(name: str, progress: Step = lambda what: None) -> Path:
    """Fetch a real pre-trained model into the cache; a later call finds it there already.

    Everything happens in a temporary folder, which is renamed at the end: an error or an interrupt leaves nothing
    behind. Needs the network once.

    Args:
        name: "smollm2" or "minilm".
        progress: called with one line before each step.

    Returns:
        The folder of the model, which `load(name)` reads.

    Raises:
        AbbeError: the name is unknown, the network does not answer, or the disk is full.

    Examples:
        >>> abbe.pull("smolm2")
        Traceback (most recent call last):
        ...
        abbe._errors.AbbeError: cannot pull 'smolm2'. Did you mean 'smollm2'? Models to pull: smollm2, minilm
    """
    if name not in RECIPES:
        close = difflib.get_close_matches(name.lower(), RECIPES, n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise AbbeError(f"cannot pull {name!r}.{hint} Models to pull: {', '.join(RECIPES)}")
    folder = pulled_folder(name)
    if is_pulled(name):
        progress(f"{name} is there already")
        return folder
    with _write_errors(folder):
        _make(RECIPES[name], folder, progress)
    return folder


def _make(recipe: _Recipe, folder: Path, progress: Step) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    if folder.exists():
        raise AbbeError(f"{folder} is in the way, and it is not a pulled model: move it elsewhere")
    free, needed = shutil.disk_usage(folder.parent).free, recipe.bytes_needed
    if free < needed:
        left = f"{folder.parent} has {free / 1e6:.0f} MB left, {needed / 1e6:.0f} MB are needed"
        raise AbbeError(f"the disk is full: {left}")
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as work, quiet():
        target = Path(work) / "model"
        facts = recipe.make(Path(work), target, progress)
        (target / ABOUT).write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
        try:
            os.rename(target, folder)  # one step, so that the folder is complete or absent
        except OSError as error:
            # Another process may have been faster with the same model.
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST) or not is_pulled(folder.name):
                raise


@contextmanager
def _write_errors(folder: Path) -> Iterator[None]:
    """Reports a full or read-only disk in one line, whichever library fails first."""
    from safetensors import SafetensorError

    try:
        yield
    except OSError as error:
        raise AbbeError(f"cannot write {folder}: {error.strerror or error}") from error
    except SafetensorError as error:
        raise AbbeError(f"cannot write {folder}: {error}") from error
