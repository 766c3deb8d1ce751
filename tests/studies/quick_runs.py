"""One quick call of every study of a model, for tests of what all of them share."""

from __future__ import annotations

from typing import Any

import abbe

_ALL: dict[str, Any] = {"windows": 2, "queries": 2, "resamples": 10, "progress": False}
_HEADS = _ALL | {"lengths": 16, "sizes": 1}
OPTIONS: dict[str, dict[str, Any]] = {
    "diagnose": _HEADS | {"temperatures": 1},
    "report": _HEADS | {"temperatures": 1},
    "reproduce": {"figures": "3", "windows": 1, "queries": 2, "quick": True, "progress": False},
    "capacity": _ALL | {"lengths": 16, "tau": 0.1, "way": "deletion", "layers": False},
    "compare": _ALL | {"normalizers": "sparsemax", "length": 16, "needle_lengths": 60, "prompts": 1},
    "calibrate": _ALL | {"normalizer": "sparsemax", "length": 16, "windows": 1, "held_out": 1, "steps": 1},
    "diff": _HEADS,
    "lift": _ALL | {"normalizers": "sparsemax", "length": 16, "steps": 2, "prompts": 1, "budget": None},
}
COSTS = ("seconds", "time_ratio", "extra_megabytes")  # of a table: other numbers in every run


def quick(study: str, model: Any, text: Any, **more: Any) -> Any:
    """The result of a study; a model is compared with itself."""
    models = (model, model) if study == "diff" else (model,)
    return getattr(abbe, study)(*models, text, **(OPTIONS[study] | more))
