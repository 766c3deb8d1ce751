"""Every Python block of every document runs as it is written, in order, and leaves and shows what the document says."""

from __future__ import annotations

import re
from pathlib import Path

import polars as pl
import pytest
from doc_blocks import DOCUMENTS, read
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


_HOW_TO = ("comparing", "measuring", "capacity", "lifting", "diff", "exporting", "report", "swapping")
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
