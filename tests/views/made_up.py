"""A reproduction with made-up numbers of a plausible size: 48 heads in 6 layers, lengths from 32 to 1024."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl

from abbe.studies import Claim, Figure, Reproduction

LENGTHS = (32, 64, 128, 256, 512, 1024)
SIZES = (1, 2, 5, 10, 20, 50, 100, 200, 500)
VECTORS = ("embedding", "value")
TEMPERATURES = tuple(float(t) for t in np.geomspace(0.01, 10, 13).round(5))
STEPS = (1e-3, 1e-1, 10.0)
SERIES = {"selected": 1.0, "random": 0.55, "bound": 1.9, "expected low": 0.45, "expected high": 0.62}


def distances(axis: str, places: Sequence[int], vectors: Sequence[str] = VECTORS) -> pl.DataFrame:
    rows = []
    for kind in vectors:
        unit = 1.0 if kind == "embedding" else 7.3
        for place in places:
            size = 3 + 57 * (place - 32) / 992 if axis == "length" else 60 * (1 - math.exp(-(place + 2) / 9))
            for series, share in SERIES.items():
                value = unit * share * size
                measured = series in ("selected", "random")
                low, high = (0.93 * value, 1.08 * value) if measured else (None, None)
                rows.append((kind, place, series, value, low, high))
    return pl.DataFrame(rows, schema=["vectors", axis, "series", "value", "low", "high"], orient="row")


def figure_2c(lengths: Sequence[int] = LENGTHS, vectors: Sequence[str] = VECTORS) -> Figure:
    critical: list[tuple[Any, ...]] = []
    tests: list[tuple[Any, ...]] = []
    for kind in vectors:
        for length in lengths:
            sizes = [n for n in SIZES if n <= length // 2]
            for level in (0.01, 0.05):
                size = round(1.4 * length**0.55 * (1 if level == 0.01 else 1.3)) if length < 1024 else None
                ends = (None, None) if size is None else (round(0.8 * size), round(1.3 * size))
                critical.append((kind, length, level, size, *ends, sizes[-1]))
            for n in sizes:
                statistic = 0.95 * math.exp(-n / (0.6 * length**0.7)) + 0.04
                tests.append((kind, length, n, statistic, math.exp(-48 * statistic**2)))
    names = ["vectors", "length", "level", "critical_n", "low", "high", "largest_n"]
    tables = {
        "critical": pl.DataFrame(critical, schema=names, orient="row"),
        "tests": pl.DataFrame(tests, schema=["vectors", "length", "n", "statistic", "p_value"], orient="row"),
    }
    return Figure("2c", tables, {"lengths": list(lengths), "heads": 48, "windows": 8, "queries": 32})


def figure_3(sizes: Sequence[int] = SIZES, vectors: Sequence[str] = VECTORS) -> Figure:
    random = np.random.default_rng(3)
    heads: list[tuple[Any, ...]] = []
    means: list[tuple[Any, ...]] = []
    for kind in vectors:
        for n in sizes:
            middle = 1 - 0.24 * min(1.0, math.log2(n) / 4) if n > 1 else 1.0
            values = np.clip(middle + 0.07 * random.standard_normal(48) * (n > 1), 0, 1)
            controls = np.clip(0.6 * middle + 0.05 * random.standard_normal(48), 0, 1)
            heads += [(kind, i // 8, i % 8, n, *pair) for i, pair in enumerate(zip(values, controls, strict=True))]
            for series, points in (("selected", values), ("random", controls)):
                mean = float(points.mean())
                means.append((kind, n, series, mean, mean - 0.01, mean + 0.01))
    tables = {
        "heads": pl.DataFrame(heads, schema=["vectors", "layer", "head", "n", "value", "control"], orient="row"),
        "mean": pl.DataFrame(means, schema=["vectors", "n", "series", "value", "low", "high"], orient="row"),
    }
    return Figure("3", tables, {"length": 1024, "sizes": list(sizes), "heads": 48, "windows": 8, "queries": 32})


def figure_4() -> Figure:
    rows: list[tuple[Any, ...]] = []
    ceilings: list[tuple[Any, ...]] = []
    for step in (*STEPS, None):
        for t in TEMPERATURES:
            true = min(1 / (2 * t), math.inf if step is None else math.sqrt(2) / step)
            ceilings.append((t, step, true, min(1 / (4 * t), math.sqrt(2))))
            for direction, part in (("random", 0.04), ("pair", 0.5), ("worst", 0.7)):
                if (direction == "worst") != (step is None):
                    continue
                for statistic, share in (("paper", 0.5), ("mean", 0.25), ("max", 0.98)):
                    flat = 1.0 if statistic == "max" else t / (t + 0.1)
                    rows.append((t, step, direction, statistic, true * part * share * flat))
    tables = {
        "sensitivity": pl.DataFrame(
            rows, schema=["temperature", "step", "direction", "statistic", "value"], orient="row"
        ),
        "ceilings": pl.DataFrame(ceilings, schema=["temperature", "step", "true", "paper"], orient="row"),
    }
    about = {"length": 1024, "steps": list(STEPS), "heads": 48, "windows": 8, "queries": 32}
    return Figure("4", tables, about)


def drift() -> Figure:
    def table(axis: str, places: Sequence[int]) -> pl.DataFrame:
        rows: list[tuple[Any, ...]] = []
        for place in places:
            ceiling = math.log(place if axis == "n" else 5)
            for series, share in (("selected", 0.34), ("random", 0.22)):
                value = share * ceiling * (1 if axis == "n" else 0.9 + 0.02 * math.log2(place))
                rows.append((place, series, value, 0.95 * value, 1.06 * value, value / ceiling if ceiling else None))
        return pl.DataFrame(rows, schema=[axis, "series", "value", "low", "high", "share"], orient="row")

    tables = {"by_size": table("n", SIZES), "by_length": table("length", LENGTHS)}
    return Figure("drift", tables, {"length": 1024, "size": 5, "heads": 48, "windows": 8, "queries": 32})


def figures() -> dict[str, Figure]:
    common = {"heads": 48, "windows": 8, "queries": 32, "vectors": list(VECTORS)}
    all_figures = [
        Figure("2a", {"distance": distances("length", LENGTHS)}, common | {"size": 5, "lengths": list(LENGTHS)}),
        Figure("2b", {"distance": distances("n", SIZES)}, common | {"length": 1024, "sizes": list(SIZES)}),
        figure_2c(),
        figure_3(),
        figure_4(),
        drift(),
    ]
    return {figure.name: figure for figure in all_figures}


CLAIMS = (
    Claim(
        "2a", "growth with length", "The distance grows roughly linearly with L, for selected and for random sets.",
        "It grows like L^0.96 for the selected sets and L^0.93 for random ones.",
        "slope of log distance against log L between 0.8 and 1.2, over all lengths", "holds",
        {"slope of the selected": 0.961, "slope of random sets": 0.93, "lengths": 6.0},
    ),
    Claim(
        "2b", "plateau beyond N = 20", "Beyond about 20 selected tokens the distance no longer grows.",
        "From N = 20 to N = 100 it still grows by 31 %.",
        "less than 10 % growth from N = 20 to the largest N", "does not hold",
        {"growth": 0.31, "interval low": 0.27, "interval high": None},
    ),
    Claim(
        "2c", "critical N", "Selected and random sets can be told apart up to N of about 0.06 L.",
        "Every test up to N = 500 tells them apart.",
        "the interval of the critical N at the longest length covers 0.06 L", "cannot be judged",
        {"tried up to": 500.0},
    ),
)  # fmt: skip

MANIFEST: dict[str, Any] = {
    "model": {"name": "gpt2-like", "about": "6 layers, 8 heads, 512 wide", "kind": "decoder", "source": "embedded"},
    "text": {"name": "War and Peace", "characters": 3_200_000, "fingerprint": "0f3a"},
    "settings": {"lengths": list(LENGTHS), "windows": 8, "queries": 32, "sizes": list(SIZES), "seed": 0},
    "self_check": {"error": 3.1e-6, "tokens": 64},
    "skipped": ["length 2048: the model's context has 1024 tokens", "size 500 at length 512: nothing is left outside"],
    "versions": {"python": "3.11.2", "abbe": "0.1.0", "torch": "2.13.0"},
    "machine": {"system": "Linux", "threads": 2},
    "seconds": {"total": 431.2},
}

SECONDS = {"2a": 92.4, "2b": 61.0, "2c": 261.7, "3": 61.0, "4": 48.9}


def reproduction(**changes: Any) -> Reproduction:
    parts: dict[str, Any] = {"manifest": MANIFEST, "figures": figures(), "claims": CLAIMS, "seconds": SECONDS}
    return Reproduction(**(parts | changes))


def chart(figure: Figure, theme: Any = "light") -> dict[str, Any]:
    """One figure as the result draws it."""
    return dict(reproduction(figures={figure.name: figure}).view().charts(theme)[f"figure-{figure.name}"])
