"""A report with made-up numbers of a plausible size, and its page as a file."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from parsed_page import unpacked

from abbe.results import SCHEMA
from abbe.studies import Ball, HeadVerdict, Report, Sample, SampleRow
from abbe.views import page
from abbe.views.theme import THEMES, ThemeName
from abbe.words.finding import Finding, KeyNumber

LENGTHS, SIZES, TEMPERATURES = (64, 256, 1024), (1, 5, 20, 50), (0.1, 0.5, 1.0, 2.0)
PLAIN = (
    "entropy", "entropy_floor", "effective_tokens", "effective_tokens_floor", "max_weight", "logit_range", "sink_mass",
)  # fmt: skip
SIZED = (
    "top_mass", "selected_divergence", "distance", "distance_per_token", "net_distance", "separability", "recall",
    "precision", "f_score", "separability_cosine", "recall_cosine", "precision_cosine", "f_score_cosine",
)  # fmt: skip
LIMITED = ("entropy", "effective_tokens", "max_weight", "top_mass", "distance", "distance_per_token", "net_distance")
CONTROLLED = ("max_weight", "sink_mass", *SIZED)
ALTERNATIVES = ("baseline", "entmax:alpha=1.5", "sparsemax", "topk:k=32")
KINDS = ("selective", "sharp", "sink", "uniform", "blurred", "fading", "not measured")
WORDS = ("The", "old", "man", "said", "that", "he", "would", "not", "go,", "and", "the", "others", "went", "home", ".")

MANIFEST: dict[str, Any] = {
    "model": {"name": "gpt2-like", "about": "6 layers, 8 heads", "kind": "decoder", "source": "/home/ada/models/gpt2"},
    "text": {"name": "War and Peace", "characters": 3_200_000},
    "settings": {"lengths": list(LENGTHS), "windows": 8, "queries": 64, "vectors": "value", "normalizer": None,
                 "level": 0.95, "sizes": list(SIZES)},
    "self_check": {"error": 3.1e-6, "tokens": 64},
    "skipped": ["length 2048: the model's context has 1024 tokens"],
    "versions": {"python": "3.11.2", "torch": "2.13.0"},
    "made": "2026-01-02T03:04:05+00:00",
}  # fmt: skip


def _measures(temperatures: Sequence[float]) -> list[str]:
    parts = [f"sensitivity_{way}_{part}" for way in ("worst", "random") for part in ("mean", "p95", "max")]
    warm = [name if t == 1 else f"{name}@T={t:g}" for name in parts for t in temperatures]
    return [*PLAIN, *warm]


def table(
    places: Sequence[tuple[int, int]], lengths: Sequence[int] = LENGTHS, sizes: Sequence[int] = SIZES,
    temperatures: Sequence[float] = TEMPERATURES, name: str = "gpt2-like",
) -> pl.DataFrame:  # fmt: skip
    """All measures of a run, with intervals, for every head and for all heads together."""
    random = np.random.default_rng(5)
    keys = [
        (layer, head, length, n, measure)
        for length in lengths
        for measure in (*_measures(temperatures), *SIZED)
        for n in ([n for n in sizes if n < length] if measure in SIZED else [None])
        for layer, head in (*places, (None, None))
    ]
    keys += [(layer, head, None, None, "decay_exponent") for layer, head in places]
    keys += [(None, None, length, n, "ks_statistic") for length in lengths for n in sizes]
    keys += [(None, None, length, None, "critical_n@0.01") for length in lengths]
    values = random.lognormal(-1, 0.8, len(keys))
    values[[i for i, key in enumerate(keys) if key[4].startswith("effective")]] *= 30
    shares = [i for i, key in enumerate(keys) if key[4] in SIZED and not key[4].endswith(("distance", "divergence"))]
    values[shares] = values[shares] / (1 + values[shares])
    frame = pl.DataFrame(keys, schema={k: SCHEMA[k] for k in ("layer", "head", "length", "n", "measure")}, orient="row")
    value, ends = pl.Series("value", values), random.uniform(0.8, 0.98, len(keys))
    limited = pl.col("measure").is_in(LIMITED) | pl.col("measure").str.starts_with("sensitivity")
    return frame.with_columns(
        pl.lit(name).alias("model"),
        value,
        low=value * ends,
        high=value / ends,
        limit=pl.when(limited).then(value * random.uniform(1.1, 4, len(keys))),
        control=pl.when(pl.col("measure").is_in(CONTROLLED)).then(value * random.uniform(0.3, 1.2, len(keys))),
    ).select(*SCHEMA)


def sample(
    places: Sequence[tuple[int, int]], tokens: Iterable[str] | None = None, queries: int = 3,
    sizes: Sequence[int] = (5, 20),
) -> Sample:  # fmt: skip
    """A window of 256 tokens; keys anywhere before the query; the first query sees too few for the largest size."""
    random = np.random.default_rng(7)
    texts = tuple(tokens) if tokens is not None else tuple(f" {WORDS[i % len(WORDS)]}" for i in range(256))
    positions = [round(x) for x in np.linspace(min(12, len(texts) - 1), len(texts) - 1, queries)]
    rows = []
    for layer, head in places:
        for query in positions:
            most = min(max(sizes), query + 1)
            chosen = random.permutation(query + 1)
            weights = np.sort(random.exponential(0.05, most))[::-1]
            balls = tuple(_ball(random, size, chosen[size:]) for size in sizes if size < query + 1)
            rows.append(
                SampleRow(layer, head, query, tuple(map(int, chosen[:most])), tuple(map(float, weights)), balls)
            )
    made = Sample(len(texts), 0, texts, tuple(sizes), tuple(positions), tuple(rows), 3.0, 9.0)
    stored = json.loads(json.dumps(made.as_json())) | {"heat": heat(places, len(texts), random)}
    return replace(made, heat=Sample.from_json(stored).heat)


def heat(places: Sequence[tuple[int, int]], length: int, random: np.random.Generator) -> dict[str, Any]:
    """Causal weights that fall off towards the first key, a little different in every head; as a folder keeps them."""
    side = min(length, 64)
    edges = [length * i // side for i in range(side + 1)]
    later = np.arange(side)[None, :] > np.arange(side)[:, None]
    maps = []
    for place in places:
        codes = np.where(later, 0, random.integers(1, 256, (side, side))).astype(np.uint8)
        maps.append((*place, base64.b64encode(codes.tobytes()).decode()))
    return {"queries": [edge - 1 for edge in edges[1:]], "edges": edges, "heads": maps}


def _ball(random: np.random.Generator, size: int, others: np.ndarray[Any, Any]) -> Ball:
    distances = random.uniform(0.2, 3, size)
    beyond = np.sort(random.uniform(1.4, 4, min(24, len(others))))
    radius = float(beyond[0])
    angles, other_angles = (random.uniform(0, 360, number) for number in (size, len(beyond)))
    return Ball(
        size, radius, tuple(bool(d <= radius) for d in distances), tuple(map(float, distances)),
        tuple(map(float, angles)), tuple(map(int, others[: len(beyond)])), tuple(map(float, beyond)),
        tuple(map(float, other_angles)), int((beyond <= distances.max()).sum()),
    )  # fmt: skip


def growth(places: Sequence[tuple[int, int]]) -> pl.DataFrame:
    rows = [
        (layer, head, 0.1 * i % 1, 0.1 * i % 1 - 0.05, 0.1 * i % 1 + 0.05, None if i % 3 else 1024,
         256 if i % 2 else None, 0.2, 10.0 ** (3 + i % 5), math.inf if i % 7 == 0 else 1e6)
        for i, (layer, head) in enumerate(places)
    ]  # fmt: skip
    return Report.frame("growth").of(rows)


def floors(places: Sequence[tuple[int, int]]) -> pl.DataFrame:
    rows = [
        (layer, head, None if i % 4 == 0 else 0.05 * (1 + i % 9), 0.1, 0.3, 0.5)
        for i, (layer, head) in enumerate(places)
    ]
    return Report.frame("floors").of(rows)


def alternatives(places: Sequence[tuple[int, int]]) -> pl.DataFrame:
    random = np.random.default_rng(9)
    rows: list[tuple[Any, ...]] = []
    for layer, head in places:
        own = float(random.uniform(0.2, 0.6))
        for i, name in enumerate(ALTERNATIVES):
            gain = 0.1 * i * float(random.uniform(0.2, 1))
            ends = (None, None) if i == 0 else (gain - 0.02, gain + 0.02)
            share = own + gain
            rows.append(
                (layer, head, name, share, share - 0.03, share + 0.03, gain, *ends, 0.12 * i, 100.0 / (1 + i), 9.0, 0.2)
            )
    return Report.frame("alternatives").of(rows)


NUMBERS = (
    KeyNumber("effective tokens", "effective_tokens", 7.9, 7.1, 8.8, 512.0, None, "7.9 tokens",
              "So many tokens share the weight of a typical head; a uniform head would have 512."),
    KeyNumber("separability", "separability", 0.71, 0.69, 0.73, None, 0.44, "71 %",
              "So much of a selected set of 20 lies in a ball of its own; of random sets 44 %."),
    KeyNumber("critical N", "critical_n@0.01", None, None, None, None, None, "none up to 100",
              "Selected sets of every measured size differ from random ones."),
    KeyNumber("decay exponent", "decay_exponent", 0.31, 0.25, 0.37, None, 1.0, "0.31",
              "The largest weight fades like the length to the power of -0.31; a uniform head has 1."),
    KeyNumber("sensitivity", "sensitivity_worst_max", 0.4999, None, None, 0.5, None, "0.4999",
              "No change of the logits moves the weights by more, in any row; 0.5 is the ceiling."),
)  # fmt: skip
VERDICTS = (
    Finding("dispersion", "41 of 48 heads are within 5 % of the entropy ceiling at 1,024 tokens.",
            "entropy at least 95 % of ln n at the largest length", {"heads": 41, "share": 0.854}, ((0, 1), (2, 3))),
    Finding("selection", "Selecting more than 58 tokens is no better than random.",
            "first N at which the test does not reject at level 0.01", {"N": 58, "p value": math.nan, "text": None}),
)  # fmt: skip
ADVICE = (
    Finding("active set", "Keep at most 32 keys a query: the rest carries less than 5 % of the weight.",
            "smallest N whose mean weight is at least 95 %", {"N": 32, "weight": 0.957}, ((1, 0),)),
)  # fmt: skip


def grid(layers: int = 6, heads: int = 8) -> list[tuple[int, int]]:
    return [(layer, head) for layer in range(layers) for head in range(heads)]


def verdicts(places: Sequence[tuple[int, int]]) -> tuple[HeadVerdict, ...]:
    return tuple(
        HeadVerdict(layer, head, KINDS[i % len(KINDS)], f"Head {head} of layer {layer} is {KINDS[i % len(KINDS)]}.",
                    "a rule of thumb", {"effective tokens": 7.9, "ceiling": math.inf})
        for i, (layer, head) in enumerate(places)
    )  # fmt: skip


def report(places: Sequence[tuple[int, int]] | None = None, **changes: Any) -> Report:
    """Parts of `Report`, and of its table (lengths, sizes, temperatures) or manifest, may be given instead."""
    there = grid() if places is None else list(places)
    of_table = {key: changes.pop(key) for key in ("lengths", "sizes", "temperatures") if key in changes}
    parts: dict[str, Any] = {
        "numbers": NUMBERS, "verdicts": VERDICTS, "heads": verdicts(there), "growth": growth(there),
        "floors": floors(there), "alternatives": alternatives(there), "advice": ADVICE, "sample": sample(there),
        "manifest": MANIFEST,
    }  # fmt: skip
    if "table" not in changes:
        parts["table"] = table(there, **of_table)
    return Report(**(parts | changes))


def small(**changes: Any) -> Report:
    """Of one head: quick to draw."""
    return report([(0, 0)], **({"lengths": (64,), "sizes": (5,), "temperatures": (1.0,), "sample": None} | changes))


def page_file(result: Report, folder: Path) -> Path:
    """The page of any report as a file in the folder, as the command writes it."""
    result.to_html(folder / "report.html")
    return folder / "report.html"


def page_charts(result: Report) -> dict[ThemeName, dict[str, Any]]:
    """The charts of its page, whose datasets wait for a head, and the map, which is only a figure."""
    packed = json.loads(unpacked(page(result), "chart"))
    return {
        theme: {"map": result.view().charts(theme)["map"]}  # type: ignore[misc]
        | {name: chart[theme] | {"datasets": chart["datasets"]} for name, chart in packed.items()}
        for theme in THEMES
    }
