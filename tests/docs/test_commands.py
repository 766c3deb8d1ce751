"""Every command of every document is one that the command line takes, with these options and values."""

from __future__ import annotations

import re
import shlex
import webbrowser
from pathlib import Path

import pytest
from doc_blocks import COMMANDS, DOCUMENTS, ROOT, Block, commands, read
from doc_commands import (
    WITHOUT_A_MODEL,
    bench_parts,
    check_options,
    check_span,
    run_command,
    run_small,
    stop_before_the_work,
)
from stand_ins import Shape, build, move_in

BLOCKS = [(name, block) for name in DOCUMENTS for block in read(name).of(*COMMANDS)]
SPANS = [(name, span) for name in DOCUMENTS for span in read(name).spans]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("reader"), 30)


@pytest.fixture(scope="module")
def shallow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Thirty layers of random weights make much of a rounding error, which an export does not let pass."""
    return made(tmp_path_factory.mktemp("shallow"), 10)


def made(folder: Path, layers: int) -> Path:
    """As long as smollm2 in these commands."""
    texts = {text for name in DOCUMENTS for text in read(name).texts}
    build(folder, Shape(layers=layers, context=2048, characters=60_000), texts)
    return folder


@pytest.mark.parametrize(("name", "block"), BLOCKS, ids=[f"{name}:{block.line}" for name, block in BLOCKS])
def test_commands_are_accepted(name: str, block: Block, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real command line takes them, on files and models that are there, up to the first pass of the model."""
    move_in(place, monkeypatch)
    stop_before_the_work(monkeypatch)
    for line in commands(block):
        run_command(line)


LONG = [
    (name, line.strip())
    for name, block in BLOCKS
    for line in commands(block)
    if line.split()[0].endswith("abbe") and line.split()[1] not in WITHOUT_A_MODEL
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "line"), LONG, ids=[" ".join(line.split("#")[0].split()) for _, line in LONG])
def test_commands_run_to_the_end(
    name: str, line: str, place: Path, shallow: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With settings that leave little to do, on tiny models in the place of real ones."""
    move_in(place if re.search(r"layers\.\d+-[12]\d", line) else shallow, monkeypatch)
    monkeypatch.setattr(webbrowser, "open", lambda _page: True)
    run_small(line)


def test_commands_in_sentences_are_accepted() -> None:
    checked = [span for _name, span in SPANS if check_span(span)]
    assert len(checked) > 40


def test_scripts_for_clusters_have_options_that_exist() -> None:
    """They are not run."""
    scripts = [block for name in DOCUMENTS for block in read(name).of("bash")]
    lines = [line.rpartition(" -- ")[2].strip() for block in scripts for line in commands(block)]
    lines = [line for line in lines if line.startswith("abbe ")]
    assert len(lines) > 1
    for line in lines:
        check_options(shlex.split(line.removesuffix("&"))[1:])


def test_parts_of_the_benchmark_are_listed() -> None:
    listed = re.search(r"parts: ([a-z, ]+) \|", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"))
    assert listed is not None
    assert tuple(listed[1].split(", ")) == bench_parts()


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_reader_who_types_all_commands_is_never_refused_a_folder(name: str) -> None:
    """A folder holds one run: another one in the same folder would be an error."""
    document = read(name)
    used = [folder for block in document.of(*COMMANDS) for line in commands(block) if (folder := folder_of(line))]
    used += [folder for block in document.of("python") for folder in re.findall(r'folder="([^"]+)"', block.text)]
    assert sorted(used) == sorted(set(used))


def folder_of(line: str) -> str | None:
    """Where a command keeps its run: --out, else a name made of command, model and what else is in its default."""
    words = shlex.split(line, comments=True)
    if "--out" in words:
        return words[words.index("--out") + 1]
    if Path(words[0]).name != "abbe" or words[1] not in ("report", "compare", "reproduce", "calibrate"):
        return None
    model = words[2] if len(words) > 2 and not words[2].startswith("-") else "embedded"
    more = (
        [words[words.index("--with") + 1]] if words[1] == "calibrate" else [word for word in words if word == "--quick"]
    )
    return " ".join([words[1], model, *more])
