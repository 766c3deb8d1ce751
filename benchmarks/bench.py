"""Speed of the normalizers and of attention, as ratios taken in one run.

    make bench                                  everything, about ten minutes
    make bench ARGS="--quick"                   two shapes, few repeats
    make bench ARGS="--only entmax,topk"        some normalizers
    make bench ARGS="--part normalizers"        one part: normalizers, package, attention, memory, latency, crossover,
                                                diagnose, scaling, swap, compare, monitor, sparse, scale

Every row is printed as a JSON line as soon as it is measured, and again in a table at the end. Baseline and
candidate alternate within a row, and the ratio is that of their best times: what is left of each when nobody
else uses the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from types import ModuleType

import torch
from torch import Tensor

import abbe
from abbe._attention import attend as _attention
from abbe.normalizers import _row_map as _dispatch

SHAPES = ((6144, 512), (12288, 1024), (512, 4096), (32, 32768))
SPREAD = 3.0
EXTRA_SPECS = (
    "entmax:alpha=1.1",
    "entmax:alpha=1.25",
    "entmax:alpha=1.75",
    "entmax:alpha=1.3,learn=true",
    "entmax:alpha=2",
    "hybrid:a=softmax,b=sparsemax",
)
PARTS = (
    "normalizers",
    "package",
    "attention",
    "memory",
    "latency",
    "crossover",
    "diagnose",
    "scaling",
    "swap",
    "compare",
    "monitor",
    "sparse",
    "scale",
)
Row = dict[str, object]


def best_times(functions: list[Callable[[], object]], budget: float) -> list[float]:
    """Best seconds of each function, called in turn until the budget (seconds) is spent."""
    for function in functions:
        function()
    times: list[list[float]] = [[] for _ in functions]
    end = time.perf_counter() + budget
    while len(times[0]) < 7 or time.perf_counter() < end:
        for function, seen in zip(functions, times, strict=True):
            start = time.perf_counter()
            function()
            seen.append(time.perf_counter() - start)
    return [min(seen) for seen in times]


def forward_and_backward(function: Callable[[Tensor], Tensor], logits: Tensor, grad: Tensor) -> Callable[[], None]:
    leaf = logits.clone().requires_grad_()

    def run() -> None:
        leaf.grad = None
        function(leaf).backward(grad)

    return run


def plain_softmax(logits: Tensor) -> Tensor:
    return torch.softmax(logits, -1)


def ratios(function: Callable[[Tensor], Tensor], shape: tuple[int, int], budget: float) -> tuple[float, float]:
    """Forward, and forward with backward, against torch.softmax."""
    logits = SPREAD * torch.randn(shape)
    grad = torch.randn(shape)
    with torch.no_grad():
        base, ours = best_times([lambda: plain_softmax(logits), lambda: function(logits)], budget)
    both = [forward_and_backward(f, logits, grad) for f in (plain_softmax, function)]
    base_both, ours_both = best_times(list(both), budget)
    return ours / base, ours_both / base_both


def normalizer_rows(only: set[str], shapes: tuple[tuple[int, int], ...], budget: float) -> None:
    specs = dict.fromkeys([*(info.example for info in abbe.list_normalizers()), *EXTRA_SPECS])
    for spec in specs:
        made = abbe.normalizer(spec)
        if made._given.get("heads", 1) > 1:  # the rows here have no head dimension
            made = abbe.normalizer(made.name)
        if only and made.name not in only:
            continue
        for shape in shapes:
            forward, both = ratios(made, shape, budget)
            emit(
                {"part": "normalizers", "name": str(made), "shape": shape, "forward": forward, "forward+backward": both}
            )
    if not only:
        for shape in shapes:
            logits = SPREAD * torch.randn(shape)
            base, sort = best_times([lambda x=logits: plain_softmax(x), lambda x=logits: torch.sort(x)], budget)
            emit({"part": "normalizers", "name": "torch.sort", "shape": shape, "forward": sort / base})


def package_rows(shapes: tuple[tuple[int, int], ...], budget: float) -> None:
    """The usual package on the same footing, and its losses beside those of abbe.entmax."""
    import entmax

    for name in ("sparsemax", "entmax15", "entmax_bisect"):
        for shape in shapes:
            extra = {"alpha": 1.25} if name == "entmax_bisect" else {}
            function = partial(getattr(entmax, name), dim=-1, **extra)
            forward, both = ratios(function, shape, budget)
            emit(
                {
                    "part": "package",
                    "name": f"entmax 1.3 {name}",
                    "shape": shape,
                    "forward": forward,
                    "forward+backward": both,
                }
            )
            loss_rows(entmax, name, extra, shape, budget)


def loss_rows(package: ModuleType, name: str, extra: dict[str, float], shape: tuple[int, int], budget: float) -> None:
    """Forward with backward of a loss, ours and the package's, against the map of abbe.entmax that it belongs to."""
    logits, grad = SPREAD * torch.randn(shape), torch.randn(shape)
    target = torch.randint(shape[1], shape[:1])
    map_of_ours = partial(getattr(abbe.entmax, name), dim=-1, **extra)
    losses = [partial(getattr(module, f"{name}_loss"), target=target, **extra) for module in (abbe.entmax, package)]
    steps = [forward_and_backward(map_of_ours, logits, grad)]
    steps += [forward_and_backward(loss, logits, torch.ones(shape[:1])) for loss in losses]
    base, ours, theirs = best_times(list(steps), budget)
    for whose, seconds in (("abbe.entmax", ours), ("entmax 1.3", theirs)):
        emit({"part": "package", "name": f"{whose} {name}_loss", "shape": shape, "over its map": seconds / base})


def attention_rows(budget: float) -> None:
    """Forward with backward of attention, 8 heads, L = 1024, D = 64, against softmax on the same blockwise path."""
    q, k, v = (torch.randn(1, 8, 1024, 64, requires_grad=True) for _ in range(3))
    grad = torch.randn(1, 8, 1024, 64)

    def step(name: str, causal: bool) -> Callable[[], None]:
        made = abbe.normalizer(name)

        def run() -> None:
            for leaf in (q, k, v):
                leaf.grad = None
            _attention._blockwise(q, k, v, made, causal=causal).backward(grad)

        return run

    for causal in (False, True):
        for name in ("sparsemax", "entmax:alpha=1.5", "entmax:alpha=1.25", "topk:k=32", "ssmax"):
            base, ours = best_times([step("softmax", causal), step(name, causal)], 4 * budget)
            emit(
                {
                    "part": "attention",
                    "name": name,
                    "shape": f"8x1024x64{' causal' if causal else ''}",
                    "forward+backward": ours / base,
                }
            )


MEMORY = """
import sys, torch, abbe
torch.set_num_threads(2)

def peak():  # not getrusage: its peak is inherited from the parent process
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))

length, name = int(sys.argv[1]), sys.argv[2]
q, k, v = (torch.randn(1, 4, length, 64, requires_grad=True) for _ in range(3))
small = [x[:, :, :600].detach().requires_grad_() for x in (q, k, v)]
abbe.attention(*small, name).sum().backward()
before = peak()
abbe.attention(q, k, v, name).sum().backward()
print((peak() - before) / 1024)
"""


def memory_rows() -> None:
    """Extra peak memory of attention at L = 16384, 4 heads, D = 64, forward and backward, in MiB (Linux)."""
    for name in ("softmax", "entmax:alpha=1.5"):
        done = subprocess.run([sys.executable, "-c", MEMORY, "16384", name], capture_output=True, text=True, check=True)
        emit({"part": "memory", "name": name, "shape": "4x16384x64", "MiB": float(done.stdout)})


LATENCY = """
import sys, time, torch
import abbe
rows = int(sys.argv[1])
x = torch.randn(rows, 256)
start = time.perf_counter()
abbe.normalizer(sys.argv[2])(x)
print(time.perf_counter() - start)
"""


def latency_rows() -> None:
    """Seconds of the first call in a new process: small, large with an empty kernel cache, large with a warm one."""
    import tempfile

    for name in ("entmax:alpha=1.5", "entmax:alpha=1.25", "topk:k=32"):
        with tempfile.TemporaryDirectory() as cache:
            environment = os.environ | {"NUMBA_CACHE_DIR": cache}
            for label, rows in (("small", 16), ("large, first time", 4096), ("large, kernels cached", 4096)):
                command = [sys.executable, "-c", LATENCY, str(rows), name]
                done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
                emit({"part": "latency", "name": name, "shape": label, "seconds": float(done.stdout)})


def crossover_rows(budget: float) -> None:
    """Kernel against reference, kernels compiled already: what FUSED_FROM leaves on the table."""
    threshold = _dispatch.FUSED_FROM
    for name in ("softmax", "sparsemax", "entmax:alpha=1.5", "entmax:alpha=1.25", "topk:k=32"):
        made = abbe.normalizer(name)
        for size in (2**10, 2**12, 2**14, 2**16, 2**18):
            logits = SPREAD * torch.randn(size // 128, 128)

            def call(fused_from: int, x: Tensor = logits, n: abbe.Normalizer = made) -> None:
                _dispatch.FUSED_FROM = fused_from
                n(x)

            reference, kernel = best_times([lambda: call(1 << 62), lambda: call(0)], budget)
            emit({"part": "crossover", "name": name, "shape": f"{size} logits", "kernel/reference": kernel / reference})
    _dispatch.FUSED_FROM = threshold


_rows: list[Row] = []


def emit(row: Row) -> None:
    rounded = {key: round(value, 3) if isinstance(value, float) else value for key, value in row.items()}
    _rows.append(rounded)
    print(json.dumps(rounded), flush=True)


def print_table() -> None:
    columns = (
        "forward", "forward+backward", "over its map", "MiB", "MB", "seconds", "kernel/reference", "ratio", "density",
        "processor", "with loading",
    )  # fmt: skip
    print()
    for part in PARTS:
        rows = [row for row in _rows if row["part"] == part]
        used = [column for column in columns if any(column in row for row in rows)]
        if rows:
            print(f"{part:38} {'shape':>24} " + " ".join(f"{column:>17}" for column in used))
        for row in rows:
            shape = row["shape"] if isinstance(row["shape"], str) else "x".join(map(str, row["shape"]))  # type: ignore[call-overload]
            cells = " ".join(f"{row.get(column, ''):>17}" for column in used)
            print(f"{row['name']!s:38} {shape:>24} {cells}")
        print()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two shapes, few repeats")
    parser.add_argument("--only", default="", help="names of normalizers, separated by commas")
    parser.add_argument("--part", default="", help=f"some of {', '.join(PARTS)}, separated by commas")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(options.threads)
    budget = 0.2 if options.quick else 1.0
    shapes = SHAPES[::2] if options.quick else SHAPES
    wanted = set(options.part.split(",")) if options.part else set(PARTS if not options.only else ["normalizers"])
    if wanted - set(PARTS):
        parser.error(f"unknown part {', '.join(wanted - set(PARTS))}, known: {', '.join(PARTS)}")
    if "normalizers" in wanted:
        normalizer_rows(set(filter(None, options.only.split(","))), shapes, budget)
    if "package" in wanted:
        package_rows(shapes, budget)
    if "attention" in wanted:
        attention_rows(budget)
    if "memory" in wanted:
        memory_rows()
    if "latency" in wanted:
        latency_rows()
    if "crossover" in wanted:
        crossover_rows(budget)
    if wanted & {"diagnose", "scaling"}:
        import diagnosis

        if "diagnose" in wanted:
            diagnosis.diagnosis_rows(emit, 2 if options.quick else 4)
        if "scaling" in wanted:
            diagnosis.scaling_rows(emit, (1024, 2048) if options.quick else (1024, 2048, 4096, 8192))
    if "swap" in wanted:
        import swapping

        swapping.swap_rows(emit, best_times, budget)
    if "compare" in wanted:
        import comparing

        comparing.compare_rows(emit, 1 if options.quick else 3)
    if "monitor" in wanted:
        import watching

        watching.monitor_rows(emit, *((3, (1,)) if options.quick else (8, (1, 2))))
    if "sparse" in wanted:
        import sparse

        sparse.sparse_rows(emit, best_times, budget, (1024, 4096) if options.quick else (1024, 2048, 4096, 8192))
    if "scale" in wanted:
        import sharing

        sharing.scale_rows(emit, 1 if options.quick else 3)
    print_table()


if __name__ == "__main__":
    main()
