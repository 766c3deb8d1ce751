"""check_lowest: run the quick tests with the oldest versions that pyproject.toml accepts.

    python scripts/check_lowest.py [--torch torch==2.6.0] [-- tests/normalizers ...]

A new environment gets every run-time dependency, and those of the extras, at exactly its lower bound; the tools of the
tests have the versions of constraints.txt. torch is the exception: old builds for CPUs are not on the package index,
and those for CUDA are gigabytes, so it has the version of constraints.txt unless --torch names another one.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
EXTRAS = ("models", "report")
TOOLS = (
    "pytest",
    "pytest-xdist",
    "hypothesis",
    "beartype",
    "jaxtyping",
    "mpmath",
    "entmax",
    "accelerate",
    "tensorboard",
)
LOWER = re.compile(r"([\w-]+)>=([\w.]+)")
# Not of what runs: checks of the source, the documentation site, and scripts that build a release.
NOT_HERE = (
    "tests/test_layers.py",
    "tests/test_release.py",
    *(f"tests/docs/test_{name}.py" for name in ("site", "truth")),
)


def lowest() -> dict[str, str]:
    """The lower bound of every dependency of the package and of its extras for users."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    bounds = {}
    for line in [*project["dependencies"], *(line for extra in EXTRAS for line in extras[extra])]:
        bound = LOWER.match(line)
        if bound is None:
            sys.exit(f"{line!r} in pyproject.toml has no lower bound")
        bounds[bound[1]] = bound[2]
    return bounds


def pinned(names: Sequence[str]) -> list[str]:
    """Lines of constraints.txt, without comments; only for these names."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line.partition("==")[0] in names]


def make_environment(folder: Path, torch: str) -> str:
    """Its Python."""
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
    python = str(folder / "bin" / "python")
    bounds = lowest()
    bounds.pop("torch")
    pins = [*(f"{name}=={version}" for name, version in bounds.items()), *pinned(TOOLS)]
    constraints = folder / "lowest.txt"
    constraints.write_text("\n".join([torch, *pins]) + "\n", encoding="utf-8")
    pip = (python, "-m", "pip", "install", "--quiet")
    subprocess.run([*pip, torch, "uv"], check=True)  # torch alone first: see the Makefile
    # pip tries versions of everything else for many minutes before it settles; uv takes seconds.
    install = (python, "-m", "uv", "pip", "install", "--quiet", "--python", python, "--constraint", str(constraints))
    subprocess.run([*install, *pins, *pinned(["hatchling", "editables"])], check=True)
    subprocess.run([*install, "--no-build-isolation", "--no-deps", "--editable", str(ROOT)], check=True)
    return python


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "lowest", help="where the environment goes")
    parser.add_argument("--torch", default=pinned(["torch"])[0], help="version of torch, such as torch==2.6.0")
    parser.add_argument("--keep", action="store_true", help="use the environment that is there")
    parser.add_argument("pytest", nargs="*", help="arguments of pytest, behind --; by default the quick tests")
    options = parser.parse_args(arguments)
    python = str(options.folder / "bin" / "python")
    if not options.keep:
        python = make_environment(options.folder, options.torch)
    if options.torch != f"torch=={lowest()['torch']}":
        print(f"not tested: torch {lowest()['torch']}, the lower bound; this is {options.torch}", flush=True)
    subprocess.run([python, "-m", "pip", "list", "--format", "freeze"], check=True)
    without = [f"--ignore={one}" for one in NOT_HERE]
    # What old versions of others warn of is no error here.
    quick = ["-m", "not real and not slow", "-o", "filterwarnings=default"]
    # On all cores, as in the Makefile: a file goes to one worker.
    spread = ["--numprocesses", "auto", "--maxprocesses", "8", "--dist", "loadfile", "--no-loadscope-reorder"]
    tests = [python, "-m", "pytest", *spread, *quick, *without, *options.pytest]
    sys.exit(subprocess.run(tests, cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"}).returncode)


if __name__ == "__main__":
    main()
