"""One line of `abbe doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

# A warning costs time or room, what is missing can be installed if it is wanted, without what is broken nothing works.
State = Literal["ok", "warning", "missing", "broken"]


@dataclass(frozen=True)
class Check:
    """What was looked at, how it is, and what to do where that is not ok.

    Attributes:
        name: of what was looked at.
        state: "ok", "warning" (costs time or room), "missing" (can be installed) or "broken" (nothing works).
        detail: what was seen.
        advice: what to do; empty where nothing is.
    """

    name: str
    state: State
    detail: str
    advice: str = ""

    @property
    def failed(self) -> bool:
        """Whether abbe cannot work because of it."""
        return self.state == "broken"
