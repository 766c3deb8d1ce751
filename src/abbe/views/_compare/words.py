"""The words of a comparison: what each column is called, and what high and low mean in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from ...words import numbers
from ...words.names import BASELINE, JUMPS
from ...words.numbers import MISSING, number, percent


@dataclass(frozen=True)
class Column:
    """A column of the comparison's table as a person reads it."""

    name: str
    label: str
    meaning: str
    share: bool = False  # shown in percent
    signed: bool = False


COLUMNS = (
    Column("loss", "loss (nats)", "high means that the next token is predicted badly, low that it is predicted well"),
    Column("perplexity", "perplexity", "exp of the loss: among how many tokens the model hesitates; low is good"),
    Column("loss_change", "change of the loss (nats)", "above 0 means worse than the baseline, on the same windows",
           signed=True),
    Column("loss_rise", "change of the loss", "the same as a share of the baseline's loss", share=True, signed=True),
    Column("effective_tokens", "effective tokens",
           "high means that many keys share the weight, low (1) that one has it"),
    Column("active", "active tokens", "keys with a weight above 0; low means that attention is sparse"),
    Column("zeros", "exact zeros", "share of the visible keys whose weight is exactly 0; high means sparse",
           share=True),
    Column("separability", "separability of 20",
           "high (1) means that a ball holds the 20 selected tokens and no other; exact zeros tie, and ties count"),
    Column("separable", "separable weight",
           "share of the weight on tokens that the output separates from all unselected ones; ties do not count",
           share=True),
    Column("separable_gain", "gain in separable weight", "above 0 means more than the baseline",
           share=True, signed=True),
    Column("distance_per_token", "distance per token",
           "high means that an unselected token lies far from the sum of the 20 selected, low that it lies near"),
    Column("capacity", "capacity (tokens)",
           "how many of the largest weights per query are enough: with no others the loss rises by {tau}; low means "
           "that few tokens carry the model"),
    Column("capacity_ratio", "capacity over baseline",
           "below 1 means that fewer tokens are enough than with the baseline"),
    Column("sensitivity", "sensitivity at equal selectivity",
           "how far weights move with logits in the worst direction, each head at the temperature at which it is as "
           "selective as the baseline; high means fragile"),
    Column("sensitivity_own", "sensitivity of the baseline", "that of the unchanged model, on the same heads"),
    Column("sensitivity_ratio", "sensitivity over baseline", "below 1 means calmer than softmax that is as selective"),
    Column("needle_accuracy", "needle accuracy",
           "share of the prompts whose answer is right; what chance gives stands with the needle test", share=True),
    Column("needle_gain", "needle gain",
           "needle accuracy less that of the baseline on the same prompts; above 0 means that more are found. No "
           "interval where both are right on the same prompts", share=True, signed=True),
    Column("needle_margin", "needle margin (logits)",
           "logit of the right answer less that of the best wrong one; above 0 is right", signed=True),
    Column("temperature", "temperature for equal selectivity",
           "geometric mean over the heads that can be matched; high means that the normalizer must be softened"),
    Column("matched_heads", "heads matched", "share of the swapped heads that can be made as selective as the baseline",
           share=True),
    Column("sensitivity_theory", "sensitivity, proved",
           "Lipschitz constant where a margin of 1 gives one key among all of the window a weight of 0.9"),
    Column("time_ratio", "time over baseline", "of a forward pass; high means slow"),
    Column("seconds", "seconds per pass", "the best of several passes of one window"),
    Column("extra_megabytes", "extra memory (MB)", "of the tensors of a forward pass, beyond the baseline",
           signed=True),
)  # fmt: skip
BY_NAME = {column.name: column for column in COLUMNS}
IN_TABLE = (
    *("loss", "perplexity", "loss_rise", "active", "effective_tokens", "zeros", "separable"),
    *("capacity", "sensitivity_ratio", "needle_accuracy", "needle_gain", "time_ratio", "extra_megabytes"),
)
PARTS = {
    "affordable": "loss not 1 % worse",
    "lowers_loss": "lowers the loss",
    "separates": "more separable weight",
    "needs_fewer": "needs fewer tokens",
    "retrieves": "finds more needles",
    "helps": "helps",
}

# Against the baseline: of itself they are 0 or 1 by definition, and an interval would look measured.
_RELATIVE = ("loss_change", "loss_rise", "separable_gain", "capacity_ratio", "sensitivity_ratio", "needle_gain")


def name_of(normalizer: str) -> str:
    """In tables and tooltips."""
    return f"{BASELINE} (softmax)" if normalizer == BASELINE else normalizer


MARK = "†"
_MARKED = ("sensitivity", "sensitivity_ratio")
BETWEEN_JUMPS = (
    f"{MARK} between its jumps: its weights change at once where a key is selected or dropped, which no sensitivity "
    "counts. It is less calm than the number says."
)


def cell_text(column: Column, row: Mapping[str, Any]) -> str:
    """The number of a normalizer, marked where it leaves out jumps."""
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
    """ "-1 to +2 %"; empty where there is none, as for the baseline against itself or its exact zeros ("0 to 0 %")."""
    low, high = row.get(f"{column.name}_low"), row.get(f"{column.name}_high")
    if low is None or high is None:
        return ""
    if row.get("normalizer") == BASELINE and (column.name in _RELATIVE or low == high):
        return ""
    return numbers.interval(low, high, partial(value_text, column))
