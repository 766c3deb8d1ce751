"""Fixtures of the tests of models."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture
def no_grad() -> Iterator[None]:
    """Nothing of the test is recorded for a backward pass."""
    with torch.no_grad():
        yield
