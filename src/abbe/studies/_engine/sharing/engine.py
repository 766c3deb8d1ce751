"""What runs the studies that are called: this process itself, or an engine that has workers elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Protocol

from ....results import Result


class Outcome(Protocol):
    """Of one of several studies."""

    error: str  # why it came to no result, in one line; else empty


class Engine(Protocol):
    """Runs a study with its arguments, such as on a cluster, and gives its result."""

    def run(self, study: str, arguments: Mapping[str, Any]) -> Result: ...

    def run_all(self, calls: Sequence[tuple[str, Mapping[str, Any]]]) -> Sequence[Outcome]:
        """Several studies, side by side."""


current_engine: ContextVar[Engine | None] = ContextVar("engine", default=None)
