"""The page of a training run: the sentence, what it holds, how long runs are thinned, hostile text."""

from __future__ import annotations

import json
import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import made_up_watch as made
import parsed_page
import pytest
from chart_parts import printed

import abbe
from abbe.training import Training
from abbe.views import card, figures, page

UNCHECKED = {"every": 50, "alerts": False}
AGAIN = [(50, "sink", 0, 0, 0.4, 0.3), (200, "sink", 0, 0, 0.5, 0.3)]
THREE = (
    "entropy collapse in layer 1, head 2 at step 350; logit above 100 in 2 heads from step 400 on "
    "(layer 0, head 1; layer 1, head 0)."
)


@pytest.mark.parametrize(
    ("options", "grade", "sentence"),
    [
        ({"alerts": ()}, "good", "Healthy so far: no alert in 1,000 steps."),
        ({"steps": (1,), "alerts": ()}, "good", "Healthy so far: no alert in 1 step."),
        ({"alerts": (), "settings": {"alerts": True}}, "good", "Healthy so far: no alert in 1,000 steps."),
        ({"steps": ()}, "look", "No step was read yet."),
        (
            {"alerts": (), "settings": UNCHECKED},
            "look",
            "No rule was checked in 1,000 steps: the monitor ran with alerts=False.",
        ),
        ({}, "look", f"3 alerts: {THREE}"),
        ({"settings": UNCHECKED}, "look", f"3 alerts: {THREE}"),  # of a part before a checkpoint
        (
            {"alerts": [(50, "non_finite", None, None, None, None)]},
            "bad",
            "1 alert: NaN or infinity in the loss at step 50.",
        ),
        ({"alerts": AGAIN}, "look", "2 alerts: sink formed in layer 0, head 0 at step 50 (and 1 times again)."),
    ],
)
def test_what_happened_in_one_sentence(options: dict[str, Any], grade: str, sentence: str) -> None:
    answer = made.training(**options).answer()
    assert (answer.grade, answer.sentence) == (grade, sentence)


def test_a_run_whose_rules_were_not_checked_is_not_called_healthy() -> None:
    shown = page(made.training(alerts=(), settings=UNCHECKED))
    for words in ("Healthy", "None was raised", "the rules behind them"):
        assert words not in shown


@pytest.mark.parametrize(
    ("rules", "grade"),
    [(["logit_growth_1000", "uniform"], "look"), (["sink", "logit_growth_10000"], "bad"), (["logit_jump"], "bad")],
)
def test_the_grade_is_bad_only_where_training_rarely_recovers(rules: list[str], grade: str) -> None:
    assert made.training(alerts=[(50, rule, 0, 0, 1.0, 0.5) for rule in rules]).answer().grade == grade


def test_every_rule_has_words_and_a_measure_that_shows_it() -> None:
    words = abbe.training.list_rules()
    assert {x.measure for x in words} <= {quantity.name for quantity in abbe.training.list_quantities()}
    assert len({x.event for x in words}) == len(words)


def test_words_are_those_of_the_manifest() -> None:
    assert made.training().quantity("separability@N=20").label == "separability N_s/N, N = 20"
    assert made.training().quantity("entropy").limit == "ln n, n the visible keys"
    assert Training([], {}).quantity("max_logit").label == "max logit"
    shown = page(made.training())
    assert "entropy below 0.05 of its ceiling ln n; armed again: above 0.1" in shown
    assert "max_logit" not in page(made.training(quantities=None, rules=None)).partition("Manifest")[0]


def test_the_page_holds_every_value_of_a_short_run() -> None:
    training = made.training()
    shown = page(training)
    about = json.loads(parsed_page.unpacked(shown, "about"))
    steps, places = about["steps"], about["places"]
    assert steps == [record["step"] for record in training.records]
    assert [words["name"] for words in about["measures"]] == list(made.MEASURES)
    assert [(alert["step"], alert["layer"], alert["head"]) for alert in about["alerts"]] == [
        (alert[0], alert[2], alert[3]) for alert in made.ALERTS
    ]
    table = parsed_page.unpacked_table(parsed_page.unpacked(shown, "table"))
    assert table.height == len(steps) * len(places)
    for at in (0, 3, table.height - 1):
        step, place = steps[at // len(places)], places[at % len(places)]
        for measure in made.MEASURES:
            assert table[measure][at] == pytest.approx(made.value(measure, step, **place), rel=1e-4)
        assert table["entropy limit"][at] == 3.0
        assert table["max_weight control"][at] == 0.05
    model = parsed_page.unpacked_table(parsed_page.unpacked(shown, "model"))
    assert model["loss"].to_list() == pytest.approx([5 - step / 500 for step in steps], rel=1e-4)
    assert (model["entropy low"] <= model["entropy mean"]).all()


def test_the_text_is_there_without_scripts() -> None:
    shown = page(made.training(skipped=["layer 7: no tap"]))
    for words in ("3 alerts: entropy collapse", "step 350", "entropy over its ceiling 0.031, threshold 0.05",
                  "tiny-gpt2", "largest logit", "6 heads in 2 layers", "layer 7: no tap"):  # fmt: skip
        assert words in shown
    assert 'http-equiv="refresh"' not in shown
    assert "None was raised." in page(made.training(alerts=()))


def test_only_a_page_that_is_kept_fresh_loads_itself_again() -> None:
    shown = page(made.training().view(reload=5))
    assert '<noscript><meta http-equiv="refresh" content="5"></noscript>' in shown
    assert json.loads(parsed_page.unpacked(shown, "about"))["reload"] == 5
    assert json.loads(parsed_page.unpacked(page(made.training()), "about"))["reload"] is None


def test_odd_numbers_do_not_break_the_page() -> None:
    """Of a monitor that keeps its run in memory: a loss that is NaN, values that are missing."""
    training = made.training(steps=(1, 50), alerts=[(50, "non_finite", None, None, float("inf"), 0.0)])
    record = training.records[-1]
    record["loss"] = float("nan")
    record["heads"]["entropy"]["value"][0][0] = None
    del record["heads"]["max_logit"]
    shown = page(training)
    table = parsed_page.unpacked_table(parsed_page.unpacked(shown, "table"))
    assert table["entropy"].to_list()[6] is None
    assert table["max_logit"].to_list()[6:] == [None] * 6
    assert json.loads(parsed_page.unpacked(shown, "about"))["alerts"][0]["numbers"]


def test_a_run_without_a_step_has_a_page_and_a_figure(tmp_path: Path) -> None:
    empty = Training([], made.MANIFEST)
    assert "No step was read yet." in page(empty)
    assert "No step was read yet." in card(empty)
    assert len(figures(empty, tmp_path)) == 6


def steps_of(shown: str) -> list[int]:
    return list(json.loads(parsed_page.unpacked(shown, "about"))["steps"])


def test_a_long_run_shows_first_last_alerts_and_others_evenly() -> None:
    def sink(*steps: int) -> list[Any]:
        return [(step, "sink", 0, 0, 0.5, 0.3) for step in steps]

    shown = steps_of(page(made.training(range(2000), sink(17, 1001))))
    assert {0, 17, 1001, 1999} <= set(shown)
    assert len(shown) <= 600
    assert max(b - a for a, b in pairwise(shown)) <= 4
    assert steps_of(page(made.training(range(30)))) == list(range(30))
    everywhere = steps_of(page(made.training(range(1000), sink(*range(1000)))))
    assert 250 < len(everywhere) <= 600  # a sample of them


def test_a_spike_between_shown_steps_stays_in_the_band() -> None:
    training = made.training(range(2000), alerts=())
    spike = next(step for step in range(700, 2000) if step not in steps_of(page(training)))
    training.records[spike]["model"]["max_logit_max"] = 1e6
    shown = page(training)
    steps = steps_of(shown)
    high = parsed_page.unpacked_table(parsed_page.unpacked(shown, "model"))["max_logit high"].to_list()
    assert high.count(1e6) == 1
    at = high.index(1e6)
    assert steps[at - 1] < spike < steps[at]


@pytest.mark.slow
def test_a_long_run_of_many_heads_stays_below_five_megabytes() -> None:
    """Random digits, which do not compress; lists of a few records are shared so that the test itself is small."""
    rng = random.Random(0)
    names = [quantity.name for quantity in abbe.training.list_quantities()]
    some = []
    for _ in range(300):
        heads = {name: {"value": [[rng.random() for _ in range(12)] for _ in range(12)]} for name in names}
        some.append(made.record(1, 12, 12) | {"heads": heads, "model": {}})
    records = [some[i % 300] | {"step": 50 * i} for i in range(10_000)]
    shown = page(Training(records, made.MANIFEST))
    assert len(shown) < 5_000_000
    assert "10,000 steps that were read" in shown


def test_the_terminal_shows_sentence_alerts_and_last_values() -> None:
    text = printed(made.training(), 100)
    for words in ("3 alerts:", "logit above 100", "layer 1, head 0", "Over all heads, step 1,000", "largest weight"):
        assert words in text
