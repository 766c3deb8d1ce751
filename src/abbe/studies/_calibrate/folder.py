"""What a calibration has done so far: layers, losses and the state of fine-tuning, in a folder if one was named."""

from __future__ import annotations

from torch import Tensor

from .._engine.parts import Parts

_LAYERS, _LOSSES, _TUNING = "layers", "losses", "tuning"


class CalibrationFolder:
    """Each part appears whole or not at all; a damaged one counts as not there. Without a folder nothing is kept."""

    def __init__(self, parts: Parts) -> None:
        self.parts, self.path = parts, parts.folder

    def layer(self, number: int) -> dict[str, Tensor] | None:
        return self._tensors(f"{_LAYERS}/{number}")

    def keep_layer(self, number: int, tensors: dict[str, Tensor]) -> None:
        self.parts.keep_tensors(f"{_LAYERS}/{number}", tensors)

    def tuning(self) -> dict[str, Tensor] | None:
        return self._tensors(_TUNING)

    def keep_tuning(self, tensors: dict[str, Tensor]) -> None:
        self.parts.keep_tensors(_TUNING, tensors)

    def losses(self) -> dict[str, list[float]]:
        """Of each stage, a loss for every held-out window."""
        return self.parts.json(_LOSSES) or {}

    def keep_losses(self, losses: dict[str, list[float]]) -> None:
        self.parts.keep_json(_LOSSES, losses)

    def _tensors(self, name: str) -> dict[str, Tensor] | None:
        found = self.parts.tensors(name)
        return None if found is None else found[0]
