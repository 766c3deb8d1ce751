"""One registry of measures, each explained for people; and what is said about the precision of a model."""

from __future__ import annotations

import polars as pl
import pytest

from abbe.measures import GROUPS, MeasureInfo, list_measures, list_tests
from abbe.words.manifest import precision_of
from abbe.words.measures import glossary, measure_words, measures_of, without_temperature

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


@pytest.mark.parametrize(
    ("name", "label", "group"),
    [
        ("sensitivity_worst_p95@T=0.25", "sensitivity, worst direction: 95 % of rows below, T = 0.25", 5),
        ("difference_pair_max@T=1,eps=0.1", "difference, second key past the first: largest row, T = 1, step = 0.1", 5),
        ("critical_n@0.01", "critical N at level 0.01", 6), ("something_new", "something new", 6),
    ],
)  # fmt: skip
def test_names_with_temperatures_steps_and_levels(name: str, label: str, group: int) -> None:
    assert (measure_words(name).label, measure_words(name).group) == (label, GROUPS[group])


def test_every_measure_of_a_table_is_in_the_glossary_once() -> None:
    names = ["separability", "entropy", "sensitivity_worst_mean", "sensitivity_worst_mean@T=0.5", "critical_n@0.01"]
    table = pl.DataFrame({"measure": names * 2})
    assert [words.name for words in measures_of(table)] == [names[1], names[0], *names[2:]]
    listed = glossary(table)
    assert [group for group, _ in listed] == sorted((group for group, _ in listed), key=GROUPS.index)
    assert [words.name for _, entries in listed for words in entries] == [
        "entropy", "separability", "sensitivity_worst_mean", "critical_n",
    ]  # fmt: skip
    assert [without_temperature(name) for name in names[1:4]] == [
        ("entropy", None), ("sensitivity_worst_mean", 1.0), ("sensitivity_worst_mean", 0.5),
    ]  # fmt: skip


@pytest.mark.parametrize("model", [{}, {"dtype": None}, {"dtype": "float32"}, {"dtype": "float64"}])
def test_full_precision_and_older_folders_say_nothing(model: dict[str, object]) -> None:
    assert precision_of({"model": model}) == ""


def test_less_is_one_sentence_that_says_where_its_cost_stands() -> None:
    words = precision_of({"model": {"dtype": "float16+int8 (bitsandbytes)"}})
    assert words.startswith("The weights are float16+int8 (bitsandbytes), less than float32: ")
    assert "docs/explanation/precision.md" in words
    assert words.count(". ") == 0
