"""What a study of capacity means, in plain sentences with their rules and numbers."""

from __future__ import annotations

from typing import Any

import polars as pl

from ._capacity_parts import DELETION, RENORMALISED
from ._capacity_ranks import least_p_value
from ._capacity_settings import CapacitySettings
from ._report_parts import Finding
from ._reproduction import PAPER_CRITICAL_SHARE
from ._telling import percent, sentence

LEVEL = 0.05  # of the test for a relation between geometry and function
_HOW = {DELETION: "with their weights as they are", RENORMALISED: "with their weights renormalised"}
_LEAST = (
    "The least N at which keeping only the N keys of largest weight, at every query of every head and layer, raises"
)

Row = dict[str, Any]


def findings(
    table: pl.DataFrame, growth: pl.DataFrame, correlation: pl.DataFrame, settings: CapacitySettings
) -> tuple[Finding, ...]:
    """For the model, over lengths, for layers, for the geometry; then what to beware of."""
    of_model = table.filter(pl.col("layer").is_null())
    of_layers = table.filter(pl.col("layer").is_not_null())
    longest = of_model.filter(pl.col("length") == settings.lengths[-1])
    found = [_capacity(longest.filter(pl.col("way") == way).to_dicts(), way) for way in settings.ways]
    found += [_growth(of_model, row) for row in growth.to_dicts() if row["tau"] == settings.taus[0]]
    if of_layers.height:
        found += [_layers(of_layers, settings), _geometry(correlation, settings)]
    return (*found, *_not_monotone(table))


def amount(tau: float) -> str:
    """ "1 %", "0.5 %", "0.17 %"."""
    return f"{100 * tau:.2g} %"


def _keys(row: Row) -> str:
    """ "61 keys (55 to 70)"; of a layer the number may lie between whole ones."""
    value = f"{row['capacity']:.3g}" if row["capacity"] < 100 else f"{row['capacity']:,.0f}"
    noun = "key" if row["capacity"] == 1 else "keys"
    return f"{value} {noun}" + ("" if row["low"] is None else f" ({row['low']:.3g} to {row['high']:.3g})")


def _capacity(rows: list[Row], way: str) -> Finding:
    needed = "; ".join(f"{_keys(row)} for a rise of at most {amount(row['tau'])}" for row in rows)
    length = rows[0]["length"]
    return Finding(
        "capacity",
        f"At {length:,} tokens every query needs, {_HOW[way]}, {needed}.",
        f"{_LEAST} the mean loss by at most tau, relative to the model's own on the same windows.",
        {"length": length, "way": way, "windows": rows[0]["windows"]}
        | {f"N at {amount(row['tau'])}": row["capacity"] for row in rows},
    )


def _growth(of_model: pl.DataFrame, row: Row) -> Finding:
    some = of_model.filter((pl.col("way") == row["way"]) & (pl.col("tau") == row["tau"])).sort("length").to_dicts()
    first, last = some[0], some[-1]
    ends = "" if row["low"] is None else f" ({row['low']:.2f} to {row['high']:.2f})"
    shares = f"{percent(first['share'])} of {first['length']:,} tokens, {percent(last['share'])} of {last['length']:,}"
    return Finding(
        "growth",
        f"{sentence(row['way'])}: N* for {amount(row['tau'])} grows as L to the power of {row['exponent']:.2f}{ends}: "
        f"{_growth_words(row)}. It is {shares}; no one share, such as {percent(PAPER_CRITICAL_SHARE)}, fits all.",
        "Least squares of ln N* on ln L; the interval resamples the windows of each length. Below 1 the share N*/L "
        "falls, an interval that holds 0 or 1 shows neither growth nor change of the share.",
        {"exponent": row["exponent"], "low": row["low"], "high": row["high"], "way": row["way"], "tau": row["tau"]}
        | {f"N*/L at {one['length']}": one["share"] for one in some},
    )


def _growth_words(row: Row) -> str:
    low, high = (row["exponent"] if end is None else end for end in (row["low"], row["high"]))
    if low <= 0 <= high:
        return "no growth with the length can be shown"
    if high < 1:
        return "the longer the text, the smaller the part of it that is needed" if low > 0 else "longer texts need less"
    return (
        "it grows, and no change of its share of the length can be shown"
        if low <= 1
        else "the longer the text, the larger the part that is needed"
    )


def _layers(of_layers: pl.DataFrame, settings: CapacitySettings) -> Finding:
    rows = _at_equal_share(of_layers, settings)
    most = max(rows, key=lambda row: row["capacity"])
    single = [row["layer"] for row in rows if row["capacity"] <= 1]
    told = f"one key is enough for {len(single)} of {len(rows)} layers" if single else "no layer holds with one key"
    return Finding(
        "layers",
        f"Truncated alone, layer {most['layer']} needs most: {_keys(most)} for a rise of at most "
        f"{amount(most['allowed'])}, its equal share of {amount(most['tau'])}; {told}.",
        "Only that layer is truncated, on fewer windows; N is read off between powers of 2, by straight lines over "
        "ln N. The equal share is tau over the number of layers.",
        {"length": most["length"], "way": most["way"], "windows": most["windows"]}
        | {f"N of layer {row['layer']}": row["capacity"] for row in rows},
    )


def _at_equal_share(of_layers: pl.DataFrame, settings: CapacitySettings) -> list[Row]:
    of_tau = of_layers.filter(pl.col("tau") == settings.taus[0])
    return of_tau.filter(pl.col("allowed") == pl.col("allowed").min()).sort("layer").to_dicts()


def _geometry(correlation: pl.DataFrame, settings: CapacitySettings) -> Finding:
    """Decided beforehand: the smallest tau, at its equal share."""
    of_tau = correlation.filter(pl.col("tau") == settings.taus[0])
    row = of_tau.filter(pl.col("allowed") == pl.col("allowed").min()).row(0, named=True)
    return Finding(
        "geometry and function",
        sentence(_geometry_words(row)),
        f"Spearman's rank correlation over layers, of N* at the equal share of the smallest tau and separability of "
        f"{row['separability_n']} value vectors, with a two-sided permutation test. A relation is shown if p is below "
        f"{LEVEL:g}; it is one over the layers of this model, not a cause.",
        {name: row[name] for name in ("correlation", "p_value", "layers", "separability_n", "tau", "allowed", "way")},
    )


def _geometry_words(row: Row) -> str:
    layers = row["layers"]
    if row["correlation"] is None:
        why = "too few layers" if layers < 3 else "all layers are equal in one of the two"
        return f"whether separability says how many keys a layer needs cannot be judged: {why}."
    told = f"rank correlation of capacity and separability {row['correlation']:+.2f}, p = {row['p_value']:.2g}"
    if row["p_value"] < LEVEL:
        more = "more" if row["correlation"] > 0 else "fewer"
        return f"geometry and function go together here: layers of higher separability need {more} keys ({told})."
    hopeless = least_p_value(layers) >= LEVEL
    even = ", whatever the numbers, as so few layers cannot give a small p" if hopeless else ""
    return f"no relation between separability and capacity can be shown with {layers} layers{even} ({told})."


def _not_monotone(table: pl.DataFrame) -> list[Finding]:
    odd = table.filter(~pl.col("monotone"))
    if not odd.height:
        return []
    return [
        Finding(
            "not monotone",
            f"In {odd.height} of {table.height} rows a smaller N kept the loss, too: keeping more keys is not always "
            "better here, and N* is the least N from which on every N that was tried holds.",
            "The loss is taken to fall with N near the crossing; some tried N below N* has a rise of at most tau.",
            {"rows": odd.height},
        )
    ]
