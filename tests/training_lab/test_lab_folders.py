"""Experiments as folders: resumed equals uninterrupted, damage is repaired, others are refused, no worker is left."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from lab_cases import choice, small
from polars.testing import assert_frame_equal

import abbe
from abbe.lab import experiments
from abbe.lab.run import _clean_start, train_all, usual_workers
from abbe.runs import study as runs_study

SHORT: dict[str, Any] = {
    "normalizers": ["softmax", "sparsemax"], "rates": [0.01, 0.03], "seeds": 2, "steps": 10, "workers": 1,
    "progress": False,
}  # fmt: skip
TABLES = ("table", "curves", "lengths", "alerts", "summary", "warnings")


@pytest.fixture(autouse=True)
def without_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages have tests of their own, and nobody reads here how long it will take."""
    monkeypatch.setattr(runs_study, "has", lambda extra: False)
    monkeypatch.setattr(experiments, "_TIMED", 1)


def run(folder: Path | None = None, **changed: Any) -> abbe.Experiment:
    return abbe.train_recall(**(SHORT | changed), folder=folder)


def same(first: abbe.Experiment, second: abbe.Experiment) -> None:
    for name in TABLES:
        assert_frame_equal(getattr(first, name), getattr(second, name), check_exact=True)
    assert first.findings == second.findings


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs_study, "has", lambda extra: False)
        run(folder)
    return folder


@pytest.fixture(scope="module")
def whole(finished: Path) -> abbe.Experiment:
    opened = abbe.open(finished)
    assert isinstance(opened, abbe.Experiment)
    return opened


@pytest.mark.parametrize(
    ("changed", "named"),
    [({"steps": 11}, "steps"), ({"rates": 0.01}, "rates"), ({"task": "mqar"}, "task")],
)
def test_other_settings_are_refused_by_name(changed: dict[str, Any], named: str, finished: Path) -> None:
    with pytest.raises(abbe.AbbeError, match=rf"holds another run \(different: .*{named}.*\): name a new folder"):
        run(finished, **changed)


def test_another_kind_of_device_is_another_run(
    finished: Path, whole: abbe.Experiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert whole.manifest["model"]["device"] == "cpu"
    same(run(finished, device="cpu"), whole)
    monkeypatch.setattr(experiments, "as_device", torch.device)
    with pytest.raises(abbe.AbbeError, match=r"holds another run \(different: device\): name a new folder"):
        run(finished, device="cuda:1")


def test_an_accelerator_has_one_worker_unless_more_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, torch.device]] = []

    def side_by_side(task: Any, choices: Any, workers: int, keep: Any, device: torch.device) -> None:
        asked.append((workers, device))
        raise KeyboardInterrupt

    def one(task: Any, choice: Any, device: torch.device) -> None:
        side_by_side(task, [choice], 1, None, device)

    monkeypatch.setattr(experiments, "as_device", torch.device)
    monkeypatch.setattr(experiments, "_estimate", lambda task, left, device: dict.fromkeys(SHORT["normalizers"], 0.0))
    monkeypatch.setattr(experiments, "train_all", side_by_side)
    monkeypatch.setattr(experiments, "train", one)
    for workers in (None, 3):
        with pytest.raises(KeyboardInterrupt):
            run(workers=workers, device="cuda:1")
    assert asked == [(1, torch.device("cuda:1")), (3, torch.device("cuda:1"))]
    assert usual_workers() == usual_workers(torch.device("cpu")) >= 1


def test_every_run_and_seed_has_a_row(whole: abbe.Experiment) -> None:
    assert len(whole.table) == 2 * 2 * 2
    assert whole.table.select("normalizer", "rate", "seed").unique().height == 8
    assert whole.table["start_loss"].is_not_null().all()
    assert set(whole.summary["normalizer"]) == {"softmax", "sparsemax"}
    assert whole.lengths.is_empty()
    assert whole.curves.group_by("run", "seed").agg(pl.len())["len"].min() == 10


@pytest.mark.slow
def test_a_worker_that_refuses_stops_the_others() -> None:
    """In two processes: the message comes through, and no run goes on."""
    jobs = [choice(steps=10**6), choice(normalizer="softmx"), choice(steps=10**6, rate=0.02)]
    with pytest.raises(abbe.AbbeError, match="softmx"):
        train_all(small("recall"), jobs, 2, lambda *_: pytest.fail("nothing was finished"))
    assert multiprocessing.active_children() == []


@pytest.mark.slow
@pytest.mark.parametrize("which", [0, 1])
def test_a_worker_that_dies_is_reported_in_one_line(which: int) -> None:
    """Whether it was the first to start or the last."""
    jobs = [choice(steps=10**6), choice(steps=10**6, rate=0.02)]

    def kill() -> None:
        waited(lambda: len(multiprocessing.active_children()) == 2 or None)
        time.sleep(1)  # until then the pool might look for new workers anyway
        sorted(multiprocessing.active_children(), key=lambda worker: worker.pid or 0)[which].kill()

    threading.Thread(target=kill).start()
    with pytest.raises(abbe.AbbeError, match=r"a worker ended .* run again to resume") as raised:
        train_all(small("recall"), jobs, 2, lambda *_: pytest.fail("nothing was finished"))
    assert "\n" not in str(raised.value)
    assert multiprocessing.active_children() == []


def test_starting_workers_leaves_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their environment, signals and main module are not those of the caller, and are put back."""
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    before = dict(os.environ), sys.modules["__main__"], signal.getsignal(signal.SIGINT)
    with suppress(KeyError), _clean_start():
        assert {os.environ[f"{name}_NUM_THREADS"] for name in ("OMP", "MKL", "NUMBA")} == {"1"}
        assert not hasattr(sys.modules["__main__"], "__file__")
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
        raise KeyError
    assert (dict(os.environ), sys.modules["__main__"], signal.getsignal(signal.SIGINT)) == before


@pytest.mark.slow
def test_side_by_side_is_as_one_after_the_other(whole: abbe.Experiment) -> None:
    same(run(workers=2), whole)


SCRIPT = """
import abbe
abbe.train_recall(normalizers=["softmax", "sparsemax"], rates=[0.01, 0.02], seeds=1, steps=10**6, workers=2)
"""


def children(process: int) -> set[int]:
    listed = (path.read_text().split() for path in Path(f"/proc/{process}/task").glob("*/children"))
    return {int(child) for children in listed for child in children if is_alive(int(child))}


def is_alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are looked up in /proc")
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_no_worker_outlives_its_caller(how: signal.Signals, tmp_path: Path) -> None:
    """Ctrl-C reaches the whole group of the terminal, a kill the caller alone; workers do not run the script again."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    with subprocess.Popen([sys.executable, script], stderr=subprocess.PIPE, process_group=0) as caller:
        try:
            workers = waited(lambda: some if len(some := children(caller.pid)) == 3 else None)  # and their tracker
            time.sleep(5)  # they are training by now, or still starting: both must end
            (os.killpg if how == signal.SIGINT else os.kill)(caller.pid, how)
            caller.wait(300)  # kernels of a new checkout may be compiled first
            waited(lambda: not any(is_alive(one) for one in workers) or None)
        finally:
            if caller.poll() is None:
                caller.kill()


def waited(ready: Callable[[], Any], seconds: float = 180) -> Any:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if (answer := ready()) is not None:
            return answer
        time.sleep(0.1)
    raise AssertionError("it never came")
