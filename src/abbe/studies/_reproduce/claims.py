"""The paper's statements as declared records: what it says, the rule, and the judge that applies it to a figure.

The rules are ours, as the paper states most of this in words; each is reported with its answer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
import torch

from ...measures import ks_test
from ...runs.tables import DEFAULT, READINGS
from ...words.numbers import number, percent
from ...words.paper import DRIFT, PAPER_CRITICAL_SHARE, PAPER_SEPARABILITY
from .result import Answer, Claim, Figure

LINEAR = (0.8, 1.2)  # exponents that count as "roughly linear", or as 1/T with the sign changed
CLEARLY = 0.05  # relative difference of two means that chance does not explain: random sets are drawn once per query
CONSERVATIVE = 1.25  # a bound this many times above the value
PLATEAU = 0.1  # largest relative change on a plateau
CRITICAL_SHARE = (PAPER_CRITICAL_SHARE / 2, 2 * PAPER_CRITICAL_SHARE)
SUB_LINEAR = (0.05, 0.95)  # exponents that count as growth, but slower than L
TURN = 16  # where the paper sees separability settle
LOW_TEMPERATURE = 0.1
_PER_HEAD = ("head means", "each query")  # tests of as many numbers as there are heads


@dataclass(frozen=True)
class Judgement:
    """Whether a statement holds (None: it cannot be judged), what this model shows, and the numbers that decide."""

    holds: bool | None
    measured: str
    numbers: Mapping[str, float | None]


@dataclass(frozen=True)
class Statement:
    """A statement of the paper; `{heads}` and `{size}` in its rule are those of the figure."""

    figure: str
    topic: str
    paper: str
    rule: str
    judge: Callable[[Figure], Judgement]

    def claim(self, figure: Figure) -> Claim:
        judgement = self.judge(figure)
        rule = self.rule.format(heads=figure.about.get("heads", "?"), size=figure.about.get("size", 5))
        answer = _answer(judgement.holds)
        return Claim(self.figure, self.topic, self.paper, judgement.measured, rule, answer, judgement.numbers)


def _answer(holds: bool | None) -> Answer:
    if holds is None:
        return "cannot be judged"
    return "holds" if holds else "does not hold"


def _slope(x: Sequence[float], y: Sequence[float]) -> float | None:
    """Exponent of a power law: least squares of ln y on ln x; None for fewer than three points or y <= 0."""
    if len(x) < 3 or min(y) <= 0:
        return None
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def _power(exponent: float | None) -> str:
    return number(exponent, 3, missing="unknown")


def _inside(value: float | None, limits: tuple[float, float]) -> bool | None:
    return None if value is None else limits[0] <= value <= limits[1]


def _line(table: pl.DataFrame, axis: str, series: str, vectors: str = "embedding") -> dict[int, float]:
    """The values of one series, by length or size."""
    chosen = table.filter((pl.col("series") == series) & (pl.col("vectors") == vectors))
    return dict(chosen.sort(axis).select(axis, "value").iter_rows())


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


# Distance: figures 2a and 2b


def _growth(figure: Figure) -> Judgement:
    lines = {name: _line(figure.tables["distance"], "length", name) for name in ("selected", "random")}
    exponents = {name: _slope(list(line), list(line.values())) for name, line in lines.items()}
    linear = [_inside(value, LINEAR) for value in exponents.values()]
    return Judgement(
        None if None in linear else all(linear),
        f"like L^{_power(exponents['selected'])} for selected and L^{_power(exponents['random'])} for random sets",
        {f"exponent of {name}": value for name, value in exponents.items()},
    )


def _ratios(figure: Figure, above: str, below: str) -> list[float]:
    """One series over another, at every length where both are known."""
    first, second = (_line(figure.tables["distance"], "length", name) for name in (above, below))
    return [first[length] / second[length] for length in first if second.get(length, 0) > 0]


def _bound(figure: Figure) -> Judgement:
    ratios = _ratios(figure, "bound", "selected")
    return Judgement(
        min(ratios) >= CONSERVATIVE if ratios else None,
        f"it is {min(ratios):.3g} to {max(ratios):.3g} times the distance" if ratios else "no bound was found",
        {"least ratio": min(ratios, default=None), "largest ratio": max(ratios, default=None)},
    )


def _formula(figure: Figure) -> Judgement:
    ratios, tops = _ratios(figure, "random", "expected low"), _ratios(figure, "random", "expected high")
    measured = f"random sets are at up to {max(ratios):.3g} times it" if ratios else "no bound was found"
    if tops:
        measured += f", and at most {max(tops):.3g} times the corrected one"
    return Judgement(
        False if ratios and max(ratios) > 1 + CLEARLY else None,
        measured,
        {"largest ratio": max(ratios, default=None), "largest ratio to the corrected": max(tops, default=None)},
    )


def _plateau(figure: Figure) -> Judgement:
    line = _line(figure.tables["distance"], "n", "selected")
    rise = change = None
    if {1, 20, 100} <= line.keys():
        rise, change = line[20] / line[1] - 1, line[100] / line[20] - 1
    return Judgement(
        None if rise is None or change is None else abs(change) <= PLATEAU < abs(rise),
        f"from N = 1 to 20 it changes by {percent(rise, 2, signed=True)}, from 20 to 100 by "
        f"{percent(change, 2, signed=True)}",
        {"change from 1 to 20": rise, "change from 20 to 100": change},
    )


# Critical N: figure 2c


def _critical(figure: Figure) -> pl.DataFrame:
    return figure.tables["critical"].filter(pl.col("vectors") == "embedding")


def _critical_share(figure: Figure) -> Judgement:
    longest = _critical(figure).filter(pl.col("length") == pl.col("length").max()).sort("level")
    parts: list[str] = []
    numbers: dict[str, float | None] = {}
    for row in longest.iter_rows(named=True):
        critical, level = row["critical_n"], row["level"]
        share = None if critical is None else critical / row["length"]
        size = f"none up to {row['largest_n']}" if share is None else f"N = {critical:.0f}, {share:.3g} L"
        parts.append(f"{size} at level {level:g}")
        numbers[f"critical N / L at {level:g}"] = share
    holds, _ = _share_of_length(longest.head(1))  # at the lowest level, that of the paper's text
    judgement = Judgement(
        holds if _can_reject(figure, longest["level"][0]) else None,
        f"at {int(longest['length'][0])} tokens: " + "; ".join(parts),
        numbers,
    )
    return _with_readings(judgement, figure, "critical N / L at 0.01", _share_of_length)


def _share_of_length(rows: pl.DataFrame) -> tuple[bool | None, float | None]:
    """At the longest length; without a critical N the paper's statement does not hold."""
    last = rows.row(-1, named=True)
    share = None if last["critical_n"] is None else last["critical_n"] / last["length"]
    return bool(_inside(share, CRITICAL_SHARE)), share


def _critical_growth(figure: Figure) -> Judgement:
    table = _critical(figure).filter(pl.col("level") == 0.01)
    holds, exponent = _growth_with_length(table)
    measured = f"like L^{exponent:.2f}" if exponent is not None else "no growth to fit"
    if missing := table["critical_n"].null_count():
        measured += f"; every test rejects at {missing} of {len(table)} lengths"
    judgement = Judgement(holds if _can_reject(figure, 0.01) else None, measured, {"exponent": exponent})
    return _with_readings(judgement, figure, "exponent", _growth_with_length)


def _growth_with_length(rows: pl.DataFrame) -> tuple[bool | None, float | None]:
    """Over all lengths, if there is a critical N at each of them."""
    known = rows.filter(pl.col("critical_n").is_not_null()).sort("length")
    exponent = _slope(known["length"].to_list(), known["critical_n"].to_list())
    return _inside(exponent, SUB_LINEAR) if len(known) == len(rows) else None, exponent


def _can_reject(figure: Figure, level: float) -> bool:
    """Whether there are enough heads for the test to reject anything."""
    heads = figure.about.get("heads", 0)
    return heads > 0 and ks_test(torch.zeros(heads), torch.ones(heads))[1] <= level


def _with_readings(
    judgement: Judgement,
    figure: Figure,
    name: str,
    judge: Callable[[pl.DataFrame], tuple[bool | None, float | None]],
) -> Judgement:
    """The same with its number under every other reading, and a sentence on whether the answer depends on it.

    `judge` gets the rows of one reading, embedding vectors and level 0.01, by length, and gives whether the statement
    holds and the number that decides. The answer stays that of the default reading.
    """
    table = figure.tables.get("readings")
    if table is None or not table.height:
        return judgement
    chosen = table.filter((pl.col("vectors") == "embedding") & (pl.col("level") == pl.col("level").min()))
    usual, enough_heads = _answer(judgement.holds), _can_reject(figure, 0.01)
    others, numbers = [], dict(judgement.numbers)
    for expected, test in READINGS:
        if (expected, test) == DEFAULT:
            continue
        rows = chosen.filter((pl.col("expected") == expected) & (pl.col("test") == test)).sort("length")
        holds, numbers[f"{name}, {expected}, {test}"] = judge(rows)
        answer = _answer(holds if enough_heads or test not in _PER_HEAD else None)
        if answer != usual:
            others.append(f"{expected} and {test} ({answer})")
    depends = f"The verdict is the same under all {len(READINGS)} readings of “expected” and of the test"
    if others:
        depends = f"The verdict depends on the reading: it differs for {'; '.join(others)}"
    return Judgement(judgement.holds, f"{judgement.measured}. {depends}", numbers)


def _collapse(figure: Figure) -> Judgement:
    table = figure.tables["proportional"].filter(pl.col("vectors") == "embedding").sort("length")
    line = dict(table.select("length", "value").iter_rows())
    if len(line) < 2:
        return Judgement(None, "too few lengths", {"exponent": None})
    first, last = line[min(line)], line[max(line)]
    exponent = _slope(list(line), list(line.values()))
    measured = f"{first:.3g} at {min(line)} tokens, {last:.3g} at {max(line)}"
    if exponent is not None:
        measured += f", like L^{exponent:.2f}"
    return Judgement(last < (1 - CLEARLY) * first, measured, {"exponent": exponent})


# Separability: figure 3


def _separability_falls(figure: Figure) -> Judgement:
    line = _line(figure.tables["mean"], "n", "selected")
    if TURN not in line or len(line) < 3:
        return Judgement(None, "too few sizes", {f"fall to {TURN}": None, "fall beyond": None})
    fall, later = line[min(line)] - line[TURN], line[TURN] - line[max(line)]
    return Judgement(
        fall >= 0.05 and abs(later) < fall / 2,
        f"it falls by {fall:.2f} up to N = {TURN}, and by {later:.2f} from there to N = {max(line)}",
        {f"fall to {TURN}": fall, "fall beyond": later},
    )


def _separability_settles(figure: Figure) -> Judgement:
    def beyond(series: str, vectors: str) -> list[float]:
        line = _line(figure.tables["mean"], "n", series, vectors)
        return [value for n, value in line.items() if n >= TURN]

    selected, chance = beyond("selected", "embedding"), beyond("random", "embedding")
    parts = {"": selected, "random sets ": chance, "in value space ": beyond("selected", "value")}
    measured = [f"{name}{min(line):.2f} to {max(line):.2f}" for name, line in parts.items() if line]
    return Judgement(
        all(_inside(value, PAPER_SEPARABILITY) for value in selected) if selected else None,
        "; ".join(measured if selected else ["no such size", *measured]),
        {"mean": _mean(selected), "mean of random sets": _mean(chance)},
    )


# Sensitivity: figure 4


def _low_temperature(figure: Figure) -> Judgement:
    table = figure.tables["sensitivity"].filter(pl.col("temperature") <= LOW_TEMPERATURE)
    smallest_step = table.filter(pl.col("step") == pl.col("step").min())
    derivative = table.filter(pl.col("step").is_null())
    exponents = {
        "random direction, largest head": _exponent(smallest_step, "random", "paper"),
        "random direction, largest row": _exponent(smallest_step, "random", "max"),
        "worst direction, mean": _exponent(derivative, "worst", "mean"),
        "worst direction, largest row": _exponent(derivative, "worst", "max"),
    }
    judged = exponents["random direction, largest head"]
    others = "; ".join(f"{name} T^{_power(value)}" for name, value in list(exponents.items())[1:])
    return Judgement(
        _inside(judged, (-LINEAR[1], -LINEAR[0])),
        f"like T^{_power(judged)} as the paper measures it; {others}",
        {f"exponent: {name}": value for name, value in exponents.items()},
    )


def _exponent(table: pl.DataFrame, direction: str, statistic: str) -> float | None:
    chosen = table.filter((pl.col("direction") == direction) & (pl.col("statistic") == statistic)).sort("temperature")
    return _slope(chosen["temperature"].to_list(), chosen["value"].to_list())


def _ceiling(figure: Figure) -> Judgement:
    worst = figure.tables["sensitivity"].filter(
        (pl.col("direction") == "worst") & (pl.col("statistic") == "max") & pl.col("step").is_null()
    )
    ceilings = figure.tables["ceilings"].filter(pl.col("step").is_null()).select("temperature", "true", "paper")
    both = worst.join(ceilings, on="temperature")
    ratios = {name: max((both["value"] / both[name]).to_list(), default=math.nan) for name in ("paper", "true")}
    true = f"{ratios['true']:.3g}"
    beside = "equal to" if true == "1" else f"{true} times"
    return Judgement(
        None if math.isnan(ratios["paper"]) else ratios["paper"] <= 1,
        f"the largest is {ratios['paper']:.3g} times that, and {beside} the true ceiling 1/(2T)",
        {"largest ratio": ratios["paper"], "largest ratio to 1/(2T)": ratios["true"]},
    )


# The drift to uniform, from the runs of figures 2a and 2b


def _ends(table: pl.DataFrame, axis: str) -> tuple[dict[int, float], dict[int, float]]:
    """Divergence and share at the two ends of the axis; nothing for fewer than two points."""
    chosen = table.filter(pl.col("series") == "selected").sort(axis)
    if len(chosen) < 2:
        return {}, {}
    ends = chosen[[0, -1]]
    return dict(ends.select(axis, "value").iter_rows()), dict(ends.select(axis, "share").iter_rows())


def _falls(line: Mapping[int, float]) -> bool | None:
    """From the first to the last point; None if there are none, or the change is too small to tell."""
    if len(line) < 2:
        return None
    first, last = line.values()
    return None if abs(last - first) <= CLEARLY * abs(first) else last < first


def _drift_with_size(figure: Figure) -> Judgement:
    nats, shares = _ends(figure.tables["by_size"].filter(pl.col("n") >= 5), "n")
    measured = "too few sizes"
    if nats and shares:
        (first, last), (low, high), (small, large) = nats, nats.values(), shares.values()
        measured = f"{low:.3g} nats at N = {first}, {high:.3g} at {last}; {small:.3g} and {large:.3g} of ln N"
    numbers = {f"divergence at {n}": value for n, value in nats.items()}
    numbers |= {f"share at {n}": share for n, share in shares.items()}
    return Judgement(_falls(nats) if _falls(nats) == _falls(shares) else None, measured, numbers)


def _drift_with_length(figure: Figure) -> Judgement:
    nats, _ = _ends(figure.tables["by_length"], "length")
    values = "; ".join(f"{value:.3g} nats at {length} tokens" for length, value in nats.items())
    numbers = {f"divergence at {length}": value for length, value in nats.items()}
    return Judgement(_falls(nats), values or "too few lengths", numbers)


_SHARE = "{:.2f} to {:.2f}".format(*PAPER_SEPARABILITY)
STATEMENTS = (
    Statement(
        "2a",
        "distance grows with length",
        "the distance of the selected tokens, and its mean over random sets, grow roughly linearly in L",
        f"both exponents of a power law over all lengths lie between {LINEAR[0]:g} and {LINEAR[1]:g}",
        _growth,
    ),
    Statement(
        "2a",
        "bound of Theorem 1",
        "the bound holds and is conservative",
        f"it is at least {CONSERVATIVE:g} times the distance at every length (in its linear form, which is true, with "
        "d1 replaced by a larger number that needs no pairs of tokens)",
        _bound,
    ),
    Statement(
        "2a",
        "formula of Theorem 1(2)",
        "the mean distance of random sets is at most the formula of Theorem 1(2) (read without its term epsilon)",
        f"refuted where random sets exceed it by more than {percent(CLEARLY)}; it cannot be confirmed, because by "
        "Jensen's inequality it is a lower bound",
        _formula,
    ),
    Statement(
        "2b",
        "plateau in N",
        "the distance reaches a plateau beyond about 20 selected tokens",
        f"at most {percent(PLATEAU)} change from N = 20 to 100, and more than that from 1 to 20",
        _plateau,
    ),
    Statement(
        "2c",
        "critical N",
        f"selected and random sets are no longer distinguishable from about N = {PAPER_CRITICAL_SHARE:g} L on",
        f"at level 0.01 and the longest length, critical N / L lies between {CRITICAL_SHARE[0]:g} and "
        f"{CRITICAL_SHARE[1]:g} (the test's power depends on the number of heads: {{heads}} here, 144 in the paper)",
        _critical_share,
    ),
    Statement(
        "2c",
        "critical N grows with length",
        "critical N grows sub-linearly in L",
        f"the exponent of a power law lies between {SUB_LINEAR[0]:g} and {SUB_LINEAR[1]:g} (level 0.01; not judged "
        "unless there is a critical N at every length, and at three or more)",
        _critical_growth,
    ),
    Statement(
        "2c",
        "N in proportion to L",
        "if N grows in proportion to L, the distance collapses to 0",
        f"for N = L/8 the distance is more than {percent(CLEARLY)} lower at the longest than at the shortest length",
        _collapse,
    ),
    Statement(
        "3",
        "separability falls",
        f"the separable share N_s/N falls until N is about {TURN}, then settles",
        f"from N = 1 to {TURN} it falls by at least 0.05, and beyond changes by less than half of that fall",
        _separability_falls,
    ),
    Statement(
        "3",
        "separable share",
        f"beyond N = {TURN}, {_SHARE} of the selected tokens are separable",
        f"at every size from {TURN} on, the mean over heads lies between {_SHARE.replace('to', 'and')}",
        _separability_settles,
    ),
    Statement(
        "4",
        "sensitivity at low temperature",
        f"below T = {LOW_TEMPERATURE:g} the sensitivity grows like 1/T",
        f"the exponent below T = {LOW_TEMPERATURE:g} (random direction, smallest step, mean over queries, largest "
        f"head) lies between {-LINEAR[1]:g} and {-LINEAR[0]:g}",
        _low_temperature,
    ),
    Statement(
        "4",
        "ceiling of Corollary 3",
        "the gradient's norm is at most min{1/(4T), sqrt 2}",
        "at no temperature does the worst direction of any row exceed it",
        _ceiling,
    ),
    Statement(
        DRIFT,
        "drift to uniform with N",
        "the more tokens are selected, the nearer their weights are to uniform (our reading of its words)",
        "from N = 5 to the largest, both the divergence of the renormalised selected weights from uniform and its "
        f"share of the largest possible, ln N, fall by more than {percent(CLEARLY)}; not judged if they disagree",
        _drift_with_size,
    ),
    Statement(
        DRIFT,
        "drift to uniform with L",
        "the longer the context, the nearer the weights of the selected are to uniform (our reading of its words)",
        f"the divergence for N = {{size}} is more than {percent(CLEARLY)} lower at the longest than at the shortest "
        "length; not judged if the two are closer",
        _drift_with_length,
    ),
)


def judge(figures: Mapping[str, Figure]) -> tuple[Claim, ...]:
    """All statements for which there is a figure."""
    return tuple(statement.claim(figures[statement.figure]) for statement in STATEMENTS if statement.figure in figures)
