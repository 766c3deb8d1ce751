"""How much a test draws: few examples in the quick tier, all of them in `make test-all`."""

from __future__ import annotations

import os

ALL = os.environ.get("ABBE_TESTS") == "all"
EXAMPLES = 100 if ALL else 30  # where a test does not say how many


def examples(count: int) -> int:
    """How many to draw, for a test that says it."""
    return count * EXAMPLES // 100
