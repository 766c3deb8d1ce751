"""The paper's figures: which runs each one needs (its protocol as settings), and its data from their tables.

`Figure` says which columns the data have.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import polars as pl

from ..._errors import AbbeError
from ...bounds import change_bound_by_norm, spectral_norm_bound_paper, spectral_norm_supremum
from ...results import Run
from ...runs.settings import Settings, Vectors
from ...runs.tables import LEVELS, READINGS, critical_name, rejecting_name
from ...words.paper import DRIFT, FIGURES
from .result import Figure

SIZE = 5  # of figure 2a
STEPS = (1e-3, 1e-1, 10.0)  # eps of figure 4
LENGTHS = (32, 64, 128, 256, 512, 1024)
_SIZES_2B = (1, 2, 5, 10, 20, 50, 100)  # the paper: 1, 5, 10, 20, 100
_SIZES_2C = (
    *(1, 2, 3, 4, 5, 6, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256),
    *(320, 384, 448, 512),
)
_POWERS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
_SIZES_3 = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 80, 100)
_TEMPERATURES = (0.003, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
_VECTORS: tuple[Vectors, ...] = ("embedding", "value")  # the paper's, and what attention really adds up


@dataclass(frozen=True)
class Part:
    """One run of a figure."""

    figure: str
    vectors: Vectors
    settings: Settings

    @property
    def name(self) -> str:
        return f"{self.figure}-{self.vectors}"


def plan(
    figures: Sequence[str], context: int | None, windows: int, queries: int | None, seed: int, quick: bool
) -> list[Part]:
    """The runs of these figures, in the paper's order."""
    unknown = [name for name in figures if name not in FIGURES]
    if unknown or not figures:
        raise AbbeError(f"there is no figure {', '.join(unknown) or 'named'}: choose from {', '.join(FIGURES)}, or all")
    if windows < 1:
        raise AbbeError(f"windows is {windows}, but must be at least 1")
    lengths = tuple(length for length in LENGTHS if context is None or length <= context)
    if len(lengths) < 2:
        raise AbbeError(
            f"model and text have room for windows of {context} tokens: the figures need at least {LENGTHS[1]}"
        )
    chosen = lengths[::-2][::-1] if quick else lengths  # always with the longest
    common = Settings(
        lengths=chosen, windows=windows, queries=queries, sizes=(SIZE,), vectors="embedding", normalizer=None,
        temperatures=(), seed=seed, level=0.95, resamples=100 if quick else 1000,
    )  # fmt: skip
    return [
        Part(name, vectors, replace(_settings(name, common, lengths[-1], quick), vectors=vectors))
        for name in FIGURES
        if name in figures
        for vectors in (_VECTORS if name != "4" else _VECTORS[:1])  # figure 4 is about weights, not vectors
    ]


def _settings(figure: str, common: Settings, longest: int, quick: bool) -> Settings:
    if figure == "2a":
        return replace(common, expected=True)
    if figure == "2c":
        return replace(common, sizes=_fitting(_POWERS if quick else _SIZES_2C, longest), readings=True)
    at_longest = replace(common, lengths=(longest,))
    if figure == "4":
        return replace(at_longest, temperatures=_TEMPERATURES[:: 2 if quick else 1], steps=STEPS)
    sizes = _fitting(_SIZES_2B if figure == "2b" else _SIZES_3, longest)
    # The same queries for every size, or sizes could not be compared.
    return replace(at_longest, sizes=sizes, more_than=sizes[-1], expected=figure == "2b")


def _fitting(sizes: Sequence[int], longest: int) -> tuple[int, ...]:
    return tuple(n for n in sizes if n <= longest // 2)


Runs = Mapping[str, Run]  # by kind of vectors


def make_figure(name: str, runs: Runs) -> Figure:
    """One figure of the paper from its runs."""
    makers: dict[str, Callable[[Runs], dict[str, pl.DataFrame]]] = {
        "2a": lambda runs: _distances(runs, "length"), "2b": lambda runs: _distances(runs, "n"), "2c": _critical,
        "3": _separability, "4": _gradient,
    }  # fmt: skip
    return Figure(name, makers[name](runs), _about(runs))


def drift_figure(by_length: Runs, by_size: Runs) -> Figure:
    """How far the renormalised selected weights are from uniform; the vectors do not matter."""
    tables = {}
    for name, axis, runs in (("by_size", "n", by_size), ("by_length", "length", by_length)):
        run = next(iter(runs.values()))
        series = _series(run, "selected_divergence", axis)
        sizes = pl.col("n") if axis == "n" else pl.lit(run.manifest["settings"]["sizes"][0])
        share = pl.when(sizes > 1).then(pl.col("value") / sizes.cast(pl.Float64).log())
        tables[name] = series.with_columns(share=share)
    long, wide = _about(by_length), _about(by_size)
    same = {key: wide[key] for key in ("windows", "heads", "queries")}
    return Figure(DRIFT, tables, same | {"length": wide["length"], "size": long["size"]})


def _about(runs: Runs) -> dict[str, Any]:
    """For captions; one length is `length`, several are `lengths`, and likewise for sizes."""
    run = next(iter(runs.values()))
    settings = run.manifest["settings"]
    counts = Counter(window["length"] for window in run.manifest["windows"]).values()  # short texts have fewer
    about = {
        "vectors": list(runs),
        "queries": settings["queries"],
        "windows": min(counts) if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}",
        "heads": run.table.select("layer", "head").drop_nulls().n_unique(),
    }
    about |= _one_or_many("length", settings["lengths"])
    if settings["steps"]:
        return about | {"steps": settings["steps"]}
    return about | _one_or_many("size", settings["sizes"]) | {"more_than": settings["more_than"]}


def _one_or_many(name: str, values: list[int]) -> dict[str, Any]:
    return {name: values[0]} if len(values) == 1 else {f"{name}s": values}


def _of_all_heads(run: Run, measure: str) -> pl.DataFrame:
    return run.table.filter((pl.col("measure") == measure) & pl.col("head").is_null())


def _stacked(runs: Runs, make: Callable[[Run], pl.DataFrame]) -> pl.DataFrame:
    """The tables of all kinds of vectors, one below the other."""
    return pl.concat([make(run).select(pl.lit(vectors).alias("vectors"), pl.all()) for vectors, run in runs.items()])


def _series(run: Run, measure: str, axis: str) -> pl.DataFrame:
    """A measure and its random control as two series."""
    rows = _of_all_heads(run, measure)
    return pl.concat([_one_series(rows, axis, "selected", "value"), _one_series(rows, axis, "random", "control")])


def _one_series(rows: pl.DataFrame, axis: str, name: str, column: str) -> pl.DataFrame:
    """Only the value itself has an interval."""
    ends = [pl.col(end) if column == "value" else pl.lit(None, pl.Float64).alias(end) for end in ("low", "high")]
    points = rows.select(axis, pl.lit(name).alias("series"), pl.col(column).alias("value"), *ends)
    return points.filter(pl.col("value").is_not_null()).sort(axis)


def _distances(runs: Runs, axis: str) -> dict[str, pl.DataFrame]:
    def of(run: Run) -> pl.DataFrame:
        parts = [_series(run, "distance", axis), _one_series(_of_all_heads(run, "distance"), axis, "bound", "limit")]
        parts += [
            _one_series(_of_all_heads(run, f"expected_distance_{end}"), axis, f"expected {end}", "value")
            for end in ("low", "high")
        ]
        return pl.concat(parts)

    return {"distance": _stacked(runs, of)}


def _critical(runs: Runs) -> dict[str, pl.DataFrame]:
    """Sets of at most half the keys: larger ones leave few queries."""
    return {
        "critical": _stacked(runs, _critical_sizes),
        "readings": _stacked(runs, _readings),
        "tests": _stacked(runs, _tests),
        "proportional": _stacked(runs, _in_proportion),
    }


def _tests(run: Run) -> pl.DataFrame:
    columns = [
        _of_all_heads(run, f"ks_{part}").select("length", "n", pl.col("value").alias(part))
        for part in ("statistic", "p_value")
    ]
    joined = columns[0].join(columns[1], on=["length", "n"], how="left").sort("length", "n")
    return joined.filter(2 * pl.col("n") <= pl.col("length"))


def _critical_sizes(run: Run) -> pl.DataFrame:
    largest = _tests(run).group_by("length").agg(largest_n=pl.col("n").max())
    by_level = []
    for level in LEVELS:
        rows = _of_all_heads(run, f"critical_n@{level:g}")
        sizes = largest.join(rows.select("length", "low", "high", critical_n="value"), on="length", how="left")
        tried = [pl.when(pl.col("critical_n") <= pl.col("largest_n")).then(x) for x in ("critical_n", "low", "high")]
        by_level.append(sizes.select("length", pl.lit(level).alias("level"), *tried, "largest_n"))
    return pl.concat(by_level).sort("length", "level")


def _readings(run: Run) -> pl.DataFrame:
    """Critical N under every reading, the default one first."""
    largest = _tests(run).group_by("length").agg(largest_n=pl.col("n").max())
    by_reading = []
    for level, (expected, test) in itertools.product(LEVELS, READINGS):
        critical = _of_all_heads(run, critical_name(level, expected, test)).select("length", critical_n="value")
        rejecting = _of_all_heads(run, rejecting_name(level, expected, test)).select("length", rejecting="value")
        joined = largest.join(critical, on="length", how="left").join(rejecting, on="length", how="left")
        keys = {"level": pl.lit(level), "expected": pl.lit(expected), "test": pl.lit(test)}
        by_reading.append(joined.with_columns(**keys).select("length", *keys, "critical_n", "rejecting", "largest_n"))
    return pl.concat(by_reading).sort("length", "level", maintain_order=True)


def _in_proportion(run: Run) -> pl.DataFrame:
    rows = _of_all_heads(run, "distance").filter(8 * pl.col("n") == pl.col("length"))
    return rows.select("length", "n", "value", "low", "high").sort("length")


def _separability(runs: Runs) -> dict[str, pl.DataFrame]:
    def heads(run: Run) -> pl.DataFrame:
        single = pl.col("head").is_not_null() & (pl.col("measure") == "separability")
        return run.table.filter(single).select("layer", "head", "n", "value", "control").sort("layer", "head", "n")

    return {"heads": _stacked(runs, heads), "mean": _stacked(runs, lambda run: _series(run, "separability", "n"))}


def _gradient(runs: Runs) -> dict[str, pl.DataFrame]:
    run = next(iter(runs.values()))
    settings = run.manifest["settings"]
    rows: list[dict[str, Any]] = []
    ceilings: list[dict[str, Any]] = []
    for t in settings["temperatures"]:
        at = "" if t == 1 else f"@T={t:g}"
        names = {kind: f"sensitivity_{kind}_{{}}{at}" for kind in ("worst", "random")}
        rows += _sensitivities(run, t, None, names)
        ceilings.append(_ceiling(t, None))
        for step in settings["steps"]:
            at = f"@T={t:g},eps={step:g}"
            names = {kind: f"difference_{kind}_{{}}{at}" for kind in ("random", "pair")}
            rows += _sensitivities(run, t, step, names)
            ceilings.append(_ceiling(t, step))
    return {
        "sensitivity": pl.DataFrame(rows, schema_overrides={"step": pl.Float64}).sort("temperature"),
        "ceilings": pl.DataFrame(ceilings, schema_overrides={"step": pl.Float64}).sort("temperature"),
    }


def _sensitivities(run: Run, t: float, step: float | None, names: Mapping[str, str]) -> list[dict[str, Any]]:
    rows = []
    for direction, name in names.items():
        means = run.table.filter((pl.col("measure") == name.format("mean")) & pl.col("head").is_not_null())
        largest = _of_all_heads(run, name.format("max"))["value"]
        statistics = {"paper": means["value"].max(), "mean": means["value"].mean(), "max": largest[0]}
        key = {"temperature": t, "step": step, "direction": direction}
        rows += [key | {"statistic": statistic, "value": value} for statistic, value in statistics.items()]
    return rows


def _ceiling(t: float, step: float | None) -> dict[str, float | None]:
    true = spectral_norm_supremum(t) if step is None else change_bound_by_norm(step, t) / step
    return {"temperature": t, "step": step, "true": float(true), "paper": float(spectral_norm_bound_paper(t))}
