"""Every Python block of every document runs as it is written, in order, and shows what its comments say."""

from __future__ import annotations

from pathlib import Path

import pytest
from doc_blocks import DOCUMENTS, read
from doc_python import run_python
from stand_ins import Shape, move_in, save_swap

SHAPES = {
    "docs/measuring.md": Shape(context=1024),  # lengths=[256, 1024]
}
WITH_PYTHON = [name for name in DOCUMENTS if read(name).of("python")]


@pytest.mark.parametrize("name", WITH_PYTHON)
def test_the_python_of_a_document_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    document = read(name)
    move_in(document, SHAPES.get(name, Shape()), tmp_path, monkeypatch)
    if name == "docs/lifting.md":  # left by its commands, which test_commands.py reads
        save_swap(Path("part/tuned.safetensors"), "entmax:alpha=1.5")
    run_python(document)
