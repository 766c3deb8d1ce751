"""Findings from truncating single layers, and whether their geometry agrees.

One length and way, fixed in advance, is reported: the longest of the layers, renormalised, at the equal share of the
smallest tau. The other lengths and ways are only counted, as among many tests some succeed by chance.
"""

from __future__ import annotations

import math
from typing import Any

import polars as pl

from ...measures import enough_windows
from ...words.finding import Finding
from ...words.numbers import interval, number, percent, sentence
from .geometry import least_p_value
from .result import at_equal_share, reported_way
from .settings import CapacitySettings

Row = dict[str, Any]
INTERPOLATED = " N is interpolated between powers of 2, linearly in ln N."
LEVEL = 0.05  # of the test for a relation between geometry and function
_GEOMETRY_NUMBERS = ("correlation", "p_value", "layers", "separability_n", "tau", "allowed", "way", "length")


def layer_findings(table: pl.DataFrame, correlation: pl.DataFrame, settings: CapacitySettings) -> list[Finding]:
    """On the layers, the geometry, and the geometry over all lengths and ways if there are several."""
    of_layers = at_equal_share(table.filter(pl.col("layer").is_not_null()), settings.taus[0])
    related = at_equal_share(correlation, settings.taus[0])
    reported = (pl.col("length") == settings.layer_lengths[-1]) & (pl.col("way") == reported_way(settings.ways))
    layers, (relation,) = of_layers.filter(reported).sort("layer").to_dicts(), related.filter(reported).to_dicts()
    sentences = [_layers(layers, settings.level), _geometry(relation)]
    return sentences + ([_all_cells(related.to_dicts())] if related.height > 1 else [])


def needed_keys(row: Row) -> str:
    """ "61 keys (55 to 70)", with the first N that holds if it is smaller."""
    remarks = [interval(row["low"], row["high"])] if row["low"] is not None else []
    remarks += [] if row["monotone"] else [f"the first N that holds is {row['first']:,}"]
    keys = f"{number(row['capacity'], 3)} {'key' if row['capacity'] == 1 else 'keys'}"
    return f"{keys} ({'; '.join(remarks)})" if remarks else keys


def _layers(rows: list[Row], level: float) -> Finding:
    most = max(rows, key=lambda row: row["capacity"])
    single = [row["layer"] for row in rows if row["capacity"] <= 1]
    with_one = f"one key is enough for {len(single)} of {len(rows)} layers" if single else "no layer holds with one key"
    return Finding(
        "layers",
        f"Truncated alone at {most['length']:,} tokens, {most['way']}, layer {most['layer']} needs the most: "
        f"{needed_keys(most)} for a rise of at most {percent(most['allowed'], 2)}, its equal share of "
        f"{percent(most['tau'], 2)}; {with_one}.",
        f"Only that layer is truncated, on {most['windows']} evenly spaced windows of that length.{INTERPOLATED} "
        "The equal share is tau over the number of layers." + _too_narrow(most["windows"], level),
        {"length": most["length"], "way": most["way"], "windows": most["windows"]}
        | {f"N of layer {row['layer']}": row["capacity"] for row in rows},
    )


def _too_narrow(windows: int, level: float) -> str:
    """A warning about intervals from few windows; empty if there is no interval, or there are enough."""
    if windows < 2 or windows >= enough_windows(level):
        return ""
    most = 1 - 2.0 ** (1 - windows)
    return (
        f" An interval from {windows} windows cannot extend beyond them, so it contains the true number in at most "
        f"{math.floor(100 * most)} % of cases, not in {100 * level:g} %."
    )


def _geometry(row: Row) -> Finding:
    return Finding(
        "geometry and function",
        sentence(_geometry_words(row)),
        f"Spearman's rank correlation over layers, of N* at the equal share of the smallest tau and separability of "
        f"{row['separability_n']} value vectors (on all windows), with a two-sided permutation test. A relation is "
        f"shown if p is below {LEVEL:g}; it is a correlation over the layers of this model, not a cause. Length and "
        "way were fixed in advance: the longest, and renormalised if it was measured.",
        {name: row[name] for name in _GEOMETRY_NUMBERS},
    )


def _geometry_words(row: Row) -> str:
    layers = row["layers"]
    if row["correlation"] is None:
        why = "too few layers" if layers < 3 else "all layers are equal in one of the two"
        return f"whether separability predicts how many keys a layer needs cannot be judged: {why}."
    evidence = f"rank correlation of capacity and separability {row['correlation']:+.2f}, p = {row['p_value']:.2g}"
    if row["p_value"] < LEVEL:
        more = "more" if row["correlation"] > 0 else "fewer"
        return f"geometry and function go together here: layers of higher separability need {more} keys ({evidence})."
    hopeless = ", as so few layers cannot give a small p" if least_p_value(layers) >= LEVEL else ""
    return f"no relation between separability and capacity can be shown with {layers} layers{hopeless} ({evidence})."


def _all_cells_words(rows: list[Row], judged: list[Row], related: list[Row]) -> str:
    if not judged:
        return f"None of the {len(rows)} pairs of way and length can be judged."
    more, count = sum(row["correlation"] > 0 for row in related), len(related)
    signs = f" (more keys with higher separability in {more}, fewer in {count - more})" if count else ""
    unjudged = f"; {len(rows) - len(judged)} cannot be judged" if len(judged) < len(rows) else ""
    return (
        f"Of {len(rows)} pairs of way and length, {count or 'none'} {'shows' if count < 2 else 'show'} this "
        f"relation{signs}{unjudged}. By chance alone {len(judged)} tests give up to {LEVEL * len(judged):.2g} on "
        "average: only the one above was fixed in advance."
    )


def _all_cells(rows: list[Row]) -> Finding:
    judged = [row for row in rows if row["p_value"] is not None]
    related = [row for row in judged if row["p_value"] < LEVEL]
    return Finding(
        "geometry over lengths and ways",
        _all_cells_words(rows, judged, related),
        f"The same test for every way and length, at the equal share of the smallest tau, each with p below {LEVEL:g} "
        f"and no correction for their number. They share the model, its layers and the text, so they are not "
        f"independent: without a relation, {percent(LEVEL)} of them show one on average, but often together.",
        {"pairs": len(rows), "judged": len(judged), "shown": len(related)}
        | {f"p, {row['way']} at {row['length']}": row["p_value"] for row in rows},
    )
