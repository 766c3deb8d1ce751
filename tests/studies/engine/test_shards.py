"""Shards: one share of the parts each, merged to the result of one process, bit for bit."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from tiny_runs import quick

import abbe

TEXT = abbe.Text("a letter", "The lens gathers light from every side, and no two points are told apart. " * 60)
HEADS: dict[str, Any] = {"lengths": [16, 32], "windows": 3, "queries": 4, "sizes": [2, 4], "progress": False}
MORE: dict[str, dict[str, Any]] = {
    "diagnose": HEADS,
    "report": HEADS,
    "reproduce": {"figures": ["2b", "3"]},
    "capacity": {"lengths": [16, 32], "grid": "coarse"},
    "compare": {"needle_lengths": None},
    "calibrate": {"windows": 2, "held_out": 2},
    "diff": {},
    "train": {"normalizers": ["softmax", "sparsemax"], "rates": [0.01], "seeds": 1, "steps": 10, "workers": 1},
}
STUDIES = [*MORE]
TIMES = ("seconds", "time_ratio", "extra_megabytes")  # not the same twice


def call(name: str, **more: Any) -> Any:
    if name == "train":
        return abbe.train_recall(**MORE[name], **more, progress=False)
    return quick(name, "embedded", TEXT, **MORE[name], **more)


def same(merged: abbe.Result, local: abbe.Result) -> None:
    tables = [table.drop(*TIMES, strict=False) for table in (merged.table, local.table)]
    assert isinstance(tables[0], pl.DataFrame)
    assert tables[0].equals(tables[1])


@pytest.mark.parametrize(
    "name", [*STUDIES][:1] + [pytest.param(name, marks=pytest.mark.slow) for name in [*STUDIES][1:]]
)
def test_merged_shards_are_as_one_process(name: str, tmp_path: Path) -> None:
    folder, made = tmp_path / "run", 0
    for number in (2, 1):
        with abbe.shard(f"{number}/2") as share:
            call(name, folder=folder)
        made += share.made
        assert share.made > 0
    assert made >= 2
    merged = abbe.merge(folder, progress=False)
    same(merged, call(name))
    same(abbe.open(folder), merged)


def test_a_shard_makes_only_its_share(tmp_path: Path) -> None:
    with abbe.shard("1/3") as share:
        call("diagnose", folder=tmp_path / "run")
    parts = sorted(path.stem for path in (tmp_path / "run" / "windows").iterdir())
    assert parts == ["16-0", "32-0"]
    assert (share.made, share.total, len(share.missing)) == (2, 6, 4)
    assert str(share) == "shard 1/3: 2 parts made, 4 of 6 missing"
    with abbe.shard("1/3") as again:  # nothing is made twice
        call("diagnose", folder=tmp_path / "run")
    assert again.made == 0


def test_the_same_call_merges_as_well(tmp_path: Path) -> None:
    with abbe.shard("1/2"):
        call("diagnose", folder=tmp_path / "run")
    same(call("diagnose", folder=tmp_path / "run"), call("diagnose"))


def test_merging_a_finished_folder_opens_it(tmp_path: Path) -> None:
    run = call("diagnose", folder=tmp_path / "run")
    same(abbe.merge(tmp_path / "run"), run)


def test_a_folder_is_needed() -> None:
    with pytest.raises(abbe.AbbeError, match="a shard leaves its parts in a folder"), abbe.shard("1/2"):
        call("diagnose")


def test_a_network_in_memory_cannot_be_merged_by_name(tmp_path: Path) -> None:
    model = abbe.load("embedded")
    with abbe.shard("1/2"):
        abbe.diagnose(model, TEXT, **HEADS, folder=tmp_path / "run")
    with pytest.raises(abbe.AbbeError, match=r"model cannot be read from .*: call diagnose without a shard"):
        abbe.merge(tmp_path / "run")


@pytest.mark.parametrize(
    ("share", "words"),
    [
        ("3/2", "shards of 2 are 1/2 to 2/2"),
        ("0/2", "shards of 2"),
        ("1/0", "at least 1"),
        ("any", "must be I/N"),
        (3, "must be I/N"),
        ("slurm", "SLURM_ARRAY_TASK_ID is not set"),
    ],
)
def test_wrong_shares(share: Any, words: str) -> None:
    with pytest.raises(abbe.AbbeError, match=words), abbe.shard(share):
        pytest.fail("not reached")


def test_a_task_of_a_job_array(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"ID": "7", "COUNT": "4", "MIN": "5"}.items():
        monkeypatch.setenv(f"SLURM_ARRAY_TASK_{name}", value)
    with abbe.shard("slurm") as share:
        assert (share.number, share.count) == (3, 4)


@pytest.mark.slow
def test_a_killed_shard_costs_at_most_one_part(tmp_path: Path) -> None:
    """The shard is killed as soon as it has made a part; another call makes the rest."""
    folder = tmp_path / "run"
    options = ["--lengths", "16,32", "--windows", "8", "--queries", "4", "--sizes", "2,4", "--quiet"]
    command = [sys.executable, "-m", "abbe", "diagnose", *options, "--out", str(folder), "--shard", "1/2"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not any(folder.glob("windows/*.safetensors")) and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert any(folder.glob("windows/*.safetensors"))
    local = abbe.diagnose(lengths=[16, 32], windows=8, queries=4, sizes=[2, 4], progress=False)
    same(abbe.merge(folder, progress=False), local)
    assert json.loads((folder / "manifest.json").read_text())["finished"]
