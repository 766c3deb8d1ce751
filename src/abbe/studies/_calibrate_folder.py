"""What a calibration has done so far: layers, losses and the state of fine-tuning, in a folder if one was named."""

from __future__ import annotations

from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from .._errors import AbbeError
from ..results import read_json, write_json

_LAYERS, _LOSSES, _TUNING = "layers", "losses.json", "tuning.safetensors"
CALIBRATED, TUNED, FINDINGS = "calibrated.safetensors", "tuned.safetensors", "calibration.json"


class CalibrationFolder:
    """Each part appears whole or not at all; a damaged one counts as not there. Without a path nothing is kept."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        if path is not None:
            (path / _LAYERS).mkdir(parents=True, exist_ok=True)

    def layer(self, number: int) -> dict[str, Tensor] | None:
        return self._read(self._layer_file(number))

    def keep_layer(self, number: int, tensors: dict[str, Tensor]) -> None:
        self._write(self._layer_file(number), tensors)

    def tuning(self) -> dict[str, Tensor] | None:
        return self._read(_TUNING)

    def keep_tuning(self, tensors: dict[str, Tensor]) -> None:
        self._write(_TUNING, tensors)

    def losses(self) -> dict[str, list[float]]:
        """Of each stage, a loss for every held-out window."""
        if self.path is None:
            return {}
        try:
            return read_json(self.path / _LOSSES)
        except (AbbeError, OSError):
            return {}

    def keep_losses(self, losses: dict[str, list[float]]) -> None:
        if self.path is not None:
            write_json(self.path / _LOSSES, losses)

    @staticmethod
    def _layer_file(number: int) -> str:
        return f"{_LAYERS}/{number}.safetensors"

    def _read(self, name: str) -> dict[str, Tensor] | None:
        if self.path is None:
            return None
        try:
            with safe_open(self.path / name, "pt") as file:
                return {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        except (FileNotFoundError, SafetensorError):
            return None

    def _write(self, name: str, tensors: dict[str, Tensor]) -> None:
        if self.path is None:
            return
        target = self.path / name
        unfinished = target.with_suffix(".part")
        save_file({key: tensor.detach().cpu().contiguous() for key, tensor in tensors.items()}, unfinished)
        unfinished.replace(target)
