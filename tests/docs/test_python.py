"""Every Python block of every document runs as it is written, in order, and leaves and shows what the document says."""

from __future__ import annotations

import re
from pathlib import Path

import polars as pl
import pytest
from doc_blocks import DOCUMENTS, Document, names_in, read
from doc_python import run_python
from stand_ins import Shape, build, move_in, save_swap

SHAPES = {
    "docs/comparing.md": Shape(context=64),
    "docs/measuring.md": Shape(context=1024),  # lengths=[256, 1024]
    "docs/report.md": Shape(context=64),
}
WITH_PYTHON = [name for name in DOCUMENTS if read(name).of("python")]
ONLY_WITH_FINETUNE = {"tuned.safetensors", "tuning.safetensors"}


SLOW = {
    "docs/comparing.md",
    "docs/measuring.md",
    "docs/capacity.md",
    "docs/lifting.md",
    "docs/diff.md",
    "docs/exporting.md",
    "docs/report.md",  # the README makes a report, too
    "docs/swapping.md",
}  # a second or more of measuring


@pytest.mark.parametrize(
    "name", [pytest.param(one, marks=pytest.mark.slow) if one in SLOW else one for one in WITH_PYTHON]
)
def test_the_python_of_a_document_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    document = read(name)
    build(tmp_path, SHAPES.get(name, Shape()), document.texts)
    move_in(tmp_path, monkeypatch)
    if name == "docs/lifting.md":  # left by its commands, which test_commands.py reads
        save_swap(Path("part/tuned.safetensors"), "entmax:alpha=1.5")
    space = run_python(document)
    for promised in files(document):
        assert promised.exists(), f"{name} says that there is a {promised}"
    if name == "docs/comparing.md":
        assert {column for cells in document.table("column") for column in names_in(cells[0])} <= set(
            space["comparison"].table.columns
        )
    if name == "docs/measuring.md":
        check_measures(document, space["run"].table)


def check_measures(document: Document, heads: pl.DataFrame) -> None:
    """A measure has sizes, limits and controls where the table of measures says so."""
    for names, size, _, limit, control in document.table("measure"):
        for name in set(names_in(names)) & set(heads["measure"]):
            of_measure = heads.filter(pl.col("measure") == name)
            has = {column: of_measure[column].is_not_null().any() for column in ("n", "limit", "control")}
            assert has == {"n": size == "N", "limit": bool(limit), "control": bool(control)}, name


def files(document: Document) -> list[Path]:
    """What the folder that the code names holds, by the document's table of files."""
    folder = re.search(r'folder="([\w-]+)"', document.of("python")[0].text)
    if folder is None:
        return []
    if document.name == "docs/comparing.md":
        names = {"compare.html", "compare.json"}  # in a sentence
    else:
        names = {name for cells in document.table("file in the folder") for name in names_in(cells[0])}
        names -= ONLY_WITH_FINETUNE
    return [Path(folder[1]) / name for name in sorted(names)]
