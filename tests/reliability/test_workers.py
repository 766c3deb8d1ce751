"""Workers that share a folder, as processes: at once, one after the other, killed; the end is the same to the bit."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from abbe_processes import SHARED, Commands, Ended, left_over, results

Whole = Callable[[str], Path]
LAST = re.compile(r"\S+ holds (\d+) of (\d+) parts(?:, (\d+) of them computed here)?(; all done: abbe merge \S+)?\n")


def numbers(ended: Ended) -> tuple[int, int, int, bool]:
    """Of the last line of a worker: parts there, parts in all, made here, all done."""
    assert ended.code == 0, ended.err
    last = LAST.fullmatch(ended.out)
    assert last is not None, ended.out
    return int(last[1]), int(last[2]), int(last[3] or 0), last[4] is not None


def merged(abbe_commands: Commands, study: str, folder: Path, whole: Whole) -> None:
    """Merge, and compare with the undisturbed run of one process."""
    ended = abbe_commands.run(["merge", str(folder), "--quiet"])
    assert ended.code == 0, ended.err
    assert results(study, folder) == results(study, whole(study))
    assert not (folder / ".abbe-work").exists()
    assert left_over(folder) == []


studies = pytest.mark.parametrize(
    "study", ["diagnose", *(pytest.param(study, marks=pytest.mark.slow) for study in SHARED if study != "diagnose")]
)


@pytest.mark.slow
@pytest.mark.parametrize("study", SHARED)
def test_one_after_the_other(study: str, abbe_commands: Commands, whole: Whole, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shards = [abbe_commands.of(study, folder, "--quiet", "--shard", f"{number}/3") for number in (2, 3, 1)]
    ended = [numbers(abbe_commands.run(shard)) for shard in shards]
    assert [done for *_, done in ended] == [False, False, True]
    assert sum(made for _, _, made, _ in ended) == ended[-1][1]
    merged(abbe_commands, study, folder, whole)


def wait_until_stopped(process: int) -> None:
    while Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "T":
        time.sleep(0.01)


@pytest.mark.slow
@pytest.mark.parametrize("study", SHARED)
def test_two_at_once_make_every_part_once(study: str, abbe_commands: Commands, whole: Whole, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    command = abbe_commands.of(study, folder, "--quiet", "--shard", "any")
    ended = [numbers(abbe_commands.wait(process)) for process in [abbe_commands.start(command) for _ in range(2)]]
    assert all(done and there == total for there, total, _, done in ended)
    assert sum(made for _, _, made, _ in ended) == ended[0][1]
    merged(abbe_commands, study, folder, whole)


@studies
def test_one_is_killed_and_never_returns(study: str, abbe_commands: Commands, whole: Whole, tmp_path: Path) -> None:
    """Amid writing a part; another, which waits for that part, takes it over."""
    folder = tmp_path / "run"
    command = abbe_commands.of(study, folder, "--quiet", "--shard", "any")
    killed = abbe_commands.start(command, {"signal": signal.SIGSTOP, "at": 1, "moment": "half"})
    wait_until_stopped(killed)
    other = abbe_commands.start(command)
    time.sleep(0.5)
    os.kill(killed, signal.SIGKILL)
    assert abbe_commands.wait(killed).code == -signal.SIGKILL
    assert numbers(abbe_commands.wait(other))[3]
    merged(abbe_commands, study, folder, whole)


@pytest.mark.slow
@pytest.mark.parametrize("study", SHARED)
def test_killed_again_and_again(study: str, abbe_commands: Commands, whole: Whole, tmp_path: Path) -> None:
    """Each is killed one part later than the one before; the last one finishes."""
    folder = tmp_path / "run"
    for at, moment in ((1, "written"), (1, "renamed"), (2, "half"), (2, "renamed")):
        fault = {"signal": signal.SIGKILL, "at": at, "moment": moment}
        ended = abbe_commands.run(abbe_commands.of(study, folder, "--quiet", "--shard", "any"), fault)
        assert ended.code in (0, -signal.SIGKILL)
    assert numbers(abbe_commands.run(abbe_commands.of(study, folder, "--quiet", "--shard", "any")))[3]
    merged(abbe_commands, study, folder, whole)


@pytest.mark.slow
def test_many_begin_at_once(abbe_commands: Commands, whole: Whole, tmp_path: Path) -> None:
    """Two kinds of runs in an empty folder: one kind wins, the other is refused."""
    folder = tmp_path / "run"
    commands = [abbe_commands.of("diagnose", folder, "--quiet", "--shard", "any", "--seed", seed) for seed in "01" * 3]
    ended = [abbe_commands.wait(process) for process in [abbe_commands.start(command) for command in commands]]
    codes = [[one.code for one in ended[kind::2]] for kind in (0, 1)]
    assert sorted(codes) == [[0, 0, 0], [2, 2, 2]]
    refused = ended[codes.index([2, 2, 2]) :: 2]
    assert all("holds another run (different: seed): name a new folder (--out)\n" in one.err for one in refused)
    assert sum(numbers(one)[2] for one in ended if one.code == 0) == numbers(ended[codes.index([0, 0, 0])])[1]


@pytest.mark.slow
def test_a_run_and_workers_do_not_mix(abbe_commands: Commands, whole: Whole, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    plain = abbe_commands.of("diagnose", folder, "--quiet")
    for first, second, said in (
        ([*plain, "--shard", "1/2"], plain, r"is shared by 1 worker, the first on \S+: wait"),
        (plain, [*plain, "--shard", "2/2"], r"is in use by process \d+ on .*, which does not share it: wait"),
    ):
        process = abbe_commands.start(first, {"signal": signal.SIGSTOP, "at": 1, "moment": "half"})
        wait_until_stopped(process)
        refused = abbe_commands.run(second)
        assert refused.code == 2
        assert re.search(said, refused.err), refused.err
        os.kill(process, signal.SIGCONT)
        assert abbe_commands.wait(process).code == 0
    assert results("diagnose", folder) == results("diagnose", whole("diagnose"))


@pytest.mark.slow
def test_a_worker_that_is_stopped_lets_go(abbe_commands: Commands, whole: Whole, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    command = abbe_commands.of("diagnose", folder, "--quiet", "--shard", "any")
    ended = abbe_commands.run(command, {"signal": signal.SIGINT, "at": 2, "moment": "half"})
    assert ended.code == 130
    assert "finished work is kept" in ended.err
    assert list((folder / ".abbe-work").glob("claims/*")) == list((folder / ".abbe-work").glob("workers/*")) == []
    assert numbers(abbe_commands.run(command))[3]
    merged(abbe_commands, "diagnose", folder, whole)
