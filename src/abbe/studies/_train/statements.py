"""The paper's statements about training, judged."""

from __future__ import annotations

from ...words.finding import Finding
from .tables import Tables


def judge_temperature(tables: Tables, level: float) -> tuple[Finding, ...]:
    return ()
