"""A study of capacity with made-up losses: a model of six layers, at four lengths and in both ways."""

from __future__ import annotations

from typing import Any

import torch
from capacity_runs import Curve, asked
from inside import capacity_rules

from abbe.studies import Capacity

LENGTHS, LAYERS = [128, 256, 512, 1024], 6
SIZES = tuple(2**k for k in range(10))
SIZE_OF = {"deletion": 20, "renormalised": 12}


def settings_of(**changed: Any) -> dict[str, Any]:
    return asked(**({"lengths": LENGTHS, "windows": 4, "layer_windows": 4, "resamples": 100} | changed))


def curve_of(length: int, way: str, layer: int | None, windows: int) -> Curve:
    sizes = tuple(n for n in SIZES if n < length)
    fall = 1.0 if way == "renormalised" else 1.6
    height = fall * 0.12 * (length / 1024) ** 0.4 * (1 if layer is None else 0.03 * (layer + 1))
    spread = 1 + 0.2 * torch.arange(windows).double() / windows
    rises = height / torch.tensor(sizes).double().unsqueeze(-1) ** 0.7 * spread
    baseline = torch.full((windows,), 4.0, dtype=torch.float64)
    return Curve(length, way, layer, length, layer is None, sizes, baseline, baseline, baseline * (1 + rises))


def made_up(settings: dict[str, Any], name: str = "made-up", layers: int = LAYERS) -> Capacity:
    plan = [(length, None) for length in settings["lengths"]]
    plan += [(length, layer) for length in settings["layer_lengths"] for layer in range(layers)]
    curves = [curve_of(length, way, layer, settings["windows"]) for length, layer in plan for way in settings["ways"]]
    shares = {None: 0.8} | {i: 0.9 - 0.6 * i / layers for i in range(layers)}
    rows = [
        row | {"separability_n": SIZE_OF[row["way"]], "separability": shares[row["layer"]], "control": 0.4}
        for row in capacity_rules.capacity_rows(curves, layers, settings)
    ]
    tables = capacity_rules.tables(curves, rows, layers, settings)
    text = {"name": "some\x1b[31m text"}
    manifest = {"model": {"name": name}, "text": text, "settings": settings, "skipped": ["length 1024: 3 of 4 windows"]}
    return Capacity(**tables, findings=capacity_rules.findings(tables, settings), manifest=manifest)
