"""Memory: what is said before a study begins, and the refusals of what cannot fit, before and after loading."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny_runs
import torch
from safetensors.torch import load_file, save_file
from tiny_runs import OPTIONS, quick
from transformers import AutoModelForCausalLM

import abbe
from abbe import AbbeError, load
from abbe.models import free_memory

SMALL: dict[str, Any] = {"lengths": 64, "windows": 2, "queries": 8, "resamples": 20}


@pytest.fixture
def system(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The files of the system that say how much memory there is, by path; at first there are none."""
    files: dict[str, str] = {}
    read = Path.read_text

    def read_text(path: Path, *args: Any, **more: Any) -> str:
        if not str(path).startswith(("/proc/", "/sys/")):
            return read(path, *args, **more)
        if str(path) not in files:
            raise FileNotFoundError(path)
        return files[str(path)]

    monkeypatch.setattr(Path, "read_text", read_text)
    return files


@pytest.fixture
def free(system: dict[str, str]) -> Callable[[float | None], None]:
    def set_free(count: float | None) -> None:
        system.clear()
        if count is not None:
            system["/proc/meminfo"] = f"MemTotal: 9999999 kB\nMemAvailable: {int(count / 1024)} kB\n"

    return set_free


def test_a_model_that_does_not_fit_is_refused_before_its_weights_are_read(
    free: Callable[[float | None], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", lambda *given: pytest.fail("the weights were read"))
    free(20e6)
    with pytest.raises(AbbeError) as refused:
        load("embedded")
    words = (
        "abbe-gpt2-5M needs 22 MB for its weights in float32, but 20 MB are free on cpu: choose dtype bfloat16 (11 MB)"
    )
    assert str(refused.value).startswith(words)
    with pytest.raises(AbbeError, match="over all devices"):
        load("embedded", device_map="auto")


def test_half_the_precision_takes_half_the_memory(free: Callable[[float | None], None]) -> None:
    free(20e6)
    assert load("embedded", dtype="bfloat16").precision == "bfloat16"
    free(None)  # a system that does not say
    assert load("embedded").precision == "float32"


def test_weights_are_counted_from_the_headers_and_once(free: Callable[[float | None], None], tmp_path: Path) -> None:
    """Of millions of numbers each, beside those of a model that is small."""
    tiny_runs.model("llama").network.save_pretrained(tmp_path)
    free(0.0)

    def refused(dtype: str) -> str:
        with pytest.raises(AbbeError) as why:
            load(tmp_path, dtype=dtype)
        return str(why.value).partition(" needs ")[2].partition(" for")[0]

    def add(file: str, million: int, dtype: torch.dtype) -> None:
        save_file({file: torch.zeros(million, 1_000_000, dtype=dtype)}, tmp_path / f"{file}.safetensors")

    whole = load_file(tmp_path / "model.safetensors")
    more = {"a": torch.zeros(2_000_000), "b": torch.zeros(1_000_000, dtype=torch.bfloat16)}
    more["c"] = torch.zeros(5_000_000, dtype=torch.int8)
    save_file(whole | more, tmp_path / "model.safetensors", metadata={"format": "pt"})
    assert (refused("float32"), refused("float16")) == ("17 MB", "11 MB")
    (tmp_path / "model.safetensors").rename(tmp_path / "consolidated.safetensors")  # which nobody reads
    add("one", 1, torch.float32)
    add("two", 2, torch.float32)
    save_file(whole, tmp_path / "small.safetensors", metadata={"format": "pt"})
    index = dict.fromkeys(whole, "small.safetensors") | {name: f"{name}.safetensors" for name in ("one", "two")}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    assert refused("float32") == "12 MB"


@pytest.mark.parametrize("study", ["diagnose", "report", "reproduce", "capacity", "compare", "calibrate"])
def test_windows_that_do_not_fit_are_refused_before_anything_is_measured(
    study: str, free: Callable[[float | None], None], tmp_path: Path
) -> None:
    free(3e5)
    longer = {name: 64 for name in ("length", "lengths") if name in OPTIONS[study]}
    with pytest.raises(
        AbbeError, match=r"tokens need about .* but 0 MB are free on cpu: ask for shorter windows"
    ) as why:
        quick(study, tiny_runs.model("llama"), tiny_runs.TEXT, folder=tmp_path / "run", **longer)
    assert "dtype bfloat16, or spread the model by device_map auto" in str(why.value)
    assert not list(tmp_path.rglob("*.safetensors"))


def test_memory_is_said_before_the_start(
    free: Callable[[float | None], None], capsys: pytest.CaptureFixture[str]
) -> None:
    free(2.5e9)
    abbe.diagnose("embedded", tiny_runs.TEXT, **SMALL)
    first = next(line for line in capsys.readouterr().err.splitlines() if "weights" in line)
    assert first.startswith("abbe-gpt2-5M: 22 MB of weights (float32, cpu), ")
    assert first.endswith(" MB to measure with, 2.5 GB free")
    assert len(first) <= 80


def limit(system: dict[str, str], group: str, most: object, used: int, cached: int) -> None:
    numbers = {"max": most, "current": used, "stat": f"anon 1\ninactive_file {cached}"}
    system |= {f"/sys/fs/cgroup{group}/memory.{name}": f"{content}\n" for name, content in numbers.items()}


def test_the_limit_of_a_container_counts(system: dict[str, str], free: Callable[[float | None], None]) -> None:
    free(3_072_000)
    system["/proc/self/cgroup"] = "0::/job\n"
    cpu = torch.device("cpu")
    assert free_memory(cpu) == 3_072_000
    limit(system, "/job", 1_000_000, 900_000, 200_000)
    assert free_memory(cpu) == 300_000
    limit(system, "/job", "max", 900_000, 200_000)
    assert free_memory(cpu) == 3_072_000


def test_the_smallest_limit_of_all_groups_counts(system: dict[str, str]) -> None:
    system["/proc/self/cgroup"] = "0::/job/step/task\n"
    for group, most in (("/job/step/task", "max"), ("/job/step", 700), ("/job", 500)):
        limit(system, group, most, 100, 0)
    assert free_memory(torch.device("cpu")) == 400
    limit(system, "/job/step/task", 300, 100, 0)
    assert free_memory(torch.device("cpu")) == 200


def test_an_accelerator_is_asked_for_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (5e9, 8e9))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 2e9)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 1e9)
    assert free_memory(torch.device("cuda:0")) == 6e9
    assert free_memory(torch.device("xpu")) is None
