"""Every command of every document is one that the command line takes, with these options and values."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from doc_blocks import DOCUMENTS, INDENTED, ROOT, Block, commands, read
from doc_commands import bench_parts, check_span, run_command, stop_before_the_work
from stand_ins import Shape, build, move_in

BLOCKS = [(name, block) for name in DOCUMENTS for block in read(name).of(INDENTED)]
SPANS = [(name, span) for name in DOCUMENTS for span in read(name).spans]
DEEP = Shape(layers=30, context=2048, characters=60_000)  # as deep and long as smollm2 in these commands


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("reader")
    build(made, DEEP, {text for name in DOCUMENTS for text in read(name).texts})
    return made


@pytest.mark.parametrize(("name", "block"), BLOCKS, ids=[f"{name}:{block.line}" for name, block in BLOCKS])
def test_commands_are_accepted(name: str, block: Block, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the real command line, on files and models that are there, up to the first pass of the model."""
    move_in(place, monkeypatch)
    stop_before_the_work(monkeypatch)
    for line in commands(block):
        run_command(line)


def test_commands_in_sentences_are_accepted() -> None:
    checked = [span for _name, span in SPANS if check_span(span)]
    assert len(checked) > 40


def test_parts_of_the_benchmark_are_listed() -> None:
    listed = re.search(r"parts: ([a-z, ]+) \|", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"))
    assert listed is not None
    assert tuple(listed[1].split(", ")) == bench_parts()
