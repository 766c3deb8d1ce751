"""One against two shards of one thread each on the parts of one run folder.

Efficiency is t1 / (2 t2), of the time from the moment at which all workers have loaded model, text and kernels until
the last one is done; the time with loading stands beside it. One and two workers alternate, the best of each counts.
On a machine that others use, two workers do not get two cores: the same ratio of the processors' time, t2 that of the
worker that had more to do, shows what sharing itself costs, apart from waiting.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

Row = dict[str, object]
LENGTH, WINDOWS = 512, 24

# Says that it is ready, waits for the start, and says when it is done.
_WORKER = f"""
import sys, time
import torch, abbe
torch.set_num_threads(1)
model = abbe.load("embedded")
text = abbe.Text("sample", abbe.read_text().content * 4)
abbe.diagnose(model, text, lengths=[{LENGTH}], windows=1, resamples=10, progress=False)  # loads and compiles everything
print("ready", flush=True)
sys.stdin.readline()
begun = time.process_time()
options = dict(lengths=[{LENGTH}], windows={WINDOWS}, resamples=10, progress=False, folder=sys.argv[1])
with abbe.shard(sys.argv[2]):
    abbe.diagnose(model, text, **options)
print("done", time.process_time() - begun, flush=True)
"""


class Timed(NamedTuple):
    """Seconds of so many workers on one new folder."""

    work: float
    processor: float  # of the one that had most to do
    whole: float  # with loading


def timed(workers: int) -> Timed:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as place:
        command = [sys.executable, "-c", _WORKER, str(Path(place) / "run")]
        shares = [f"{number}/{workers}" for number in range(1, workers + 1)]
        pipe = subprocess.PIPE
        begun = time.perf_counter()
        running = [
            subprocess.Popen([*command, share], stdin=pipe, stdout=pipe, text=True, env=environment) for share in shares
        ]
        _hear(running, "ready")
        started = time.perf_counter()
        for one in running:
            assert one.stdin is not None
            one.stdin.write("go\n")
            one.stdin.flush()
        processor = max(map(float, _hear(running, "done")))
        ended = time.perf_counter()
        for one in running:
            one.communicate()
    return Timed(ended - started, processor, ended - begun)


def _hear(running: list[subprocess.Popen[str]], word: str) -> list[str]:
    """What each says after that word."""
    said = []
    for one in running:
        assert one.stdout is not None
        heard, _, more = one.stdout.readline().strip().partition(" ")
        if heard != word:
            raise RuntimeError(f"a worker said {heard!r} in place of {word!r}")
        said.append(more)
    return said


def scale_rows(emit: Callable[[Row], None], rounds: int) -> None:
    times: dict[int, list[Timed]] = {1: [], 2: []}
    for _ in range(rounds):
        for workers, seen in times.items():
            seen.append(timed(workers))
    best = {workers: Timed(*map(min, zip(*seen, strict=True))) for workers, seen in times.items()}
    shape = f"{WINDOWS} windows of {LENGTH}"
    for workers, name in ((1, "1 worker"), (2, "2 workers")):
        seconds = {"seconds": best[workers].work, "processor": best[workers].processor}
        emit({"part": "scale", "name": name, "shape": shape, **seconds, "with loading": best[workers].whole})
    work, processor, whole = (one / (2 * two) for one, two in zip(best[1], best[2], strict=True))
    ratios = {"seconds": work, "processor": processor, "with loading": whole}
    emit({"part": "scale", "name": "efficiency, t1 / (2 t2)", "shape": shape, **ratios})
