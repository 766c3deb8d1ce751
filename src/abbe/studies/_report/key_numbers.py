"""The five numbers that matter: over all heads, at the largest length, with interval, limit and control."""

from __future__ import annotations

import math
from collections.abc import Callable

from ...words.finding import KeyNumber
from ...words.numbers import percent, power_of_n, tokens
from .._engine.lookup import Cell, Lookup

LEVEL = 0.01  # of the test behind the critical N, as in the text of arXiv 2508.17821
_UNKNOWN = (None,) * 5  # value, interval, limit and control


def key_numbers(table: Lookup) -> tuple[KeyNumber, ...]:
    """Effective tokens, separability, critical N, decay exponent, sensitivity: all heads, at the largest length."""
    longest, size = table.longest, table.size
    return (
        _number(
            "effective tokens", "effective_tokens", table.overall("effective_tokens", longest),
            lambda c: tokens(c.value),
            lambda c: f"A query spreads its weight as if equally over {tokens(c.value)}"
            + ("." if c.limit is None else f", of {c.limit:,.0f} that it sees on average."),
        ),
        _number(
            f"separability of {size} tokens" if size else "separability", "separability",
            table.overall("separability", longest, size),
            lambda c: percent(c.value),
            lambda c: f"The share of the top {tokens(size or 0)} that is separable from the rest"
            + ("." if c.control is None else f"; of {tokens(size or 0)} drawn at random: {percent(c.control)}."),
        ),
        _critical_number(table),
        _number(
            "decay exponent", "decay_exponent", table.overall("decay_exponent"),
            lambda c: f"{c.value:.2f}",
            lambda c: f"The largest weight of a head scales as {power_of_n(c.value)} with the n keys it sees; a "
            "uniform head's as n^-1.",
        ),
        _number(
            "worst sensitivity", "sensitivity_worst_mean", table.overall("sensitivity_worst_mean", longest),
            lambda c: f"{c.value:.2g} per logit",
            lambda c: "How far the weights move for a unit change of the logits in the worst direction"
            + ("." if c.limit is None else f"; the proved ceiling is {c.limit:.3g} on average over queries."),
        ),
    )  # fmt: skip


def _number(
    name: str, measure: str, cell: Cell | None, shown: Callable[[Cell], str], meaning: Callable[[Cell], str]
) -> KeyNumber:
    if cell is None:
        return KeyNumber(name, measure, *_UNKNOWN, "not measured", "No query gave this number.")
    numbers = (cell.value, cell.low, cell.high, cell.limit, cell.control)
    return KeyNumber(name, measure, *numbers, shown(cell), meaning(cell))


def _critical_number(table: Lookup) -> KeyNumber:
    name, measure = "critical N", f"critical_n@{LEVEL:g}"
    critical, tested = critical_n(table)
    if not tested:
        return _number(name, measure, None, str, str)
    if not can_reject(table):
        meaning = f"With so few heads the test cannot distinguish anything from chance at level {LEVEL:g}."
        return KeyNumber(name, measure, *_UNKNOWN, "too few heads", meaning)
    if critical is None:
        meaning = f"Up to {tested[-1]} selected tokens, the heads' distances differ from those of random sets."
        return KeyNumber(name, measure, *_UNKNOWN, f"none up to {tested[-1]}", meaning)
    size = tokens(critical.value)
    meaning = f"With {size} selected, the heads' distances are first indistinguishable from random sets."
    return KeyNumber(name, measure, critical.value, critical.low, critical.high, None, None, size, meaning)


def can_reject(table: Lookup) -> bool:
    """Whether the test can reject at all: the smallest p-value of two samples of m heads is 2/C(2m, m)."""
    heads = max((len(table.heads("distance", table.longest, n)) for n in table.sizes), default=0)
    return 2 / math.comb(2 * heads, heads) <= LEVEL


def critical_n(table: Lookup) -> tuple[Cell | None, list[int]]:
    """The critical N at the largest length, None if there is none; and the sizes that were tested."""
    longest = table.longest
    tested = sorted(n for name, length, n in table.of_all if name == "ks_p_value" and length == longest and n)
    return table.overall(f"critical_n@{LEVEL:g}", longest), tested
