"""The words of a comparison: what each column is called, and what high and low mean in it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from ...words import numbers
from ...words.columns import COMPARE, Column
from ...words.names import BASELINE, JUMPS
from ...words.numbers import MISSING, number, percent

COLUMNS = COMPARE
BY_NAME = {column.name: column for column in COLUMNS}
IN_TABLE = (
    *("loss", "perplexity", "loss_rise", "active", "effective_tokens", "zeros", "separable"),
    *("capacity", "sensitivity_ratio", "needle_accuracy", "needle_gain", "time_ratio", "extra_megabytes"),
)
PARTS = {
    "affordable": "loss not 1 % worse",
    "lowers_loss": "lowers the loss",
    "separates": "more separable weight",
    "needs_fewer": "smaller capacity",
    "retrieves": "finds more needles",
    "helps": "helps",
}

# Relative to the baseline, whose own values are 0 or 1 by definition: an interval would look measured.
_RELATIVE = ("loss_change", "loss_rise", "separable_gain", "capacity_ratio", "sensitivity_ratio", "needle_gain")


def name_of(normalizer: str) -> str:
    """In tables and tooltips."""
    return f"{BASELINE} (softmax)" if normalizer == BASELINE else normalizer


MARK = "†"
_MARKED = ("sensitivity", "sensitivity_ratio")
BETWEEN_JUMPS = (
    f"{MARK} excludes jumps: weights change abruptly when a key enters or leaves the selection, so the true "
    "sensitivity is higher."
)


def cell_text(column: Column, row: Mapping[str, Any]) -> str:
    """The number of a normalizer, marked if it leaves out jumps."""
    mark = f" {MARK}" if row.get(JUMPS) and column.name in _MARKED and row[column.name] is not None else ""
    return value_text(column, row[column.name]) + mark


def value_text(column: Column, value: float | None) -> str:
    """A number as this column shows it."""
    if value is None:
        return MISSING
    if column.share:
        return percent(value, _digits(100 * value), signed=column.signed)
    return number(value, _digits(value), signed=column.signed)


def _digits(value: float) -> int:
    return 3 if abs(value) >= 1 else 2


def interval(column: Column, row: Mapping[str, Any]) -> str:
    """ "-1 to +2 %"; empty if there is none, as for the baseline against itself or its exact zeros ("0 to 0 %")."""
    low, high = row.get(f"{column.name}_low"), row.get(f"{column.name}_high")
    if low is None or high is None:
        return ""
    if row.get("normalizer") == BASELINE and (column.name in _RELATIVE or low == high):
        return ""
    return numbers.interval(low, high, partial(value_text, column))
