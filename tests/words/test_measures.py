"""One registry of measures: each has a name for people, and high and low are explained."""

from __future__ import annotations

import pytest

from abbe.measures import GROUPS, MeasureInfo, list_measures, list_tests
from abbe.words.measures import measure_words

ALL = (*list_measures(), *list_tests())


@pytest.mark.parametrize("info", ALL, ids=lambda info: info.name)
def test_every_measure_is_explained(info: MeasureInfo) -> None:
    words = measure_words(info.name)
    assert (words.label, words.unit, words.limit, words.control) == (info.label, info.unit, info.limit, info.control)
    assert words.group in GROUPS
    assert words.meaning.startswith("High")
    assert ", low" in words.meaning
    assert words.meaning.endswith(".")


def test_names_and_labels_are_unique() -> None:
    assert len({info.name for info in ALL}) == len({info.label for info in ALL}) == len(ALL)
