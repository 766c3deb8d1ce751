"""What a normalizer costs: time of a forward pass and peak memory of its tensors, to compare with the baseline's."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

from ....models import LoadedModel, swap

Rules = Any  # what `swap` takes

ROUNDS = 5  # the best one counts: disturbances only slow a pass down


@torch.no_grad()
def costs(
    model: LoadedModel, tokens: Tensor, contenders: Mapping[str, Rules | None], on_pass: Callable[[], object]
) -> dict[str, dict[str, Any]]:
    """Best time of a forward pass and peak memory of its tensors in MB, for each named swap (None: no swap).

    Every round takes all in turn, so that a machine that is busy for a while slows down all of them.
    """
    times: dict[str, list[float]] = {name: [] for name in contenders}
    memory: dict[str, float | None] = {}
    for number in range(ROUNDS + 1):
        for name, what in contenders.items():
            with nullcontext() if what is None else swap(model, what):
                if number == 0:  # also the pass that warms up
                    memory[name] = peak_megabytes(lambda: _forward(model, tokens))
                    continue
                start = time.perf_counter()
                _forward(model, tokens)
                times[name].append(time.perf_counter() - start)
            on_pass()
    return {"seconds": {name: min(seconds) for name, seconds in times.items()}, "megabytes": memory}


def _forward(model: LoadedModel, tokens: Tensor) -> None:
    network: Any = model.network
    network(input_ids=tokens[None].to(model.device), use_cache=False)


def peak_megabytes(work: Callable[[], object]) -> float | None:
    """Peak memory of the tensors created by `work`, in MB; None if unknown."""
    try:
        with _quiet_profiler(), torch.autograd.profiler.profile(profile_memory=True) as seen:
            work()
        results: Any = seen.kineto_results
        changes = sorted((event.start_ns(), event.nbytes()) for event in results.events() if event.name() == "[memory]")
    except (AttributeError, RuntimeError):
        return None
    now = most = 0
    for _, change in changes:
        now += change
        most = max(most, now)
    return most / 1e6 if changes else None


@contextmanager
def _quiet_profiler() -> Iterator[None]:
    """Without this the profiler writes lines on standard error."""
    name = "KINETO_LOG_LEVEL"
    before = os.environ.get(name)
    os.environ[name] = "99"
    try:
        yield
    finally:
        os.environ.pop(name)
        os.environ.update({} if before is None else {name: before})
