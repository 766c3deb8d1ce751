"""Parts of a run that were damaged, mixed up or replaced: each is measured again, and the result is right."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from abbe_processes import STUDIES, Commands, parts, results

Whole = Callable[[str], Path]
QUICKEST = ("diagnose", "capacity", "calibrate")  # one for each kind of part: with notes, JSON, tensors alone


def flip(path: Path, others: list[Path]) -> None:
    """100 bytes of it, where a part has its numbers."""
    content = bytearray(path.read_bytes())
    for place in random.Random(path.name).sample(range(len(content) // 2, len(content) - 2), 100):
        content[place] ^= 0x55
    path.write_bytes(content)


def flip_one_bit(path: Path, others: list[Path]) -> None:
    """The last one that counts: a JSON file ends with a bracket and a line end."""
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)


def copy_another(path: Path, others: list[Path]) -> None:
    other = next(other for other in others if other != path and other.suffix == path.suffix)
    path.write_bytes(other.read_bytes())


def cut_off(path: Path, others: list[Path]) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def nested(path: Path, others: list[Path]) -> None:
    path.write_text("[" * 100_000)


def nested_notes(path: Path, others: list[Path]) -> None:
    """In the header of a safetensors file, or in a JSON file that is one."""
    deep = '{\\"a\\":' * 20_000
    header = f'{{"__metadata__":{{"checked":"{deep}"}}}}'.encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header)


def without_notes(path: Path, others: list[Path]) -> None:
    header = b'{"__metadata__":{"checked":"{}"}}'
    path.write_bytes(len(header).to_bytes(8, "little") + header)


def empty(path: Path, others: list[Path]) -> None:
    path.write_bytes(b"")


def folder_instead(path: Path, others: list[Path]) -> None:
    path.unlink()
    path.mkdir()
    (path / "letter.txt").write_text("dear")


def link_to_nothing(path: Path, others: list[Path]) -> None:
    path.unlink()
    path.symlink_to("nowhere")


DAMAGES: tuple[Callable[[Path, list[Path]], None], ...] = (
    flip, flip_one_bit, cut_off, nested, nested_notes, without_notes, empty, folder_instead, link_to_nothing,
)  # fmt: skip


def resume(study: str, folder: Path, abbe_commands: Commands, whole: Whole, damaged: int) -> None:
    ended = abbe_commands.run(abbe_commands.of(study, folder))
    assert ended.code == 0, ended.err
    assert "Traceback" not in ended.err
    assert sum("; it is measured again" in line for line in ended.err.splitlines()) == damaged, ended.err
    assert results(study, folder) == results(study, whole(study))


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("study", "first"),
    [
        pytest.param(study, n, marks=[] if n == 0 and study in QUICKEST else [pytest.mark.slow])
        for study in STUDIES
        for n in range(len(DAMAGES))
    ],
)
def test_damaged_parts(study: str, first: int, abbe_commands: Commands, whole: Whole, tmp_path: Path) -> None:
    """Every part in another way, as far as the ways go; each way comes first once."""
    folder = Path(shutil.copytree(whole(study), tmp_path / "run"))
    there = [path for path in parts(study, folder) if path.suffix != ".parquet"]
    for path, damage in zip(there, DAMAGES[first:] + DAMAGES[:first], strict=False):
        damage(path, there)
    resume(study, folder, abbe_commands, whole, min(len(there), len(DAMAGES)))
    if study == "diagnose":
        resume(study, folder, abbe_commands, whole, 0)


@pytest.mark.parametrize(
    "study", ["diagnose", *(pytest.param(s, marks=pytest.mark.slow) for s in ("capacity", "compare", "calibrate"))]
)
def test_one_part_copied_over_another(study: str, abbe_commands: Commands, whole: Whole, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(whole(study), tmp_path / "run"))
    there = parts(study, folder)
    copy_another(there[1], there)
    resume(study, folder, abbe_commands, whole, 1)


@pytest.mark.slow
def test_a_part_of_another_run(abbe_commands: Commands, whole: Whole, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(whole("diagnose"), tmp_path / "run"))
    other = abbe_commands.of("diagnose", tmp_path / "other", "--quiet", "--seed", "1")
    assert abbe_commands.run(other).code == 0
    shutil.copy(tmp_path / "other" / "windows" / "16-1.safetensors", folder / "windows")
    resume("diagnose", folder, abbe_commands, whole, 1)


@pytest.mark.slow
def test_alternatives_of_a_report(abbe_commands: Commands, whole: Whole, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(whole("report"), tmp_path / "run"))
    flip(folder / "alternatives.parquet", [])  # made again from its parts
    resume("report", folder, abbe_commands, whole, 0)
    flip(next(folder.glob("alternatives/*")), [])
    resume("report", folder, abbe_commands, whole, 1)


@pytest.mark.parametrize("study", ["diagnose", pytest.param("calibrate", marks=pytest.mark.slow)])
def test_damaged_manifest(study: str, abbe_commands: Commands, whole: Whole, tmp_path: Path) -> None:
    """It says which run owns the folder: if it was changed, the user must say that the folder is not needed."""
    folder = Path(shutil.copytree(whole(study), tmp_path / "run"))
    path = folder / "manifest.json"
    path.write_text(path.read_text().replace('"seed": 0', '"seed": 1', 1))
    command = abbe_commands.of(study, folder, "--quiet")
    ended = abbe_commands.run(command)
    says = "its checksum is wrong; delete it, and the same command resumes from the intact files"
    assert (ended.code, ended.err) == (2, f"abbe: {path} is damaged: {says}\n")
    path.unlink()
    resume(study, folder, abbe_commands, whole, 0)
