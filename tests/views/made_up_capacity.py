"""A study of capacity with made-up losses: a model of six layers, at four lengths and in both ways."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from typing import Any

import polars as pl
from capacity_runs import WAYS, planted

from abbe.studies import Capacity

LENGTHS, LAYERS = [128, 256, 512, 1024], 6
SIZE_OF = {"deletion": 20, "renormalised": 12}
SETTINGS: dict[str, Any] = {
    "lengths": LENGTHS, "windows": 4, "layer_windows": 4, "resamples": 100, "way": WAYS, "tau": [0.01, 0.05],
    "layers": True, "queries": 1,
}  # fmt: skip


def losses(length: int, way: str, layer: int | None, n: int | None) -> list[float]:
    fall = 1.0 if way == "renormalised" else 1.6
    height = fall * 0.12 * (length / 1024) ** 0.4 * (1 if layer is None else 0.03 * (layer + 1))
    return [4.0 * (1 + (height * n**-0.7 * (1 + 0.05 * window) if n else 0)) for window in range(4)]


@cache
def _studied(layers: int, asked: str) -> Capacity:
    return planted(losses, layers, **json.loads(asked))


def made_up(name: str = "made-up", layers: int = LAYERS, **changed: Any) -> Capacity:
    """Its losses are planted, its separabilities and names made up afterwards."""
    study = _studied(layers, json.dumps(SETTINGS | changed))
    share = pl.when(pl.col("layer").is_null()).then(0.8).otherwise(0.9 - 0.6 * pl.col("layer") / layers)
    table = study.table.with_columns(
        separability_n=pl.col("way").replace_strict(SIZE_OF, return_dtype=pl.Int32), separability=share,
        control=pl.lit(0.4),
    )  # fmt: skip
    facts = {"model": {"name": name}, "text": {"name": "some\x1b[31m text"}}
    manifest = study.manifest | facts | {"skipped": ["length 1024: 3 of 4 windows"]}
    return replace(study, table=table, manifest=manifest)
