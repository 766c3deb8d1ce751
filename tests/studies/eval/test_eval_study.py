"""abbe eval without lm-eval: plans and tasks as they are given, differences and their intervals, sentences, page."""

from __future__ import annotations

import importlib.util
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.optimize
import scipy.stats
import stand_in_harness
import tiny_models
import tiny_runs
from inside import estimates, eval_result

import abbe
from abbe.models import LoadedModel

RESAMPLING = tiny_runs.settings(resamples=200)


@pytest.fixture(autouse=True, scope="module")
def harness() -> Any:
    with stand_in_harness.installed():
        yield


def evaluated(model: LoadedModel | None = None, **more: Any) -> Any:
    return abbe.evaluate(model or tiny_runs.model(), **(stand_in_harness.OPTIONS | more))


# -- Plans and tasks --------------------------------------------------------------------------------------------------


def test_plans_are_specs_patterns_files_and_folders(tmp_path: Path) -> None:
    """The same plan in four forms has the same scores, and not those of the baseline."""
    model, run = tiny_runs.model(), tmp_path / "run"
    run.mkdir()
    abbe.plan(model, "sparsemax").save(run / "plan.safetensors")
    plans = ["sparsemax", {"*": "sparsemax"}, f"file:{run / 'plan.safetensors'}", run]
    table = evaluated(model, plans=plans).table
    assert table["plan"].unique(maintain_order=True).to_list() == [
        "sparsemax",
        "*=sparsemax",
        "plan.safetensors",
        "run",
    ]
    parts = [rows.drop("plan") for rows in table.partition_by("plan", maintain_order=True)]
    assert all(part.equals(parts[0]) for part in parts)
    assert (parts[0]["difference"] != 0).any()


def test_a_plan_of_softmax_changes_nothing() -> None:
    table = evaluated(plans="softmax").table
    assert table["difference"].to_list() == [0.0, 0.0]
    assert table["verdict"].to_list() == ["neither", "neither"]


def test_another_plan_in_the_same_file_is_another_run(tmp_path: Path) -> None:
    model, plan = tiny_runs.model(), tmp_path / "plan.safetensors"
    abbe.plan(model, "sparsemax").save(plan)
    evaluated(model, plans=plan, folder=tmp_path / "run")
    abbe.plan(model, "topk:k=2").save(plan)
    with pytest.raises(abbe.AbbeError, match=r"holds another run \(different: files\)"):
        evaluated(model, plans=plan, folder=tmp_path / "run")


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"plans": None}, "plan is None, but must be a spec"),
        ({"plans": []}, "there is no plan"),
        ({"plans": ["sparsemax", "sparsemax"]}, "plan sparsemax is given twice"),
        ({"plans": abbe.normalizer("sparsemax")}, "must be a spec, patterns with specs, a file or the folder of a run"),
        ({"plans": "entmx"}, "entmx"),
        ({"plans": "layers.99=sparsemax"}, "there is no layer 99"),
        ({"plans": "absent.safetensors"}, "absent.safetensors cannot be read"),
        ({"plans": "."}, "holds no plan"),
        ({"tasks": None}, "tasks is None, but must be names of lm-eval's tasks"),
        ({"tasks": []}, "tasks is "),
        ({"tasks": [3]}, "tasks is "),
        ({"limit": 0}, "limit is 0, but must be a whole number >= 1"),
        ({"num_fewshot": -1}, "num_fewshot is -1"),
        ({"batch_size": 1.5}, "batch_size is 1.5"),
        ({"seed": -1}, "seed is -1"),
        ({"level": 1}, "level is 1"),
        ({"resamples": 0}, "resamples is 0"),
    ],
)
def test_wrong_values_are_refused_in_one_line(more: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(abbe.AbbeError) as refused:
        evaluated(folder=tmp_path / "run", **more)
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "run").exists()


def test_models_and_plans_that_do_not_fit(tmp_path: Path) -> None:
    with pytest.raises(abbe.AbbeError, match="tiny bert is an encoder: an evaluation needs a causal language model"):
        evaluated(tiny_runs.model("bert"))
    abbe.plan(tiny_models.llama(), "sparsemax").save(tmp_path / "plan.safetensors")
    with pytest.raises(abbe.AbbeError, match="is for a LlamaForCausalLM, and this model is a GPT2LMHeadModel"):
        evaluated(plans=tmp_path / "plan.safetensors")


# -- Differences ------------------------------------------------------------------------------------------------------


def answers(gained: int, lost: int, items: int) -> tuple[list[bool], list[bool]]:
    rest = items - gained - lost
    return [False] * gained + [True] * (lost + rest), [True] * gained + [False] * lost + [True] * rest


def score_statistic(gained: int, lost: int, items: int, difference: float) -> float:
    """Tango's, with the most likely shares at this difference by search over all of them."""
    ends = max(0.0, -difference) + 1e-12, (1 - difference) / 2 - 1e-12

    def unlikely(share: float) -> float:
        same = items - gained - lost
        return -sum(
            count * math.log(max(value, 1e-300))
            for count, value in ((gained, share + difference), (lost, share), (same, 1 - 2 * share - difference))
        )

    grid = np.linspace(*ends, 2001)
    near = int(np.argmin([unlikely(share) for share in grid]))
    around = grid[max(near - 1, 0)], grid[min(near + 1, 2000)]
    share = scipy.optimize.minimize_scalar(unlikely, bounds=around, method="bounded", options={"xatol": 1e-13}).x
    return (gained - lost - items * difference) / math.sqrt(items * (2 * share + difference * (1 - difference)))


@pytest.mark.parametrize(
    ("gained", "lost", "items"), [(1, 0, 40), (5, 3, 100), (20, 10, 200), (0, 12, 50), (30, 2, 400)]
)
@pytest.mark.parametrize("level", [0.95, 0.9])
def test_the_interval_covers_the_exact_one_and_that_of_the_score_test(
    gained: int, lost: int, items: int, level: float
) -> None:
    found = estimates.paired_difference(*answers(gained, lost, items), level)
    exact = estimates.paired_gain(*answers(gained, lost, items), level)
    z = scipy.stats.norm.ppf((1 + level) / 2)
    assert found.value == pytest.approx((gained - lost) / items)
    assert found.low <= exact.low
    assert found.high >= exact.high
    for end, sign in ((found.low, 1), (found.high, -1)):
        excess = sign * score_statistic(gained, lost, items, end) - z
        is_exact = end in (exact.low, exact.high)
        assert excess > -1e-4 if is_exact else abs(excess) < 1e-4  # of the search


def test_no_difference_still_says_how_large_it_may_be() -> None:
    """Without a document that differs, by hand: z^2 / (n + z^2)."""
    found = estimates.paired_difference(*answers(0, 0, 40))
    z = scipy.stats.norm.ppf(0.975)
    assert (found.value, found.low, found.high) == pytest.approx((0, -(z**2) / (40 + z**2), z**2 / (40 + z**2)))
    assert estimates.paired_difference([False] * 7, [True] * 7).high == 1


def test_an_interval_excludes_zero_exactly_if_the_exact_test_rejects() -> None:
    for gained in range(9):
        for lost in range(9):
            found = estimates.paired_difference(*answers(gained, lost, 60))
            p = scipy.stats.binomtest(gained, gained + lost, 0.5).pvalue if gained + lost else 1.0
            assert (found.above(0) or found.below(0)) == (p <= 0.05), (gained, lost)


def test_the_interval_contains_the_true_difference_as_often_as_it_says() -> None:
    chance, items, shares = np.random.default_rng(0), 60, (0.12, 0.05, 0.83)
    counts = chance.multinomial(items, shares, 1000)
    inside = sum(
        (found := estimates.paired_difference(*answers(gained, lost, items))).low <= 0.07 <= found.high
        for gained, lost, _ in counts.tolist()
    )
    assert inside >= 940


class Task(stand_in_harness.Task):
    """With this direction."""

    def __init__(self, name: str, higher: bool | None = True) -> None:
        super().__init__(name, None)
        self.higher = higher

    def higher_is_better(self, key: str) -> Any:
        return self.higher

    def aggregate(self, key: str) -> Any:
        return lambda values: sum(values) / len(values)


def rows(values: Sequence[Sequence[float]], name: str = "task", key: str = "score,none", **more: Any) -> list[Any]:
    sides = [{"values": {key: list(one)}, "scores": {key: sum(one) / len(one)}} for one in values]
    found: list[Any] = eval_result.rows_of("plan", Task(name, **more), *sides, RESAMPLING)
    return found


LOW, HIGH = [1.0 + 0.01 * i for i in range(21)], [2.0 + 0.01 * i for i in range(21)]


@pytest.mark.parametrize(
    ("values", "higher", "verdict"),
    [
        ((LOW, HIGH), True, "better"),
        ((LOW, HIGH), False, "worse"),
        ((HIGH, LOW), True, "worse"),
        ((HIGH, LOW), False, "better"),
        ((LOW, HIGH), None, "not judged"),
        ((LOW[:5], HIGH[:5]), True, "not judged"),  # too few for any interval of 95 %
        ((LOW, LOW), True, "neither"),
        ((LOW, LOW[::-1]), True, "neither"),
    ],
)
def test_verdicts(values: Any, higher: bool | None, verdict: str) -> None:
    (row,) = rows(values, higher=higher)
    assert row["verdict"] == verdict
    assert row["difference"] == pytest.approx(np.mean(values[1]) - np.mean(values[0]))


def test_a_score_that_is_not_that_of_its_documents_has_no_interval() -> None:
    sides = [{"values": {"score,x": LOW}, "scores": {"score,x": score}} for score in (3.0, 4.0)]
    (row,) = eval_result.rows_of("plan", Task("task"), *sides, RESAMPLING)
    assert (row["metric"], row["difference"], row["difference_low"], row["verdict"]) == (
        "score (x)",
        1.0,
        None,
        "not judged",
    )


def sentences(*tasks: list[Any]) -> list[str]:
    table = abbe.studies.Evaluation.frame().of([row for task in tasks for row in task])
    return [one.sentence for one in eval_result.findings_of(table, 0.95)]


WORSE, SAME = rows((HIGH, LOW), "first"), rows((LOW, LOW), "second")


def test_sentences() -> None:
    assert sentences(SAME) == [
        "plan is no worse beyond chance on 1 of 1 task: by the intervals it is at most 0 worse on second (score 1.1)."
    ]
    (worse,) = sentences(WORSE, SAME)
    assert worse.startswith("plan is worse on 1 of 2 tasks, most on first, score 2.1 to 1.1 (-1.000, ")
    (better,) = sentences(rows((LOW, HIGH), "first"), SAME)
    assert "no worse beyond chance on 2 of 2 tasks" in better
    assert "; better on 1: first, score 1.1 to 2.1 (+1.000, " in better
    (few,) = sentences(rows((LOW[:3], HIGH[:3])))
    assert few == "plan cannot be judged: a task needs 6 documents and a score with an interval."
    (mixed,) = sentences(WORSE, rows((LOW[:3], HIGH[:3]), "few"))
    assert mixed.endswith("; not judged: few.")


def test_a_task_on_which_the_model_guesses_is_named() -> None:
    task = {"chance": 0.25, "counts": True}
    guessing = [row | task for row in rows(([1.0, 0.0, 0.0, 0.0] * 5,) * 2, "guessed")]
    knowing = [row | task for row in rows(([1.0, 1.0, 1.0, 0.0] * 5,) * 2, "known")]
    _, chance = sentences(guessing, knowing)
    assert chance.startswith("On 1 of 2 tasks the model itself is not above guessing")
    assert "guessed (0.25, chance 0.25)." in chance
    assert len(sentences(knowing)) == 1


# -- What people see --------------------------------------------------------------------------------------------------


def test_the_cost_is_said_and_the_bar_counts_requests(capsys: pytest.CaptureFixture[str]) -> None:
    result = evaluated(plans=["sparsemax", "topk:k=2"], progress=True, limit=10)
    lines = capsys.readouterr().err.splitlines()
    assert any("3 contenders, 2 tasks, 20 documents, 20 requests" in line for line in lines)
    assert result.manifest["harness"] == {
        "lm_eval": "0.0",
        "tasks": {name: {"digest": name, "documents": 10, "requests": 10} for name in ("last", "likelihood")},
    }
    assert result.manifest["settings"]["tasks"] == {"last": "last", "likelihood": "likelihood"}


def test_page_card_and_chart_show_every_plan() -> None:
    result = evaluated(plans=["sparsemax", "layers.0=topk:k=2"])
    page = result.to_html()
    for words in ("sparsemax", "layers.0=topk:k=2", "likelihood", "word_perplexity", "lm-eval 0.0"):
        assert words in page
    (chart,) = result.view().charts("light").values()
    assert len(chart["concat"]) == 2  # accuracy and perplexity have scales of their own


@pytest.mark.parametrize("hidden", ["lm_eval", "accelerate"])
def test_without_lm_eval_one_line_says_which_extra(hidden: str, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.delitem(sys.modules, hidden, raising=False)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == hidden else find(name))
    with pytest.raises(abbe.AbbeError) as refused:
        evaluated()
    assert str(refused.value) == 'abbe eval needs abbe[eval]: pip install "abbe[eval]"'
