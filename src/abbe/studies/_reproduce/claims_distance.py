"""Statements about the distance of the selected tokens, and about critical N: figures 2a, 2b and 2c."""

from __future__ import annotations

import polars as pl
import torch

from ...measures import ks_test
from ...words.numbers import percent
from ...words.paper import PAPER_CRITICAL_SHARE
from .claim_rules import CLEARLY, LINEAR, Judged, answer, inside, line_of, power, slope, with_readings
from .result import Claim, Figure

CONSERVATIVE = 1.25  # a bound this many times above the value
PLATEAU = 0.1  # largest relative change on a plateau
CRITICAL_SHARE = (PAPER_CRITICAL_SHARE / 2, 2 * PAPER_CRITICAL_SHARE)
SUB_LINEAR = (0.05, 0.95)  # exponents that count as growth, but slower than L


def growth(figure: Figure) -> Claim:
    lines = {name: line_of(figure.tables["distance"], "length", name) for name in ("selected", "random")}
    exponents = {name: slope(list(line), list(line.values())) for name, line in lines.items()}
    linear = [inside(value, LINEAR) for value in exponents.values()]
    return Claim(
        "2a",
        "distance grows with length",
        "the distance of the selected tokens, and its mean over random sets, grow roughly linearly in L",
        f"like L^{power(exponents['selected'])} for selected and L^{power(exponents['random'])} for random sets",
        f"both exponents of a power law over all lengths lie between {LINEAR[0]:g} and {LINEAR[1]:g}",
        answer(None if None in linear else all(linear)),
        {f"exponent of {name}": value for name, value in exponents.items()},
    )


def bound_is_loose(figure: Figure) -> Claim:
    table = figure.tables["distance"]
    selected, bound = (line_of(table, "length", name) for name in ("selected", "bound"))
    ratios = [bound[length] / selected[length] for length in selected if length in bound and selected[length] > 0]
    return Claim(
        "2a",
        "bound of Theorem 1",
        "the bound holds and is conservative",
        f"it is {min(ratios):.3g} to {max(ratios):.3g} times the distance" if ratios else "no bound was found",
        f"it is at least {CONSERVATIVE:g} times the distance at every length (in its linear form, which is true, with "
        "d1 replaced by a larger number that needs no pairs of tokens)",
        answer(min(ratios) >= CONSERVATIVE if ratios else None),
        {"least ratio": min(ratios, default=None), "largest ratio": max(ratios, default=None)},
    )


def formula_is_upper_bound(figure: Figure) -> Claim:
    table = figure.tables["distance"]
    random, low, high = (line_of(table, "length", name) for name in ("random", "expected low", "expected high"))
    ratios = [random[length] / low[length] for length in random if low.get(length, 0) > 0]
    tops = [random[length] / high[length] for length in random if high.get(length, 0) > 0]
    measured = f"random sets are at up to {max(ratios):.3g} times it" if ratios else "no bound was found"
    if tops:
        measured += f", and at most {max(tops):.3g} times the corrected one"
    return Claim(
        "2a",
        "formula of Theorem 1(2)",
        "the mean distance of random sets is at most the formula of Theorem 1(2) (read without its term epsilon)",
        measured,
        f"refuted where random sets exceed it by more than {percent(CLEARLY)}; it cannot be confirmed, because by "
        "Jensen's inequality it is a lower bound",
        answer(False if ratios and max(ratios) > 1 + CLEARLY else None),
        {"largest ratio": max(ratios, default=None), "largest ratio to the corrected": max(tops, default=None)},
    )


def plateau(figure: Figure) -> Claim:
    line = line_of(figure.tables["distance"], "n", "selected")
    rise = change = None
    if {1, 20, 100} <= line.keys():
        rise, change = line[20] / line[1] - 1, line[100] / line[20] - 1
    return Claim(
        "2b",
        "plateau in N",
        "the distance reaches a plateau beyond about 20 selected tokens",
        f"from N = 1 to 20 it changes by {percent(rise, 2, signed=True)}, from 20 to 100 by "
        f"{percent(change, 2, signed=True)}",
        f"at most {percent(PLATEAU)} change from N = 20 to 100, and more than that from 1 to 20",
        answer(None if rise is None or change is None else abs(change) <= PLATEAU < abs(rise)),
        {"change from 1 to 20": rise, "change from 20 to 100": change},
    )


def critical_share(figure: Figure) -> Claim:
    table = figure.tables["critical"].filter(pl.col("vectors") == "embedding")
    longest = table.filter(pl.col("length") == pl.col("length").max()).sort("level")
    parts: list[str] = []
    numbers: dict[str, float | None] = {}
    for row in longest.iter_rows(named=True):
        critical, level = row["critical_n"], row["level"]
        share = None if critical is None else critical / row["length"]
        size = f"none up to {row['largest_n']}" if share is None else f"N = {critical:.0f}, {share:.3g} L"
        parts.append(f"{size} at level {level:g}")
        numbers[f"critical N / L at {level:g}"] = share
    holds, _ = _judge_share(longest.head(1))  # at the lowest level, that of the paper's text
    claim = Claim(
        "2c",
        "critical N",
        f"selected and random sets are no longer distinguishable from about N = {PAPER_CRITICAL_SHARE:g} L on",
        f"at {int(longest['length'][0])} tokens: " + "; ".join(parts),
        f"at level 0.01 and the longest length, critical N / L lies between {CRITICAL_SHARE[0]:g} and "
        f"{CRITICAL_SHARE[1]:g} (the test's power depends on the number of heads: "
        f"{figure.about.get('heads', '?')} here, 144 in the paper)",
        answer(holds if _can_reject(figure, longest["level"][0]) else None),
        numbers,
    )
    return with_readings(claim, figure, "critical N / L at 0.01", _judge_share, _can_reject(figure, 0.01))


def _judge_share(rows: pl.DataFrame) -> Judged:
    """At the longest length; without a critical N the paper's statement does not hold."""
    last = rows.row(-1, named=True)
    share = None if last["critical_n"] is None else last["critical_n"] / last["length"]
    return bool(inside(share, CRITICAL_SHARE)), share


def _can_reject(figure: Figure, level: float) -> bool:
    """Whether there are enough heads for the test to reject anything."""
    heads = figure.about.get("heads", 0)
    return heads > 0 and ks_test(torch.zeros(heads), torch.ones(heads))[1] <= level


def critical_growth(figure: Figure) -> Claim:
    table = figure.tables["critical"].filter((pl.col("vectors") == "embedding") & (pl.col("level") == 0.01))
    holds, exponent = _judge_growth(table)
    enough = _can_reject(figure, 0.01)
    measured = f"like L^{exponent:.2f}" if exponent is not None else "no growth to fit"
    if missing := table["critical_n"].null_count():
        measured += f"; every test rejects at {missing} of {len(table)} lengths"
    claim = Claim(
        "2c",
        "critical N grows with length",
        "critical N grows sub-linearly in L",
        measured,
        f"the exponent of a power law lies between {SUB_LINEAR[0]:g} and {SUB_LINEAR[1]:g} (level 0.01; not judged "
        "unless there is a critical N at every length, and at three or more)",
        answer(holds if enough else None),
        {"exponent": exponent},
    )
    return with_readings(claim, figure, "exponent", _judge_growth, enough)


def _judge_growth(rows: pl.DataFrame) -> Judged:
    """Over all lengths, if there is a critical N at each of them."""
    known = rows.filter(pl.col("critical_n").is_not_null()).sort("length")
    exponent = slope(known["length"].to_list(), known["critical_n"].to_list())
    return inside(exponent, SUB_LINEAR) if len(known) == len(rows) else None, exponent


def collapse(figure: Figure) -> Claim:
    table = figure.tables["proportional"].filter(pl.col("vectors") == "embedding").sort("length")
    line = dict(table.select("length", "value").iter_rows())
    measured, holds, exponent = "too few lengths", None, None
    if len(line) > 1:
        measured = f"{line[min(line)]:.3g} at {min(line)} tokens, {line[max(line)]:.3g} at {max(line)}"
        exponent = slope(list(line), list(line.values()))
        holds = line[max(line)] < (1 - CLEARLY) * line[min(line)]
    return Claim(
        "2c",
        "N in proportion to L",
        "if N grows in proportion to L, the distance collapses to 0",
        measured + (f", like L^{exponent:.2f}" if exponent is not None else ""),
        f"for N = L/8 the distance is more than {percent(CLEARLY)} lower at the longest than at the shortest length",
        answer(holds),
        {"exponent": exponent},
    )
