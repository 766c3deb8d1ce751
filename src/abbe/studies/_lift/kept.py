"""What a search has measured, part by part: kept as it is finished, with the seconds that it took."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from ...results import finite
from .._engine.parts import Parts

_FOLDER = "parts"


class Kept:
    """Parts by name; `spent` are the seconds of all that were measured, also by earlier calls."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.spent = 0.0

    def json(self, name: str) -> dict[str, Any] | None:
        return self.parts.json(f"{_FOLDER}/{name}")

    def keep(self, name: str, content: Mapping[str, Any]) -> None:
        self.parts.keep_json(f"{_FOLDER}/{name}", content)

    def part(self, name: str, make: Callable[[], Mapping[str, Any]], on_kept: Callable[[], object]) -> dict[str, Any]:
        """What an earlier call left of it, or what `make` gives, as JSON gives it back."""
        content = self.json(name)
        if content is None:
            started = time.perf_counter()
            content = finite(dict(make()) | {"seconds": 0.0})
            content["seconds"] = time.perf_counter() - started
            self.keep(name, content)
        else:
            on_kept()
        self.spent += content["seconds"]
        return content
