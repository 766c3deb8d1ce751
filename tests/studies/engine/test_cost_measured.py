"""The predictions of abbe.cost against what runs take.

One thread, and the time of the process on both sides: what else runs on the machine hardly changes it. Of the run and
of the calibration the best of several is taken, in turn in one process.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import real
import torch
from inside import kernels_switch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import abbe
from abbe.models import Window, built, llama_configuration, tap, wrap
from abbe.runs import measuring as engine_measuring
from abbe.runs.cost import estimate
from abbe.runs.inputs import Settings
from abbe.runs.window import Passes, WindowReader, run_model

TEXT = abbe.Text("sample", abbe.read_text().content * 4)
FACTOR = 1.5


def gpt2_shape() -> Any:
    """A random GPT-2 with half the usual number of layers."""
    from transformers import GPT2Config, GPT2LMHeadModel

    tokenizer = abbe.load("embedded").tokenizer
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=len(tokenizer), n_layer=6, bos_token_id=0, eos_token_id=0)
    return wrap(GPT2LMHeadModel(config).eval(), tokenizer, "GPT-2 shape")


MODELS: dict[str, tuple[Callable[[], Any], tuple[int, ...]]] = {
    "embedded": (lambda: abbe.load("embedded"), (128, 1024)),
    "stories260K": (lambda: abbe.load(real.shared_model("stories260K")), (128, 512)),
    "stories15M": (lambda: abbe.load(real.shared_model("stories15M")), (64, 256)),
    "GPT-2": (gpt2_shape, (256, 1024)),
}


@pytest.fixture
def _one_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    monkeypatch.setattr(engine_measuring, "time", SimpleNamespace(perf_counter=time.process_time))
    yield
    torch.set_num_threads(threads)


@pytest.mark.slow
@pytest.mark.usefixtures("_one_thread")
@pytest.mark.parametrize("name", MODELS)
def test_windows_take_what_was_predicted(name: str) -> None:
    load, lengths = MODELS[name]
    model = load()
    predicted: dict[int, list[float]] = {length: [] for length in lengths}
    measured: dict[int, list[float]] = {length: [] for length in lengths}
    for _ in range(2):
        costs = abbe.cost(model, lengths=lengths, windows=2, progress=False)
        table = costs.table
        run = abbe.diagnose(model, TEXT, lengths=lengths, windows=2, resamples=10, progress=False)
        for length, seconds in zip(lengths, table["seconds"], strict=True):
            predicted[length].append(seconds)
            measured[length].append(run.manifest["seconds"]["windows"][str(length)])
    announced = estimate(model, lengths, max(lengths), 1.0, queries=64)
    assert costs.megabytes == announced.megabytes
    for length in lengths:
        ratio = min(predicted[length]) / min(measured[length])
        print(f"{name}, {length} tokens: {min(predicted[length]):.3f} s predicted, {ratio:.2f} of the time")
        assert 1 / FACTOR < ratio < FACTOR


@pytest.mark.slow
@pytest.mark.usefixtures("_one_thread")
def test_the_calibration_takes_a_few_seconds_for_a_large_model() -> None:
    shape = {"layers": 32, "heads": 32, "width": 4096, "mlp": 11008, "vocabulary": 32000}
    started = time.process_time()
    costs = abbe.cost(shape, lengths=1024, windows=1, progress=False)
    assert time.process_time() - started < 30
    assert 5 < costs.seconds < 10_000  # 1.3e13 operations


class Counted(TorchDispatchMode):
    """Bytes that operations read and write, and how many operations there are; views move nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = self.operations = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not func.is_view:
            self.operations += 1
            for one in tree_leaves((args, kwargs, result)):
                if isinstance(one, torch.Tensor):
                    sizes = [size for size, step in zip(one.shape, one.stride(), strict=True) if step]
                    self.bytes += one.element_size() * torch.Size(sizes).numel()
        return result


@pytest.mark.slow
def test_traffic_and_operations_of_the_measures_without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels_switch, "_on", False)
    for heads, width in ((2, 16), (4, 32)):
        longer, shorter = (counted(length, heads, width) for length in (256, 128))
        rates = abbe.cost(sizes_of(heads, width), lengths=64, flops=1.0, bandwidth=1.0).rates
        assert rates.measured_key == pytest.approx((longer.bytes - shorter.bytes) / (128 * 8 * heads), rel=0.1)
        assert rates.measured_block / 1e-5 == pytest.approx(longer.operations, rel=0.1)  # seconds of an operation


def sizes_of(heads: int, width: int) -> dict[str, int]:
    return {"layers": 1, "heads": heads, "head_width": width, "width": 16, "mlp": 16, "vocabulary": 1024}


def counted(length: int, heads: int, width: int) -> Counted:
    """Of measuring 8 queries of a window in one layer; the pass is small beside it."""
    model = built(llama_configuration(sizes_of(heads, width)), name="small")
    settings = Settings((length,), 1, 8, (1, 2, 5, 10, 20, 50, 100), "value", None, (1.0,), 0, 0.95, 1)
    with torch.no_grad(), tap(model) as open_tap:
        open_tap.check(input_ids=torch.arange(32)[None])
        reader, passes = WindowReader(model, open_tap, settings), Passes(model, open_tap)
        with Counted() as count:
            passes.read(Window(length, 0, torch.arange(length) + 4, 0, 0), reader, run=run_model)
    return count
