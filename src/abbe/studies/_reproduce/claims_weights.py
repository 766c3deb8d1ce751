"""Statements about separability, sensitivity and the drift to uniform: figures 3 and 4, and the paper's text."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import polars as pl

from ...words.numbers import percent
from ...words.paper import DRIFT, PAPER_SEPARABILITY
from .claim_rules import CLEARLY, LINEAR, answer, inside, line_of, power, slope
from .result import Claim, Figure

TURN = 16  # where the paper sees separability settle
LOW_TEMPERATURE = 0.1


def separability_falls(figure: Figure) -> Claim:
    line = line_of(figure.tables["mean"], "n", "selected")
    measured, fall, later = "too few sizes", None, None
    if TURN in line and len(line) > 2:
        fall, later = line[min(line)] - line[TURN], line[TURN] - line[max(line)]
        measured = f"it falls by {fall:.2f} up to N = {TURN}, and by {later:.2f} from there to N = {max(line)}"
    return Claim(
        "3",
        "separability falls",
        f"the separable share N_s/N falls until N is about {TURN}, then settles",
        measured,
        f"from N = 1 to {TURN} it falls by at least 0.05, and beyond changes by less than half of that fall",
        answer(None if fall is None or later is None else fall >= 0.05 and abs(later) < fall / 2),
        {f"fall to {TURN}": fall, "fall beyond": later},
    )


def separability_settles(figure: Figure) -> Claim:
    low, high = PAPER_SEPARABILITY
    table = figure.tables["mean"]
    line, control = (line_of(table, "n", name) for name in ("selected", "random"))
    beyond = [line[n] for n in line if n >= TURN]
    chance = [control[n] for n in control if n >= TURN]
    by_value = [value for n, value in line_of(table, "n", "selected", "value").items() if n >= TURN]
    measured = f"{min(beyond):.2f} to {max(beyond):.2f}" if beyond else "no such size"
    if chance:
        measured += f"; random sets {min(chance):.2f} to {max(chance):.2f}"
    if by_value:
        measured += f"; in value space {min(by_value):.2f} to {max(by_value):.2f}"
    return Claim(
        "3",
        "separable share",
        f"beyond N = {TURN}, {low:.2f} to {high:.2f} of the selected tokens are separable",
        measured,
        f"at every size from {TURN} on, the mean over heads lies between {low:.2f} and {high:.2f}",
        answer(all(inside(value, PAPER_SEPARABILITY) for value in beyond) if beyond else None),
        {"mean": _mean(beyond), "mean of random sets": _mean(chance)},
    )


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def growth_at_low_temperature(figure: Figure) -> Claim:
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
    others = "; ".join(f"{name} T^{power(value)}" for name, value in list(exponents.items())[1:])
    return Claim(
        "4",
        "sensitivity at low temperature",
        f"below T = {LOW_TEMPERATURE:g} the sensitivity grows like 1/T",
        f"like T^{power(judged)} as the paper measures it; {others}",
        f"the exponent below T = {LOW_TEMPERATURE:g} (random direction, smallest step, mean over queries, largest "
        f"head) lies between {-LINEAR[1]:g} and {-LINEAR[0]:g}",
        answer(inside(judged, (-LINEAR[1], -LINEAR[0]))),
        {f"exponent: {name}": value for name, value in exponents.items()},
    )


def _exponent(table: pl.DataFrame, direction: str, statistic: str) -> float | None:
    chosen = table.filter((pl.col("direction") == direction) & (pl.col("statistic") == statistic)).sort("temperature")
    return slope(chosen["temperature"].to_list(), chosen["value"].to_list())


def ceiling(figure: Figure) -> Claim:
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
        answer(None if math.isnan(ratios["paper"]) else ratios["paper"] <= 1),
        {"largest ratio": ratios["paper"], "largest ratio to 1/(2T)": ratios["true"]},
    )


def drift_with_size(figure: Figure) -> Claim:
    nats, shares = _ends(figure.tables["by_size"].filter(pl.col("n") >= 5), "n")
    measured = "too few sizes"
    if nats and shares:
        (first, last), (low, high), (small, large) = nats, nats.values(), shares.values()
        measured = f"{low:.3g} nats at N = {first}, {high:.3g} at {last}; {small:.3g} and {large:.3g} of ln N"
    falls = [_falls(line) for line in (nats, shares)]
    return Claim(
        DRIFT,
        "drift to uniform with N",
        "the more tokens are selected, the nearer their weights are to uniform (our reading of its words)",
        measured,
        "from N = 5 to the largest, both the divergence of the renormalised selected weights from uniform and its "
        f"share of the largest possible, ln N, fall by more than {percent(CLEARLY)}; not judged if they disagree",
        answer(falls[0] if falls[0] == falls[1] else None),
        {f"divergence at {n}": value for n, value in nats.items()} | {f"share at {n}": x for n, x in shares.items()},
    )


def drift_with_length(figure: Figure) -> Claim:
    nats, _ = _ends(figure.tables["by_length"], "length")
    values = "; ".join(f"{value:.3g} nats at {length} tokens" for length, value in nats.items())
    return Claim(
        DRIFT,
        "drift to uniform with L",
        "the longer the context, the nearer the weights of the selected are to uniform (our reading of its words)",
        values or "too few lengths",
        f"the divergence for N = {figure.about.get('size', 5)} is more than {percent(CLEARLY)} lower at the longest "
        "than at the shortest length; not judged if the two are closer",
        answer(_falls(nats)),
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
    return None if abs(last - first) <= CLEARLY * abs(first) else last < first
