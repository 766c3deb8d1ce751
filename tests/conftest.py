"""Settings of all tests: hypothesis without deadlines, and fixtures that choose between reference and kernels."""

from __future__ import annotations

import gc
import importlib.util
import os
import platform
import tempfile
import zlib

if importlib.util.find_spec("setuptools"):
    import setuptools  # noqa: F401 - inductor imports it when it first compiles: too late, once pip was looked for

from collections import Counter
from collections.abc import Callable, Generator, Iterator
from importlib import metadata
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, settings
from inside import measures_rows as _rows
from inside import normalizers_row_map as _dispatch
from inside import when_imported
from page_in_browser import launched
from row_paths import KERNEL, REFERENCE, Path
from tiers import EXAMPLES


def _compile_in_turn() -> None:
    """Of two workers that need the same kernel one compiles it, and the other waits and loads it from the cache."""
    from numba.core.ccallback import CFunc

    compile_now = CFunc.compile

    def compile_in_turn(made: CFunc) -> None:
        name = f"abbe-tests-{zlib.crc32(str(made._pyfunc.__code__.co_filename).encode())}-{made._pyfunc.__name__}.lock"
        with open(os.path.join(tempfile.gettempdir(), name), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            compile_now(made)

    CFunc.compile = compile_in_turn


if importlib.util.find_spec("fcntl"):
    import fcntl

    when_imported("numba.core.ccallback", _compile_in_turn)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--sample", metavar="PERCENT:SEED", help="run so many of the slow tests, chosen by the seed")


@pytest.hookimpl(trylast=True)  # below the header of pytest, which -q hides
def pytest_sessionstart(session: pytest.Session) -> None:
    """Say which versions run, and which processor kernels are compiled for: rounding depends on its vectors."""
    if (terminal := session.config.pluginmanager.get_plugin("terminalreporter")) is not None:  # a worker has none
        from inside import vector_lanes
        from llvmlite.binding import get_host_cpu_name
        from numba import config

        names = ("torch", "numba", "numpy", "transformers", "polars")
        versions = ", ".join(f"{name} {metadata.version(name)}" for name in names)
        kernels = f"{config.CPU_NAME or get_host_cpu_name()}, {32 * vector_lanes()}-bit vectors"
        terminal.write_line(f"versions: Python {platform.python_version()}, {versions}; kernels for {kernels}")


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the share of a sample. It depends on names and seed alone, so it is the same in each worker."""
    _mark_all_but_the_first(items)
    if not (asked := config.getoption("--sample")):
        return
    percent, _, seed = asked.partition(":")
    kept = [item for item in items if zlib.crc32(f"{seed} {item.nodeid}".encode()) % 10_000 < 100 * float(percent)]
    config.hook.pytest_deselected(items=[item for item in items if item not in set(kept)])
    items[:] = kept


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Generator[None, object, object]:
    """No search for garbage meanwhile: nearly all that is made here stays, and each search reads it again.

    It was a quarter of the time of collecting.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """What is imported and collected by now, a million objects, stays to the end: no later search for garbage reads it.

    It was a twentieth of the time of all tests.
    """
    gc.collect()
    gc.freeze()


def _mark_all_but_the_first(items: list[pytest.Item]) -> None:
    """Of the cases of a test marked quick(N) all but the first N are slow."""
    seen: Counter[str] = Counter()
    for item in items:
        if (mark := item.get_closest_marker("quick")) is not None:
            test = item.nodeid.partition("[")[0]
            seen[test] += 1
            if seen[test] > mark.args[0]:
                item.add_marker(pytest.mark.slow)


settings.register_profile(
    "abbe", deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), max_examples=EXAMPLES
)
settings.load_profile("abbe")


@pytest.fixture
def fused(monkeypatch: pytest.MonkeyPatch) -> None:
    """float32 logits of any size go through the kernels."""
    monkeypatch.setattr(_dispatch, "FUSED_FROM", 1)


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention rows of any size are measured by the kernels."""
    monkeypatch.setattr(_rows, "FUSED_FROM", 1)


@pytest.fixture
def sparse_calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The maps that attention over the support was called with, in order."""
    from inside import sparse_op

    names: list[str] = []
    attend = sparse_op.attend

    def spy(rule: Any, *rest: Any) -> Any:
        names.append(rule.normalizer)
        return attend(rule, *rest)

    monkeypatch.setattr(sparse_op, "attend", spy)
    return names


@pytest.fixture(params=["reference", "kernel"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The float64 reference, then the float32 kernels."""
    if request.param == "reference":
        return REFERENCE
    monkeypatch.setattr(_dispatch, "FUSED_FROM", 1)
    return KERNEL


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(request: pytest.FixtureRequest) -> None:
    """A command without --out makes its folder where it is run: not here."""
    if request.path.name.startswith("test_cli"):
        request.getfixturevalue("monkeypatch").chdir(request.getfixturevalue("tmp_path"))


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """One for all tests of pages that a worker runs."""
    with launched() as started:
        yield started


@pytest.fixture
def set_threads() -> Iterator[Callable[[int], None]]:
    """torch.set_num_threads, undone after the test."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)
