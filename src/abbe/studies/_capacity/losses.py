"""Losses of a truncated model, each evaluated once and kept in a folder right away."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from ..._errors import AbbeError
from ...models import LoadedModel, Window, swap
from ...runs.loss import window_losses
from ...runs.parts import Parts
from ...words.names import BASELINE
from .._shared.truncation import top_keys

_FOLDER = "losses"


@dataclass(frozen=True)
class Truncation:
    """Every query keeps its `size` keys of largest weight, in one layer or (None) in all."""

    way: str
    size: int
    layer: int | None = None

    @property
    def what(self) -> str | dict[str, str]:
        """For `swap`."""
        spec = top_keys(self.size, self.way)
        return spec if self.layer is None else {f"layers.{self.layer}": spec}

    @property
    def name(self) -> str:
        where = "" if self.layer is None else f"layer{self.layer}-"
        return f"{where}{self.way}-{self.size}"

    @property
    def words(self) -> str:
        return f"{self.way}, N = {self.size}" + ("" if self.layer is None else f", layer {self.layer}")


class Losses:
    """Mean losses of windows, (window,) in nats, by truncation; losses of some windows are reused from all."""

    def __init__(
        self, model: LoadedModel, parts: Parts, step: Callable[[str], object], last: int | None = None
    ) -> None:
        """`last` targets of every window are scored, None for all; `step` is called after each window."""
        self._model, self._parts, self._step, self._last = model, parts, step, last
        self._known: dict[str, dict[int, float]] = {}  # by part and number of the window

    def baseline(self, windows: Sequence[Window]) -> Tensor:
        """Of the unchanged model."""
        losses = self._of(windows, BASELINE, "baseline loss", None)
        if not 0 < float(losses.mean()) < float("inf"):
            raise AbbeError(
                f"{self._model.name} has a loss of {float(losses.mean()):g} at length {windows[0].length}: "
                "a rise relative to it is meaningless"
            )
        return losses

    def baseline_part(self, length: int) -> str:
        return _part(length, BASELINE)

    def truncated(self, windows: Sequence[Window], how: Truncation) -> Tensor:
        return self._of(windows, how.name, how.words, how.what)

    def kept_lengths(self) -> Counter[int]:
        """How many windows of each length an earlier call left."""
        counts: Counter[int] = Counter()
        folder = self._parts.folder
        for path in sorted((folder / _FOLDER).glob("*-*.json")) if folder is not None else ():
            length, _, _ = path.name.partition("-")
            if length.isdecimal():
                counts[int(length)] += len(self._read(f"{_FOLDER}/{path.stem}"))
        return counts

    def _of(self, windows: Sequence[Window], name: str, words: str, what: str | dict[str, str] | None) -> Tensor:
        """From this call or an earlier one, or else evaluated, under the swap `what`."""
        length = windows[0].length
        part = _part(length, name)
        known = self._known.get(part) or self._read(part)
        if any(window.index not in known for window in windows):
            with nullcontext() if what is None else swap(self._model, what):
                say = f"length {length}, {words}"
                losses = window_losses(self._model, windows, lambda _: self._step(say), self._last)
            known = known | dict(zip((window.index for window in windows), losses.tolist(), strict=True))
            self._parts.keep_json(part, {"by_window": known})
        self._known[part] = known
        return torch.tensor([known[window.index] for window in windows], dtype=torch.float64)

    def _read(self, part: str) -> dict[int, float]:
        """From an earlier call, by number of the window; empty if the part is missing or damaged."""
        kept = self._parts.json(part) or {"by_window": {}}
        return {int(index): float(loss) for index, loss in kept["by_window"].items()}


def _part(length: int, name: str) -> str:
    return f"{_FOLDER}/{length}-{name}"
