"""Bars that count heads, and names beside points that hide nothing."""

from __future__ import annotations

import math

import pytest
from inside import equal_bars, log_bars, place_names
from made_up_report import TEMPERATURES


@pytest.mark.parametrize("values", [[0.3], [0.0, 1.0], [-5.0, 12.0, 3.3], [0.2] * 7, [1e-9, 2e-9], [400.0, 1e5]])
def test_equal_bars(values: list[float]) -> None:
    bars, (low, high) = equal_bars(values, around=(0.0, 1.0))
    assert sum(bar["heads"] for bar in bars) == len(values)
    assert low <= min(0, *values)
    assert high >= max(1, *values)
    assert all(low - 1e-9 <= bar["value"] < bar["end"] <= high * (1 + 1e-9) for bar in bars)
    assert {round((bar["end"] - bar["value"]) / (bars[0]["end"] - bars[0]["value"]), 3) for bar in bars} == {1}
    assert (high - low) / (bars[0]["end"] - bars[0]["value"]) <= 27
    for bar in bars:
        some = 1e-5 * (bar["end"] - bar["value"])  # bars are written with six digits
        assert bar["heads"] == sum(bar["value"] - some <= value < bar["end"] - some for value in values)


@pytest.mark.parametrize("values", [[], [0.5], [0.1, 2.0], [0.05, 0.3, 0.3, 1.9]])
def test_log_bars(values: list[float]) -> None:
    bars, (low, high), step = log_bars(values, TEMPERATURES)
    assert (low, high) == (min([*values, 0.1]), 2.0)
    assert sum(bar["heads"] for bar in bars) == len(values)
    assert all(math.isclose(bar["end"] / bar["value"], step, rel_tol=1e-4) for bar in bars)
    for value in values:
        assert any(bar["value"] <= value * (1 + 1e-5) and value <= bar["end"] * (1 + 1e-5) for bar in bars)


def test_names_hide_nothing() -> None:
    points = [(60.0, 40.0), (64.0, 46.0), (58.0, 52.0), (200.0, 44.0), (262.0, 100.0), (4.0, 210.0)]
    names = ["entmax:alpha=1.5", "sparsemax", "topk:k=32", "topp:p=0.9", "entmax:alpha=1.25", "baseline"]
    places = place_names(points, names, (268, 216))
    boxes = [name.box(point, len(text)) for name, point, text in zip(places, points, names, strict=True)]
    for i, (left, top, right, bottom) in enumerate(boxes):
        assert left >= 0
        assert right <= 268
        assert top >= 0
        assert bottom <= 216
        assert not any(left < x < right and top < y < bottom for x, y in points)
        for other in boxes[:i]:
            assert right <= other[0] or other[2] <= left or bottom <= other[1] or other[3] <= top


def test_a_name_alone_stands_beside_its_point() -> None:
    (places,) = place_names([(50.0, 50.0)], ["baseline"], (268, 216))
    assert (places.side, places.dy, places.far) == ("left", 0, False)
    assert place_names([], [], (268, 216)) == []
