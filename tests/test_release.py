"""What is released: one version, a wheel and a source archive that work where there is no checkout."""

from __future__ import annotations

import platform
import re
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest

import abbe

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "scripts" / "check_dist.py"


def test_version_stands_in_one_place() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert re.fullmatch(r"\d+\.\d+\.\d+", abbe.__version__)
    assert version("abbe") == abbe.__version__
    assert "version" in project["project"]["dynamic"]
    assert "version:" not in (ROOT / "CITATION.cff").read_text(encoding="utf-8").replace("cff-version:", "")


def test_workflows_call_the_commands_of_the_makefile() -> None:
    """They are thin: what they run is what a developer runs."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    workflows = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
    assert workflows
    for workflow in workflows:
        commands = re.findall(r"- run: (.+)", workflow.read_text(encoding="utf-8"))
        for command in commands:
            target = re.fullmatch(r"make ([a-z-]+)", command)
            assert command == "bash .ci/run" or (target and f"\n{target[1]}:" in makefile), (workflow.name, command)


@pytest.mark.slow
@pytest.mark.parametrize("spread", ["--numprocesses=1", "--numprocesses=0"])
def test_a_run_of_the_tests_says_which_versions_it_ran(spread: str) -> None:
    """Once, with workers and when quiet; no test is chosen, so that nothing else takes time."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", spread, "tests/test_layers.py"]
    said = subprocess.run([*command, "-k", "nothing"], cwd=ROOT, capture_output=True, text=True).stdout
    names = ("torch", "numba", "numpy", "transformers", "polars")
    expected = ", ".join([platform.python_version(), *(f"{name} {version(name)}" for name in names)])
    line = "^versions: Python ([^;]*); kernels for .+, (?:128|256|512)-bit vectors$"
    assert re.findall(line, said, re.MULTILINE) == [expected]


def test_the_environments_of_the_makefile_have_every_dependency_pinned() -> None:
    """`make test-ecosystem` as `make test`: what it installs is what constraints.txt says."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    pinned = re.findall(r"^([\w-]+)==", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    asked = {re.split("[<>=[;]", line)[0] for lines in extras.values() for line in lines}
    assert asked - {"abbe"} <= set(pinned)
    assert "make test-ecosystem" in (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()


def test_source_archive_has_what_the_checkout_says_of_itself() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    included = project["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    by_itself = {"README.md", "LICENSE"}  # named above, in the table of the project
    documents = {path.name for path in ROOT.glob("*.md")} | {"LICENSE", "CITATION.cff"}
    assert documents - by_itself <= {one.lstrip("/") for one in included}


@pytest.mark.slow
def test_wheel_holds_the_package_and_nothing_else(tmp_path: Path) -> None:
    run = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path)]
    subprocess.run(run, cwd=ROOT, check=True, capture_output=True, timeout=120)
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names} == {"abbe", f"abbe-{abbe.__version__}.dist-info"}
    for needed in ("abbe/py.typed", "abbe/embedded/model.safetensors"):
        assert needed in names


@pytest.mark.slow
def test_wheel_writes_a_report_in_a_clean_environment(tmp_path: Path) -> None:
    """Installs everything anew, so it needs a package index."""
    pytest.importorskip("hatchling")
    index = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--dest", str(tmp_path), "typer"]
    if subprocess.run(index, capture_output=True).returncode:
        pytest.skip("no package index can be reached")
    command = [sys.executable, str(SCRIPT), "--out", str(tmp_path / "dist"), "--python", sys.executable]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "writes a report outside the checkout" in done.stdout
