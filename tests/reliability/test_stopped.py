"""Killed, ended, interrupted or cut off at any moment: nothing finished is lost, and the end is the same to the bit.

Part of the fault matrix, which anyone can run: `pytest tests/reliability -m "not slow"` is the small one,
`pytest tests/reliability` (or `make test-all ARGS="tests/reliability"`) the whole: also 20 kills at random moments and
one at every single file, for each study. `fork_server.py` says how a fault is made.
"""

from __future__ import annotations

import errno
import fcntl
import os
import random
import re
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from abbe_processes import MOMENTS, STUDIES, Commands, left_over, results, stamps

RESUMES = "abbe: stopped; finished work is kept: run the same command again to resume\n"
Whole = Callable[[str], Path]


def finish(abbe_commands: Commands, study: str, folder: Path, whole: Whole) -> None:
    """The same command goes on: what was finished is not touched, and the result is that of the undisturbed one."""
    before = stamps(study, folder)
    ended = abbe_commands.run(abbe_commands.of(study, folder))
    assert ended.code == 0, ended.err
    assert "measured again" not in ended.err
    assert before.items() <= stamps(study, folder).items()
    assert results(study, folder) == results(study, whole(study))
    assert left_over(folder) == []


@pytest.mark.quick(1)
@pytest.mark.parametrize("study", STUDIES)
def test_killed_twice(study: str, abbe_commands: Commands, whole: Whole, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    first = 6 if study == "reproduce" else 4  # it begins with the manifests of its runs
    for at, moment in ((first, "written"), (3, "half")):
        fault = {"signal": signal.SIGKILL, "at": at, "moment": moment}
        ended = abbe_commands.run(abbe_commands.of(study, folder), fault)
        assert ended.code == -signal.SIGKILL
        assert left_over(folder) != []
    assert stamps(study, folder) != {}
    finish(abbe_commands, study, folder, whole)


@pytest.mark.slow
@pytest.mark.parametrize("study", STUDIES)
def test_killed_at_every_file(study: str, abbe_commands: Commands, whole: Whole, tmp_path: Path) -> None:
    """Each call gets one file further; what every call writes again is passed by the next one."""
    folder, at, calls = tmp_path / "run", 1, 0
    while True:
        before = len(stamps(study, folder))
        fault = {"signal": signal.SIGKILL, "at": at, "moment": MOMENTS[calls % 3]}
        ended = abbe_commands.run(abbe_commands.of(study, folder), fault)
        if ended.code == 0:
            break
        assert ended.code == -signal.SIGKILL, ended.err
        at, calls = at + (len(stamps(study, folder)) == before), calls + 1
    assert calls > 5
    finish(abbe_commands, study, folder, whole)


@pytest.mark.slow
@pytest.mark.parametrize("study", STUDIES)
def test_killed_at_twenty_random_moments(study: str, abbe_commands: Commands, whole: Whole, tmp_path: Path) -> None:
    chance, kills, done, folder = random.Random(f"kill {study}"), 0, 0, tmp_path / "0"
    start = time.monotonic()
    finish(abbe_commands, study, tmp_path / "timed", whole)
    takes = time.monotonic() - start
    while kills < 20:
        process = abbe_commands.start(abbe_commands.of(study, folder))
        time.sleep(chance.uniform(0.2, 1) * takes)
        os.kill(process, signal.SIGKILL)
        ended = abbe_commands.wait(process)
        if ended.code == 0:  # it was done before, perhaps as the timed one was slower: the next one starts anew
            assert results(study, folder) == results(study, whole(study))
            done, takes = done + 1, 0.8 * takes
            folder = tmp_path / str(done)
            continue
        assert ended.code == -signal.SIGKILL, ended.err
        kills += 1
    finish(abbe_commands, study, folder, whole)


@pytest.mark.quick(4)
@pytest.mark.parametrize(
    ("study", "number", "code"),
    [
        pytest.param(study, number, code, marks=[] if (study, code) == ("diagnose", 143) else [pytest.mark.slow])
        for study in STUDIES
        for number, code in ((signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129))
    ],
)
def test_ended_by_a_signal(
    study: str, number: int, code: int, abbe_commands: Commands, whole: Whole, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    fault = {"signal": number, "at": 3, "moment": "half"}
    ended = abbe_commands.run(abbe_commands.of(study, folder, "--quiet"), fault)
    assert (ended.code, ended.err) == (code, RESUMES)
    assert left_over(folder) == []  # it had time to clean up
    finish(abbe_commands, study, folder, whole)


def test_closed_pipe(abbe_commands: Commands, whole: Whole, tmp_path: Path) -> None:
    """As in `abbe diagnose --json | head -1`: the run is kept, and no traceback is told."""
    pipe, lines = tmp_path / "pipe", []
    os.mkfifo(pipe)

    def head() -> None:
        with open(pipe) as file:
            fcntl.fcntl(file, fcntl.F_SETPIPE_SZ, 4096)  # less than is printed, so that the writer is still there
            lines.append(file.readline())

    reader = threading.Thread(target=head)
    reader.start()
    ended = abbe_commands.run(abbe_commands.of("diagnose", tmp_path / "run", "--json", "--quiet"), out=str(pipe))
    reader.join()
    assert lines[0].startswith("{")
    assert (ended.code, ended.err) == (141, "")
    finish(abbe_commands, "diagnose", tmp_path / "run", whole)


# -- Full disks, folders that may not be written or go away -----------------------------------------------------------


KEPT = "; finished work is kept: run the same command again to resume\n"


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["half", "written"])
@pytest.mark.parametrize("study", STUDIES)
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


# -- Two commands in one folder ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "study", ["diagnose", *(pytest.param(study, marks=pytest.mark.slow) for study in STUDIES if study != "diagnose")]
)
def test_the_second_learns_who_holds_it(study: str, abbe_commands: Commands, whole: Whole, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    command = abbe_commands.of(study, folder, "--quiet")
    first = abbe_commands.start(command, {"signal": signal.SIGSTOP, "at": 3, "moment": "half"})
    while (state := state_of(first)) != "T":
        assert state != "Z", "it ended"
        time.sleep(0.01)
    second = abbe_commands.run(command)
    assert second.code == 2
    line = rf"abbe: {re.escape(str(folder))} is in use by process {first} on \S+ since \S+ \S+: wait until it is done, "
    assert re.fullmatch(line + r"or name another folder \(--out\)\n", second.err), second.err
    os.kill(first, signal.SIGCONT)
    assert abbe_commands.wait(first).code == 0
    assert results(study, folder) == results(study, whole(study))


def state_of(process: int) -> str:
    """T is stopped, Z has ended."""
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.mark.slow
@pytest.mark.parametrize("study", STUDIES)
def test_many_at_once(study: str, abbe_commands: Commands, whole: Whole, tmp_path: Path) -> None:
    """One of them works at a time; whoever is not told that it is in use has the right result."""
    folder = tmp_path / "run"
    ended = [abbe_commands.wait(process) for process in [
        abbe_commands.start(abbe_commands.of(study, folder, "--quiet")) for _ in range(4)
    ]]  # fmt: skip
    assert {one.code for one in ended} <= {0, 2}
    assert 0 in {one.code for one in ended}
    assert all("is in use by process" in one.err for one in ended if one.code == 2)
    assert results(study, folder) == results(study, whole(study))
