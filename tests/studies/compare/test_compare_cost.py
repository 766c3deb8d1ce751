"""Time and memory of a comparison's contenders, and the time that is announced."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest
import torch
from compare_runs import word_model
from inside import compare_rules, prompts, swapped
from inside import compare_study as announced
from needle_models import TEXT

import abbe
from abbe.words.names import BASELINE

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


def test_ratios_and_differences_are_over_the_baseline() -> None:
    record = {"sensitivity": {"temperature": 2.0, "matched": 3, "heads": 4, "jumps": False}, "theory": 0.7}
    speed = {"seconds": {BASELINE: 2.0, "other": 5.0}, "megabytes": {BASELINE: 10.0, "other": 16.0}}
    assert compare_rules.costs_row("other", record, speed) == {
        "temperature": 2.0, "matched_heads": 0.75, "sensitivity_theory": 0.7, "time_ratio": 2.5, "seconds": 5.0,
        "extra_megabytes": 6.0, "jumps": False,
    }  # fmt: skip
    assert compare_rules.costs_row(BASELINE, record, speed)["time_ratio"] == 1.0
    unknown = speed | {"megabytes": {BASELINE: 10.0, "other": None}}
    assert compare_rules.costs_row("other", record, unknown)["extra_megabytes"] is None


def test_time_of_a_short_window_is_not_scaled_to_long_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass takes one second, however short, and a hundredth for each token: known for batches, too."""
    now = [0.0]

    def runs(tokens: int) -> None:
        now[0] += 1 + tokens / 100

    monkeypatch.setattr(announced, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    monkeypatch.setattr(announced, "window_losses", lambda _model, windows: runs(windows[0].length))
    monkeypatch.setattr(announced, "margins", lambda _model, batch: runs(sum(one.length for one in batch)))
    model = word_model()
    made = prompts.PromptMaker(model.tokenizer, TEXT, 0).make((31, 40), 2)
    (window,) = abbe.windows(TEXT, [8], 1, 0, tokenizer=model.tokenizer)
    tokens, seconds = announced.expected_cost(model, window, made, 10, 3)
    in_prompts = sum(prompt.length for prompt in made)
    assert len(prompts.batches(made)) < len(made)
    plain = 10 * 1.08 + len(prompts.batches(made)) + in_prompts / 100
    assert seconds == pytest.approx(3 * 1.5 * plain)
    assert tokens == 3 * (80 + in_prompts)
    assert announced.expected_cost(model, window, [], 10, 3)[1] == pytest.approx(3 * 1.5 * 10.8)
