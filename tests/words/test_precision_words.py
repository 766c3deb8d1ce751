"""What is said about the precision of a model."""

from __future__ import annotations

import pytest

from abbe.words.manifest import precision_of


@pytest.mark.parametrize("model", [{}, {"dtype": None}, {"dtype": "float32"}, {"dtype": "float64"}])
def test_full_precision_and_older_folders_say_nothing(model: dict[str, object]) -> None:
    assert precision_of({"model": model}) == ""


def test_less_is_one_sentence_that_says_where_its_cost_stands() -> None:
    words = precision_of({"model": {"dtype": "float16+int8 (bitsandbytes)"}})
    assert words.startswith("The weights are float16+int8 (bitsandbytes), less than float32: ")
    assert "docs/explanation/precision.md" in words
    assert words.count(". ") == 0
