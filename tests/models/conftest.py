"""Fixtures of the tests of models."""

from __future__ import annotations

import io
import runpy
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch


@pytest.fixture
def no_grad() -> Iterator[None]:
    """Nothing of the test is recorded for a backward pass."""
    with torch.no_grad():
        yield


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kernels of steps that ran, by name."""
    from inside import normalizers_step

    names: list[str] = []
    over_rows = normalizers_step.over_rows

    def spy(kernel: Any, *rest: Any) -> Any:
        names.append(kernel.py_func.__name__)
        return over_rows(kernel, *rest)

    monkeypatch.setattr(normalizers_step, "over_rows", spy)
    return names


@pytest.fixture
def same_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check of an export loads the folder here: a fresh process takes seconds to import torch."""

    def run(command: list[str], *, input: str, **_: Any) -> Any:
        with monkeypatch.context() as patch:
            patch.setattr(sys, "meta_path", [*sys.meta_path])
            patch.setattr(sys, "stdin", io.StringIO(input))
            runpy.run_path(command[-1], run_name="__main__")
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(subprocess, "run", run)
