"""What arXiv 2508.17821 says, judged on the data of figures: each statement by a rule with numbers.

The rules are ours: the paper states most of this in words. They are printed beside every answer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import polars as pl
import torch

from ..measures import ks_test
from ._reproduction import DRIFT, Answer, Claim, Figure

LINEAR = (0.8, 1.2)  # exponents that count as "roughly linear", or as 1/T with the sign changed
CONSERVATIVE = 1.25  # a bound this many times above the value
CLEARLY = 0.05  # relative difference of two means that chance does not explain: random sets are drawn once a query
PLATEAU = 0.1  # largest relative change on a plateau
CRITICAL_SHARE = (0.03, 0.12)  # a factor of two around 0.06
TURN = 16  # where the paper sees separability settle
SETTLED = (0.70, 0.85)
SUB_LINEAR = (0.05, 0.95)  # exponents that count as growth, but slower than L
LOW_TEMPERATURE = 0.1


def judge(figures: Mapping[str, Figure]) -> tuple[Claim, ...]:
    """All statements for which there is a figure."""
    rules: Mapping[str, Sequence[Callable[[Figure], Claim]]] = {
        "2a": (_growth, _bound_is_loose, _formula_is_upper_bound),
        "2b": (_plateau,),
        "2c": (_critical_share, _critical_growth, _collapse),
        "3": (_separability_falls, _separability_settles),
        "4": (_growth_at_low_temperature, _ceiling),
        DRIFT: (_drift_with_size, _drift_with_length),
    }
    return tuple(rule(figures[name]) for name, of_figure in rules.items() if name in figures for rule in of_figure)


def slope(x: Sequence[float], y: Sequence[float]) -> float | None:
    """Exponent of a power law: least squares of ln y on ln x; None for fewer than three points or y <= 0."""
    if len(x) < 3 or min(y) <= 0:
        return None
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def _answer(holds: bool | None) -> Answer:
    if holds is None:
        return "cannot be judged"
    return "holds" if holds else "does not hold"


def _inside(value: float | None, limits: tuple[float, float]) -> bool | None:
    return None if value is None else limits[0] <= value <= limits[1]


def _shown(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3g}"


def _line(table: pl.DataFrame, axis: str, series: str, vectors: str | None = "embedding") -> dict[int, float]:
    """The values of one series, by length or size."""
    chosen = table.filter(pl.col("series") == series)
    if vectors is not None:
        chosen = chosen.filter(pl.col("vectors") == vectors)
    return dict(chosen.sort(axis).select(axis, "value").iter_rows())


def _growth(figure: Figure) -> Claim:
    lines = {name: _line(figure.tables["distance"], "length", name) for name in ("selected", "random")}
    found = {name: slope(list(line), list(line.values())) for name, line in lines.items()}
    inside = [_inside(value, LINEAR) for value in found.values()]
    return Claim(
        "2a",
        "distance grows with length",
        "the distance of the selected tokens, and its mean over random sets, grow roughly linearly in L",
        f"like L^{_shown(found['selected'])} for selected and L^{_shown(found['random'])} for random sets",
        f"both exponents of a power law over all lengths lie between {LINEAR[0]:g} and {LINEAR[1]:g}",
        _answer(None if None in inside else all(inside)),
        {f"exponent of {name}": value for name, value in found.items()},
    )


def _bound_is_loose(figure: Figure) -> Claim:
    table = figure.tables["distance"]
    selected, bound = (_line(table, "length", name) for name in ("selected", "bound"))
    ratios = [bound[length] / selected[length] for length in selected if length in bound and selected[length] > 0]
    told = f"it is {min(ratios):.3g} to {max(ratios):.3g} times the distance" if ratios else "no bound was found"
    return Claim(
        "2a",
        "bound of Theorem 1",
        "the bound holds and is conservative",
        told,
        f"it is at least {CONSERVATIVE:g} times the distance at every length (in its linear form, which is true, with "
        "d1 replaced by a larger number that needs no pairs of tokens)",
        _answer(min(ratios) >= CONSERVATIVE if ratios else None),
        {"least ratio": min(ratios, default=None), "largest ratio": max(ratios, default=None)},
    )


def _formula_is_upper_bound(figure: Figure) -> Claim:
    table = figure.tables["distance"]
    random, low, high = (_line(table, "length", name) for name in ("random", "expected low", "expected high"))
    ratios = [random[length] / low[length] for length in random if low.get(length, 0) > 0]
    tops = [random[length] / high[length] for length in random if high.get(length, 0) > 0]
    told = f"random sets are at up to {max(ratios):.3g} times it" if ratios else "no bound was found"
    if tops:
        told += f", and at most {max(tops):.3g} times the corrected one"
    return Claim(
        "2a",
        "formula of Theorem 1(2)",
        "the mean distance of random sets is at most the formula of Theorem 1(2) (read without its term epsilon)",
        told,
        f"refuted where random sets exceed it by more than {CLEARLY:.0%}; it cannot be confirmed, because by Jensen's "
        "inequality it is a lower bound",
        _answer(False if ratios and max(ratios) > 1 + CLEARLY else None),
        {"largest ratio": max(ratios, default=None), "largest ratio to the corrected": max(tops, default=None)},
    )


def _plateau(figure: Figure) -> Claim:
    line = _line(figure.tables["distance"], "n", "selected")
    rise = change = None
    if {1, 20, 100} <= line.keys():
        rise, change = line[20] / line[1] - 1, line[100] / line[20] - 1
    return Claim(
        "2b",
        "plateau in N",
        "the distance reaches a plateau beyond about 20 selected tokens",
        f"from N = 1 to 20 it changes by {_percent(rise)}, from 20 to 100 by {_percent(change)}",
        f"at most {PLATEAU:.0%} change from N = 20 to 100, and more than that from 1 to 20",
        _answer(None if rise is None or change is None else abs(change) <= PLATEAU < abs(rise)),
        {"change from 1 to 20": rise, "change from 20 to 100": change},
    )


def _percent(value: float | None) -> str:
    return "an unknown amount" if value is None else f"{value:+.0%}"


def _critical_share(figure: Figure) -> Claim:
    table = figure.tables["critical"].filter(pl.col("vectors") == "embedding")
    longest = table.filter(pl.col("length") == pl.col("length").max()).sort("level")
    parts: list[str] = []
    numbers: dict[str, float | None] = {}
    judged = None
    for row in longest.iter_rows(named=True):
        critical, length, level = row["critical_n"], row["length"], row["level"]
        share = None if critical is None else critical / length
        told = f"none up to {row['largest_n']}" if share is None else f"N = {critical:.0f}, {share:.3g} L"
        parts.append(f"{told} at level {level:g}")
        numbers[f"critical N / L at {level:g}"] = share
        if level == longest["level"].min() and _can_reject(figure, level):  # the level of the paper's text
            judged = share is not None and CRITICAL_SHARE[0] <= share <= CRITICAL_SHARE[1]
    return Claim(
        "2c",
        "critical N",
        "selected and random sets can no longer be told apart from about N = 0.06 L on",
        f"at {int(longest['length'][0])} tokens: " + "; ".join(parts),
        f"at level 0.01 and the longest length, critical N / L lies between {CRITICAL_SHARE[0]:g} and "
        f"{CRITICAL_SHARE[1]:g} (the test's power depends on the number of heads: "
        f"{figure.about.get('heads', '?')} here, 144 in the paper)",
        _answer(judged),
        numbers,
    )


def _can_reject(figure: Figure, level: float) -> bool:
    """Whether there are enough heads for the test to reject anything."""
    heads = figure.about.get("heads", 0)
    return heads > 0 and ks_test(torch.zeros(heads), torch.ones(heads))[1] <= level


def _critical_growth(figure: Figure) -> Claim:
    table = figure.tables["critical"].filter((pl.col("vectors") == "embedding") & (pl.col("level") == 0.01))
    known = table.filter(pl.col("critical_n").is_not_null()).sort("length")
    exponent = slope(known["length"].to_list(), known["critical_n"].to_list())
    whole = len(known) == len(table) and _can_reject(figure, 0.01)
    told = f"like L^{exponent:.2f}" if exponent is not None else "no growth to fit"
    if len(known) < len(table):
        told += f"; every test rejects at {len(table) - len(known)} of {len(table)} lengths"
    return Claim(
        "2c",
        "critical N grows with length",
        "critical N grows sub-linearly in L",
        told,
        f"the exponent of a power law lies between {SUB_LINEAR[0]:g} and {SUB_LINEAR[1]:g} (level 0.01; not judged "
        "unless there is a critical N at every length, and at three or more)",
        _answer(_inside(exponent, SUB_LINEAR) if whole else None),
        {"exponent": exponent},
    )


def _collapse(figure: Figure) -> Claim:
    table = figure.tables["proportional"].filter(pl.col("vectors") == "embedding").sort("length")
    line = dict(table.select("length", "value").iter_rows())
    told, holds, exponent = "too few lengths", None, None
    if len(line) > 1:
        told = f"{line[min(line)]:.3g} at {min(line)} tokens, {line[max(line)]:.3g} at {max(line)}"
        exponent = slope(list(line), list(line.values()))
        holds = line[max(line)] < (1 - CLEARLY) * line[min(line)]
    return Claim(
        "2c",
        "N in proportion to L",
        "if N grows in proportion to L, the distance collapses to 0",
        told + (f", like L^{exponent:.2f}" if exponent is not None else ""),
        f"for N = L/8 the distance is more than {CLEARLY:.0%} lower at the longest than at the shortest length",
        _answer(holds),
        {"exponent": exponent},
    )


def _separability_falls(figure: Figure) -> Claim:
    line = _line(figure.tables["mean"], "n", "selected")
    fall = later = None
    if TURN in line and len(line) > 2:
        start, end = line[min(line)], line[max(line)]
        fall, later = start - line[TURN], line[TURN] - end
    told = "too few sizes"
    if fall is not None and later is not None:
        told = f"it falls by {fall:.2f} up to N = {TURN}, and by {later:.2f} from there to N = {max(line)}"
    return Claim(
        "3",
        "separability falls",
        f"the separable share N_s/N falls until N is about {TURN}, then settles",
        told,
        f"from N = 1 to {TURN} it falls by at least 0.05, and beyond changes by less than half of that fall",
        _answer(None if fall is None or later is None else fall >= 0.05 and abs(later) < fall / 2),
        {f"fall to {TURN}": fall, "fall beyond": later},
    )


def _separability_settles(figure: Figure) -> Claim:
    table = figure.tables["mean"]
    line, control = (_line(table, "n", name) for name in ("selected", "random"))
    beyond = [line[n] for n in line if n >= TURN]
    chance = [control[n] for n in control if n >= TURN]
    by_value = [value for n, value in _line(table, "n", "selected", "value").items() if n >= TURN]
    mean = sum(beyond) / len(beyond) if beyond else None
    told = f"{min(beyond):.2f} to {max(beyond):.2f}" if beyond else "no such size"
    if chance:
        told += f"; random sets {min(chance):.2f} to {max(chance):.2f}"
    if by_value:
        told += f"; in value space {min(by_value):.2f} to {max(by_value):.2f}"
    return Claim(
        "3",
        "separable share",
        f"beyond N = {TURN}, {SETTLED[0]:.2f} to {SETTLED[1]:.2f} of the selected tokens are separable",
        told,
        f"at every size from {TURN} on, the mean over heads lies between {SETTLED[0]:.2f} and {SETTLED[1]:.2f}",
        _answer(all(_inside(value, SETTLED) for value in beyond) if beyond else None),
        {"mean": mean, "mean of random sets": sum(chance) / len(chance) if chance else None},
    )


def _growth_at_low_temperature(figure: Figure) -> Claim:
    table = figure.tables["sensitivity"].filter(pl.col("temperature") <= LOW_TEMPERATURE)
    smallest = table["step"].min()
    at_step = table.filter(pl.col("step") == smallest)
    found = {
        "random direction, largest head": _exponent(at_step, "random", "paper"),
        "random direction, largest row": _exponent(at_step, "random", "max"),
        "worst direction, mean": _exponent(table.filter(pl.col("step").is_null()), "worst", "mean"),
        "worst direction, largest row": _exponent(table.filter(pl.col("step").is_null()), "worst", "max"),
    }
    judged = found["random direction, largest head"]
    others = "; ".join(f"{name} T^{_shown(value)}" for name, value in list(found.items())[1:])
    return Claim(
        "4",
        "sensitivity at low temperature",
        f"below T = {LOW_TEMPERATURE:g} the sensitivity grows like 1/T",
        f"like T^{_shown(judged)} as the paper measures it; {others}",
        f"the exponent below T = {LOW_TEMPERATURE:g} (random direction, smallest step, mean over queries, largest "
        f"head) lies between {-LINEAR[1]:g} and {-LINEAR[0]:g}",
        _answer(_inside(judged, (-LINEAR[1], -LINEAR[0]))),
        {f"exponent: {name}": value for name, value in found.items()},
    )


def _exponent(table: pl.DataFrame, direction: str, statistic: str) -> float | None:
    chosen = table.filter((pl.col("direction") == direction) & (pl.col("statistic") == statistic)).sort("temperature")
    return slope(chosen["temperature"].to_list(), chosen["value"].to_list())


def _ceiling(figure: Figure) -> Claim:
    worst = figure.tables["sensitivity"].filter(
        (pl.col("direction") == "worst") & (pl.col("statistic") == "max") & pl.col("step").is_null()
    )
    ceilings = figure.tables["ceilings"].filter(pl.col("step").is_null()).select("temperature", "true", "paper")
    both = worst.join(ceilings, on="temperature")
    ratios = {name: max((both["value"] / both[name]).to_list(), default=math.nan) for name in ("paper", "true")}
    return Claim(
        "4",
        "ceiling of Corollary 3",
        "the gradient's norm is at most min{1/(4T), sqrt 2}",
        f"the largest is {ratios['paper']:.3g} times that, and {ratios['true']:.3g} times the true ceiling 1/(2T)",
        "at no temperature does the worst direction of any row exceed it",
        _answer(None if math.isnan(ratios["paper"]) else ratios["paper"] <= 1),
        {"largest ratio": ratios["paper"], "largest ratio to 1/(2T)": ratios["true"]},
    )


def _drift_with_size(figure: Figure) -> Claim:
    nats, shares = _ends(figure.tables["by_size"].filter(pl.col("n") >= 5), "n")
    told = "too few sizes"
    if nats and shares:
        (first, last), (small, large) = nats, shares.values()
        told = f"{nats[first]:.3g} nats at N = {first}, {nats[last]:.3g} at {last}; {small:.3g} and {large:.3g} of ln N"
    falls = [_falls(line) for line in (nats, shares)]
    return Claim(
        DRIFT,
        "drift to uniform with N",
        "the more tokens are selected, the nearer their weights are to uniform (our reading of its words)",
        told,
        "from N = 5 to the largest, both the divergence of the renormalised selected weights from uniform and its "
        f"share of the largest possible, ln N, fall by more than {CLEARLY:.0%}; not judged if they disagree",
        _answer(falls[0] if falls[0] == falls[1] else None),
        {f"divergence at {n}": value for n, value in nats.items()} | {f"share at {n}": x for n, x in shares.items()},
    )


def _drift_with_length(figure: Figure) -> Claim:
    nats, _ = _ends(figure.tables["by_length"], "length")
    told = "; ".join(f"{value:.3g} nats at {length} tokens" for length, value in nats.items()) or "too few lengths"
    return Claim(
        DRIFT,
        "drift to uniform with L",
        "the longer the context, the nearer the weights of the selected are to uniform (our reading of its words)",
        told,
        f"the divergence for N = {figure.about.get('size', 5)} is more than {CLEARLY:.0%} lower at the longest than at "
        "the shortest length; not judged if the two are closer",
        _answer(_falls(nats)),
        {f"divergence at {length}": value for length, value in nats.items()},
    )


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
    if abs(last - first) <= CLEARLY * abs(first):
        return None
    return last < first
