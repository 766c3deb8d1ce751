"""Time and memory of a comparison's contenders."""

from __future__ import annotations

import os

import pytest
import torch
from compare_runs import word_model

from abbe.studies._compare.speed import costs, peak_megabytes
from abbe.studies._compare.tables import _plain
from abbe.words.names import BASELINE

TEXT_TOKENS = torch.arange(10, 50)


def test_peak_memory_of_known_work() -> None:
    def work() -> None:
        first = torch.zeros(1_000_000)
        del first
        second = torch.zeros(500_000)
        third = torch.zeros(750_000)
        del second, third

    assert peak_megabytes(work) == pytest.approx(5.0, rel=1e-3)


def test_the_profiler_leaves_the_environment_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for before in (None, "3"):
        if before is None:
            monkeypatch.delenv("KINETO_LOG_LEVEL", raising=False)
        else:
            monkeypatch.setenv("KINETO_LOG_LEVEL", before)
        peak_megabytes(lambda: torch.zeros(10))
        assert os.environ.get("KINETO_LOG_LEVEL") == before


def test_costs_of_every_contender() -> None:
    model, passes = word_model(), []
    found = costs(model, TEXT_TOKENS, {BASELINE: None, "sparsemax": "sparsemax"}, lambda: passes.append(1))
    assert set(found["seconds"]) == set(found["megabytes"]) == {BASELINE, "sparsemax"}
    assert min(found["seconds"].values()) > 0
    assert len(passes) == 10
    assert not hasattr(model.network, "abbe_normalizers")  # restored


def test_ratios_and_differences_are_over_the_baseline() -> None:
    record = {"sensitivity": {"temperature": 2.0, "matched": 3, "heads": 4}, "theory": 0.7}
    speed = {"seconds": {BASELINE: 2.0, "other": 5.0}, "megabytes": {BASELINE: 10.0, "other": 16.0}}
    assert _plain("other", record, speed) == {
        "temperature": 2.0, "matched_heads": 0.75, "sensitivity_theory": 0.7, "time_ratio": 2.5, "seconds": 5.0,
        "extra_megabytes": 6.0,
    }  # fmt: skip
    assert _plain(BASELINE, record, speed)["time_ratio"] == 1.0
    assert _plain("other", record, speed | {"megabytes": {BASELINE: 10.0, "other": None}})["extra_megabytes"] is None
