"""A full disk, a folder that may not be written, one that goes away: one line, and the same command goes on later."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest
from abbe_processes import STUDIES, Commands, results, stamps

Whole = Callable[[str], Path]
KEPT = "; finished work is kept: run the same command again to resume\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("study", "moment"),
    [
        pytest.param(study, moment, marks=[] if (study, moment) == ("diagnose", "half") else [pytest.mark.slow])
        for study in STUDIES
        for moment in ("half", "written")
    ],
)
def test_full_disk(study: str, moment: str, abbe_commands: Commands, whole: Whole, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    first = 6 if study == "reproduce" else 4  # it begins with the manifests of its runs
    fault = {"error": errno.ENOSPC, "at": first, "moment": moment}
    ended = abbe_commands.run(abbe_commands.of(study, folder, "--quiet"), fault)
    assert ended.code == 2
    assert ended.err.startswith(f"abbe: cannot write {folder}/")
    assert ended.err.endswith(f": No space left on device{KEPT}")
    assert ended.err.count("\n") == 1
    before = stamps(study, folder)
    assert before
    assert abbe_commands.run(abbe_commands.of(study, folder, "--quiet")).code == 0
    assert before.items() <= stamps(study, folder).items()
    assert results(study, folder) == results(study, whole(study))


@pytest.mark.parametrize("which", [".", pytest.param("windows", marks=pytest.mark.slow)])
def test_folder_that_may_not_be_written(which: str, abbe_commands: Commands, whole: Whole, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    command = abbe_commands.of("diagnose", folder, "--quiet")
    abbe_commands.run(command, {"error": errno.ENOSPC, "at": 4, "moment": "half"})
    before = stamps("diagnose", folder)
    (folder / which).chmod(0o555)
    ended = abbe_commands.run(command, bound=True)
    (folder / which).chmod(0o755)
    file = f"{folder}/windows/32-0.safetensors"
    says = f"in the run folder {folder}: Permission denied\n" if which == "." else f"{file}: Permission denied{KEPT}"
    assert (ended.code, ended.err) == (2, f"abbe: cannot write {says}")
    assert abbe_commands.run(command).code == 0
    assert before.items() <= stamps("diagnose", folder).items()
    assert results("diagnose", folder) == results("diagnose", whole("diagnose"))


def test_folder_that_goes_away(abbe_commands: Commands, whole: Whole, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    command = abbe_commands.of("diagnose", folder, "--quiet")
    ended = abbe_commands.run(command, {"vanish": str(folder), "at": 4, "moment": "half"})
    assert ended.code == 2
    assert ended.err == f"abbe: cannot write {folder}/windows/32-0.safetensors: No such file or directory{KEPT}"
    assert not folder.exists()
    assert abbe_commands.run(command).code == 0
    assert results("diagnose", folder) == results("diagnose", whole("diagnose"))
