"""Alternatives after calibration: fitted on the first half of the text, compared on the second."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..._errors import AbbeError
from ...models import LoadedModel, Text
from ...words.names import CALIBRATED
from .._engine.calibrated import kept_alpha, learnable_rules
from .alternatives import Alternative, Rules


def halves(text: Text) -> tuple[Text, Text]:
    """The text in two parts that share no word, cut at a space near its middle."""
    middle = len(text.content) // 2
    cut = next((place for place in range(middle, len(text.content)) if text.content[place].isspace()), middle)
    return Text(f"{text.name}, first half", text.content[:cut]), Text(f"{text.name}, second half", text.content[cut:])


def fitted_rules(rules: Rules) -> Rules:
    """What is swapped in while these rules are fitted; refused if there is nothing to fit."""
    return learnable_rules(_kept_alphas(rules))


def _kept_alphas(rules: Rules) -> Rules:
    return kept_alpha(rules) if isinstance(rules, str) else {key: kept_alpha(spec) for key, spec in rules.items()}


def calibrated(
    model: LoadedModel, name: str, rules: Rules, text: Text, *, length: int, windows: int, seed: int, folder: Path
) -> tuple[Alternative, list[str]]:
    """The alternative after its rules were fitted to the model, all but the alpha of entmax; and what that skipped."""
    from ... import studies

    calibrate: Any = studies.calibrate
    calibration = calibrate(
        model, text, normalizer=_kept_alphas(rules), length=length, windows=windows, held_out=1, seed=seed,
        folder=folder, progress=False,
    )  # fmt: skip
    return _as_alternative(name, calibration, folder)


def opened_calibrated(name: str, folder: Path) -> tuple[Alternative, list[str]]:
    """As `calibrated` gave it to another worker."""
    from ... import studies

    return _as_alternative(name, studies.open(folder), folder)


def _as_alternative(name: str, calibration: Any, folder: Path) -> tuple[Alternative, list[str]]:
    if calibration.file is None:
        raise AbbeError(f"calibration of {name} left no file to swap in {folder}")
    fitted = Alternative(name + CALIBRATED, calibration.file)
    return fitted, [f"{fitted.name}: {why}" for why in calibration.manifest["skipped"]]
