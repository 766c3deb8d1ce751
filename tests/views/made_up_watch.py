"""A training run with made-up numbers: every head drifts its own way, and three alerts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from abbe.results import FORMAT
from abbe.training import Training, list_quantities, list_rules

MEASURES = ("entropy", "max_logit", "max_weight", "separability@N=20", "query_gradient")
MANIFEST: dict[str, Any] = {
    "format": FORMAT, "study": "watch", "finished": True, "model": {"name": "tiny-gpt2"},
    "text": {"name": "the batches of the training run"}, "settings": {"every": 50, "rows": 8, "sizes": [20]},
    "self_check": {"error": 1e-7}, "layers": ["h.0", "h.1"], "skipped": [],
    "quantities": [asdict(one) for one in list_quantities()], "rules": [asdict(one) for one in list_rules()],
}  # fmt: skip
ALERTS = (
    (350, "entropy_collapse", 1, 2, 0.031, 0.05),
    (400, "logit_growth_100", 0, 1, 123.4, 100.0),
    (600, "logit_growth_100", 1, 0, 101.0, 100.0),
)


def value(measure: str, step: int, layer: int, head: int) -> float:
    """Different for every measure, step and head; positive."""
    place = 1 + MEASURES.index(measure) + 0.37 * layer + 0.11 * head
    return round(place * (1 + 0.5 * math.sin(0.01 * step + place)), 6)


def record(step: int, layers: int = 2, heads: int = 3, alerts: Sequence[Sequence[Any]] = ()) -> dict[str, Any]:
    """As a monitor writes it."""
    grids = {name: [[value(name, step, i, j) for j in range(heads)] for i in range(layers)] for name in MEASURES}
    parts: dict[str, Any] = {name: {"value": grid} for name, grid in grids.items()}
    parts["entropy"]["limit"] = 3.0
    parts["max_weight"] |= {"limit": [[x + 1 for x in row] for row in grids["max_weight"]], "control": 0.05}
    model = {}
    for name, grid in grids.items():
        flat, key = [x for row in grid for x in row], name.replace("@N=", "_")
        model |= {f"{key}_min": min(flat), f"{key}_mean": sum(flat) / len(flat), f"{key}_max": max(flat)}
    names = ("step", "rule", "layer", "head", "value", "threshold")
    return {
        "step": step, "loss": 5 - step / 500, "loss_mean": 5 - step / 500, "learning_rate": 1e-3, "seconds": step / 10,
        "read_seconds": 0.01, "layout": [heads] * layers, "model": model, "heads": parts,
        "alerts": [dict(zip(names, alert, strict=True)) for alert in alerts if alert[0] == step],
    }  # fmt: skip


def training(
    steps: Iterable[int] = (1, *range(50, 1001, 50)), alerts: Sequence[Sequence[Any]] = ALERTS, **manifest: Any
) -> Training:
    return Training([record(step, alerts=alerts) for step in steps], MANIFEST | manifest)
