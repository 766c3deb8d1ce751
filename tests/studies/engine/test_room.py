"""Memory: what is said before a study begins, and the refusals of what cannot fit, before and after loading."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny_runs
import torch
from inside import engine_room, load_device, load_folder, load_module, load_room

import abbe
from abbe import AbbeError, load

SMALL: dict[str, Any] = {"lengths": 64, "windows": 2, "queries": 8, "resamples": 20}


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> Callable[[float | None], None]:
    def set_free(count: float | None) -> None:
        for module in (load_room, engine_room):
            monkeypatch.setattr(module, "free_memory", lambda device: count)

    return set_free


def test_a_model_that_does_not_fit_is_refused_before_its_weights_are_read(
    free: Callable[[float | None], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load_module, "_read_network", lambda *given: pytest.fail("the weights were read"))
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


def test_weights_are_counted_from_the_headers(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    tensors = {
        "a": torch.zeros(10, 3),
        "b": torch.zeros(7, dtype=torch.bfloat16),
        "c": torch.zeros(5, dtype=torch.int8),
    }
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text("{}")
    header = load_folder.weight_headers(tmp_path)
    assert load_room.weight_bytes(header, torch.float32) == 37 * 4 + 5
    assert load_room.weight_bytes(header, torch.float16) == 37 * 2 + 5


def test_weights_that_lie_there_twice_count_once(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    for name in ("model-00001-of-00002", "model-00002-of-00002", "consolidated"):
        save_file({name: torch.zeros(10)}, tmp_path / f"{name}.safetensors")
    (tmp_path / "config.json").write_text("{}")
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {n: f"model-0000{n}-of-00002.safetensors" for n in "12"}}))
    assert load_room.weight_bytes(load_folder.weight_headers(tmp_path), torch.float32) == 80
    save_file({"whole": torch.zeros(30)}, tmp_path / "model.safetensors")  # which transformers prefers
    assert load_room.weight_bytes(load_folder.weight_headers(tmp_path), torch.float32) == 120


STUDIES: dict[str, Callable[..., object]] = {
    "diagnose": lambda model, **more: abbe.diagnose(model, tiny_runs.TEXT, **SMALL, **more),
    "report": lambda model, **more: abbe.report(model, tiny_runs.TEXT, **SMALL, **more),
    "reproduce": lambda model, **more: abbe.reproduce(model, tiny_runs.TEXT, figures="2a", quick=True, **more),
    "capacity": lambda model, **more: abbe.capacity(model, tiny_runs.TEXT, lengths=64, windows=2, **more),
    "compare": lambda model, **more: abbe.compare(model, tiny_runs.TEXT, length=64, windows=2, **more),
    "calibrate": lambda model, **more: abbe.calibrate(model, tiny_runs.TEXT, length=64, windows=2, held_out=1, **more),
}


@pytest.mark.parametrize("study", STUDIES)
def test_windows_that_do_not_fit_are_refused_before_anything_is_measured(
    study: str, free: Callable[[float | None], None], tmp_path: Path
) -> None:
    free(3e5)
    with pytest.raises(
        AbbeError, match=r"tokens need about .* but 0 MB are free on cpu: ask for shorter windows"
    ) as why:
        STUDIES[study](tiny_runs.model("llama"), folder=tmp_path / "run", progress=False)
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
        monkeypatch.setattr(load_room, name, where)
    cpu = torch.device("cpu")
    assert load_room.free_memory(cpu) == 3000 * 1024
    for name, content in (("max", "1000000"), ("current", "900000"), ("stat", "anon 1\ninactive_file 200000")):
        (own / f"memory.{name}").write_text(content)
    assert load_room.free_memory(cpu) == 300_000
    (own / "memory.max").write_text("max\n")
    assert load_room.free_memory(cpu) == 3000 * 1024


def test_the_smallest_limit_of_all_groups_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    group, inner = tmp_path / "cgroup", tmp_path / "groups" / "job" / "step" / "task"
    inner.mkdir(parents=True)
    group.write_text("0::/job/step/task\n")
    for name, where in (("_MEMINFO", tmp_path / "none"), ("_GROUP", group), ("_GROUPS", tmp_path / "groups")):
        monkeypatch.setattr(load_room, name, where)
    for folder, limit in ((inner, "max"), (inner.parent, "700"), (inner.parent.parent, "500")):
        for name, content in (("max", limit), ("current", "100"), ("stat", "inactive_file 0")):
            (folder / f"memory.{name}").write_text(f"{content}\n")
    assert load_room.free_memory(torch.device("cpu")) == 400
    (inner / "memory.max").write_text("300\n")
    assert load_room.free_memory(torch.device("cpu")) == 200


def test_an_accelerator_is_asked_for_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (5e9, 8e9))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 2e9)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 1e9)
    assert load_room.free_memory(torch.device("cuda:0")) == 6e9
    monkeypatch.setattr(load_device, "_accelerators", lambda: iter(("cuda:0",)))
    assert load_room.free_memory(torch.device("xpu")) is None
