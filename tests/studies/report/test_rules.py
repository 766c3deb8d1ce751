"""The rules of a report on made-up runs whose answers are known: kinds of heads, numbers, verdicts, advice, limits."""

from __future__ import annotations

import math
from typing import Any

import polars as pl
import pytest
from synthetic_run import USUAL, alternatives, made_run, row

from abbe.studies import Finding, Report

UNIFORM = {"entropy": (5.9, 5.8, 5.95, 6.0, None)}
BARELY_UNIFORM = {"entropy": (5.71, 5.5, 5.9, 6.0, None)}
NOT_UNIFORM = {"entropy": (5.69, 5.5, 5.9, 6.0, None)}
SINK = {"sink_mass": (0.8, 0.7, 0.9, 0.9, 0.002)}
BLURRED = {"separability": (0.2, 0.05, 0.35, None, 0.1)}
NEARLY_BLURRED = {"separability": (0.2, 0.11, 0.35, None, 0.1)}
FADING = {"decay_exponent": (0.5, 0.4, 0.6, None, 1.0)}
SHARP = {"effective_tokens": (2.9, 2.8, 3.0, 500.0, None)}
FORCED = {"max_weight": (0.05, 0.04, 0.06, 0.49, 0.002)}


SHARPER = "softmax:temperature=0.7"
OWN = (0, "baseline", 0.5, None, None, None)
NOTHING = Report.of(made_run([], overall=dict.fromkeys(USUAL), p_values={}))


def report_of(*heads: dict[str, Any], other: pl.DataFrame | None = None, **options: Any) -> Report:
    return Report.of(made_run(heads, **options), other)


def verdicts_of(*heads: dict[str, Any], **options: Any) -> dict[str, Finding]:
    return {finding.topic: finding for finding in report_of(*heads, **options).verdicts}


def advice_of(*heads: dict[str, Any], **options: Any) -> dict[str, Finding]:
    return {finding.topic: finding for finding in report_of(*heads, **options).advice}


@pytest.mark.parametrize(
    ("head", "kind"),
    [
        ({}, "selective"),
        (SINK, "sink"),
        ({"sink_mass": (0.5, 0.4, 0.6, None, None)}, "selective"),  # not more than half
        (UNIFORM, "uniform"),
        (BARELY_UNIFORM, "uniform"),
        (NOT_UNIFORM, "selective"),
        (BLURRED, "blurred"),
        (NEARLY_BLURRED, "selective"),
        ({"separability": (0.09, None, None, None, 0.1)}, "blurred"),  # one window: no interval
        ({"separability": (0.11, None, None, None, 0.1)}, "selective"),
        ({"separability": (1.0, 1.0, 1.0, None, 1.0)}, "selective"),  # sets that are separable by chance prove nothing
        ({"separability": (0.9, 0.9, 0.9, None, 0.95)}, "blurred"),
        (FADING, "fading"),
        ({"decay_exponent": (0.49, 0.4, 0.6, None, 1.0)}, "selective"),
        (SHARP, "sharp"),
        ({"effective_tokens": (3.1, 3, 3.2, 500.0, None)}, "selective"),
        (SINK | UNIFORM | BLURRED | FADING | SHARP, "sink"),  # the first rule that holds
        (UNIFORM | BLURRED | FADING | SHARP, "uniform"),
        (BLURRED | FADING | SHARP, "blurred"),
        (FADING | SHARP, "fading"),
        (dict.fromkeys(USUAL) | {"top_mass": {5: 0.5}}, "not measured"),
    ],
)
def test_kind_of_a_head(head: dict[str, Any], kind: str) -> None:
    assert [verdict.kind for verdict in report_of(head).heads] == [kind]


@pytest.mark.parametrize(
    ("previous", "induction", "names"),
    [
        (0.3, 0.099, ["previous-token head"]),
        (0.299, 0.1, ["induction head"]),
        (0.5, 0.2, ["previous-token head", "induction head"]),
        (0.1, 0.05, []),
    ],
)
def test_patterns_of_a_head(previous: float, induction: float, names: list[str]) -> None:
    numbers = {"previous_token": previous, "induction": induction}
    facts = {name: (value, None, None, 0.9, 0.002) for name, value in numbers.items()}
    (verdict,) = report_of(facts).heads
    assert [pattern.name for pattern in verdict.patterns] == names
    for pattern in verdict.patterns:
        assert pattern.sentence.startswith(pattern.name.capitalize())
        assert "5 times as much as a uniform head" in pattern.rule
    assert verdict.kind == "selective"


def test_a_pattern_that_a_uniform_head_has_too_is_none() -> None:
    (verdict,) = report_of({"previous_token": (0.4, None, None, 0.9, 0.1)}).heads
    assert verdict.patterns == ()


def test_a_head_verdict_gives_its_numbers_and_its_rule() -> None:
    (verdict,) = report_of({}).heads
    assert verdict.numbers["effective tokens"] == 8.0
    assert verdict.numbers["separability of 20 tokens"] == 0.7
    assert verdict.numbers["of random sets"] == 0.1
    (sink,) = report_of(SINK).heads
    assert sink.numbers["weight on the first key"] == 0.8


def test_forced_dispersion_is_about_the_ceiling_not_the_weight() -> None:
    finding = verdicts_of(FORCED, {"max_weight": (0.05, 0.04, 0.06, 0.5, 0.002)})["forced dispersion"]
    assert finding.heads == ((0, 0),)


def test_no_ceiling_no_sentence() -> None:
    assert "forced dispersion" not in verdicts_of({"max_weight": (0.05, 0.04, 0.06, None, 0.002)})


def test_length_sinks_and_gradients() -> None:
    findings = verdicts_of(FADING, {"decay_exponent": (0.01, -0.1, 0.1, None, 1.0)}, SINK)
    assert findings["length"].heads == ((0, 0),)
    assert findings["length"].numbers["heads whose interval reaches 0 or below"] == 1
    assert findings["sinks"].heads == ((0, 2),)
    assert findings["sinks"].numbers["of a uniform head"] == 0.002
    assert findings["gradients"].numbers["worst sensitivity at T = 1, mean"] == 0.2


def test_too_few_heads_for_the_test() -> None:
    """2/C(2m, m) <= 0.01 from five heads on."""
    options: dict[str, Any] = {"p_values": {1: 0.9, 20: 0.9}, "critical": (1.0, None, None, None, None)}
    assert report_of(*[{}] * 4, **options).numbers[2].shown == "too few heads"
    assert "random sets" not in verdicts_of(*[{}] * 4, **options)
    assert report_of(*[{}] * 5, **options).numbers[2].shown == "1 token"


def test_nothing_is_better_than_sets_that_are_always_separable() -> None:
    certain = {"separability": (1.0, 1.0, 1.0, None, 1.0)}
    assert "separability" not in verdicts_of(certain, overall=certain)


def test_an_empty_run_has_no_verdicts() -> None:
    assert NOTHING.verdicts == NOTHING.heads == NOTHING.advice == ()
    assert [number.shown for number in NOTHING.numbers] == ["not measured"] * 5


def test_key_numbers_have_interval_limit_and_control() -> None:
    effective, separability, critical, decay, sensitivity = report_of(*[{}] * 5).numbers
    assert (effective.value, effective.low, effective.high, effective.limit) == (8.0, 7.5, 8.5, 500.0)
    assert effective.shown == "8 tokens"
    heads = ({"effective_tokens": (count, None, None, 500.0, None)} for count in (1.0, 2.0, 70.0))
    assert report_of(*heads).numbers[0].meaning.endswith("the median head over 2, with heads from 1 to 70.")
    assert separability.shown == "70 %"
    assert separability.control == 0.1
    assert separability.name == "separability of 20 tokens"
    assert (critical.shown, critical.value) == ("none up to 100", None)
    assert (decay.value, decay.control) == (0.2, 1.0)
    assert (sensitivity.shown, sensitivity.limit) == ("0.2 per logit", 0.5)
    assert report_of(*[{}] * 5, critical=(20.0, 5.0, 100.0, None, None)).numbers[2].shown == "20 tokens"


def test_infinite_and_missing_numbers_are_not_looked_up() -> None:
    more = [row((0, 7), 1024, None, "entropy", math.inf), row((0, 8), 1024, None, "entropy", math.nan)]
    made = report_of({}, more=more)
    assert [verdict.kind for verdict in made.heads] == ["selective", "not measured", "not measured"]
    assert made.verdicts[0].numbers["heads"] == 1
    assert made.growth["head"].to_list() == [0, 7, 8]


@pytest.mark.parametrize(
    ("sizes", "shown"), [((1, 5, 20, 100), 20), ((1, 19, 100), 19), ((15, 25), 15), ((1,), 1), ((), None)]
)
def test_the_shown_size_is_the_one_nearest_to_20(sizes: tuple[int, ...], shown: int | None) -> None:
    rows = [row((0, 0), 64, n, "top_mass", 0.5) for n in sizes] + [row((0, 0), 16, 20, "top_mass", 0.5)] * bool(sizes)
    run = made_run([])
    named = Report.of(type(run)(pl.DataFrame(rows, schema=run.table.schema), run.manifest)).numbers[1].name
    assert named == ("separability" if shown is None else f"separability of {shown} tokens")


def test_growth_says_where_a_head_crosses_its_limits() -> None:
    rows = report_of(UNIFORM, BLURRED, {}, at_64={0: {"entropy": (3.0, 2.9, 3.1, 4.0, None)}}).growth.to_dicts()
    assert [r["uniform_from"] for r in rows] == [1024, None, None]  # not yet at 64
    assert [r["random_from"] for r in rows] == [None, 64, None]
    assert (rows[2]["decay"], rows[2]["decay_low"], rows[2]["decay_high"]) == (0.2, 0.15, 0.25)
    assert rows[2]["half_until"] == math.floor(1 + math.exp(10))
    assert rows[2]["faint_at"] is None  # 0.4 (L/1024)^-0.2 = 0.1 at 1,024 times the length: too far
    assert report_of(FADING).growth["faint_at"].to_list() == [1024 * 16]  # 0.4 (L/1024)^-0.5 = 0.1


@pytest.mark.parametrize("decay", [(0.2, -0.01, 0.3, None, None), (1e-4, 1e-5, 0.3, None, None)])
def test_no_length_is_foretold_for_a_head_that_does_not_surely_fade(decay: tuple[Any, ...]) -> None:
    """Its exponent may be 0, or the length is too far."""
    assert report_of({"decay_exponent": decay}).growth["faint_at"].to_list() == [None]


@pytest.mark.parametrize(("spread", "keys"), [(1000.0, None), (0.0, 2)])
def test_keys_among_which_one_can_have_half_of_the_weight(spread: float, keys: int | None) -> None:
    assert report_of({"logit_range": spread}).growth["half_until"].to_list() == [keys]


def test_a_ceiling_from_the_range_needs_softmax() -> None:
    """Without a proved ceiling of the largest weight, the range of the logits proves nothing."""
    assert report_of({"max_weight": (0.4, 0.3, 0.5, None, None)}).growth["half_until"].to_list() == [None]


def test_the_floor_is_where_the_power_law_between_two_temperatures_reaches_one() -> None:
    # 4 at 0.1 and 0.8 at 0.5: slope -1, as 0.4/T: reaches 1 at T = 0.4
    (floor,) = report_of({}).floors["floor"]
    assert floor == pytest.approx(0.4)
    (with_one,) = report_of({"sensitivity_worst_p95": {0.1: 4.0, 1.0: 0.25}}).floors["floor"]
    assert with_one == pytest.approx(0.1 * 10**0.5)  # the measure without a suffix is at T = 1
    table = report_of({"sensitivity_worst_p95": {0.1: 0.9, 0.5: 0.3, 1.0: 0.2}}).floors
    assert table.to_dicts() == [
        {"layer": 0, "head": 0, "floor": None, "lowest": 0.1, "sensitivity": 0.2, "ceiling": 0.5}
    ]


@pytest.mark.parametrize(
    ("points", "floor"),
    [
        (None, None),
        ({0.1: 0.99}, None),
        ({0.1: 1.0}, 0.1),
        ({0.1: 5.0, 0.2: 2.0}, 0.2),
        ({0.1: 0.5, 0.2: 2.0, 0.4: 0.5}, 0.2 * 2**0.5),  # the highest crossing counts
        ({0.1: 2.0, 0.2: 0.0}, 0.1),
    ],
)
def test_where_a_head_becomes_fragile(points: dict[float, float] | None, floor: float | None) -> None:
    (measured,) = report_of({"sensitivity_worst_p95": points}).floors["floor"]
    assert measured == (None if floor is None else pytest.approx(floor))


def test_gradients_name_the_first_fragile_head() -> None:
    calm = {"sensitivity_worst_p95": {0.1: 0.5, 1.0: 0.1}}
    assert verdicts_of(calm)["gradients"].numbers["heads that get fragile"] == 0
    first, last = ({"sensitivity_worst_p95": {0.1: 10 * t, 0.5: 2 * t, 1.0: 0.1}} for t in (0.45, 0.2))
    finding = verdicts_of(calm, {}, first, last)["gradients"]
    assert finding.numbers["highest temperature at which a head is fragile"] == pytest.approx(0.45)
    assert finding.numbers["heads that get fragile"] == 3
    assert finding.numbers["the same for the median head"] == pytest.approx(0.4)


# Advice


def test_the_active_set_is_the_smallest_that_keeps_nine_tenths() -> None:
    finding = advice_of({}, {"top_mass": {1: 0.1, 5: 0.2, 20: 0.3, 100: 0.95}})["active-set size"]
    assert finding.heads == ((0, 1),)
    assert finding.numbers["separability of 20 tokens"] == 0.7


def test_the_temperature_floor_is_that_of_the_most_fragile_head() -> None:
    finding = advice_of({}, {"sensitivity_worst_p95": {0.1: 4.5, 0.5: 0.9, 1.0: 0.3}})["temperature floor"]
    assert finding.heads == ((0, 1), (0, 0))
    calm = advice_of({"sensitivity_worst_p95": {0.1: 0.5, 1.0: 0.1}})["temperature floor"]
    assert calm.heads == ()
    assert "temperature floor" not in advice_of({"sensitivity_worst_p95": None})


@pytest.mark.parametrize(
    ("row", "gains"),
    [
        ((0, "sparsemax", 0.6, 0.1, 0.05, 0.1), True),
        ((0, "sparsemax", 0.6, 0.1, None, 0.1), True),  # one window: no interval
        ((0, "sparsemax", 0.6, 0.049, 0.04, 0.1), False),  # too little
        ((0, "sparsemax", 0.6, 0.1, -0.01, 0.1), False),  # not sure
        ((0, "sparsemax", 0.6, 0.1, 0.05, 0.26), False),  # another output
        ((0, "softmax", 0.6, 0.1, 0.05, 0.1), False),  # not sparse
        ((0, "sparsemax", None, None, None, None), False),
    ],
)
def test_who_gains(row: tuple[Any, ...], gains: bool) -> None:
    assert advice_of({}, other=alternatives([OWN, row]))["sparse normalizer"].heads == (((0, 0),) if gains else ())


def test_the_best_alternative_of_every_head_largest_gain_first() -> None:
    table = alternatives([
        OWN, (1, *OWN[1:]), (2, *OWN[1:]),
        (0, "sparsemax", 0.6, 0.1, 0.05, 0.2), (0, "topk:k=32", 0.7, 0.2, 0.1, 0.1),
        (1, "sparsemax", 0.9, 0.4, 0.1, 0.1), (1, "topk:k=32", 0.7, 0.2, 0.1, 0.1),
        (2, "sparsemax", 0.5, 0.0, 0.0, 0.1),
        (0, SHARPER, 0.6, 0.1, 0.0, 0.3), (1, SHARPER, 0.6, 0.3, 0.0, 0.1), (2, SHARPER, 0.9, 0.9, 0.9, 0.9),
    ])  # fmt: skip
    finding = advice_of({}, {}, {}, other=table)["sparse normalizer"]
    assert finding.heads == ((0, 1), (0, 0))
    assert finding.numbers["heads best served by sparsemax"] == finding.numbers["heads best served by topk:k=32"] == 1
    assert finding.numbers["separable weight now, mean over heads"] == 0.5
    # the control is taken from the heads that gain, not from all
    assert finding.numbers[f"gain of those heads with {SHARPER} instead"] == pytest.approx(0.2)
    assert finding.numbers["whose outputs would move by"] == pytest.approx(0.2)
