"""A private name for an attention function that reads as the model's own."""

from __future__ import annotations

from itertools import count
from typing import Any

_numbers = count(1)


class OwnName(str):
    """A name that reads and compares as the model's own, but that registries tell from it. Copies are plain."""

    def __new__(cls, name: str) -> OwnName:
        made = super().__new__(cls, name)
        made._hash = hash(("abbe", next(_numbers)))
        return made

    _hash: int

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return str.__eq__(self, other) if isinstance(other, str) else False

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __copy__(self) -> str:
        return str(self)

    def __deepcopy__(self, memory: dict[int, Any]) -> str:
        return str(self)

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        return str, (str(self),)
