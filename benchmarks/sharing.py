"""One against two workers of one thread each on the parts of one run folder.

Efficiency is t1 / (2 t2), of the time from the moment at which all workers have loaded model, text and kernels until
the last one is done; the time with loading stands beside it. One and two workers alternate, the best of each counts.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

Row = dict[str, object]
LENGTH, WINDOWS = 512, 24

# Says that it is ready, waits for the start, and says when it is done.
_WORKER = f"""
import sys
import torch, abbe
torch.set_num_threads(1)
model = abbe.load("embedded")
text = abbe.Text("sample", abbe.read_text().content * 4)
abbe.diagnose(model, text, lengths=[{LENGTH}], windows=1, resamples=10, progress=False)  # loads and compiles everything
print("ready", flush=True)
sys.stdin.readline()
abbe.work(
    "diagnose", model, text, lengths=[{LENGTH}], windows={WINDOWS}, resamples=10, progress=False, folder=sys.argv[1]
)
print("done", flush=True)
"""


def timed(workers: int) -> tuple[float, float]:
    """Seconds of the work, and with loading, of so many processes on one new folder."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as place:
        command = [sys.executable, "-c", _WORKER, str(Path(place) / "run")]
        begun = time.perf_counter()
        running = [
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
            for _ in range(workers)
        ]
        _hear(running, "ready")
        started = time.perf_counter()
        for one in running:
            assert one.stdin is not None
            one.stdin.write("go\n")
            one.stdin.flush()
        _hear(running, "done")
        ended = time.perf_counter()
        for one in running:
            one.communicate()
    return ended - started, ended - begun


def _hear(running: list[subprocess.Popen[str]], word: str) -> None:
    for one in running:
        assert one.stdout is not None
        heard = one.stdout.readline().strip()
        if heard != word:
            raise RuntimeError(f"a worker said {heard!r} in place of {word!r}")


def scale_rows(emit: Callable[[Row], None], rounds: int) -> None:
    times: dict[int, list[tuple[float, float]]] = {1: [], 2: []}
    for _ in range(rounds):
        for workers, seen in times.items():
            seen.append(timed(workers))
    work = {workers: min(one for one, _ in seen) for workers, seen in times.items()}
    whole = {workers: min(one for _, one in seen) for workers, seen in times.items()}
    shape = f"{WINDOWS} windows of {LENGTH}"
    for workers in times:
        name = f"{workers} worker{'s' if workers > 1 else ''}"
        emit({"part": "scale", "name": name, "shape": shape, "seconds": work[workers], "with loading": whole[workers]})
    emit(
        {
            "part": "scale",
            "name": "efficiency of 2 workers",
            "shape": shape,
            "efficiency": work[1] / (2 * work[2]),
            "with loading": whole[1] / (2 * whole[2]),
        }
    )
