"""A fixture that sends rows of any size through the kernels."""

from __future__ import annotations

import pytest

from abbe.measures import _rows


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_rows, "FUSED_FROM", 1)
