"""Fixtures of the tests of models."""

from __future__ import annotations

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
