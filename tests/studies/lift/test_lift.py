"""A whole search on small models: what was planted is lifted, the test text is read once, mistakes are named."""

from __future__ import annotations

import dataclasses
import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import compare_runs
import planted_capacity
import planted_lift
import pytest
import torch
from inside import lift_search
from inside import prompts as source
from needle_models import TEXT as PROSE
from test_lift_plans import SETTINGS

import abbe

MARK = ord("z")  # stands in the test text only
TEXT = abbe.Text("letters", "a" * 768 + ("a" * 15 + "z") * 16)
PLANTED: dict[str, Any] = {
    "normalizers": "topk:k=4", "length": 32, "windows": 6, "queries": 8, "steps": 2, "prompts": 1, "resamples": 50,
    "budget": None, "progress": False,
}  # fmt: skip
QUICK = PLANTED | {"normalizers": ["sparsemax", "topk:k=4"], "length": 40}


def planted(**options: Any) -> abbe.Lift:
    """The first of four layers needs sixteen keys, the others do nothing with theirs."""
    return abbe.lift(planted_capacity.model(16, layers=4), TEXT, **(PLANTED | options))


def test_what_was_planted_is_lifted_exactly_there_by_a_rule_that_was_fixed_before(tmp_path: Path) -> None:
    fixed: list[tuple[str, str, str]] = []
    model = planted_capacity.model(16, layers=4)

    def see(_module: Any, args: Any, given: dict[str, Any]) -> None:
        tokens = given["input_ids"] if "input_ids" in given else args[0]
        if bool((tokens == MARK).any()) and not fixed:  # what is on the disk when the test text is first read
            chosen = json.loads((tmp_path / "parts" / "chosen.json").read_text())
            manifest = json.loads((tmp_path / "manifest.json").read_text())
            fixed.append((chosen["plan"], chosen["rule"], manifest["identity"]["settings"]["rule"]))

    model.network.base_model.register_forward_pre_hook(see, with_kwargs=True)
    result = abbe.lift(model, TEXT, folder=tmp_path, **PLANTED)
    assert result.lifted
    assert result.plan == "layers.1-3=topk:k=4"
    assert result.findings[0].sentence.startswith("Lifted: layers.1-3=topk:k=4 gives ")
    assert fixed == [(result.plan, result.manifest["rule"], result.manifest["rule"])]
    harms = dict(result.scan.select("layers", "harm").iter_rows())
    assert harms["0"] > 0.1 > max(harms[layer] for layer in "123")
    with abbe.swap(model, f"file:{result.file}") as swapped:
        made = [[group.normalizer for group in groups] for groups in swapped.normalizers.values()]
    assert [of_layer == [None] for of_layer in made] == [True, False, False, False]
    places = [span for part in ("training", "validation", "test") for span in result.manifest["windows"][part]]
    assert [span["start"] for span in places] == sorted(span["start"] for span in places)
    assert result.manifest["cut"] == []
    assert repr(result).startswith("Lift(")
    assert len(repr(result)) < 200


def test_a_model_that_nothing_helps_is_not_lifted() -> None:
    result = abbe.lift(planted_capacity.model(16), TEXT, **PLANTED)
    assert not result.lifted
    assert result.findings[0].sentence.startswith("Nothing tried here helps this model. Nearest came layers.0=topk:k=4")
    assert "the loss may rise by more than 0.5 % over the baseline" in result.findings[0].sentence


def test_plans_are_chosen_and_judged_beside_softmax_tuned_the_same_way() -> None:
    """Of the tuned plans, the search knows what each costs over softmax with the same steps in the same layers."""
    result = abbe.lift(compare_runs.word_model(), PROSE, **QUICK)
    for row in result.plans.to_dicts():
        assert (row["control_rise"] is None) is (row["steps"] == 0)
    settings = dataclasses.replace(SETTINGS, max_loss=0.005)
    tried = [
        lift_search.Tried(SimpleNamespace(name=row["plan"]), row["steps"], *_worst(row), row["gain"])
        for row in result.plans.to_dicts()
    ]
    (chosen,), expected = result.plans.filter("chosen").to_dicts(), lift_search.best(tried, settings)
    assert (chosen["plan"], chosen["steps"]) == (expected.plan.name, expected.steps)
    _, control, plan = result.table.to_dicts()
    assert control["control_rise"] is None
    assert plan["control_rise"] == pytest.approx(plan["loss"] / control["loss"] - 1)
    numbers = result.findings[0].numbers
    assert numbers["rise of the loss over softmax, tuned the same way, to"] == plan["control_rise_high"]
    said = [" over softmax tuned the same way" in finding.sentence for finding in result.findings[:1]]
    said.append("fitted and not tuned" not in result.findings[1].sentence)
    assert said == [chosen["steps"] > 0] * 2


def _worst(row: dict[str, Any]) -> list[float]:
    ends = (("rise", "control_rise"), ("rise_high", "control_rise_high"))
    return [max(row[name] for name in names if row[name] is not None) for names in ends]


@pytest.mark.parametrize("goal", ["sparse", "retrieval"])
def test_the_bar_ends_full(goal: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    more = QUICK | ({"lengths": [64], "steps": 0} if goal == "retrieval" else {})
    bars = compare_runs.counted(
        monkeypatch, 2, lambda: abbe.lift(compare_runs.word_model(), PROSE, goal=goal, folder=tmp_path, **more)
    )
    assert bars == [(bars[0][0],) * 2] * 2
    assert bars[0][0] > 50


@pytest.mark.quick(1)
@pytest.mark.parametrize("seconds", [(500.0, 500.0, 500.0, 1e-3, 500.0), (10.0,) * 5])
def test_a_budget_that_is_not_reached_changes_nothing_on_a_busy_machine(
    seconds: tuple[float, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Passes are timed while others use the machine, some of them or all: at ten seconds each, everything fits."""
    options: dict[str, Any] = {"steps": 0, "prompts": 4}
    quiet = planted(**options)
    clock = iter([at for taken in seconds for at in (0.0, taken)])
    monkeypatch.setattr(time, "thread_time", lambda: next(clock))
    for _ in range(2):  # the second call resumes the first
        busy = planted(budget="2h", folder=tmp_path, **options)
        assert busy.manifest["cut"] == []
        assert not any(finding.topic == "budget" for finding in busy.findings)
        assert (busy.plan, busy.lifted) == (quiet.plan, quiet.lifted)
        assert busy.plans.equals(quiet.plans, null_equal=True)
        assert busy.scan.equals(quiet.scan, null_equal=True)


@pytest.mark.slow
@pytest.mark.parametrize("goal", ["sparse", "loss", "retrieval"])
def test_the_same_steps_give_the_same_result(goal: str, tmp_path: Path) -> None:
    more = {"lengths": [64]} if goal == "retrieval" else {}
    runs = [
        abbe.lift(compare_runs.word_model(), PROSE, goal=goal, folder=folder, **(QUICK | more))
        for folder in (None, tmp_path)
    ]
    first, second = (run.table.drop("seconds", "time_ratio") for run in runs)
    assert first.equals(second, null_equal=True)
    assert runs[0].plans.equals(runs[1].plans, null_equal=True)
    assert runs[0].plan == runs[1].plan
    assert (runs[0].keys.height > 0) is (goal == "retrieval")


@pytest.mark.slow
def test_time_that_is_up_cuts_plans_and_the_manifest_says_which(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "thread_time", lambda: 0.0)
    options = QUICK | {"budget": 1e-3, "folder": tmp_path}
    result = abbe.lift(compare_runs.word_model(), PROSE, **options)
    assert (result.scan.height, result.plans.height) == (1, 1)
    scan, *plans = result.manifest["cut"]
    assert scan.startswith("the time for the scan was up before ")
    assert plans
    assert all(line.startswith("time was up before ") for line in plans)
    again = abbe.lift(compare_runs.word_model(), PROSE, **options)
    assert again.plans.equals(result.plans, null_equal=True)


def test_pass_keys_of_the_test_text_share_nothing_with_those_searched() -> None:
    tokenizer = compare_runs.word_model().tokenizer
    makers = [source.PassKeyMaker(tokenizer, PROSE, seed, for_test=bool(seed)) for seed in range(2)]
    searched, judged = (maker.pass_keys([64], 2) for maker in makers)
    assert {one.depth for one in searched} & {one.depth for one in judged} == set()
    assert {0.0, 1.0} <= {one.depth for one in judged}
    assert set(source.KEY_SENTENCES[False]) & set(source.KEY_SENTENCES[True]) == set()
    for prompt in (*searched, *judged):
        assert len(prompt.tokens) == 64
        assert 0 < prompt.answer < 10


def test_log_probability_of_a_pass_key_is_that_of_its_tokens() -> None:
    model = compare_runs.word_model()
    prompts = source.PassKeyMaker(model.tokenizer, PROSE, 1).pass_keys([64], 1)
    values, right = source.answers(model, prompts)
    with torch.no_grad():
        logits = model.network(input_ids=prompts[0].tokens[None]).logits[0].log_softmax(-1)
    width = prompts[0].answer
    expected = sum(float(logits[-width - 1 + place, prompts[0].tokens[-width + place]]) for place in range(width))
    assert values[0] == pytest.approx(expected, abs=1e-4)
    assert right[0] is all(int(logits[-width - 1 + p].argmax()) == prompts[0].tokens[-width + p] for p in range(width))


@pytest.mark.slow
def test_retrieval_judges_the_loss_at_four_times_the_length_too(tmp_path: Path) -> None:
    options = QUICK | {"length": 16, "lengths": [64], "goal": "retrieval"}
    result = abbe.lift(compare_runs.word_model(), PROSE, folder=tmp_path, **options)
    assert result.manifest["loss_lengths"] == [16, 64]
    assert "in windows of 16 and of 64 tokens, at each of these lengths" in result.manifest["rule"]
    rows = {row["contender"]: row for row in result.table.to_dicts()}
    assert all(row["longer_loss"] not in (None, row["loss"]) for row in rows.values())
    plan = rows["plan"]
    assert plan["longer_rise"] == pytest.approx(plan["longer_loss"] / rows["baseline"]["longer_loss"] - 1)
    assert plan["longer_rise_low"] <= plan["longer_rise"] <= plan["longer_rise_high"]
    assert " at 16 tokens and " in result.findings[0].sentence
    assert " at 64" in result.findings[0].sentence
    columns = ("loss, 16", "rise, 16", "loss, 64", "rise, 64")
    assert all(f'<th scope="col">{column}</th>' in result.to_html() for column in columns)
    assert result.table.equals(abbe.open(tmp_path).table, null_equal=True)


@pytest.mark.parametrize(
    ("options", "words", "judged", "why"),
    [
        ({}, 3000, [16, 64], ""),
        ({"length": 8, "lengths": [64]}, 3000, [8, 32, 64], ""),  # at that of the longest pass key, too
        ({"goal": "sparse", "lengths": None}, 3000, [16], ""),
        ({"length": 40, "lengths": None}, 3000, [40, 64], "160 tokens, because the model's context is 64 tokens"),
        ({}, 1000, [16], "64 tokens, because words, validation text, which is as long as the test text, "
                         "has room for 3 windows of 6 needed"),
    ],
)  # fmt: skip
def test_a_length_that_has_no_room_is_left_out_with_its_reason(
    options: dict[str, Any], words: int, judged: list[int], why: str
) -> None:
    """The model's context is 64 tokens; a quarter of the text is for validation."""
    text = abbe.Text("words", " ".join(PROSE.content.split()[:words]))
    manifest = planted_lift.lifted(text=text, **({"goal": "retrieval", "length": 16} | options)).manifest
    assert manifest["loss_lengths"] == judged
    reasons = [line for line in manifest["skipped"] if line.startswith("the loss is not judged at ")]
    assert reasons == ([f"the loss is not judged at {why}"] if why else [])


MISTAKES: dict[str, tuple[dict[str, Any], str]] = {
    "goal": ({"goal": "fast"}, r"goal is 'fast', but must be one of sparse, retrieval, loss"),
    "share": ({"max_loss": 5}, r"max_loss is 5, but must be a share of the loss, such as 0\.5% or 0\.005"),
    "share in words": ({"max_loss": "half"}, r"max_loss is 'half', but must be a share"),
    "whole share": ({"max_loss": "100%"}, r"max_loss is '100%', but must be a share"),
    "budget": ({"budget": "soon"}, r"budget is 'soon', but must be a time such as 90s, 20m or 1\.5h"),
    "pattern": ({"normalizers": "layers.0=sparsemax"}, r"lift chooses the layers, give only a spec"),
    "twice": ({"normalizers": ["sparsemax", "sparsemax"]}, r"sparsemax is given twice"),
    "none": ({"normalizers": []}, r"there is nothing to try"),
    "lengths": ({"lengths": [512]}, r"lengths are those of the pass keys: give goal='retrieval'"),
    "short lengths": ({"goal": "retrieval", "lengths": [8]}, r"lengths must be whole numbers from 64 in rising order"),
    "context": ({"goal": "retrieval", "lengths": [10**6]}, r"length 1000000 is above the model's context"),
    "windows": ({"windows": 1}, r"windows is 1, but must be a whole number >= 2"),
}


@pytest.mark.parametrize(("options", "message"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes_are_named_in_one_line(options: dict[str, Any], message: str) -> None:
    with pytest.raises(abbe.AbbeError, match=message) as refused:
        planted(**options)
    assert "\n" not in str(refused.value)


def test_a_text_too_short_for_three_parts_is_refused_in_one_line() -> None:
    short = abbe.Text("short", "a" * 300)
    with pytest.raises(abbe.AbbeError, match=r"short, validation text has room for 2 windows of 32 tokens, and 6 are"):
        abbe.lift(planted_capacity.model(2), short, **PLANTED)
    with pytest.raises(abbe.AbbeError, match="a half, a quarter and a quarter; give more text or a smaller length"):
        abbe.lift(planted_capacity.model(2), abbe.Text("short", "a" * 20), **PLANTED)
