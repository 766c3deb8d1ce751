"""Time and memory of a comparison's contenders, and the time that is announced."""

from __future__ import annotations

import os
import time
from typing import Any

import pytest
import torch
from compare_runs import word_model
from inside import prompts, swapped
from needle_models import TEXT

import abbe
from abbe.words.names import BASELINE
from abbe.words.numbers import about

TEXT_TOKENS = torch.arange(10, 50)


def test_peak_memory_of_known_work() -> None:
    def work() -> None:
        first = torch.zeros(1_000_000)
        del first
        second = torch.zeros(500_000)
        third = torch.zeros(750_000)
        del second, third

    assert swapped.peak_megabytes(work) == pytest.approx(5.0, rel=1e-3)


@pytest.mark.parametrize("before", [None, "3"])
def test_the_profiler_leaves_the_environment_alone(before: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KINETO_LOG_LEVEL", before or "")
    if before is None:
        monkeypatch.delenv("KINETO_LOG_LEVEL")
    swapped.peak_megabytes(lambda: torch.zeros(10))
    assert os.environ.get("KINETO_LOG_LEVEL") == before


def test_costs_of_every_contender() -> None:
    model, passes = word_model(), []
    measured = swapped.costs(model, TEXT_TOKENS, {BASELINE: None, "sparsemax": "sparsemax"}, lambda: passes.append(1))
    assert set(measured["seconds"]) == set(measured["megabytes"]) == {BASELINE, "sparsemax"}
    assert min(measured["seconds"].values()) > 0
    assert len(passes) == 10
    assert not hasattr(model.network, "abbe_normalizers")  # restored


def test_time_of_a_short_window_is_not_scaled_to_long_prompts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A pass takes a minute, however short, and a second for each token: known for batches, too."""
    model, now = word_model(), [0.0]

    def run(_module: object, args: Any, given: dict[str, Any]) -> None:
        now[0] += 60 + given.get("input_ids", *args[:1]).numel()

    model.network.base_model.register_forward_pre_hook(run, with_kwargs=True)
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    prompted = prompts.PromptMaker(model.tokenizer, TEXT, 0).make((31, 40), 2)
    windows, tried, rounds = 2, 4, 5  # sizes of the search, and rounds that are timed
    abbe.compare(model, TEXT, normalizers="softmax", length=16, windows=windows, queries=2, needle_lengths=(31, 40),
                 prompts=2, resamples=5)  # fmt: skip
    in_prompts = sum(prompt.length for prompt in prompted)
    assert len(prompts.batches(prompted)) < len(prompted)
    passes = windows + windows * tried + rounds
    seconds = 2 * 1.5 * (passes * (60 + 16) + 60 * len(prompts.batches(prompted)) + in_prompts)
    line = f"2 normalizers, {2 * (passes * 16 + in_prompts):,} tokens: about {about(seconds)}"
    assert line in capsys.readouterr().err
