"""Searches whose numbers on the test text are planted, for the rule; the search itself is made up, too."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import compare_runs
import planted_parts
from needle_models import TEXT

import abbe

BASELINE, CONTROL, PLAN = "baseline", "softmax, tuned the same way", "plan"
BASE = [3.1, 3.4, 2.9, 3.3, 3.0, 3.2, 3.5, 2.8]
KEYS = 16  # pass keys of one length: two at each of eight depths
KINDS = ("lists", "sentences")  # of the needles, ten of each
model = cache(compare_runs.word_model)
_tensors: dict[Any, dict[str, Any]] = {}  # by search: its fits, made once


def shifted(by: float) -> list[float]:
    return [loss + by + (place - 3.5) * 1e-4 for place, loss in enumerate(BASE)]


def lifted(
    plan: Sequence[float] = BASE, control: Sequence[float] = BASE, baseline: Sequence[float] = BASE,
    zeros: Sequence[Sequence[float]] | float = 0.9, needles: Sequence[Sequence[bool]] = ([True, False] * 10,) * 3,
    keys: Sequence[Sequence[bool]] = ([False] * KEYS,) * 3, longer: Sequence[Sequence[float]] | None = None,
    text: abbe.Text = TEXT, **options: Any,
) -> abbe.Lift:  # fmt: skip
    """Losses by window; zeros, right answers and longer losses of the baseline, the control and the plan.

    By default a plan with the baseline's losses and 90 % of zeros.
    """
    goal, windows = options.get("goal", "sparse"), len(plan)
    shares = [[0.0] * windows] * 2 + [[zeros + i / 1000 for i in range(windows)]] if isinstance(zeros, float) else zeros
    records = [
        {
            "loss": list(loss), "zeros": list(shares[place]), "active": [9.0] * windows,
            "effective_tokens": [4.0] * windows,
            "longer": {length: list(longer[place] if longer else loss) for length in ("32", "64")},
            "margins": [1.0 if right else -1.0 for right in needles[place]], "right": list(keys[place]),
            "log_probability": [-1.0] * KEYS, "seconds": 0.0,
        }
        for place, loss in enumerate((baseline, control, plan))
    ]  # fmt: skip
    if options.get("normalizers") == "softmax":  # which has no control
        del records[1]
    names = {BASELINE: 1.0, CONTROL: 1.0, PLAN: 1.0}

    def numbers(part: str) -> dict[str, Any] | None:
        what, _, place = part.removeprefix("parts/").partition("-")
        if what in ("schedule", "chosen", "cut"):
            return None
        if place in ("speed", "sensitivity"):
            return {"best": names, "ratios": {}, "seconds": 0.0}
        if what == "judged":
            return records[int(place)]
        return dict.fromkeys(("loss", "zeros", "active", "effective_tokens", "keys"), [1.0] * windows) | {
            "seconds": 0.0
        }

    asked: dict[str, Any] = {
        "normalizers": "topk:k=4", "length": 16, "windows": windows, "queries": 2, "steps": 0, "prompts": 2,
        "resamples": 200, "budget": None, "progress": False,
    }  # fmt: skip
    asked |= ({"lengths": [64]} if goal == "retrieval" else {}) | options
    kept = _tensors.setdefault((goal, asked["normalizers"], asked["length"], windows), {})
    with planted_parts.planted(numbers, kept):
        return abbe.lift(model(), text, **asked)
