"""check_dist: build the wheel and the source archive, and use both as a user would, outside the checkout.

    python scripts/check_dist.py [--out dist] [--python python3.12 ...] [--cuda]

Every interpreter from 3.11 to 3.13 that is here, also those of pyenv, gets a new environment with the wheel and its
dependencies (constraints.txt pins them), and must write a report from another folder. The wheel is built from the
source archive, so that this is shown to be whole.

Where pip would fetch a build of torch for CUDA (gigabytes), all but torch is tried, unless --cuda is given: that Python
takes the wheel and its other dependencies, and compiles every module without a warning.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
PYTHONS = ("python3.11", "python3.12", "python3.13")
FULL, LIGHT = "installs, and writes a report outside the checkout", "installs and compiles; not tried with torch"
SMALL = ("--lengths", "64", "--windows", "2", "--quiet")


def build(out: Path) -> Path:
    """The source archive, and the wheel made from it; gives the wheel."""
    shutil.rmtree(out, ignore_errors=True)
    _run(sys.executable, "-m", "hatchling", "build", "--target", "sdist", "--directory", str(out), at=ROOT)
    (archive,) = out.glob("*.tar.gz")
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(archive) as file:
            file.extractall(folder, filter="data")
        (source,) = Path(folder).iterdir()
        _run(sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(out), at=source)
    (wheel,) = out.glob("*.whl")
    return wheel


def interpreter(name: str) -> str | None:
    """The first of that name that runs: a shim of pyenv is found on the path, but may stand for nothing."""
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    beside = versions.glob(f"{name.removeprefix('python')}*/bin/{name}") if name in PYTHONS else ()
    candidates = [shutil.which(name), *map(str, sorted(beside))]
    for one in candidates:
        if one is not None and subprocess.run([one, "-c", "import venv"], capture_output=True).returncode == 0:
            return one
    return None


def check(wheel: Path, python: str, folder: Path, cuda: bool = False) -> str:
    """Install the wheel for an interpreter in a new environment and use it there; gives what was shown."""
    environment = folder / "environment"
    _run(python, "-m", "venv", str(environment), at=folder)
    run = str(environment / "bin" / "python")
    pip = (run, "-m", "pip", "install", "--quiet", "--constraint", str(ROOT / "constraints.txt"))
    if not cuda and _brings_cuda(pip, folder):
        return _check_without_torch(wheel, pip, folder)
    _run(*pip, "torch", at=folder)  # first and alone, by its pin: see the Makefile
    _run(*pip, f"abbe[all] @ {wheel.resolve().as_uri()}", at=folder)
    _check_place(run, environment, folder)
    page = _run(str(environment / "bin" / "abbe"), "report", *SMALL, at=folder).splitlines()[-1].split()[-1]
    if not (folder / page).is_file():
        sys.exit(f"{python}: the report left no page at {page}")
    return FULL


def _brings_cuda(pip: Sequence[str], folder: Path) -> bool:
    """Whether the torch that pip would choose asks for NVIDIA's libraries; only its metadata is fetched."""
    report = folder / "torch.json"
    _run(*pip, "--dry-run", "--no-deps", "--report", str(report), "torch", at=folder)
    (torch,) = json.loads(report.read_text(encoding="utf-8"))["install"]
    return any(re.match("nvidia-|cuda-", line) for line in torch["metadata"].get("requires_dist", ()))


def _check_without_torch(wheel: Path, pip: Sequence[str], folder: Path) -> str:
    run = pip[0]
    _run(*pip, "--no-deps", str(wheel.resolve()), at=folder)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    needed = [*project["dependencies"], *extras["models"], *extras["report"]]
    _run(*pip, *(line for line in needed if not line.startswith("torch")), at=folder)
    _check_place(run, Path(run).parents[1], folder)
    package = _run(run, "-c", "import abbe; print(abbe.__path__[0])", at=folder)
    _run(run, "-W", "error", "-m", "compileall", "-q", "-f", package, at=folder)
    _run(run, "-c", "import abbe, altair, gguf, numba, polars, rich, scipy, tokenizers, typer", at=folder)
    return LIGHT


def _check_place(run: str, environment: Path, folder: Path) -> None:
    where = _run(run, "-c", "import abbe; print(abbe.__file__)", at=folder)
    if not Path(where).is_relative_to(environment):
        sys.exit(f"abbe came from {where}, not from the wheel")


def _run(*command: str, at: Path) -> str:
    """What it printed; ends the script with its errors if it failed."""
    # Without these, an environment of the caller's would lend its packages.
    plain = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(command, cwd=at, env=plain, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout.strip()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="where the built files go (emptied first)")
    parser.add_argument("--python", action="append", help="an interpreter; by default every one from 3.11 to 3.13")
    parser.add_argument("--cuda", action="store_true", help="also fetch builds of torch for CUDA")
    options = parser.parse_args(arguments)
    wheel = build(options.out)
    print(f"built {wheel.name} and its source archive")
    for name in options.python or PYTHONS:
        python = interpreter(name)
        if python is None:
            print(f"{name}: skipped, it is not here", flush=True)
            continue
        with tempfile.TemporaryDirectory() as folder:
            shown = check(wheel, python, Path(folder), options.cuda)
        print(f"{name}: {shown}", flush=True)


if __name__ == "__main__":
    main()
