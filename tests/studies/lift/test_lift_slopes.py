"""Slopes learned from pass keys: what was planted is learned, with and without a cache, and a search uses it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import compare_runs
import planted_slopes
import pytest
import torch
from inside import lift_search
from inside import prompts as source
from needle_models import TEXT as PROSE
from rich.console import Console
from test_lift_plans import SETTINGS

import abbe
from abbe.runs.parts import Parts
from abbe.runs.watch import Stages, Watch

SPEC = "logn:trained=40,slope=0,beyond=true,learn=true"
QUICK: dict[str, Any] = {
    "goal": "retrieval", "lengths": [64], "normalizers": [SPEC], "length": 40, "windows": 6, "queries": 6, "steps": 2,
    "prompts": 1, "resamples": 50, "budget": None, "progress": False,
}  # fmt: skip


def haystacks(tokenizer: Any, length: int, count: int) -> list[Any]:
    return list(source.PassKeyMaker(tokenizer, PROSE, 0).haystacks(length, count))


def log_probabilities(read: Any, haystack: Any) -> torch.Tensor:
    return torch.stack([read.log_probability(*question) for question in haystack.questions])


def test_a_haystack_has_a_question_for_each_sentence_at_depths_spread_evenly() -> None:
    tokenizer = compare_runs.word_model().tokenizer
    some = haystacks(tokenizer, 128, 4)
    assert len(some) == 4
    depths = sorted(depth for one in some for depth in one.depths)
    assert depths == pytest.approx([(place + 0.5) / 12 for place in range(12)])
    for one in some:
        assert len(one.questions) == 3
        assert len(one.body) + max(len(tokens) for tokens, _ in one.questions) == 128
        for tokens, width in one.questions:
            text, asked = one.body.tolist(), tokens.tolist()
            assert any(text[at : at + len(asked)] == asked for at in range(len(text)))  # with its answer
            assert 0 < width < len(asked)


def test_a_question_on_top_of_the_cache_is_that_of_a_plain_pass() -> None:
    model = compare_runs.word_model()
    (haystack,) = haystacks(model.tokenizer, 64, 1)
    with torch.no_grad(), abbe.swap(model, "logn:trained=10,slope=2,beyond=true"):
        read = source.ReadHaystack(model, haystack)
        cached = log_probabilities(read, haystack)
        again = log_probabilities(read, haystack)  # the cache is as it was
        whole = []
        for tokens, width in haystack.questions:
            logits = model.network(input_ids=torch.cat([haystack.body, tokens])[None]).logits[0].log_softmax(-1)
            whole.append(logits[-width - 1 : -1].gather(-1, tokens[-width:, None]).sum())
    assert read.is_cached
    assert read.bytes > 0
    torch.testing.assert_close(cached, torch.stack(whole), rtol=1e-4, atol=1e-4)
    assert torch.equal(cached, again)


def test_a_model_without_a_cache_reads_the_whole_text(monkeypatch: pytest.MonkeyPatch) -> None:
    model = compare_runs.word_model()
    (haystack,) = haystacks(model.tokenizer, 64, 1)
    with torch.no_grad():
        cached = log_probabilities(source.ReadHaystack(model, haystack), haystack)
        monkeypatch.setattr(source, "_cache_after", lambda *_: None)
        read = source.ReadHaystack(model, haystack)
        torch.testing.assert_close(log_probabilities(read, haystack), cached, rtol=1e-4, atol=1e-4)
    assert not read.is_cached


def test_only_as_many_texts_are_kept_as_there_is_room_for() -> None:
    model = compare_runs.word_model()
    some = haystacks(model.tokenizer, 64, 3)
    each = source.ReadHaystack(model, some[0]).bytes
    assert len(source.read_all(model, some, 2 * each + 1000)) == 2
    assert len(source.read_all(model, some, 1)) == 1


def test_rounds_and_what_learns() -> None:
    assert lift_search.round_ends(48) == [24, 48]
    assert lift_search.round_ends(1) == [1]
    assert lift_search.round_ends(0) == []
    assert lift_search.learns(SPEC)
    assert not lift_search.learns("logn:trained=40")


def test_a_search_learns_slopes_and_leaves_short_rows_as_they_are(tmp_path: Path) -> None:
    result = abbe.lift(compare_runs.word_model(), PROSE, folder=tmp_path, **QUICK)
    assert result.plans["plan"].to_list() == [f"layers.0-1={SPEC}"] * 2
    assert result.plans["steps"].to_list() == [1, 2]
    assert set(result.plans["rise"].to_list()) == {0.0}  # windows of 40 tokens have no row beyond
    losses = dict(result.table.select("contender", "loss").iter_rows())
    assert losses["plan"] == losses["baseline"]
    with abbe.swap(compare_runs.word_model(), f"file:{result.file}") as swapped:
        raws = [raw for groups in swapped.normalizers.values() for raw in groups[0].normalizer.parameters()]
    assert any(bool((raw != 0).any()) for raw in raws)
    (tmp_path / "lift.json").unlink()
    again = abbe.lift(compare_runs.word_model(), PROSE, folder=tmp_path, **QUICK)
    assert again.plans.equals(result.plans, null_equal=True)


@pytest.mark.slow
def test_the_head_whose_slope_is_the_cure_is_learned() -> None:
    model = planted_slopes.model()
    some, others = (planted_slopes.haystacks(model, 4, 12, seed) for seed in (0, 1))
    settings = dataclasses.replace(
        SETTINGS, goal="retrieval", steps=48, candidates=(planted_slopes.SPEC,), lengths=(planted_slopes.LENGTH,)
    )
    work = lift_search.Work(model, settings, [], [], haystacks=some)
    work.parts = Parts(None, "planted")
    work.stages = Stages(Watch(Console(quiet=True)), {"learning": 0})
    tuner = lift_search.Tuner(work, lift_search.Fits(work), 48)
    plan = lift_search.Plan(3000, dict.fromkeys(range(2), planted_slopes.SPEC))  # a number of a plan that is learned
    learned = tuner.normalizers(plan, 48)
    slopes = torch.stack([next(one.parameters()).detach().flatten() for one in learned.values()])
    assert slopes.flatten().argmax() == planted_slopes.LAYER * slopes.shape[1] + planted_slopes.HEAD
    assert slopes.flatten().sort().values[-2] < slopes.max() / 4

    @torch.no_grad()
    def answered(what: Any) -> float:
        with abbe.swap(model, what):
            return float(
                torch.stack([log_probabilities(source.ReadHaystack(model, one), one).mean() for one in others]).mean()
            )

    # On other texts about as good as the cure itself, by true passes over each of them.
    baseline, cured = answered("softmax"), answered(planted_slopes.cure())
    assert baseline + 0.5 * (cured - baseline) < answered(learned)
    assert cured - baseline > 0.1


def test_nothing_to_try_is_said_in_one_line() -> None:
    with pytest.raises(abbe.AbbeError, match="cannot be learned, steps is 0: give more text or steps"):
        abbe.lift(compare_runs.word_model(), PROSE, **(QUICK | {"steps": 0}))
