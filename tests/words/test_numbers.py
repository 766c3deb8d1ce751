"""Numbers, shares, intervals and counts as a person reads them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from abbe.words.numbers import about, heads_of, interval, many, number, percent, sentence, tokens, with_interval


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (999.7, 3, "1,000"), (999.4, 3, "999"), (256, 2, "256"), (256.3, 2, "260"), (1234.5, 3, "1,235"),
        (7.25, 3, "7.25"), (0.00012, 4, "0.00012"), (0.000012, 4, "1.2e-5"), (1e9, 4, "1e+9"), (-0.0, 4, "0"),
    ],
)  # fmt: skip
def test_digits(value: float, digits: int, text: str) -> None:
    assert number(value, digits) == text


def test_signs_and_what_is_missing() -> None:
    assert [number(x, signed=True) for x in (0.5, -0.5, 0.0)] == ["+0.5", "-0.5", "0"]
    assert (number(None), number(None, missing="unknown")) == ("–", "unknown")


@given(st.floats(allow_nan=False, allow_infinity=False, min_value=-1e12, max_value=1e12), st.integers(2, 6))
def test_what_is_read_is_what_was_meant(value: float, digits: int) -> None:
    read = float(number(value, digits).replace(",", ""))
    assert read == pytest.approx(value, rel=0.5 * 10 ** (1 - digits), abs=0)


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (None, "an unknown share"), (0.0, "0 %"), (0.0005, "below 0.1 %"), (0.003, "0.3 %"), (0.744, "74 %"),
        (1.0, "100 %"),
    ],
)  # fmt: skip
def test_percent(share: float | None, text: str) -> None:
    assert percent(share) == text


def test_percent_with_digits_and_signs() -> None:
    assert [percent(x, 2) for x in (0.01, 0.005, 0.0017, 1.0)] == ["1 %", "0.5 %", "0.17 %", "100 %"]
    assert [percent(x, 2, signed=True) for x in (0.123, -0.123)] == ["+12 %", "-12 %"]


def test_intervals_name_their_unit_once() -> None:
    assert interval(0.55, 0.7, percent) == "55 to 70 %"
    assert interval(0.12345, 2.0) == "0.123 to 2"
    assert interval(None, 1.0) == interval(1.0, None) == ""
    assert with_interval(0.6, 0.55, 0.7, percent) == "60 % (55 to 70 %)"
    assert with_interval(0.6, None, None, percent) == "60 %"


def test_counts() -> None:
    assert [many(n, "head") for n in (0, 1, 1024)] == ["0 heads", "1 head", "1,024 heads"]
    assert [tokens(n) for n in (1, 20, 26.94)] == ["1 token", "20 tokens", "26.9 tokens"]
    assert [heads_of(n, 48, "is", "are") for n in (0, 1, 5, 48)] == [
        "no head is", "1 of 48 heads is", "5 of 48 heads are", "all 48 heads are",
    ]  # fmt: skip
    assert heads_of(1, 1, "is", "are") == "the only head is"
    assert sentence("") == ""


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0, "0 s"), (59.4, "59 s"), (60, "1 min"), (3599, "1 h 0 min"), (7500, "2 h 5 min")]
)
def test_times_that_are_not_exact(seconds: float, shown: str) -> None:
    assert about(seconds) == shown
