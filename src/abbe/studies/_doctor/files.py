"""What lies on disk: models, caches, and browsers for the pages."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import webbrowser
from pathlib import Path

from safetensors import SafetensorError, safe_open

from ..._errors import AbbeError
from ...models import (
    EMBEDDED_FILES,
    PULLABLE,
    cache_folder,
    embedded_about,
    embedded_folder,
    is_pulled,
    pulled_facts,
    pulled_folder,
    read_text,
)
from .check import Check

GROUP = "Models and caches"
_LITTLE_SPACE = 1e9  # bytes: the largest pulled model while it is converted
_AGAIN = "install abbe again, for example with pip install --force-reinstall abbe"
_BROWSERS = "Browsers"
_TESTED = ("chromium",)
_OTHERS = ("chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


def embedded_check() -> Check:
    """All files are there, and the weights are as long as they say."""
    name = "embedded model"
    try:
        folder = embedded_folder()
        for file in EMBEDDED_FILES:
            if file.endswith(".json"):
                json.loads((folder / file).read_text(encoding="utf-8"))
        with safe_open(folder / "model.safetensors", framework="pt") as weights:
            count = len(weights.keys())
        read_text()
        about = embedded_about()
    except AbbeError as error:
        return Check(name, "missing", str(error), _AGAIN, GROUP)
    except (OSError, ValueError, SafetensorError) as error:
        return Check(name, "broken", f"{type(error).__name__}: {error}", _AGAIN, GROUP)
    return Check(name, "ok", f"{count} weights; {about.partition(', trained')[0]}", group=GROUP)


def cache_check() -> Check:
    """Where pulled models go: it can be made and has room."""
    folder = cache_folder()
    there = _nearest(folder)
    if not (there.is_dir() and _writable(there)):
        advice = "set ABBE_CACHE to a folder that you may write to"
        return Check("cache of models", "warning", f"{folder} cannot be written", advice, GROUP, False)
    free = shutil.disk_usage(there).free
    found = f"{folder}, {free / 1e9:.1f} GB free"
    if free < _LITTLE_SPACE:
        advice = "make room, or set ABBE_CACHE to a folder on another disk"
        return Check("cache of models", "warning", found, advice, GROUP, False)
    return Check("cache of models", "ok", found, "", GROUP, False)


def pulled_checks() -> list[Check]:
    return [_pulled(name) for name in PULLABLE]


def _pulled(name: str) -> Check:
    if not is_pulled(name):
        return Check(name, "missing", "not pulled", f"abbe pull {name}", GROUP, False)
    try:
        what = str(pulled_facts(name)["what"])
    except (OSError, ValueError, KeyError):
        folder = pulled_folder(name)
        return Check(name, "broken", f"{folder} is damaged", f"remove it, then abbe pull {name}", GROUP, False)
    return Check(name, "ok", what, "", GROUP, False)


def kernel_cache_check() -> Check:
    """numba refuses to compile what it cannot keep, and what was kept elsewhere is compiled again."""
    name, advice = "cache of kernels", "set NUMBA_CACHE_DIR to a folder that you may write to"
    try:
        folder = _kernel_cache()
    except RuntimeError as error:
        return Check(name, "broken", str(error), advice, GROUP)
    if not _writable(_nearest(folder)):
        return Check(name, "warning", f"{folder} cannot be written: kernels are compiled again", advice, GROUP)
    return Check(name, "ok", str(folder), group=GROUP)


def _kernel_cache() -> Path:
    """Where numba keeps the kernels: it asks when a module with kernels is imported."""
    from ..._kernels import vector as _vector

    return Path(_vector.row_max.stats.cache_path)


def opening_check() -> Check:
    """What --open would use."""
    try:
        found = webbrowser.get()
    except webbrowser.Error:
        advice = "open the printed path yourself, or name a browser in BROWSER"
        return Check("browser for --open", "missing", "none was found", advice, _BROWSERS, False)
    name = getattr(found, "name", "") or type(found).__name__
    return Check("browser for --open", "ok", str(name), "", _BROWSERS, False)


def chromium_check() -> Check:
    """The browser of the tests of the pages."""
    name = "chromium for tests"
    if path := next(filter(None, map(shutil.which, _TESTED)), None):
        return Check(name, "ok", path, "", _BROWSERS, False)
    advice = "install it, on Debian with apt install chromium; without it the tests of the pages are skipped"
    other = next(filter(None, map(shutil.which, _OTHERS)), None)
    return Check(name, "missing", f"only {other}" if other else "none was found", advice, _BROWSERS, False)


def _nearest(folder: Path) -> Path:
    """The folder, or the nearest one above it that exists."""
    return next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())


def _writable(folder: Path) -> bool:
    """By trying: the rights alone do not tell of a read-only disk."""
    if not os.access(folder, os.W_OK):
        return False
    try:
        tempfile.TemporaryFile(dir=folder).close()
    except OSError:
        return False
    return True
