"""check_dist: build the wheel and the source archive, and use both as a user would, outside the checkout.

    python scripts/check_dist.py [--out dist] [--python python3.12 ...]

Every interpreter gets a new environment with the wheel and its dependencies (constraints.txt pins them), and must write
a report from another folder. The wheel is built from the source archive, so that this is shown to be whole.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
PYTHONS = ("python3.11", "python3.12", "python3.13")
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


def check(wheel: Path, python: str, folder: Path) -> str:
    """Install the wheel for an interpreter in a new environment, and write a report there; gives the page's path."""
    environment = folder / "environment"
    _run(python, "-m", "venv", str(environment), at=folder)
    run = str(environment / "bin" / "python")
    pip = (run, "-m", "pip", "install", "--quiet", "--constraint", str(ROOT / "constraints.txt"))
    _run(*pip, "torch", at=folder)  # first and alone, by its pin: see the Makefile
    _run(*pip, f"abbe[all] @ {wheel.resolve().as_uri()}", at=folder)
    where = _run(run, "-c", "import abbe; print(abbe.__file__)", at=folder)
    if not Path(where).is_relative_to(environment):
        sys.exit(f"abbe came from {where}, not from the wheel")
    page = _run(str(environment / "bin" / "abbe"), "report", *SMALL, at=folder).splitlines()[-1].split()[-1]
    if not (folder / page).is_file():
        sys.exit(f"{python}: the report left no page at {page}")
    return page


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
    options = parser.parse_args(arguments)
    wheel = build(options.out)
    print(f"built {wheel.name} and its source archive")
    for python in options.python or PYTHONS:
        if shutil.which(python) is None:
            print(f"{python}: skipped, it is not here")
            continue
        with tempfile.TemporaryDirectory() as folder:
            check(wheel, python, Path(folder))
        print(f"{python}: installs, and writes a report outside the checkout")


if __name__ == "__main__":
    main()
