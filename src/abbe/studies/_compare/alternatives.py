"""What can be compared: a spec, patterns with their specs in one line, or a swap that was saved."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from ..._asked import shown
from ..._errors import AbbeError
from ...models import FILE_PREFIX, rules_in
from ...normalizers import Normalizer, normalizer


def as_lines(given: str | Mapping[str, str] | Sequence[str | Mapping[str, str]]) -> tuple[str, ...]:
    """Each alternative as one line of text; one alone may come without a list."""
    several = [given] if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable) else list(given)
    return tuple(_as_line(one) for one in several)


def _as_line(one: str | Mapping[str, str]) -> str:
    """An instance may belong to one layer of a model, so it is for its owner to say where it goes."""
    for made in one.values() if isinstance(one, Mapping) else [one]:
        if isinstance(made, Normalizer):
            raise AbbeError(
                f"compare cannot take the Normalizer instance {made}: save the swap and give file:PATH, or give this "
                "spec, which makes one such for each layer"
            )
        if not isinstance(made, str):
            raise AbbeError(f"{shown(made)} is no spec: write a normalizer as text, such as 'entmax:alpha=1.5'")
    return "; ".join(f"{pattern}={spec}" for pattern, spec in one.items()) if isinstance(one, Mapping) else one


def check_alternative(line: str) -> None:
    """Refuse what cannot be swapped into any model; patterns and files are checked against the model later."""
    if is_file(line):
        _read(line)
        return
    rules = rules_in(line) if isinstance(line, str) else line
    for spec in rules.values() if isinstance(rules, Mapping) else [rules]:
        normalizer(spec)


def is_file(line: object) -> bool:
    return isinstance(line, str) and line.startswith(FILE_PREFIX)


def is_spec(line: str) -> bool:
    """Whether it is one normalizer for all heads."""
    return not is_file(line) and isinstance(rules_in(line), str)


def file_hashes(lines: Sequence[str]) -> dict[str, str]:
    """Of the files among them: a comparison must not go on with another swap of the same name."""
    return {line: hashlib.sha256(_read(line)).hexdigest() for line in lines if is_file(line)}


def _read(line: str) -> bytes:
    path = Path(line.removeprefix(FILE_PREFIX))
    try:
        return path.read_bytes()
    except OSError as error:
        raise AbbeError(f"{path} cannot be read: {error.strerror}") from None
