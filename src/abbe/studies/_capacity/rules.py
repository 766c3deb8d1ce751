"""Tables and findings from curves: N*, its growth, and whether the geometry of layers predicts their need of keys.

Spearman's rank correlation with a permutation test says so: few layers, many ties, no tables of critical values.
One length and way, fixed in advance, is reported: the longest of the layers, renormalised, at the equal share of the
smallest tau. The other lengths and ways are only counted, as among many tests some succeed by chance.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from statistics import fmean
from typing import Any

import polars as pl
import torch
from torch import Tensor

from ...measures import enough_windows
from ...results import Run
from ...runs.loss import targets_words
from ...words.finding import Finding
from ...words.names import DELETION, PAPER_CRITICAL_SHARE, RENORMALISED
from ...words.numbers import interval as interval_text
from ...words.numbers import number, percent, sentence, with_interval
from .._shared.truncation import EXACT, Curve, interval
from .result import Capacity, Row, at_equal_share, of_layers, of_model, reported_way

Settings = Mapping[str, Any]  # as in the manifest

_EXACT_UP_TO = 8  # layers: 40,320 orders
_PERMUTATIONS = 10_000  # drawn of more: p-values down to 1e-4
_TIE = 1e-12  # correlations of the same ranks in another order of summation differ by less: they count as equal
_LEVEL = 0.05  # of the test for a relation between geometry and function
_HOW = {DELETION: "with their weights unchanged", RENORMALISED: "with their weights renormalised"}
_INTERPOLATED = " N is interpolated between powers of 2, linearly in ln N."


# -- N* and its growth ------------------------------------------------------------------------------------------------


def allowed_rises(tau: float, layer: int | None, layers: int) -> tuple[float, ...]:
    """tau; for a single layer also its equal share among all layers."""
    return (tau,) if layer is None else tuple(dict.fromkeys((tau, tau / layers)))


def capacity_rows(curves: Sequence[Curve], layers: int, settings: Settings) -> list[Row]:
    """N* of every curve for every allowed rise; the whole model first, then its layers."""
    rows = []
    for curve in sorted(curves, key=lambda curve: curve.layer is not None):
        drawn = curve.resampled(settings["resamples"], settings["seed"])
        for tau in settings["taus"]:
            for allowed in allowed_rises(tau, curve.layer, layers):
                capacity = curve.capacity(allowed, drawn, settings["level"])
                rows.append(
                    {"layer": curve.layer, "length": curve.length, "way": curve.way, "tau": tau, "allowed": allowed}
                    | {"capacity": capacity.value, "low": capacity.low, "high": capacity.high}
                    | {"share": capacity.value / curve.length, "windows": len(curve.baseline)}
                    | {"monotone": curve.monotone(allowed), "first": curve.first(allowed)}
                )
    return rows


def tables(curves: Sequence[Curve], rows: Sequence[Row], layers: int, settings: Settings) -> dict[str, pl.DataFrame]:
    """All tables of the result by name, from the curves and the rows of N* with separability."""
    table, growth = Capacity.frame().of(rows), growth_table(curves, layers, settings)
    correlation = correlation_table(table, settings["seed"])
    return {"table": table, "curve": curve_table(curves, settings), "growth": growth, "correlation": correlation}


def curve_table(curves: Sequence[Curve], settings: Settings) -> pl.DataFrame:
    """Every loss that was evaluated."""
    rows = []
    for curve in curves:
        drawn = curve.resampled(settings["resamples"], settings["seed"])
        baseline, means = float(curve.baseline.mean()), curve.truncated.mean(-1).tolist()
        for column, (n, loss, rise) in enumerate(zip(curve.sizes, means, curve.rises[:-1].tolist(), strict=True)):
            ends = interval(None if drawn is None else drawn[:, column], settings["level"], len(curve.baseline))
            rows.append((curve.layer, curve.length, curve.way, n, loss, baseline, rise, *ends))
    return Capacity.frame("curve").of(rows)


def growth_table(curves: Sequence[Curve], layers: int, settings: Settings) -> pl.DataFrame:
    """The exponent of N*, not rounded, in L: of the model and of each layer, where there are two lengths or more."""
    over_lengths: dict[tuple[int | None, str], list[Curve]] = defaultdict(list)
    for curve in curves:
        over_lengths[curve.layer, curve.way].append(curve)
    return Capacity.frame("growth").of(
        (layer, way, tau, allowed, *_growth(group, allowed, settings), len(group))
        for (layer, way), group in over_lengths.items()
        if len(group) > 1
        for tau in settings["taus"]
        for allowed in allowed_rises(tau, layer, layers)
    )


def _growth(curves: Sequence[Curve], allowed: float, settings: Settings) -> tuple[float | None, ...]:
    """The exponent with its interval: lengths are resampled independently, as they have different windows.

    Rounded up, small N* would stand still or jump by half their size, and so would their intervals.
    """
    lengths = [curve.length for curve in curves]
    value = growth_exponent(torch.stack([curve.crossing(allowed) for curve in curves]), lengths)
    drawn = [curve.resampled(settings["resamples"], settings["seed"]) for curve in curves]
    again = [curve.crossing(allowed, rises) for curve, rises in zip(curves, drawn, strict=True) if rises is not None]
    several = growth_exponent(torch.stack(again, -1), lengths) if len(again) == len(curves) else None
    return float(value), *interval(several, settings["level"], min(len(curve.baseline) for curve in curves))


def growth_exponent(capacities: Tensor, lengths: Sequence[int]) -> Tensor:
    """Least squares of ln N* on ln L: (..., length) -> (...)."""
    x = torch.tensor(lengths, dtype=torch.float64).log()
    x = x - x.mean()
    return (capacities.double().log() @ x) / (x @ x)


# -- Geometry ---------------------------------------------------------------------------------------------------------


def shown_size(capacity: float, length: int) -> int:
    """The size of the sets whose separability is shown beside a capacity: N itself, within 2 and L/2.

    One selected token is always separable, and beyond half of the keys few queries have as many left to compare with.
    """
    return max(2, min(math.ceil(capacity), length // 2))


def sizes_for(rows: Sequence[Row]) -> list[int]:
    """All sizes in use, in rising order: those of the whole model; layers share some of them."""
    return sorted({shown_size(row["capacity"], row["length"]) for row in rows if row["layer"] is None})


def with_separability(rows: Sequence[Row], run: Run, layer_numbers: Sequence[Iterable[int]]) -> list[Row]:
    """The rows with separability added; `layer_numbers` are those of the run, by layer of the model.

    All layers of a length and way have one size: that of the whole model at the smallest tau.
    """
    measured, layer = run.table.filter(pl.col("value").is_finite(), measure="separability"), pl.col("layer")
    common, completed = dict[tuple[int, str], int](), []
    for row in rows:  # the model comes first, its taus ascending
        size, whole = shown_size(row["capacity"], row["length"]), row["layer"] is None
        smallest = common.setdefault((row["length"], row["way"]), size)
        size = size if whole else smallest
        heads = layer.is_null() if whole else layer.is_in(list(layer_numbers[row["layer"]]))
        cells = measured.filter(heads, length=row["length"], n=size)
        ends = {f"separability_{end}": cells[end][0] for end in ("low", "high") if whole and len(cells)}
        means = {"separability": _mean(cells["value"]), "control": _mean(cells["control"])}
        completed.append(row | {"separability_n": size} | means | ends)
    return completed


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def correlation_table(table: pl.DataFrame, seed: int) -> pl.DataFrame:
    """Over layers: ranks of capacity against ranks of separability, for every way, length and allowed rise."""
    cells = of_layers(table).group_by("way", "tau", "allowed", "length", maintain_order=True)
    return Capacity.frame("correlation").of(
        (*cell, rows["separability_n"][0], *rank_correlation(rows["capacity"], rows["separability"], seed).values())
        for cell, rows in cells
    )


def rank_correlation(first: Iterable[float | None], second: Iterable[float | None], seed: int = 0) -> Row:
    """Spearman's over the finite pairs, with the two-sided p-value of no relation.

    All orders are tried for up to 8 pairs, else 10,000 random ones, plus the observed one. There is no correlation if
    one side is constant, or there are fewer than three pairs.
    """
    from scipy.stats import rankdata, spearmanr  # takes long to import

    pairs = [pair for pair in zip(first, second, strict=True) if all(x is not None and math.isfinite(x) for x in pair)]
    count, sides = len(pairs), list(zip(*pairs, strict=True))
    exact = count <= _EXACT_UP_TO
    if count < 3 or any(len(set(side)) == 1 for side in sides):
        return {"correlation": None, "p_value": None, "exact": exact, "layers": count}
    value = float(spearmanr(*sides).statistic)
    centred = [ranks - ranks.mean() for ranks in (torch.from_numpy(rankdata(side)) for side in sides)]
    x, y = (ranks / ranks.norm() for ranks in centred)  # their product is the correlation: one product for all orders
    orders = _orders(count, seed)
    as_far = int(((x[orders] @ y).abs() >= abs(value) - _TIE).sum())
    p_value = as_far / len(orders) if exact else (as_far + 1) / (len(orders) + 1)
    return {"correlation": value, "p_value": p_value, "exact": exact, "layers": count}


def least_p_value(count: int) -> float:
    """The smallest two-sided p-value that this many pairs can give, without ties."""
    return min(1.0, 2 / math.factorial(count)) if count <= _EXACT_UP_TO else 1 / (_PERMUTATIONS + 1)


@lru_cache(maxsize=1)  # every length and way has as many layers
def _orders(count: int, seed: int) -> Tensor:
    if count <= _EXACT_UP_TO:
        return torch.tensor(list(itertools.permutations(range(count))))
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(_PERMUTATIONS, count, generator=generator, dtype=torch.float64).argsort(-1)


# -- Findings ---------------------------------------------------------------------------------------------------------


def findings(tables: Mapping[str, pl.DataFrame], settings: Settings) -> tuple[Finding, ...]:
    """Sentences on the model, its growth, layers and geometry; then a warning."""
    table, whole, smallest = tables["table"], of_model(tables["table"]), settings["taus"][0]
    longest = whole.filter(length=settings["lengths"][-1])
    sentences = [_capacity(longest.filter(way=way).to_dicts(), settings) for way in settings["ways"]]
    sentences += [
        _growing(whole.filter(way=row["way"], tau=smallest).sort("length").to_dicts(), row)
        for row in of_model(tables["growth"]).filter(tau=smallest).to_dicts()
    ]
    if settings["layers"]:
        reported = {"length": settings["layer_lengths"][-1], "way": reported_way(settings["ways"])}
        layers = at_equal_share(of_layers(table), smallest).filter(**reported).sort("layer").to_dicts()
        related = at_equal_share(tables["correlation"], smallest)
        sentences += [_layers(layers, settings["level"]), _geometry(related.filter(**reported).row(0, named=True))]
        sentences += [_all_cells(related.to_dicts())] if related.height > 1 else []
    odd = table.filter(~pl.col("monotone")).sort(pl.col("layer").is_not_null(), pl.col("first") / pl.col("capacity"))
    return (*sentences, *([_not_monotone(odd, table.height)] if odd.height else []))


def needed_keys(row: Row) -> str:
    """ "61 keys (55 to 70)", with the first N that holds if it is smaller."""
    first = "" if row["monotone"] else f"the first N that holds is {row['first']:,}"
    remarks = "; ".join(filter(None, (interval_text(row["low"], row["high"]), first)))
    keys = f"{number(row['capacity'], 3)} {'key' if row['capacity'] == 1 else 'keys'}"
    return f"{keys} ({remarks})" if remarks else keys


def _capacity(rows: list[Row], settings: Settings) -> Finding:
    first, length, way = rows[0], rows[0]["length"], rows[0]["way"]
    more = "".join(f"; the top {needed_keys(row)} by at most {percent(row['tau'], 2)}" for row in rows[1:])
    return Finding(
        "capacity",
        f"At {length:,} tokens, keeping only the top {needed_keys(first)} per query, {_HOW[way]}, raises the loss by "
        f"at most {percent(first['tau'], 2)}{more}.",
        "The least N at which keeping only the top N keys per query, in every head and layer, raises the mean loss of "
        f"{targets_words(settings['targets'])} by at most tau, relative to the baseline on the same windows."
        + ("" if settings["grid"] == EXACT else _INTERPOLATED),
        {"length": length, "way": way, "windows": first["windows"]}
        | {f"N at {percent(row['tau'], 2)}": row["capacity"] for row in rows},
    )


def _growing(rows: list[Row], row: Row) -> Finding:
    """`rows` over the lengths, and the row of their growth."""
    exponent = with_interval(row["exponent"], row["low"], row["high"], "{:.2f}".format)
    first, last = rows[0], rows[-1]
    shares = f"{percent(first['share'])} of {first['length']:,} tokens, {percent(last['share'])} of {last['length']:,}"
    what, changes = _growth_words(row["low"], row["high"])
    no_share = f"; no single share, such as {percent(PAPER_CRITICAL_SHARE)}, fits all" if changes else ""
    return Finding(
        "growth",
        f"{sentence(row['way'])}: N* for {percent(row['tau'], 2)} scales as L to the power of {exponent}: {what}. "
        f"It is {shares}{no_share}.",
        "Least squares of ln N* on ln L, with N* not rounded up but interpolated between the sizes tried; the interval "
        "resamples the windows of each length. Below 1 the share N*/L falls. An interval that contains 0 shows no "
        "growth, one that contains 1 no change of the share.",
        {"exponent": row["exponent"], "low": row["low"], "high": row["high"], "way": row["way"], "tau": row["tau"]}
        | {f"N*/L at {at['length']}": at["share"] for at in rows},
    )


def _growth_words(low: float | None, high: float | None) -> tuple[str, bool]:
    """What the interval of the exponent shows, and whether the share of the length changes."""
    if low is None or high is None:
        return "single windows give no interval, so nothing can be shown", False
    shown = (
        (low <= 0 <= high, "no growth with the length can be shown"),
        (high < 0, "longer texts need less"),
        (high < 1, "the longer the text, the smaller the share of it that is needed"),
        (low <= 1, "it grows, and no change of its share of the length can be shown"),
        (True, "the longer the text, the larger the share that is needed"),
    )
    return next(words for holds, words in shown if holds), high < 1 or low > 1


def _layers(rows: list[Row], level: float) -> Finding:
    most = max(rows, key=lambda row: row["capacity"])
    single, windows = sum(row["capacity"] <= 1 for row in rows), most["windows"]
    with_one = f"one key is enough for {single} of {len(rows)} layers" if single else "no layer holds with one key"
    spaced = "one window" if windows == 1 else f"{windows} evenly spaced windows"
    rule = f"Only that layer is truncated, on {spaced} of that length.{_INTERPOLATED} The equal "
    rule += "share is tau over the number of layers."
    if 1 < windows < enough_windows(level):
        rule += f" An interval from {windows} windows cannot extend beyond them, so it contains the true number in at "
        rule += f"most {math.floor(100 * (1 - 2.0 ** (1 - windows)))} % of cases, not in {100 * level:g} %."
    return Finding(
        "layers",
        f"Truncated alone at {most['length']:,} tokens, {most['way']}, layer {most['layer']} needs the most: "
        f"{needed_keys(most)} for a rise of at most {percent(most['allowed'], 2)}, its equal share of "
        f"{percent(most['tau'], 2)}; {with_one}.",
        rule,
        {"length": most["length"], "way": most["way"], "windows": windows}
        | {f"N of layer {row['layer']}": row["capacity"] for row in rows},
    )


def _geometry(row: Row) -> Finding:
    layers, correlation, p_value = row["layers"], row["correlation"], row["p_value"]
    if correlation is None:
        why = "too few layers" if layers < 3 else "all layers are equal in one of the two"
        words = f"Whether separability predicts how many keys a layer needs cannot be judged: {why}."
    else:
        evidence = f"(rank correlation of capacity and separability {correlation:+.2f}, p = {p_value:.2g})"
        hopeless = ", as so few layers cannot give a small p" if least_p_value(layers) >= _LEVEL else ""
        words = f"No relation between separability and capacity can be shown with {layers} layers{hopeless} {evidence}."
        if p_value < _LEVEL:
            more = f"layers of higher separability need {'more' if correlation > 0 else 'fewer'} keys"
            words = f"Geometry and function go together here: {more} {evidence}."
    return Finding(
        "geometry and function",
        words,
        f"Spearman's rank correlation over layers, of N* at the equal share of the smallest tau and separability of "
        f"{row['separability_n']} value vectors (on all windows), with a two-sided permutation test. A relation is "
        f"shown if p is below {_LEVEL:g}; it is a correlation over the layers of this model, not a cause. Length and "
        "way were fixed in advance: the longest, and renormalised if it was measured.",
        {name: value for name, value in row.items() if name != "exact"},
    )


def _all_cells(rows: list[Row]) -> Finding:
    judged = [row for row in rows if row["p_value"] is not None]
    related = [row for row in judged if row["p_value"] < _LEVEL]
    more, count = sum(row["correlation"] > 0 for row in related), len(related)
    signs = f" (more keys with higher separability in {more}, fewer in {count - more})" if count else ""
    unjudged = f"; {len(rows) - len(judged)} cannot be judged" if len(judged) < len(rows) else ""
    shown, chance = f"{count or 'none'} {'shows' if count < 2 else 'show'}", f"{_LEVEL * len(judged):.2g}"
    words = f"Of {len(rows)} pairs of way and length, {shown} this relation{signs}{unjudged}. By chance alone "
    words += f"{len(judged)} tests give up to {chance} on average: only the one above was fixed in advance."
    return Finding(
        "geometry over lengths and ways",
        words if judged else f"None of the {len(rows)} pairs of way and length can be judged.",
        f"The same test for every way and length, at the equal share of the smallest tau, each with p below {_LEVEL:g} "
        f"and no correction for their number. They share the model, its layers and the text, so they are not "
        f"independent: without a relation, {percent(_LEVEL)} of them show one on average, but often together.",
        {"pairs": len(rows), "judged": len(judged), "shown": count}
        | {f"p, {row['way']} at {row['length']}": row["p_value"] for row in rows},
    )


def _not_monotone(odd: pl.DataFrame, rows: int) -> Finding:
    most = odd.row(0, named=True)
    where = "the whole model" if most["layer"] is None else f"layer {most['layer']}"
    return Finding(
        "not monotone",
        f"In {odd.height} of {rows} rows a smaller N also kept the loss: keeping more keys is not always better here, "
        f"and N* is the least N such that every N tried from there on holds. For {where}, {most['way']} at "
        f"{most['length']:,} tokens and {percent(most['allowed'], 2)}, N = {most['first']:,} also held, while N* is "
        f"{number(most['capacity'], 3)}.",
        "The loss is assumed to fall with N near the crossing, but some N tried below N* has a rise of at most tau. "
        "The column first is the least of these. The sentence is about the row of the model (else of a layer) where "
        "first is the smallest share of N*.",
        {"rows": odd.height}
        | {name: most[name] for name in ("layer", "length", "way", "allowed", "first", "capacity")},
    )
