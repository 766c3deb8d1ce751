"""`abbe doctor` on processors, threads, memory and accelerators that this machine need not have."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from abbe.studies import Check
from abbe.studies._doctor import machine


@pytest.mark.parametrize(
    ("features", "wanted"),
    [
        ({"avx512f": True, "avx": True, "sse2": True}, "vectors of 512 bits"),
        ({"avx512f": False, "avx": True, "sse2": True}, "vectors of 256 bits"),
        ({"sse2": True}, "vectors of 128 bits"),
        ({"neon": True}, "vectors of 128 bits"),
        ({}, "no vector instructions are known"),
    ],
)
def test_width_of_vectors(features: dict[str, bool], wanted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from llvmlite import binding

    monkeypatch.setattr(binding, "get_host_cpu_features", lambda: features)
    assert machine.vectors_check().found == wanted


def test_settings_of_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_CPU_NAME", "generic")
    assert (machine.vectors_check().state, "NUMBA_CPU_NAME" in machine.vectors_check().advice) == ("warning", True)
    monkeypatch.setenv("NUMBA_DISABLE_JIT", "1")
    assert machine.vectors_check().failed


def test_more_threads_than_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    monkeypatch.setattr(machine, "available_cores", lambda: 3)
    check = machine.threads_check()
    assert (check.state, check.advice) == ("warning", "only 3 cores: set OMP_NUM_THREADS=3")
    assert "OMP_NUM_THREADS is 8" in check.found
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert machine.threads_check().state == "ok"
    assert "OMP_NUM_THREADS is not set" in machine.threads_check().found


def test_free_memory_is_the_smaller_of_machine_and_container(monkeypatch: pytest.MonkeyPatch) -> None:
    told: dict[str, int | None] = {"max": 5_000, "current": 2_000, "meminfo": 4}
    monkeypatch.setattr(machine, "_first_number", lambda file, entry="": told[file.rpartition(".")[2].split("/")[-1]])
    assert machine.free_memory() == 3_000
    told["meminfo"] = 2
    assert machine.free_memory() == 2_048
    told["max"] = None  # no limit
    assert machine.free_memory() == 2_048
    assert machine.memory_check().state == "warning"
    told["meminfo"] = None
    assert machine.free_memory() is None
    assert machine.memory_check().state == "ok"


def test_numbers_of_the_system(tmp_path: Path) -> None:
    (tmp_path / "info").write_text("MemTotal: 9 kB\nMemAvailable:    7 kB\n")
    (tmp_path / "max").write_text("max\n")
    (tmp_path / "current").write_text("123\n")
    assert machine._first_number(str(tmp_path / "info"), "MemAvailable:") == 7
    assert machine._first_number(str(tmp_path / "max")) is None
    assert machine._first_number(str(tmp_path / "current")) == 123
    assert machine._first_number(str(tmp_path / "nothing")) is None


def test_accelerators(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.version, "hip", None, raising=False)
    assert machine.cuda_check().found == "this build of torch is for the CPU"
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    check = machine.cuda_check()
    assert "no device or driver was found" in check.found
    assert not check.failed
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda number: f"card {number}")
    assert (machine.cuda_check().state, machine.cuda_check().found) == ("ok", "card 0, card 1")


def test_apples_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine.platform, "system", lambda: "Linux")
    assert machine.mps_check() is None
    monkeypatch.setattr(machine.platform, "system", lambda: "Darwin")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_built", lambda: False)
    assert machine.mps_check() == Check(
        "MPS", "missing", "this build of torch has none", machine._CPU_ONLY, machine.GROUP, False
    )
