"""One line of `abbe doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "warning", "missing", "broken"]


@dataclass(frozen=True)
class Check:
    """What was checked, its state, and what to do if that is not ok.

    Attributes:
        name: what was checked.
        state: "ok", "warning" (costs time or room), "missing" (can be installed) or "broken" (nothing works).
        detail: what was found.
        advice: what to do; empty if nothing.
    """

    name: str
    state: State
    detail: str
    advice: str = ""

    @property
    def failed(self) -> bool:
        """Whether abbe cannot work because of it."""
        return self.state == "broken"
