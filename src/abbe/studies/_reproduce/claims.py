"""The paper's statements, each above the judge that applies its rule to a figure.

The rules are ours, as the paper states most of this in words; each is reported with its answer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import polars as pl
import torch

from ...measures import ks_test
from ...runs.tables import DEFAULT, READINGS
from ...words.names import PAPER_CRITICAL_SHARE
from ...words.numbers import number, percent

DRIFT = "drift"  # ours: the paper says it in words; computed from the runs of 2a and 2b
PAPER_SEPARABILITY = (0.70, 0.85)  # its separable share beyond N of about 16
_QUESTIONS = {  # the titles of the charts; the page says how to read them
    "2a": "Does the distance between the selected and the rest grow with the length?",
    "2b": "Does selecting more tokens increase the distance?",
    "2c": "Up to which N do the selected differ from random sets?",
    "3": "How many of the selected tokens are separable from the others?",
    "4": "How much do the weights move when the logits move a little?",
    DRIFT: "Do the weights inside the selected set become uniform?",
}
Answer = Literal["holds", "does not hold", "cannot be judged"]
LINEAR = (0.8, 1.2)  # exponents that count as "roughly linear", or as 1/T with the sign changed
CLEARLY = 0.05  # relative difference of two means that chance does not explain: random sets are drawn once per query
CONSERVATIVE = 1.25  # a bound this many times above the value
PLATEAU = 0.1  # largest relative change on a plateau
CRITICAL_SHARE = (PAPER_CRITICAL_SHARE / 2, 2 * PAPER_CRITICAL_SHARE)
SUB_LINEAR = (0.05, 0.95)  # exponents that count as growth, but slower than L
TURN = 16  # where the paper sees separability settle
LOW_TEMPERATURE = 0.1
_PER_HEAD = ("head means", "each query")  # tests of as many numbers as there are heads
_SHARE = "{:.2f} to {:.2f}".format(*PAPER_SEPARABILITY)


@dataclass(frozen=True, eq=False)
class Figure:
    """One figure as tidy tables, independent of how it is drawn.

    Tables, by figure (lengths and sizes in tokens, distances in the units of the vectors, means over all heads; `low`
    and `high` are the ends of an interval over windows and may be null):

    2a "distance": vectors, length, series, value, low, high. Size 5.
    2b "distance": vectors, n, series, value, low, high. The longest length.
       `series` is "selected" (the N keys of largest weight), "random" (random sets of N), "bound" (Theorem 1(1), linear
       form, for the selected), "expected low" and "expected high" (the proved bounds on the mean over random sets; the
       paper calls the low one an upper bound).
    2c "critical": vectors, length, level, critical_n (null: every test rejects), low, high, largest_n (last one tried).
       "tests": vectors, length, n, statistic, p_value. "proportional": vectors, length, n (L/8), value, low, high.
       "readings": vectors, length, level, expected ("random sets" or the "formula" of Theorem 1(2)), test (of "head
       means", at "each query", or of "all queries" of a window), critical_n (the middle one of all tests; null: most
       reject at every size), rejecting (share of the tests that do), largest_n.
    3  "heads": vectors, layer, head, n, value, control. "mean": vectors, n, series ("selected" or "random"), value,
       low, high.
    4  "sensitivity": temperature, step (null for a derivative), direction ("random", "pair" or "worst"), statistic
       ("paper": mean over queries, then the largest head; "mean": over heads, too; "max": the largest row), value.
       "ceilings": temperature, step, true (proved: 1/(2T), for steps lower yet), paper (min of 1/(4T) and sqrt 2).
    drift "by_size": n, series ("selected" or "random"), value, low, high, share (value/ln n). The longest length.
       "by_length": length, series, value, low, high, share. Size 5. Values are divergences from uniform, in nats.

    Attributes:
        name: of the figure in the paper.
        tables: by name.
        about: length, sizes, queries and the like, for captions.
    """

    name: str
    tables: Mapping[str, pl.DataFrame] = field(repr=False)
    about: Mapping[str, Any] = field(default_factory=dict)

    @property
    def question(self) -> str:
        """That it answers: its title."""
        return _QUESTIONS[self.name]

    @property
    def settings(self) -> str:
        """The known settings in one line."""
        about, parts = self.about, []
        for sign, name in (("L", "length"), ("N", "size")):
            if values := about.get(f"{name}s") or [x for x in [about.get(name)] if x is not None]:
                parts.append(f"{sign} = {values[0]}" + (f" to {values[-1]}" if len(values) > 1 else ""))
        if self.name == DRIFT:
            parts = [f"against N at L = {about.get('length', '?')}, against L at N = {about.get('size', '?')}"]
        for noun in ("head", "window"):
            if isinstance(count := about.get(f"{noun}s"), (int, str)):
                parts.append(f"{count} {noun}{'' if count == 1 else 's'}")
        if isinstance(queries := about.get("queries"), (int, str)):
            counted = {1: "1 query", "all": "all queries"}.get(queries, f"at most {queries} queries")
            parts.append(f"{counted} per window")
        if about.get("more_than"):
            parts.append(f"all with more than {about['more_than']} keys")
        return ", ".join(parts)


@dataclass(frozen=True)
class Claim:
    """A statement of the paper, what this model shows, and whether it holds by a written rule.

    Attributes:
        figure: that it belongs to.
        topic: in a few words.
        paper: what the paper says.
        measured: what this model shows.
        rule: by which it is judged.
        answer: "holds", "does not hold" or "cannot be judged".
        numbers: that the rule looks at.
    """

    figure: str
    topic: str
    paper: str
    measured: str
    rule: str
    answer: Answer
    numbers: Mapping[str, float | None] = field(default_factory=dict)


# Whether a statement holds (None: it cannot be judged), what this model shows, and the numbers that decide.
Judgement = tuple[bool | None, str, Mapping[str, float | None]]
Judge = Callable[[Figure], Judgement]
_ANSWERS: dict[bool | None, Answer] = {True: "holds", False: "does not hold", None: "cannot be judged"}
_STATEMENTS: list[tuple[Judge, tuple[str, str, str, str]]] = []


def statement(figure: str, topic: str, paper: str, rule: str) -> Callable[[Judge], Judge]:
    """Declare a statement by its judge; `{heads}` and `{size}` in its rule are those of the figure."""

    def declare(judge: Judge) -> Judge:
        _STATEMENTS.append((judge, (figure, topic, paper, rule)))
        return judge

    return declare


def judge(figures: Mapping[str, Figure]) -> tuple[Claim, ...]:
    """All statements for which there is a figure."""
    claims = []
    for judge_figure, (name, topic, paper, rule) in _STATEMENTS:
        if name in figures:
            holds, measured, numbers = judge_figure(figures[name])
            rule = rule.format(**{"heads": "?", "size": 5} | dict(figures[name].about))
            claims.append(Claim(name, topic, paper, measured, rule, _ANSWERS[holds], numbers))
    return tuple(claims)


def _slope(line: Mapping[Any, float]) -> float | None:
    """Exponent of a power law: least squares of ln y on ln x; None for fewer than three points or y <= 0."""
    if len(line) < 3 or min(line.values()) <= 0:
        return None
    return float(np.polyfit(np.log(list(line)), np.log(list(line.values())), 1)[0])


def _power(exponent: float | None) -> str:
    return number(exponent, 3, missing="unknown")


def _inside(value: float | None, limits: tuple[float, float]) -> bool | None:
    return None if value is None else limits[0] <= value <= limits[1]


def _line(table: pl.DataFrame, axis: str, series: str, vectors: str = "embedding") -> dict[int, float]:
    """The values of one series, by length or size."""
    chosen = table.filter((pl.col("series") == series) & (pl.col("vectors") == vectors))
    return dict(chosen.sort(axis).select(axis, "value").iter_rows())


# -- Distance: figures 2a and 2b --------------------------------------------------------------------------------------


@statement(
    "2a", "distance grows with length",
    "the distance of the selected tokens, and its mean over random sets, grow roughly linearly in L",
    f"both exponents of a power law over all lengths lie between {LINEAR[0]:g} and {LINEAR[1]:g}",
)  # fmt: skip
def _growth(figure: Figure) -> Judgement:
    selected, chance = (_slope(_line(figure.tables["distance"], "length", name)) for name in ("selected", "random"))
    linear = [_inside(exponent, LINEAR) for exponent in (selected, chance)]
    measured = f"like L^{_power(selected)} for selected and L^{_power(chance)} for random sets"
    numbers = {"exponent of selected": selected, "exponent of random": chance}
    return None if None in linear else all(linear), measured, numbers


def _ratios(figure: Figure, above: str, below: str) -> list[float]:
    """One series over another, at every length where both are known."""
    first, second = (_line(figure.tables["distance"], "length", name) for name in (above, below))
    return [first[length] / second[length] for length in first if second.get(length, 0) > 0]


@statement(
    "2a", "bound of Theorem 1", "the bound holds and is conservative",
    f"it is at least {CONSERVATIVE:g} times the distance at every length (in its linear form, which is true, with "
    "d1 replaced by a larger number that needs no pairs of tokens)",
)  # fmt: skip
def _bound(figure: Figure) -> Judgement:
    ratios = _ratios(figure, "bound", "selected")
    if not ratios:
        return None, "no bound was found", {"least ratio": None, "largest ratio": None}
    low, high = min(ratios), max(ratios)
    measured = f"it is {low:.3g} to {high:.3g} times the distance"
    return low >= CONSERVATIVE, measured, {"least ratio": low, "largest ratio": high}


@statement(
    "2a", "formula of Theorem 1(2)",
    "the mean distance of random sets is at most the formula of Theorem 1(2) (read without its term epsilon)",
    f"refuted where random sets exceed it by more than {percent(CLEARLY)}; it cannot be confirmed, because by "
    "Jensen's inequality it is a lower bound",
)  # fmt: skip
def _formula(figure: Figure) -> Judgement:
    ratios, tops = _ratios(figure, "random", "expected low"), _ratios(figure, "random", "expected high")
    measured = f"random sets are at up to {max(ratios):.3g} times it" if ratios else "no bound was found"
    measured += f", and at most {max(tops):.3g} times the corrected one" if tops else ""
    numbers = {"largest ratio": max(ratios, default=None), "largest ratio to the corrected": max(tops, default=None)}
    return False if ratios and max(ratios) > 1 + CLEARLY else None, measured, numbers


@statement(
    "2b", "plateau in N", "the distance reaches a plateau beyond about 20 selected tokens",
    f"at most {percent(PLATEAU)} change from N = 20 to 100, and more than that from 1 to 20",
)  # fmt: skip
def _plateau(figure: Figure) -> Judgement:
    line = _line(figure.tables["distance"], "n", "selected")
    rise = change = None
    if {1, 20, 100} <= line.keys():
        rise, change = line[20] / line[1] - 1, line[100] / line[20] - 1
    first, second = (percent(x, 2, signed=True) for x in (rise, change))
    measured = f"from N = 1 to 20 it changes by {first}, from 20 to 100 by {second}"
    holds = None if rise is None or change is None else abs(change) <= PLATEAU < abs(rise)
    return holds, measured, {"change from 1 to 20": rise, "change from 20 to 100": change}


# -- Critical N: figure 2c --------------------------------------------------------------------------------------------


@statement(
    "2c", "critical N",
    f"selected and random sets are no longer distinguishable from about N = {PAPER_CRITICAL_SHARE:g} L on",
    f"at level 0.01 and the longest length, critical N / L lies between {CRITICAL_SHARE[0]:g} and "
    f"{CRITICAL_SHARE[1]:g} (the test's power depends on the number of heads: {{heads}} here, 144 in the paper)",
)  # fmt: skip
def _critical_share(figure: Figure) -> Judgement:
    table = figure.tables["critical"].filter(pl.col("vectors") == "embedding")
    longest = table.filter(pl.col("length") == pl.col("length").max()).sort("level")
    rows = longest.with_columns(share=pl.col("critical_n") / pl.col("length")).to_dicts()
    numbers = {f"critical N / L at {row['level']:g}": row["share"] for row in rows}
    parts = [
        f"none up to {row['largest_n']} at level {row['level']:g}"
        if row["share"] is None
        else f"N = {row['critical_n']:.0f}, {row['share']:.3g} L at level {row['level']:g}"
        for row in rows
    ]
    holds, _ = _share_of_length(longest.head(1))  # at the lowest level, that of the paper's text
    holds = holds if _can_reject(figure, longest["level"][0]) else None
    measured = f"at {int(longest['length'][0])} tokens: " + "; ".join(parts)
    return _with_readings((holds, measured, numbers), figure, "critical N / L at 0.01", _share_of_length)


def _share_of_length(rows: pl.DataFrame) -> tuple[bool | None, float | None]:
    """Share at the longest length; without a critical N the paper's statement does not hold."""
    last = rows.row(-1, named=True)
    share = None if last["critical_n"] is None else last["critical_n"] / last["length"]
    return bool(_inside(share, CRITICAL_SHARE)), share


@statement(
    "2c", "critical N grows with length", "critical N grows sub-linearly in L",
    f"the exponent of a power law lies between {SUB_LINEAR[0]:g} and {SUB_LINEAR[1]:g} (level 0.01; not judged "
    "unless there is a critical N at every length, and at three or more)",
)  # fmt: skip
def _critical_growth(figure: Figure) -> Judgement:
    table = figure.tables["critical"].filter((pl.col("vectors") == "embedding") & (pl.col("level") == 0.01))
    holds, exponent = _growth_with_length(table)
    measured = f"like L^{exponent:.2f}" if exponent is not None else "no growth to fit"
    if missing := table["critical_n"].null_count():
        measured += f"; every test rejects at {missing} of {len(table)} lengths"
    judgement = (holds if _can_reject(figure, 0.01) else None, measured, {"exponent": exponent})
    return _with_readings(judgement, figure, "exponent", _growth_with_length)


def _growth_with_length(rows: pl.DataFrame) -> tuple[bool | None, float | None]:
    """Over all lengths, if there is a critical N at each of them."""
    known = rows.filter(pl.col("critical_n").is_not_null()).sort("length")
    exponent = _slope(dict(known.select("length", "critical_n").iter_rows()))
    return _inside(exponent, SUB_LINEAR) if len(known) == len(rows) else None, exponent


def _can_reject(figure: Figure, level: float) -> bool:
    """Whether there are enough heads for the test to reject anything."""
    heads = figure.about.get("heads", 0)
    return heads > 0 and ks_test(torch.zeros(heads), torch.ones(heads))[1] <= level


def _with_readings(
    judgement: Judgement, figure: Figure, name: str,
    judge: Callable[[pl.DataFrame], tuple[bool | None, float | None]],
) -> Judgement:  # fmt: skip
    """The same with its number under every other reading, and a sentence on whether the answer depends on it.

    `judge` gets the rows of one reading, embedding vectors and level 0.01, by length, and gives whether the statement
    holds and the number that decides. The answer stays that of the default reading.
    """
    table = figure.tables.get("readings")
    if table is None or not table.height:
        return judgement
    usual, measured, numbers = judgement[0], judgement[1], dict(judgement[2])
    chosen = table.filter((pl.col("vectors") == "embedding") & (pl.col("level") == pl.col("level").min()))
    others, enough_heads = [], _can_reject(figure, 0.01)
    for expected, test in (reading for reading in READINGS if reading != DEFAULT):
        rows = chosen.filter((pl.col("expected") == expected) & (pl.col("test") == test)).sort("length")
        holds, numbers[f"{name}, {expected}, {test}"] = judge(rows)
        holds = holds if enough_heads or test not in _PER_HEAD else None
        if holds != usual:
            others.append(f"{expected} and {test} ({_ANSWERS[holds]})")
    depends = f"The verdict is the same under all {len(READINGS)} readings of “expected” and of the test"
    if others:
        depends = f"The verdict depends on the reading: it differs for {'; '.join(others)}"
    return usual, f"{measured}. {depends}", numbers


@statement(
    "2c", "N in proportion to L", "if N grows in proportion to L, the distance collapses to 0",
    f"for N = L/8 the distance is more than {percent(CLEARLY)} lower at the longest than at the shortest length",
)  # fmt: skip
def _collapse(figure: Figure) -> Judgement:
    table = figure.tables["proportional"].filter(pl.col("vectors") == "embedding").sort("length")
    line = dict(table.select("length", "value").iter_rows())
    if len(line) < 2:
        return None, "too few lengths", {"exponent": None}
    first, last = line[min(line)], line[max(line)]
    exponent = _slope(line)
    measured = f"{first:.3g} at {min(line)} tokens, {last:.3g} at {max(line)}"
    measured += "" if exponent is None else f", like L^{exponent:.2f}"
    return last < (1 - CLEARLY) * first, measured, {"exponent": exponent}


# -- Separability: figure 3 -------------------------------------------------------------------------------------------


@statement(
    "3", "separability falls", f"the separable share N_s/N falls until N is about {TURN}, then settles",
    f"from N = 1 to {TURN} it falls by at least 0.05, and beyond changes by less than half of that fall",
)  # fmt: skip
def _separability_falls(figure: Figure) -> Judgement:
    line = _line(figure.tables["mean"], "n", "selected")
    if TURN not in line or len(line) < 3:
        return None, "too few sizes", {f"fall to {TURN}": None, "fall beyond": None}
    fall, later = line[min(line)] - line[TURN], line[TURN] - line[max(line)]
    measured = f"it falls by {fall:.2f} up to N = {TURN}, and by {later:.2f} from there to N = {max(line)}"
    return fall >= 0.05 and abs(later) < fall / 2, measured, {f"fall to {TURN}": fall, "fall beyond": later}


@statement(
    "3", "separable share", f"beyond N = {TURN}, {_SHARE} of the selected tokens are separable",
    f"at every size from {TURN} on, the mean over heads lies between {_SHARE.replace('to', 'and')}",
)  # fmt: skip
def _separability_settles(figure: Figure) -> Judgement:
    series = {"": ("selected", "embedding"), "random sets ": ("random", "embedding")}
    series["in value space "] = "selected", "value"
    lines = {
        name: [value for n, value in _line(figure.tables["mean"], "n", *of).items() if n >= TURN]
        for name, of in series.items()
    }
    means = {name: sum(line) / len(line) if line else None for name, line in lines.items()}
    measured = [f"{name}{min(line):.2f} to {max(line):.2f}" for name, line in lines.items() if line]
    holds = all(_inside(value, PAPER_SEPARABILITY) for value in lines[""]) if lines[""] else None
    measured = measured if lines[""] else ["no such size", *measured]
    return holds, "; ".join(measured), {"mean": means[""], "mean of random sets": means["random sets "]}


# -- Sensitivity: figure 4 --------------------------------------------------------------------------------------------


@statement(
    "4", "sensitivity at low temperature", f"below T = {LOW_TEMPERATURE:g} the sensitivity grows like 1/T",
    f"the exponent below T = {LOW_TEMPERATURE:g} (random direction, smallest step, mean over queries, largest "
    f"head) lies between {-LINEAR[1]:g} and {-LINEAR[0]:g}",
)  # fmt: skip
def _low_temperature(figure: Figure) -> Judgement:
    table = figure.tables["sensitivity"].filter(pl.col("temperature") <= LOW_TEMPERATURE)
    smallest_step, derivative = pl.col("step") == pl.col("step").min(), pl.col("step").is_null()

    def exponent(step: pl.Expr, direction: str, statistic: str) -> float | None:
        rows = table.filter(step, direction=direction, statistic=statistic).sort("temperature")
        return _slope(dict(rows.select("temperature", "value").iter_rows()))

    judged = exponent(smallest_step, "random", "paper")
    others = {
        "random direction, largest row": exponent(smallest_step, "random", "max"),
        "worst direction, mean": exponent(derivative, "worst", "mean"),
        "worst direction, largest row": exponent(derivative, "worst", "max"),
    }
    numbers = {"exponent: random direction, largest head": judged}
    numbers |= {f"exponent: {name}": value for name, value in others.items()}
    measured = [f"like T^{_power(judged)} as the paper measures it"]
    measured += [f"{name} T^{_power(value)}" for name, value in others.items()]
    return _inside(judged, (-LINEAR[1], -LINEAR[0])), "; ".join(measured), numbers


@statement(
    "4", "ceiling of Corollary 3", "the gradient's norm is at most min{1/(4T), sqrt 2}",
    "at no temperature does the worst direction of any row exceed it",
)  # fmt: skip
def _ceiling(figure: Figure) -> Judgement:
    derivative = pl.col("step").is_null()
    worst = figure.tables["sensitivity"].filter(derivative, direction="worst", statistic="max")
    ceilings = figure.tables["ceilings"].filter(derivative).select("temperature", "true", "paper")
    both = worst.join(ceilings, on="temperature")
    paper, true = (max((both["value"] / both[name]).to_list(), default=math.nan) for name in ("paper", "true"))
    beside = "equal to" if f"{true:.3g}" == "1" else f"{true:.3g} times"
    measured = f"the largest is {paper:.3g} times that, and {beside} the true ceiling 1/(2T)"
    numbers = {"largest ratio": paper, "largest ratio to 1/(2T)": true}
    return None if math.isnan(paper) else paper <= 1, measured, numbers


# -- The drift to uniform, from the runs of figures 2a and 2b ---------------------------------------------------------


def _ends(table: pl.DataFrame, axis: str, column: str) -> dict[int, float]:
    """Values at the two ends of the axis; nothing for fewer than two points."""
    chosen = table.filter(pl.col("series") == "selected").sort(axis)
    return dict(chosen[[0, -1]].select(axis, column).iter_rows()) if len(chosen) > 1 else {}


def _falls(line: Mapping[int, float]) -> bool | None:
    """Whether it falls from the first to the last point; None if there are none, or the change is too small to tell."""
    if len(line) < 2:
        return None
    first, last = line.values()
    return None if abs(last - first) <= CLEARLY * abs(first) else last < first


@statement(
    DRIFT, "drift to uniform with N",
    "the more tokens are selected, the nearer their weights are to uniform (our reading of its words)",
    "from N = 5 to the largest, both the divergence of the renormalised selected weights from uniform and its "
    f"share of the largest possible, ln N, fall by more than {percent(CLEARLY)}; not judged if they disagree",
)  # fmt: skip
def _drift_with_size(figure: Figure) -> Judgement:
    table = figure.tables["by_size"].filter(pl.col("n") >= 5)
    nats, shares = _ends(table, "n", "value"), _ends(table, "n", "share")
    measured = "too few sizes"
    if nats and shares:
        (first, last), (low, high), (small, large) = nats, nats.values(), shares.values()
        measured = f"{low:.3g} nats at N = {first}, {high:.3g} at {last}; {small:.3g} and {large:.3g} of ln N"
    numbers = {f"divergence at {n}": value for n, value in nats.items()}
    numbers |= {f"share at {n}": share for n, share in shares.items()}
    return _falls(nats) if _falls(nats) == _falls(shares) else None, measured, numbers


@statement(
    DRIFT, "drift to uniform with L",
    "the longer the context, the nearer the weights of the selected are to uniform (our reading of its words)",
    f"the divergence for N = {{size}} is more than {percent(CLEARLY)} lower at the longest than at the shortest "
    "length; not judged if the two are closer",
)  # fmt: skip
def _drift_with_length(figure: Figure) -> Judgement:
    nats = _ends(figure.tables["by_length"], "length", "value")
    values = "; ".join(f"{value:.3g} nats at {length} tokens" for length, value in nats.items())
    return _falls(nats), values or "too few lengths", {f"divergence at {n}": value for n, value in nats.items()}
