"""Gains in accuracy on the same prompts: exact intervals, and the test of McNemar."""

from __future__ import annotations

from dataclasses import astuple

import pytest
import scipy.stats
from inside import paired_gain

from abbe.results import Estimate

LEVELS = (0.8, 0.9, 0.95, 0.99)


def answers(gained: int, lost: int, both: int = 3, neither: int = 4) -> tuple[list[bool], list[bool]]:
    """Of own and of another, in pairs."""
    own = [False] * gained + [True] * lost + [True] * both + [False] * neither
    return own, [True] * gained + [False] * lost + [True] * both + [False] * neither


@pytest.mark.quick(2)
@pytest.mark.parametrize("level", LEVELS)
def test_zero_is_left_out_exactly_where_mcnemar_rejects(level: float) -> None:
    sides = set()
    for gained in range(15):
        for lost in range(15):
            if not gained + lost:
                continue
            gain, low, high = astuple(paired_gain(*answers(gained, lost), level))
            assert low is not None
            assert high is not None
            assert low <= gain <= high
            left_out = 1 if low > 0 else -1 if high < 0 else 0
            rejected = scipy.stats.binomtest(gained, gained + lost, 0.5).pvalue < 1 - level
            assert abs(left_out) == rejected
            if rejected:
                assert (left_out > 0) == (gained > lost)
            sides.add(left_out)
    assert sides == {-1, 0, 1}


def test_a_gain_by_hand() -> None:
    """Three of eight changed answers are gains, among 15 prompts."""
    gain, low, high = astuple(paired_gain(*answers(3, 5)))
    assert gain == pytest.approx(-2 / 15)
    theta = scipy.stats.binomtest(3, 8).proportion_ci(0.95, "exact")
    assert (low, high) == pytest.approx(((2 * theta.low - 1) * 8 / 15, (2 * theta.high - 1) * 8 / 15))


def test_prompts_on_which_both_agree_only_widen_the_ground() -> None:
    few, many = (astuple(paired_gain(*answers(6, 1, *more))) for more in ((), (10, 11)))
    assert [x and x * 14 / 28 for x in few] == pytest.approx(many)


def test_without_a_changed_answer_there_is_no_interval() -> None:
    assert paired_gain(*answers(0, 0)) == Estimate(0.0)


@pytest.mark.parametrize("both", [0, 20])
def test_an_interval_is_that_of_the_other_side_turned_round(both: int) -> None:
    gain, low, high = astuple(paired_gain(*answers(7, 2, both)))
    back = astuple(paired_gain(*answers(2, 7, both)))
    assert low is not None
    assert high is not None
    assert back == pytest.approx((-gain, -high, -low))
