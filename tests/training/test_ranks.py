"""Two processes by torch.distributed.run measure what one process measures on the joined batch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from training_cases import batches, gpt2

import abbe

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
