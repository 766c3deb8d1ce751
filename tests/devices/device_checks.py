"""Checks that run on the pretend device, many of them in one process of its own, and their answers.

A module of checks names functions with `checks.add`; `python device_checks.py MODULES` reads the names of those to run
from its input, and answers each with one line of JSON. Tests ask with `answers`.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest
import torch
import torch.utils._pytree as tree
from inside import attention_attend, float64_module, kernels_switch, measures_rows, normalizers_row_map
from torch import Tensor, nn

DEVICE = "pretend"
_TIMEOUT = 1800  # seconds; all the checks take about four minutes of one core
Check = Callable[[], None]


class Checks(dict[str, Check]):
    """Functions by name; those that are not quick run in `make test-all` only."""

    def __init__(self) -> None:
        super().__init__()
        self.quick: set[str] = set()

    def add(self, name: str, *values: Any, quick: bool = False) -> Callable[[Callable[..., None]], Callable[..., None]]:
        """Register a function, called with these values, under this name."""

        def added(function: Callable[..., None]) -> Callable[..., None]:
            if name in self:
                raise ValueError(f"two checks are named {name!r}")
            self[name] = lambda: function(*values)
            if quick:
                self.quick.add(name)
            return function

        return added

    def join(self, others: Checks) -> None:
        self.update(others)
        self.quick |= others.quick

    def parameters(self) -> pytest.MarkDecorator:
        """Parametrise a test over the names."""
        slow = pytest.mark.slow
        return pytest.mark.parametrize(
            "name", [name if name in self.quick else pytest.param(name, marks=slow) for name in self]
        )


def answers(modules: Iterable[str], names: Iterable[str], kernels: bool = True) -> dict[str, str]:
    """What went wrong in each check, "" if nothing: all of them in one process, which alone knows the device."""
    # Kernels that fail warn and are given up: no check may pass because of that.
    command = [sys.executable, "-W", "error::RuntimeWarning", __file__, *modules]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    if not kernels:
        environment |= {"ABBE_KERNELS": "off"}
    ended = subprocess.run(
        command, input="\n".join(names), capture_output=True, text=True, timeout=_TIMEOUT, env=environment, check=False
    )
    lines = [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("{")]
    if ended.returncode:
        pytest.fail(f"the process ended with {ended.returncode} after {len(lines)} checks:\n{ended.stderr[-3000:]}")
    return {line["name"]: line["error"] for line in lines}


def _run(modules: Iterable[str]) -> None:
    import pretend_device  # noqa: F401 - registers the device

    torch.set_num_threads(1)
    checks = Checks()
    for module in modules:
        checks.join(importlib.import_module(module).checks)
    for name in sys.stdin.read().splitlines():
        error, started = "", time.process_time()
        try:
            checks[name]()
        except Exception:  # the others shall run
            error = traceback.format_exc()
        seconds = round(time.process_time() - started, 3)
        print(json.dumps({"name": name, "error": error, "seconds": seconds}), flush=True)


# -- What checks are made of ------------------------------------------------------------------------------------------


def moved(value: Any, device: str = DEVICE) -> Any:
    """The same on the device: tensors in any nesting, leaves of their own; a module itself is moved."""
    if isinstance(value, nn.Module):
        return value.to(device)
    return tree.tree_map_only(
        Tensor, lambda x: x.detach().to(device).requires_grad_(x.requires_grad), value, is_leaf=_is_tensor
    )


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor)


@contextmanager
def torch_path() -> Iterator[None]:
    """The CPU without kernels: the numbers that a device must give."""
    before, kernels_switch._on = kernels_switch._on, False
    try:
        yield
    finally:
        kernels_switch._on = before


@contextmanager
def without_double() -> Iterator[None]:
    """The device has no float64; rows are then on the CPU, without kernels."""
    from pretend_device import PretendTensor

    try:
        float64_module.has_float64.cache_clear()
        with mock.patch.object(PretendTensor, "has_double", False), torch_path():
            yield
    finally:
        float64_module.has_float64.cache_clear()


def has_double() -> bool:
    from pretend_device import PretendTensor

    return PretendTensor.has_double


def same(on_device: Any, on_cpu: Any, rel: float = 0.0, on: str = DEVICE) -> None:
    """Every tensor of the one is on the device, and equal to that of the other, within `rel` of the largest."""
    values, wanted = (tree.tree_leaves(value, is_leaf=_is_tensor) for value in (on_device, on_cpu))
    assert len(values) == len(wanted)
    for place, (a, b) in enumerate(zip(values, wanted, strict=True)):
        if not isinstance(b, Tensor):
            assert a == b, (place, a, b)
            continue
        assert a.device.type == on, f"tensor {place} is on {a.device}"
        assert a.dtype == b.dtype, (place, a.dtype, b.dtype)
        a, b = a.detach().cpu(), b.detach()
        atol = rel * float(b[b.isfinite()].abs().max()) if rel and b.isfinite().any() else 0.0
        torch.testing.assert_close(a, b, rtol=0, atol=atol, equal_nan=True)


@contextmanager
def kernels_for_all() -> Iterator[None]:
    """Problems of any size would go to kernels, if they were on the CPU."""
    with (
        mock.patch.object(normalizers_row_map, "FUSED_FROM", 1),
        mock.patch.object(measures_rows, "FUSED_FROM", 1),
        mock.patch.object(attention_attend, "SPARSE_FROM", 1),
        mock.patch.object(attention_attend, "SPARSE_QUERIES", 1),
    ):
        yield


def equal_on_both(make: Callable[[], Any], work: Callable[[Any], Any], rel: float = 0.0) -> None:
    """Make the inputs, work on them on the CPU and on the device, compare."""
    with torch_path():
        wanted = work(make())
    with kernels_for_all():
        same(work(moved(make())), wanted, rel)


def with_gradients(out: Tensor, inputs: list[Tensor]) -> list[Tensor]:
    """The output, and the gradients of its products with some fixed numbers."""
    weights = torch.linspace(-1, 1, out.numel()).sin().view(out.shape).to(out.device, out.dtype)
    return [out, *torch.autograd.grad(out, inputs, weights, materialize_grads=True)]


if __name__ == "__main__":
    _run(sys.argv[1:])
