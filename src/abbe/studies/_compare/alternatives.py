"""What can be compared: a spec, patterns with their specs, or a saved swap; each as it is, or calibrated.

Calibration fits on the first half of the text, the comparison reads the second.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..._arguments import shown
from ..._errors import AbbeError
from ...models import FILE_PREFIX, LoadedModel, Text, rules_in
from ...normalizers import Normalizer, normalizer
from ...words.names import CALIBRATED

Rules = str | Mapping[str, str]  # one spec for all heads, or specs by pattern
NormalizersLike = str | Mapping[str, str] | Sequence[str | Mapping[str, str]]


@dataclass(frozen=True)
class Alternative:
    """A name for tables, and either rules or the file of a saved swap."""

    name: str
    source: Rules | Path
    digest: str = ""  # of a file: a comparison must not resume with another swap of the same name

    @property
    def rules(self) -> Rules | None:
        """None for a file."""
        return None if isinstance(self.source, Path) else self.source

    @property
    def spec(self) -> str | None:
        """The normalizer of all heads; None for patterns and files."""
        return self.source if isinstance(self.source, str) else None

    @property
    def what(self) -> Rules:
        """For `swap`."""
        return f"{FILE_PREFIX}{self.source}" if isinstance(self.source, Path) else self.source


def as_alternatives(normalizers: NormalizersLike) -> tuple[Alternative, ...]:
    """A single one needs no list. Patterns and files are checked against the model later."""
    if isinstance(normalizers, str | bytes | Mapping) or not isinstance(normalizers, Iterable):
        normalizers = [normalizers]
    alternatives = tuple(map(_alternative, normalizers))
    if not alternatives:
        raise AbbeError("there is nothing to compare with: name a normalizer, such as entmax:alpha=1.5")
    names = [alternative.name for alternative in alternatives]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise AbbeError(f"{twice} is given twice: name each normalizer once")
    return alternatives


def _saved_swap(name: str, path: Path) -> Alternative:
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
        return _saved_swap(name, Path(name.removeprefix(FILE_PREFIX)))
    rules = rules_in(name)
    for spec in rules.values() if isinstance(rules, Mapping) else [rules]:
        normalizer(spec)  # a mistake is reported before a model is loaded
    return Alternative(name, rules)


def _check_text(spec: object) -> None:
    """An instance may belong to one layer of a model, so only its owner can say where it goes."""
    if isinstance(spec, Normalizer):
        raise AbbeError(
            f"compare cannot take the Normalizer instance {spec}: save the swap and give file:PATH, or give this spec, "
            "which makes a new one for each layer"
        )
    if not isinstance(spec, str):
        raise AbbeError(f"{shown(spec)} is not a spec: write a normalizer as text, such as 'entmax:alpha=1.5'")


def halves(text: Text) -> tuple[Text, Text]:
    """The text in two parts that share no word, cut at a space near its middle."""
    middle = len(text.content) // 2
    cut = next((place for place in range(middle, len(text.content)) if text.content[place].isspace()), middle)
    return Text(f"{text.name}, first half", text.content[:cut]), Text(f"{text.name}, second half", text.content[cut:])


def calibrated(
    model: LoadedModel, name: str, rules: Rules, text: Text, *, length: int, windows: int, seed: int, folder: Path
) -> tuple[Alternative, list[str]]:
    """The alternative, fitted to the model; and what the calibration skipped."""
    from ... import studies

    calibrate: Any = studies.calibrate
    calibration = calibrate(
        model, text, normalizer=rules, length=length, windows=windows, held_out=1, seed=seed, folder=folder,
        progress=False,
    )  # fmt: skip
    return _fitted(name, calibration, folder)


def opened_calibrated(name: str, folder: Path) -> tuple[Alternative, list[str]]:
    """The result of `calibrated` in another worker."""
    from ... import studies

    return _fitted(name, studies.open(folder), folder)


def _fitted(name: str, calibration: Any, folder: Path) -> tuple[Alternative, list[str]]:
    if calibration.file is None:
        raise AbbeError(f"calibration of {name} left no file to swap in {folder}")
    fitted = Alternative(name + CALIBRATED, calibration.file)
    return fitted, [f"{fitted.name}: {why}" for why in calibration.manifest["skipped"]]
