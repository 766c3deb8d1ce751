"""Settings of all tests: hypothesis without deadlines, and fixtures that choose between reference and kernels."""

from __future__ import annotations

import importlib.util
import zlib

if importlib.util.find_spec("setuptools"):
    import setuptools  # noqa: F401 - inductor imports it when it first compiles: too late, once pip was looked for

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
import torch
from hypothesis import HealthCheck, settings

from abbe.measures import _rows
from abbe.normalizers import _dispatch


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--sample", metavar="PERCENT:SEED", help="run so many of the slow tests, chosen by the seed")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of the tests chosen by -m, keep a share. It depends on names and seed alone, so it is the same in each worker."""
    if not (asked := config.getoption("--sample")):
        return
    percent, _, seed = asked.partition(":")
    kept = [item for item in items if zlib.crc32(f"{seed} {item.nodeid}".encode()) % 10_000 < 100 * float(percent)]
    config.hook.pytest_deselected(items=[item for item in items if item not in set(kept)])
    items[:] = kept


settings.register_profile("abbe", deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
settings.load_profile("abbe")


@dataclass(frozen=True)
class Path:
    """One of the implementations: its dtype, and what counts as equal in it (weights are at most about 1)."""

    dtype: torch.dtype
    tolerance: float


REFERENCE = Path(torch.float64, 1e-11)
KERNEL = Path(torch.float32, 8 * torch.finfo(torch.float32).eps)


@pytest.fixture
def fused(monkeypatch: pytest.MonkeyPatch) -> None:
    """float32 logits of any size go through the kernels."""
    monkeypatch.setattr(_dispatch, "FUSED_FROM", 1)


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention rows of any size are measured by the kernels."""
    monkeypatch.setattr(_rows, "FUSED_FROM", 1)


@pytest.fixture(params=["reference", "kernel"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The float64 reference, then the float32 kernels."""
    if request.param == "reference":
        return REFERENCE
    monkeypatch.setattr(_dispatch, "FUSED_FROM", 1)
    return KERNEL


@pytest.fixture
def set_threads() -> Iterator[Callable[[int], None]]:
    """torch.set_num_threads, undone after the test."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)
