"""Studies on Ray: the table of a single process, bit for bit, whatever happens to the actors."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch

import abbe

SMALL = {"lengths": [16, 32, 64], "windows": 4, "queries": 8, "sizes": [2, 4]}
needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="ray is not installed")


@pytest.fixture(scope="module")
def local() -> Iterator[pl.DataFrame]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # as an actor has
    yield abbe.diagnose("embedded", **SMALL, progress=False).table
    torch.set_num_threads(before)


@needs_ray
@pytest.mark.slow
@pytest.mark.parametrize("actors", [1, 2])
def test_table_is_that_of_one_process(actors: int, local: pl.DataFrame, tmp_path: Path) -> None:
    with abbe.on_ray(actors=actors):
        run = abbe.diagnose("embedded", **SMALL, folder=tmp_path / "run", progress=False)
    assert run.table.equals(local)


@needs_ray
@pytest.mark.slow
def test_a_text_in_memory_is_sent_along(tmp_path: Path) -> None:
    text = abbe.Text("a letter", "The lens gathers light from every side. " * 40)
    small: dict[str, Any] = {"lengths": [16], "windows": 2, "queries": 4, "sizes": [2], "progress": False}
    with abbe.on_ray(actors=1):
        there = abbe.diagnose("embedded", text, **small, folder=tmp_path / "run")
    assert there.table.equals(abbe.diagnose("embedded", text, **small).table)


@needs_ray
@pytest.mark.slow
def test_table_is_the_same_after_an_actor_was_killed(local: pl.DataFrame, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    killed: list[int] = []
    watcher = threading.Thread(target=_kill_an_actor, args=(folder, killed), daemon=True)
    watcher.start()
    with abbe.on_ray(actors=2):
        run = abbe.diagnose("embedded", **SMALL, folder=folder, progress=False)
    watcher.join(1)
    assert killed
    assert run.table.equals(local)
    assert run.manifest["skipped"] == []


def _kill_an_actor(folder: Path, killed: list[int]) -> None:
    """As soon as a part is there, while others are being made."""
    while not list((folder / "windows").glob("*.safetensors")):
        time.sleep(0.02)
    listed = subprocess.run(["ps", "-eo", "pid,args"], capture_output=True, text=True).stdout.splitlines()
    for line in listed:
        if "ray::Actor.part" in line:
            os.kill(int(line.split()[0]), signal.SIGKILL)
            killed.append(int(line.split()[0]))
            return


@needs_ray
@pytest.mark.slow
def test_models_side_by_side_have_the_rows_of_one_process(tmp_path: Path) -> None:
    small: dict[str, Any] = {"lengths": [16], "windows": 2, "queries": 4, "sizes": [2], "progress": False}
    models = ["embedded", "embedded", "nowhere"]
    here = abbe.report_each(models, folder=tmp_path / "here", **small)
    with abbe.on_ray(actors=2):
        there = abbe.report_each(models, folder=tmp_path / "there", **small)
    assert there.table.drop("seconds").equals(here.table.drop("seconds"))
    assert there.table["skipped"][2] is not None


@needs_ray
@pytest.mark.parametrize(
    ("address", "line"),
    [
        ("127.0.0.1:9", "nothing answers at 127.0.0.1:9"),
        ("somewhere:port", "address is 'somewhere:port', but must be auto, HOST:PORT"),
    ],
)
def test_unreachable_address_is_named_in_one_line(address: str, line: str) -> None:
    with pytest.raises(abbe.AbbeError, match=line) as raised, abbe.on_ray(address):
        pass
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(("arguments", "line"), [({"actors": 0}, "actors is 0"), ({"threads": 0}, "threads is 0")])
def test_numbers_have_to_be_positive(arguments: dict[str, int], line: str) -> None:
    with pytest.raises(abbe.AbbeError, match=line), abbe.on_ray(**arguments):  # type: ignore[arg-type]
        pass


@needs_ray
@pytest.mark.slow
def test_what_cannot_be_sent_is_named(tmp_path: Path) -> None:
    model = abbe.load("embedded")
    with abbe.on_ray(actors=1):
        with pytest.raises(abbe.AbbeError, match="actors return their parts to a folder"):
            abbe.diagnose("embedded", **SMALL, progress=False)
        with pytest.raises(abbe.AbbeError, match="model cannot be sent to actors"):
            abbe.diagnose(model, **SMALL, folder=tmp_path / "run", progress=False)
        with pytest.raises(abbe.AbbeError, match=r"^(?!cannot reach Ray).*nowhere"):
            abbe.diagnose("nowhere", **SMALL, folder=tmp_path / "other", progress=False)


@needs_ray
@pytest.mark.slow
def test_actors_that_cannot_start_are_not_waited_for(local: pl.DataFrame, tmp_path: Path) -> None:
    """Somebody else's actor holds one of two cores: the one that starts does all the work."""
    import ray

    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:

        class Idle:
            def sits(self) -> None:
                """Does nothing."""

        taken = ray.remote(num_cpus=1)(Idle).remote()
        ray.get(taken.sits.remote())
        with abbe.on_ray(actors=2):
            run = abbe.diagnose("embedded", **SMALL, folder=tmp_path / "run", progress=False)
    finally:
        ray.shutdown()
    assert run.table.equals(local)
