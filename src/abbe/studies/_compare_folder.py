"""What a comparison has measured so far, part by part: in a folder, from which a stopped one goes on, or in memory."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from .._errors import AbbeError
from ..models import LoadedModel, Text
from ..results import read_json, write_json
from ._folder import claim_folder

_PARTS = "parts"
FOUND = "compare.json"


class Kept:
    """Parts by name, each a JSON object; one whose file is not there or damaged is made anew."""

    def __init__(
        self, folder: str | os.PathLike[str] | None, model: LoadedModel, text: Text, settings: Mapping[str, Any]
    ) -> None:
        self.path = None if folder is None else Path(folder)
        if self.path is not None:
            claim_folder(self.path, model, text, settings)
            (self.path / _PARTS).mkdir(exist_ok=True)

    def part(self, name: str, make: Callable[[], Mapping[str, Any]], on_kept: Callable[[], object]) -> dict[str, Any]:
        """What was kept under that name, or what `make` gives."""
        file = None if self.path is None else self.path / _PARTS / f"{name}.json"
        if file is not None and file.is_file():
            try:
                found = read_json(file)
            except AbbeError:
                pass
            else:
                on_kept()
                return found
        made: dict[str, Any] = _plain(make())
        if file is not None:
            write_json(file, made)
        return made


def _plain(found: Any) -> Any:
    """As JSON gives it back: text for keys, null for what is not finite."""
    if isinstance(found, Mapping):
        return {str(key): _plain(value) for key, value in found.items()}
    if isinstance(found, list | tuple):
        return [_plain(value) for value in found]
    return None if isinstance(found, float) and not math.isfinite(found) else found
