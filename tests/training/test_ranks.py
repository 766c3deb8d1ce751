"""Two processes by torch.distributed.run measure what one process measures on the joined batch."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from training_cases import batches, gpt2, llama, same
from transformers import AutoModelForCausalLM

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
    def broken(*_): raise ZeroDivisionError("planted")
    abbe.normalizers.Softmax.__call__ = broken
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


def on_two_threads(monkeypatch: pytest.MonkeyPatch, train: Callable[[int], abbe.Monitor]) -> list[abbe.Monitor]:
    """`train(rank)` on two threads that stand for two ranks: all they share is `all_reduce`."""
    barrier, here, shared = threading.Barrier(2, timeout=20), threading.local(), [torch.empty(0), torch.empty(0)]

    def all_reduce(x: torch.Tensor, how: Any = dist.ReduceOp.SUM) -> None:
        shared[here.rank] = x.clone()
        barrier.wait()
        join = {dist.ReduceOp.SUM: torch.add, dist.ReduceOp.MAX: torch.maximum, dist.ReduceOp.MIN: torch.minimum}[how]
        joined = join(*shared)
        barrier.wait()
        x.copy_(joined)

    def run(rank: int) -> abbe.Monitor:
        here.rank = rank
        return train(rank)

    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    monkeypatch.setattr(dist, "get_rank", lambda: here.rank)
    monkeypatch.setattr(dist, "all_reduce", all_reduce)
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(run, range(2)))


def one_step(network: Any, inputs: dict[str, torch.Tensor], monitor: abbe.Monitor) -> abbe.Monitor:
    loss = network(**inputs).loss
    loss.backward()
    monitor.step(loss)
    monitor.close()
    return monitor


def test_two_ranks_add_sums_keep_maxima_and_average_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each rank has half of a batch; together they measure what one process measures on all of it."""
    inputs = next(batches(1, batch=4))
    whole = gpt2(dropout=0.0)
    alone = one_step(whole, inputs, abbe.Monitor(whole, every=1)).result().table
    networks = [gpt2(dropout=0.0) for _ in range(2)]

    def train(rank: int) -> abbe.Monitor:
        half = {name: x.chunk(2)[rank] for name, x in inputs.items()}
        return one_step(networks[rank], half, abbe.Monitor(networks[rank], every=1))

    first, second = on_two_threads(monkeypatch, train)
    assert first.silent is second.silent is None
    assert second.result().records == []  # rank 0 records
    joined = first.result().table
    # One process reads the update of its first sequence, rank 0 of its own; there was none.
    assert joined.select("layer", "head", "measure").equals(alone.select("layer", "head", "measure"))
    for column in ("value", "limit", "control"):
        ours, theirs = joined[column].drop_nulls().to_list(), alone[column].drop_nulls().to_list()
        assert ours == pytest.approx(theirs, rel=1e-4, abs=1e-5)


def test_ranks_that_cannot_go_on_say_so_together(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = next(batches(1))

    def silent(second: Any, break_second: Callable[[], None] = lambda: None) -> list[str | None]:
        networks = [gpt2(dropout=0.0), second]

        def train(rank: int) -> abbe.Monitor:
            monitor = abbe.Monitor(networks[rank], every=1)
            if rank == 1:
                break_second()
            return one_step(networks[rank], inputs, monitor)

        return [monitor.silent for monitor in on_two_threads(monkeypatch, train)]

    other = gpt2(dropout=0.0)
    other.transformer.h = other.transformer.h[:1]
    assert silent(other) == ["the ranks have read different layers"] * 2
    failing = gpt2(dropout=0.0)

    def not_read() -> None:
        """Its attention runs without a reading."""
        for block in failing.transformer.h:
            block.attn.forward = lambda hidden_states, *args, **kwargs: (hidden_states, None)

    reasons = ["the reading failed on a rank", "no attention layer was seen in the forward pass"]
    assert silent(failing, not_read) == reasons


def test_a_pass_that_ended_with_an_exception_is_left_out_on_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    networks = [gpt2(dropout=0.0) for _ in range(2)]

    def train(rank: int) -> abbe.Monitor:
        with abbe.Monitor(networks[rank], every=1) as monitor:
            for step, inputs in enumerate(batches(2)):
                if rank == 1 and step == 0:
                    with pytest.raises(IndexError):
                        networks[rank](input_ids=torch.full((1, 8), 10_000))
                networks[rank](**inputs).loss.backward()
                monitor.step()
        return monitor

    first, second = on_two_threads(monkeypatch, train)
    assert first.silent is second.silent is None
    assert first.result().steps["step"].to_list() == [2]


def on_two_ranks(tmp_path: Path, *more: str, script: str = SCRIPT) -> str:
    path = tmp_path / "train.py"
    path.write_text(script)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(path)]
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


# -- A swapped model: its learned values are averaged like all else, and saved by one rank -----------------------------

SWAPPED = """
import sys
sys.path.insert(0, sys.argv[2])
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict
from torch.distributed.fsdp import fully_shard
import abbe
from training_cases import batches, llama

dist.init_process_group("gloo")
rank, way = dist.get_rank(), sys.argv[3]
network = model = llama()
abbe.swap(network, "entmax:alpha=1.5,learn=true")
if way == "ddp":
    model = torch.nn.parallel.DistributedDataParallel(network)
else:
    for layer in network.model.layers:
        fully_shard(layer)
    fully_shard(network)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for inputs in batches(4, batch=4):
    model(**{name: x.chunk(2)[rank] for name, x in inputs.items()}).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
options = StateDictOptions(full_state_dict=True, cpu_offload=True)
state = get_model_state_dict(network, options=options)
if rank == 0:
    network.save_pretrained(sys.argv[1], state_dict=dict(state))
    torch.save(state, f"{sys.argv[1]}/state.pt")
set_model_state_dict(network, get_model_state_dict(network))
other = get_model_state_dict(network) | {"abbe_normalizers._extra_state": torch.tensor(list(b"[]"), dtype=torch.uint8)}
try:
    set_model_state_dict(network, other)
except abbe.AbbeError as error:
    print("refused:", error, flush=True)
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.parametrize("way", ["ddp", "fsdp"])
def test_two_ranks_save_what_one_process_learns(way: str, tmp_path: Path) -> None:
    assert on_two_ranks(tmp_path, way, script=SWAPPED).count("refused: the checkpoint has") == 2
    network = llama()
    handle = abbe.swap(network, "entmax:alpha=1.5,learn=true")
    before = [parameter.detach().clone() for parameter in handle.parameters()]
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    for inputs in batches(4, batch=4):
        network(**inputs).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert not any(torch.equal(one, other) for one, other in zip(before, handle.parameters(), strict=True))
    read: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "run")
    gathered = torch.load(tmp_path / "run" / "state.pt")
    assert same(read.state_dict(), gathered)
    for name, value in network.state_dict().items():
        torch.testing.assert_close(gathered[name], value, atol=1e-5, rtol=1e-4)
