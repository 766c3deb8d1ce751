"""The page of architectures: it lists every model type once, agrees with the tiny models of the tests, and is true."""

from __future__ import annotations

from typing import Any

import pytest
import tiny_models
import torch
import transformers
from load_scripts import script

architectures = script("architectures")
TEXT = architectures.PAGE.read_text(encoding="utf-8")
ROWS: dict[str, Any] = {row.model_type: row for row in architectures.read_page(TEXT)}
pytestmark = pytest.mark.skipif(
    f"transformers {transformers.__version__}," not in TEXT, reason="the page is about another version of transformers"
)


def test_the_page_is_what_the_script_writes_and_lists_all() -> None:
    rows = sorted(ROWS.values(), key=lambda row: row.model_type)
    assert architectures.page(rows) == TEXT
    assert list(map(str, sorted(ROWS))) == architectures.model_types()


def test_the_tiny_models_of_the_tests_are_listed_as_they_behave() -> None:
    more = (tiny_models.albert, tiny_models.diffllama, tiny_models.hrm, tiny_models.gemma4)
    for build in (*(family.build for family in tiny_models.FAMILIES.values()), *more):
        config: Any = build().config
        assert ROWS[config.model_type].outcome == architectures.MEASURED
    for name, build in tiny_models.UNROUTED.items():
        config = build().config
        row = ROWS[config.model_type]
        assert (row.outcome, "does not route its attention" in row.reason) == (architectures.REFUSED, True), name


FIRST = ("bailing_hybrid", "glm5_next_text", "gemma4_text", "hrm_text")  # each was an error or a refusal once


@pytest.mark.quick(len(FIRST))
@pytest.mark.parametrize("kind", sorted(ROWS, key=lambda kind: kind not in FIRST))
def test_a_row_is_true(kind: str) -> None:
    row, now = ROWS[kind], architectures.tried(kind)
    assert (now.outcome, now.network, now.compared) == (row.outcome, row.network, row.compared), now.reason
    if row.outcome == architectures.REFUSED:
        assert now.reason == row.reason


@torch.no_grad()
def test_a_silent_difference_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The trial itself: weights, a swap and entmax that are slightly wrong are each noticed."""
    eager, network = architectures.eager, architectures.build("llama")

    def bent(network: Any) -> Any:
        twin = eager(network)
        twin.model.layers[1].self_attn.scaling *= 1.01
        return twin

    monkeypatch.setattr(architectures, "eager", bent)
    with pytest.raises(ArithmeticError, match="weights of"):
        list(architectures._compared(network))
    monkeypatch.setattr(architectures, "own_weights", lambda *_: {})
    with pytest.raises(ArithmeticError, match="entmax swapped in: outputs differ"):
        list(architectures._compared(network))
