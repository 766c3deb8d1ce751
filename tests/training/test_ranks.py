"""Two processes by torch.distributed.run measure what one process measures on the joined batch."""

from __future__ import annotations

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from training_cases import batches, gpt2

import abbe
from abbe.training import _ranks

SCRIPT = """
import sys
sys.path.insert(0, sys.argv[2])
import torch
import torch.distributed as dist
import abbe
from training_cases import batches, gpt2

dist.init_process_group("gloo")
rank = dist.get_rank()
network = gpt2(dropout=0.0)
model = torch.nn.parallel.DistributedDataParallel(network)
optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
monitor = abbe.Monitor(model, every=2, folder=sys.argv[1])
if len(sys.argv) > 3 and rank == 1:
    from abbe.training import _rows
    def broken(rows): raise ZeroDivisionError("planted")
    _rows.dispersion = broken
for inputs in batches(4, batch=4):
    loss = model(**{name: x.chunk(2)[rank] for name, x in inputs.items()}).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    monitor.step(loss, 0.1)
monitor.close()
print("silent:", monitor.silent, flush=True)
dist.destroy_process_group()
"""


def side_by_side(monkeypatch: pytest.MonkeyPatch, given: list[Any], **options: Any) -> list[Any]:
    """`over_ranks` on two threads that stand for two ranks."""
    barrier, here, shared = threading.Barrier(2, timeout=20), threading.local(), [torch.empty(0), torch.empty(0)]

    def all_reduce(x: torch.Tensor, how: Any = dist.ReduceOp.SUM) -> None:
        shared[here.rank] = x.clone()
        barrier.wait()
        join = {dist.ReduceOp.SUM: torch.add, dist.ReduceOp.MAX: torch.maximum, dist.ReduceOp.MIN: torch.minimum}[how]
        joined = join(*shared)
        barrier.wait()
        x.copy_(joined)

    def run(rank: int) -> Any:
        here.rank = rank
        try:
            return _ranks.over_ranks(
                given[rank], float(rank), torch.device("cpu"), rank in options.get("interrupted", ())
            )
        except Exception as error:
            return error

    monkeypatch.setattr(_ranks, "world", lambda: 2)
    monkeypatch.setattr(dist, "all_reduce", all_reduce)
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(run, range(2)))


def sums(value: float) -> dict[int, Any]:
    names = ("entropy/value", "max_logit/largest", "query_gradient/squares")
    return {layer: {name: torch.full((2,), value + layer) for name in names} for layer in range(2)}


def test_sums_are_added_maxima_kept_and_gradients_averaged(monkeypatch: pytest.MonkeyPatch) -> None:
    for states, loss in side_by_side(monkeypatch, [sums(1.0), sums(3.0)]):
        assert loss == 0.5
        assert states[1]["entropy/value"].tolist() == [6.0, 6.0]
        assert states[1]["max_logit/largest"].tolist() == [4.0, 4.0]
        assert states[1]["query_gradient/squares"].tolist() == [1.5, 1.5]


def test_ranks_that_cannot_go_on_say_so_together(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [str(error) for error in side_by_side(monkeypatch, [sums(1.0), None])] == [
        "the reading failed on a rank",
        "the reading failed",
    ]
    other = side_by_side(monkeypatch, [sums(1.0), {0: sums(1.0)[0]}])
    assert [str(error) for error in other] == ["the ranks have read different layers"] * 2
    stopped = side_by_side(monkeypatch, [sums(1.0), None], interrupted=(1,))
    assert all(isinstance(error, _ranks.Interrupted) for error in stopped)


def on_two_ranks(tmp_path: Path, *more: str) -> str:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script)]
    command += [str(tmp_path / "run"), str(Path(__file__).parent), *more]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_two_ranks_measure_what_one_process_does(tmp_path: Path) -> None:
    on_two_ranks(tmp_path)
    joined: Any = abbe.open(tmp_path / "run")
    network = gpt2(dropout=0.0)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    with abbe.Monitor(network, every=2) as monitor:
        for inputs in batches(4, batch=4):
            loss = network(**inputs).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            monitor.step(loss, 0.1)
        alone = monitor.result()
    assert joined.steps["step"].to_list() == [1, 2, 4]
    assert joined.steps["loss"].to_list() == pytest.approx(alone.steps["loss"].to_list(), rel=1e-4)
    assert joined.table.select("step", "layer", "head", "measure").equals(
        alone.table.select("step", "layer", "head", "measure")
    )
    for column in ("value", "limit", "control"):
        ours, theirs = (result.table[column] for result in (joined, alone))
        assert ours.is_null().equals(theirs.is_null())
        assert ours.drop_nulls().to_list() == pytest.approx(theirs.drop_nulls().to_list(), rel=2e-3, abs=1e-6)


@pytest.mark.slow
def test_a_rank_that_fails_silences_all_and_nobody_waits(tmp_path: Path) -> None:
    said = on_two_ranks(tmp_path, "break")
    assert said.count("silent: ") == 2
    assert "ZeroDivisionError: planted" in said
    assert "the reading failed on a rank" in said
