"""Every Python block of every document runs as it is written, in order, and leaves and shows what the document says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
from doc_blocks import DOCUMENTS, ROOT, read
from doc_python import run_python
from run_files import check_files
from stand_ins import Shape, build, move_in, save_swap

from abbe.measures import list_measures

SHAPES = {
    "docs/how-to/comparing.md": Shape(context=64),
    "docs/how-to/measuring.md": Shape(context=1024),  # lengths=[256, 1024]
    "docs/how-to/report.md": Shape(context=64),
}
WITH_PYTHON = [name for name in DOCUMENTS if read(name).of("python")]


_HOW_TO = ("comparing", "measuring", "capacity", "evaluating", "lifting", "diff", "exporting", "report", "swapping")
# A second or more of measuring; the README makes a report, too.
SLOW = {f"docs/{name}.md" for name in ("index", "explanation/precision", "explanation/lab")}
SLOW |= {f"docs/how-to/{name}.md" for name in _HOW_TO}


@pytest.mark.parametrize(
    "name", [pytest.param(one, marks=pytest.mark.slow) if one in SLOW else one for one in WITH_PYTHON]
)
def test_the_python_of_a_document_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    document = read(name)
    build(tmp_path, SHAPES.get(name, Shape()), document.texts)
    move_in(tmp_path, monkeypatch)
    if name == "docs/results/lifting-by-hand.md":  # left by its commands, which test_commands.py reads
        save_swap(Path("part/tuned.safetensors"), "entmax:alpha=1.5")
    space = run_python(document)
    for folder in re.findall(r'folder="([\w-]+)"', "".join(block.text for block in document.of("python"))):
        check_files(Path(folder))
    if name == "docs/how-to/measuring.md":
        check_measures(space["run"].table)


def check_measures(heads: pl.DataFrame) -> None:
    """A measure has sizes, limits and controls where the registry says so."""
    for info in list_measures():
        of_measure = heads.filter(pl.col("measure") == info.name)
        if len(of_measure):
            has = {column: of_measure[column].is_not_null().any() for column in ("n", "limit", "control")}
            assert has == {"n": info.by_size, "limit": bool(info.limit), "control": bool(info.control)}, info.name


# -- Examples ---------------------------------------------------------------------------------------------------------


EXAMPLES = ROOT / "examples"
# Arguments that make an example short, and what it must have found all the same.
SMALL = {
    "own_figure": (["--length", "128", "--windows", "2"], "separability of the top 20 tokens: narrow half"),
    "mass_law": (["--length", "64", "--windows", "2"], "embedded: counted over predicted"),
    "own_transformer": (["--steps", "20", "--context", "64"], "alphas that the heads learned"),
    "lora_entmax": (["--steps", "8", "--length", "64"], "merged: loaded again, the same logits: True"),
    "watch_trainer": (["--steps", "4", "--length", "64"], "too fast: loss"),
    "lift_and_export": (
        ["--windows", "2", "--length", "128", "--steps", "0"],
        "weights with their plan beside them; outputs differ by",
    ),
}
LIMIT = 240  # seconds, on cores that others use, too


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_an_example_runs_and_leaves_its_picture(name: str, tmp_path: Path) -> None:
    arguments, expected = SMALL[name]
    if name == "lora_entmax":
        pytest.importorskip("peft")  # `make test-ecosystem` runs it
    command = [sys.executable, str(EXAMPLES / f"{name}.py"), "--out", "here", *arguments]
    paths = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    offline = os.environ | {"PYTHONPATH": paths, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=offline, capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 0, done.stderr
    assert expected in done.stdout
    assert done.stdout.splitlines()[-1] == f"picture: {Path('here') / name}.svg"
    assert (tmp_path / "here" / f"{name}.svg").read_text(encoding="utf-8").startswith("<svg")
    assert [path.name for path in tmp_path.iterdir()] == ["here"]


def test_every_example_is_run_here_and_shown_with_its_picture() -> None:
    assert sorted(SMALL) == sorted(path.stem for path in EXAMPLES.glob("*.py"))
    index = (ROOT / "docs" / "examples" / "index.md").read_text(encoding="utf-8")
    for name in SMALL:
        page = (ROOT / "docs" / "examples" / f"{name}.md").read_text(encoding="utf-8")
        assert f'--8<-- "examples/{name}.py"' in page
        assert f"](../figures/example-{name}.svg)" in page
        assert f"]({name}.md)" in index
