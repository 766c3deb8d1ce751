"""Installations without some extras: what works there, and the one line that says what to install."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from functools import cache
from importlib import metadata
from pathlib import Path
from types import ModuleType

import pytest
from cli_runs import run_python

import abbe
import abbe.studies
import abbe.views

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
IMPORTED_AS = {"lm-eval": "lm_eval", "vl-convert-python": "vl_convert"}
BROUGHT_ALONG = {"huggingface_hub": "transformers", "llvmlite": "numba", "markupsafe": "jinja2"}


def packages(extra: str) -> set[str]:
    """What an extra of pyproject.toml installs beside the core, by the names under which it is imported."""
    names = set()
    for line in PROJECT["optional-dependencies"][extra] if extra else PROJECT["dependencies"]:
        name = re.split(r"[<>=\[]", line)[0]
        if name == "abbe":
            names |= {one for part in re.search(r"\[(.*)\]", line)[1].split(",") for one in packages(part)}  # type: ignore[index]
        else:
            names.add(IMPORTED_AS.get(name, name))
    return names


CORE, OPTIONAL = packages(""), packages("all")


def run_with(present: set[str], code: str) -> subprocess.CompletedProcess[str]:
    """Code where of all the packages that abbe names only these can be imported."""
    refused = (CORE | OPTIONAL) - present
    refused |= {name for name, parent in BROUGHT_ALONG.items() if parent in refused}
    blocker = f"""
import sys
from importlib.machinery import PathFinder
class Installed(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in refused else PathFinder.find_spec(name, path, target)
refused = {refused!r}
sys.meta_path[:] = [Installed if finder is PathFinder else finder for finder in sys.meta_path]
"""
    return run_python(blocker + code)


def run_abbe(present: set[str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_with(present, f"sys.argv = ['abbe', *{arguments!r}]\nfrom abbe.cli import main\nmain()")


def importing(extra: str) -> str:
    """Code that looks up every public name that needs no other extra."""
    return f"""
import abbe
for package in (abbe, abbe.studies):
    for name in package.__all__:
        try:
            getattr(package, name)
        except abbe.AbbeError as error:
            assert "needs abbe[" in str(error) and "abbe[{extra}]" not in str(error), (name, error)
"""


# -- Core -------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_normalizers_attention_and_bounds_need_no_extra() -> None:
    done = run_with(
        CORE,
        """
import abbe, torch
rows, sparsemax = torch.randn(1024, 128), abbe.normalizer("sparsemax")
print(torch.allclose(sparsemax(rows), sparsemax(rows.double()).float(), atol=1e-5))
query = torch.randn(1, 2, 8, 16)
print(abbe.attention(query, query, query, normalizer="entmax:alpha=1.5").shape == query.shape)
print(len(abbe.bounds.catalogue()) > 20, len(abbe.list_normalizers()) > 20, "diagnose" in dir(abbe))
print(all(verdict.holds for verdict in abbe.verify(["spectral"], 20)))
print([check.name for check in abbe.doctor() if check.state == "broken"])
""",
    )
    assert done.stderr == ""
    assert done.stdout.splitlines() == ["True", "True", "True True True", "True", "[]"]


@pytest.mark.parametrize(
    ("extra", "missing"),
    [
        ("", {"diagnose": "models", "load": "models", "Result": "models", "report": "all"}),
        ("models", {"report": "all"}),
    ],
)
def test_a_name_that_needs_an_extra_says_so(extra: str, missing: dict[str, str]) -> None:
    present = CORE | (packages(extra) if extra else set())
    code = f"""
import abbe
for name in {list(missing)!r}:
    try:
        getattr(abbe, name)
    except abbe.AbbeError as error:
        print(error)
"""
    lines = [f'abbe.{name} needs abbe[{needed}]: pip install "abbe[{needed}]"' for name, needed in missing.items()]
    done = run_with(present, code)
    assert (done.stderr, done.stdout.splitlines()) == ("", lines)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["report"], 'abbe report needs abbe[all]: pip install "abbe[all]"'),
        (["calibrate", "--with", "sparsemax"], 'abbe calibrate needs abbe[models]: pip install "abbe[models]"'),
        (["pull", "smollm2"], 'abbe pull needs abbe[models]: pip install "abbe[models]"'),
        (["verify", "--html", "x.html"], 'abbe verify --html needs abbe[report]: pip install "abbe[report]"'),
    ],
)
def test_a_command_that_needs_an_extra_says_so(arguments: list[str], line: str) -> None:
    done = run_abbe(CORE, *arguments)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"{line}\n")


def test_commands_and_names_of_the_core() -> None:
    """Both in one process: each imports most of the core."""
    words = {
        "--help": "report",
        "report --help": "--figures",
        "normalizers softmax topk:k=2": "topk",
        "normalizers --json": '"entmax"',
        "verify spectral --trials 20": "1 holds, 0 refuted",
        "doctor": "Everything abbe needs is installed",
    }
    code = f"""{importing("")}
from abbe.cli import main
for line in {list(words)!r}:
    sys.argv = ["abbe", *line.split()]
    try:
        main()
    except SystemExit as stop:
        print("CODE", stop.code)
"""
    done = run_with(CORE, code)
    assert done.stderr == ""
    shown = re.split(r"CODE 0\n", done.stdout)
    assert shown.pop() == ""
    for (line, word), printed in zip(words.items(), shown, strict=True):
        assert word in printed, line


# -- Models -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_models_are_measured_without_a_page(tmp_path: Path) -> None:
    quick = ("--lengths", "32", "--windows", "2", "--queries", "4", "--sizes", "1,2", "--out", str(tmp_path / "run"))
    done = run_abbe(CORE | packages("models"), "diagnose", *quick)
    assert done.returncode == 0, done.stderr
    last = f'run: {tmp_path / "run"} (its page needs abbe[report]: pip install "abbe[report]")'
    assert done.stdout.splitlines()[-1] == last
    assert abbe.open(tmp_path / "run").table.height > 100
    assert not (tmp_path / "run" / "diagnose.html").exists()


@pytest.mark.parametrize("option", ["--figures=x", "--open"])
def test_pages_and_figures_are_refused_before_the_work(option: str) -> None:
    done = run_abbe(CORE | packages("models"), "diagnose", option)
    asked = option.partition("=")[0]
    line = f'abbe diagnose {asked} needs abbe[report]: pip install "abbe[report]"\n'
    assert (done.returncode, done.stderr) == (2, line)


def test_a_page_that_cannot_be_drawn_names_what_was_called() -> None:
    code = """
import abbe, polars
try:
    abbe.Run(polars.DataFrame(), {}).to_html("page.html")
except abbe.AbbeError as error:
    print(error)
"""
    done = run_with(CORE | packages("models"), code)
    assert (done.stderr, done.stdout) == ("", 'Run.to_html needs abbe[report]: pip install "abbe[report]"\n')


@pytest.mark.parametrize("extra", ["report", pytest.param("models", marks=pytest.mark.slow)])
def test_names_of_an_extra_need_no_other(extra: str) -> None:
    """Every one can be imported: what its module imports at the top comes with the core and this extra."""
    done = run_with(CORE | packages(extra), importing(extra))
    assert done.stderr == ""


# -- Tables that must agree -------------------------------------------------------------------------------------------


def test_an_extra_is_missing_if_any_of_its_packages_is() -> None:
    code = f"""
import abbe
for name in {sorted(OPTIONAL)!r}:
    refused.clear()
    refused.add(name)
    for asked in ("load", "report") if name in {sorted(packages("models"))!r} else ("report",):
        try:
            getattr(abbe, asked)
        except abbe.AbbeError as error:
            print(name, asked)
"""
    done = run_with(CORE | OPTIONAL, code)
    wanted = [
        f"{name} {asked}"
        for name in sorted(OPTIONAL)
        for asked in ("load", "report")  # of the extras models and all
        if asked == "report" or name in packages("models")
    ]
    assert (done.stderr, done.stdout.splitlines()) == ("", wanted)
    assert packages("all") <= packages("dev")


@pytest.mark.parametrize("package", [abbe, abbe.studies, abbe.lab])
def test_every_public_name_can_be_imported(package: ModuleType) -> None:
    assert len(package.__all__) == len(set(package.__all__)) > 3
    assert all(getattr(package, name) is not None for name in package.__all__)


@cache
def third_party_imports() -> dict[str, set[str]]:
    """Packages that the sources import, anywhere in a file, with those files."""
    files: dict[str, set[str]] = {}
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [one.name for one in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            for name in {name.partition(".")[0] for name in names} - sys.stdlib_module_names:
                files.setdefault(name, set()).add(path.name)
    return files


def test_every_import_is_covered_by_the_core_or_an_extra() -> None:
    imported = third_party_imports()
    assert {"torch", "polars", "altair", "markupsafe"} <= set(imported)
    uncovered = set(imported) - CORE - OPTIONAL - packages("eval") - set(BROUGHT_ALONG) - {"abbe"}
    assert not uncovered, {name: imported[name] for name in uncovered}
    for name, parent in BROUGHT_ALONG.items():
        lines = [line for line in metadata.requires(parent) or [] if "extra" not in line]
        assert any(line.lower().startswith(name.replace("_", "-")) for line in lines), name


def test_nothing_is_required_that_is_not_imported() -> None:
    assert set(third_party_imports()) >= CORE | OPTIONAL
