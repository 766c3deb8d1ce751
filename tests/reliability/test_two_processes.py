"""Two commands in one folder at the same time: the second gets an error that says who holds it."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from abbe_processes import STUDIES, Commands, results

Whole = Callable[[str], Path]


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
