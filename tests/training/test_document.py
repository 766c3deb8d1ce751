"""docs/training.md names every quantity and every rule, and no other."""

from __future__ import annotations

import re
from pathlib import Path

from abbe.training import list_quantities, list_rules

DOCUMENT = (Path(__file__).parents[2] / "docs" / "training.md").read_text(encoding="utf-8")


def first_cells(title: str) -> list[str]:
    table = DOCUMENT.partition(f"| {title} |")[2].partition("\n\n")[0]
    return [name for row in table.splitlines()[2:] for name in re.findall(r"`(\w+)`", row.split("|")[1])]


def test_quantities_are_complete() -> None:
    assert first_cells("quantity") == [quantity.name for quantity in list_quantities()]


def test_rules_are_complete() -> None:
    assert first_cells("rule") == [rule.name for rule in list_rules()]


def test_every_quantity_is_explained() -> None:
    assert all(quantity.meaning.startswith("high") and ", low" in quantity.meaning for quantity in list_quantities())
