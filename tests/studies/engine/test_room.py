"""Memory: what is said before a study begins, and the refusals of what cannot fit, before and after loading."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny_runs
import torch
from inside import load_device
from safetensors.torch import load_file, save_file
from tiny_runs import OPTIONS, quick
from transformers import AutoModelForCausalLM

import abbe
from abbe import AbbeError, load
from abbe.runs import cost as engine_room

SMALL: dict[str, Any] = {"lengths": 64, "windows": 2, "queries": 8, "resamples": 20}


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> Callable[[float | None], None]:
    def set_free(count: float | None) -> None:
        for module in (load_device, engine_room):
            monkeypatch.setattr(module, "free_memory", lambda device: count)

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
    assert first.startswith("abbe-gpt2-5M: 22 MB of weights (float32, cpu), about ")
    assert first.endswith(" MB to measure with; 2.5 GB are free on cpu")


def test_the_limit_of_a_container_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    meminfo, group, own = tmp_path / "meminfo", tmp_path / "cgroup", tmp_path / "groups" / "job"
    own.mkdir(parents=True)
    meminfo.write_text("MemTotal: 4000 kB\nMemAvailable: 3000 kB\n")
    group.write_text("0::/job\n")
    for name, where in (("_MEMINFO", meminfo), ("_GROUP", group), ("_GROUPS", own.parent)):
        monkeypatch.setattr(load_device, name, where)
    cpu = torch.device("cpu")
    assert load_device.free_memory(cpu) == 3000 * 1024
    for name, content in (("max", "1000000"), ("current", "900000"), ("stat", "anon 1\ninactive_file 200000")):
        (own / f"memory.{name}").write_text(content)
    assert load_device.free_memory(cpu) == 300_000
    (own / "memory.max").write_text("max\n")
    assert load_device.free_memory(cpu) == 3000 * 1024


def test_the_smallest_limit_of_all_groups_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    group, inner = tmp_path / "cgroup", tmp_path / "groups" / "job" / "step" / "task"
    inner.mkdir(parents=True)
    group.write_text("0::/job/step/task\n")
    for name, where in (("_MEMINFO", tmp_path / "none"), ("_GROUP", group), ("_GROUPS", tmp_path / "groups")):
        monkeypatch.setattr(load_device, name, where)
    for folder, limit in ((inner, "max"), (inner.parent, "700"), (inner.parent.parent, "500")):
        for name, content in (("max", limit), ("current", "100"), ("stat", "inactive_file 0")):
            (folder / f"memory.{name}").write_text(f"{content}\n")
    assert load_device.free_memory(torch.device("cpu")) == 400
    (inner / "memory.max").write_text("300\n")
    assert load_device.free_memory(torch.device("cpu")) == 200


def test_an_accelerator_is_asked_for_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (5e9, 8e9))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 2e9)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 1e9)
    assert load_device.free_memory(torch.device("cuda:0")) == 6e9
    assert load_device.free_memory(torch.device("xpu")) is None
