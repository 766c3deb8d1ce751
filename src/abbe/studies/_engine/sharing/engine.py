"""What runs the studies that are called: this process itself, or an engine that has workers elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any, Protocol

from ....results import Result


class Engine(Protocol):
    """Runs a study with its arguments, such as on a cluster, and gives its result."""

    def run(self, study: str, arguments: Mapping[str, Any]) -> Result: ...


current_engine: ContextVar[Engine | None] = ContextVar("engine", default=None)
