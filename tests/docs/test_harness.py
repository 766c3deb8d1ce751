"""The tests of documents can fail: no block is left out, and each kind of mistake is found."""

from __future__ import annotations

from pathlib import Path

import pytest
from doc_blocks import COMMANDS, DOCUMENTS, INDENTED, ROOT, Block, commands, read
from doc_commands import check_span, run_command, stop_before_the_work
from doc_python import Untrue, run_python
from stand_ins import Shape, build, move_in

# text is output; every indented line must be a command; bash and yaml are for machines that are not at hand;
# { .python } includes a script of examples/, which test_python.py runs
KNOWN = {"python", "{ .python }", "text", "bash", "yaml", *COMMANDS}
NOT_RUN = 13  # blocks that say why


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_block_has_a_known_language(name: str) -> None:
    document = read(name)
    assert {block.language for block in document.blocks} <= KNOWN
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    fences = sum(line.lstrip().startswith("```") for line in lines)
    assert fences == 2 * sum(block.language != INDENTED for block in document.blocks)
    kept = document.prose.count("\n") + sum(block.text.count("\n") + 1 for block in document.blocks) + fences
    assert kept <= len(lines) <= kept + len(document.blocks)  # an indented block ends with blank lines


def test_blocks_that_are_not_run_say_why() -> None:
    """They are counted, so that another one is a decision."""
    blocks = [(name, block) for name in DOCUMENTS for block in read(name).blocks]
    silent = [(name, block.line) for name, block in blocks if block.language in ("bash", "yaml") and not block.not_run]
    assert silent == []
    assert [
        (name, block.line) for name, block in blocks if block.not_run and block.language in ("python", *COMMANDS)
    ] == []
    assert sum(bool(block.not_run) for _, block in blocks) == NOT_RUN


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("reader")
    build(made, Shape(), set())
    return made


def written(tmp_path: Path, text: str) -> str:
    (tmp_path / "some.md").write_text(text)
    return str(tmp_path / "some.md")


def test_blocks_and_prose_are_distinguished(tmp_path: Path) -> None:
    text = "# A\n\n    abbe report \\\n        --quiet\n\n    make test\n\n```python\nx = 1\n\ny\n```\nand `a\nb`\n"
    document = read(written(tmp_path, text + "<!-- not run: no GPU -->\n\n```bash\nx\n```\n"))
    indented, python = Block(INDENTED, "abbe report \\\n    --quiet\n\nmake test", 3), Block("python", "x = 1\n\ny", 9)
    assert document.blocks == (indented, python, Block("bash", "x", 18, "no GPU"))
    assert document.spans == ["a b"]
    assert [" ".join(line.split()) for line in commands(document.blocks[0])] == ["abbe report --quiet", "make test"]


@pytest.mark.parametrize("text", ["```python\nx\n", "```\nx\n```\n", "```rust\nx\n```\n"])
def test_an_open_or_unknown_fence_is_found(text: str, tmp_path: Path) -> None:
    name = written(tmp_path, text)
    with pytest.raises((ValueError, AssertionError)):
        test_every_block_has_a_known_language(name)


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("1 / 4  # 0.25: a quarter", None),
        ("1 / 3  # 0.333, about", None),
        ("1 / 3  # 0.34", Untrue),
        ("1e-6  # 3e-07, or an error", None),
        ("1e-3  # 3e-07, or an error", Untrue),
        ("with open(__import__('os').devnull):\n    2  # 1", Untrue),
        ("1  # (2, 3)", None),
        ("x = 1\n```\ntext\n```python\nx + 1  # 2", None),
        ("__import__('polars').DataFrame({'a': [1]})", None),
        ("nowhere", NameError),
        ("__import__('polars').DataFrame({'a': [1]}).filter(False)", Untrue),
    ],
)
def test_what_a_block_shows_is_checked(code: str, error: type[Exception] | None, tmp_path: Path) -> None:
    document = read(written(tmp_path, f"```python\n{code}\n```\n"))
    if error is None:
        run_python(document)
    else:
        with pytest.raises(error):
            run_python(document)


@pytest.mark.parametrize(
    "line",
    [
        "abbe report --windws 4",
        "abbe report --windows many",
        "abbe report --lengths 1e9",
        "abbe report nothere",
        "abbe report --text nothere.txt",
        "abbe reproduc",
        "abbe compare --with entmx",
        "abbe calibrate --with entmx",
        "abbe --version",
        "abbe normalizers softmax  # REFUTED",
        "make tests",
        'make bench ARGS="--part speed"',
        "hybrid:a=softmax",
    ],
)
def test_a_wrong_command_is_found(line: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    move_in(place, monkeypatch)
    stop_before_the_work(monkeypatch)
    with pytest.raises(AssertionError):
        run_command(line)


@pytest.mark.parametrize("span", ["abbe reprt", "abbe report --windws", "abbe report --windows many", "make tests"])
def test_a_wrong_command_in_a_sentence_is_found(span: str) -> None:
    with pytest.raises(AssertionError):
        check_span(span)
