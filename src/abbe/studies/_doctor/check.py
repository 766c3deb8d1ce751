"""One line of `abbe doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "warning", "missing", "broken"]


@dataclass(frozen=True)
class Check:
    """What was looked at, how it is, what was found, and what to do about it; `needed` if abbe cannot do without."""

    name: str
    state: State
    found: str
    advice: str = ""
    group: str = ""
    needed: bool = True

    @property
    def failed(self) -> bool:
        return self.needed and self.state in ("missing", "broken")
