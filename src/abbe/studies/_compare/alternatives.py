"""What can be compared: a spec, patterns with their specs, or a swap that was saved. Read once, from what was given."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..._arguments import shown
from ..._errors import AbbeError
from ...models import FILE_PREFIX, rules_in
from ...normalizers import Normalizer, normalizer
from .._engine.sharing.calls import spelled

Rules = str | Mapping[str, str]  # one spec for all heads, or specs by pattern
NormalizersLike = str | Mapping[str, str] | Sequence[str | Mapping[str, str]]


@dataclass(frozen=True)
class Alternative:
    """Its name in tables, and either rules or the file of a saved swap."""

    name: str
    source: Rules | Path
    digest: str = ""  # of a file: a comparison must not resume with another swap of the same name

    @property
    def rules(self) -> Rules | None:
        """None of a file."""
        return None if isinstance(self.source, Path) else self.source

    @property
    def spec(self) -> str | None:
        """Of one normalizer for all heads; None of patterns and files."""
        return self.source if isinstance(self.source, str) else None

    @property
    def what(self) -> Rules:
        """For `swap`."""
        return f"{FILE_PREFIX}{self.source}" if isinstance(self.source, Path) else self.source


def as_alternatives(given: NormalizersLike) -> tuple[Alternative, ...]:
    """One alone may come without a list. Patterns and files are checked against the model later."""
    several = [given] if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable) else list(given)
    alternatives = tuple(_alternative(one) for one in several)
    if not alternatives:
        raise AbbeError("there is nothing to compare with: name a normalizer, such as entmax:alpha=1.5")
    names = [alternative.name for alternative in alternatives]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise AbbeError(f"{twice} is given twice: name each normalizer once")
    return alternatives


def _saved_swap(name: str, path: Path) -> Alternative:
    """Refused if the file cannot be read."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise AbbeError(f"{path} cannot be read: {error.strerror}") from None
    return Alternative(name, path, hashlib.sha256(content).hexdigest())


def _alternative(given: Any) -> Alternative:
    for spec in given.values() if isinstance(given, Mapping) else [given]:
        _check_text(spec)
    name = "; ".join(f"{pattern}={spec}" for pattern, spec in given.items()) if isinstance(given, Mapping) else given
    if name.startswith(FILE_PREFIX):
        return _saved_swap(spelled(name), Path(name.removeprefix(FILE_PREFIX)))
    rules = rules_in(name)
    for spec in rules.values() if isinstance(rules, Mapping) else [rules]:
        normalizer(spec)  # a mistake is reported before a model is loaded
    return Alternative(name, rules)


def _check_text(spec: object) -> None:
    """An instance may belong to one layer of a model, so it is for its owner to say where it goes."""
    if isinstance(spec, Normalizer):
        raise AbbeError(
            f"compare cannot take the Normalizer instance {spec}: save the swap and give file:PATH, or give this spec, "
            "which makes one such for each layer"
        )
    if not isinstance(spec, str):
        raise AbbeError(f"{shown(spec)} is no spec: write a normalizer as text, such as 'entmax:alpha=1.5'")
