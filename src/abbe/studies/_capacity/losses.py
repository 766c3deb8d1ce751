"""Losses of a truncated model, each evaluated once and kept in a folder as soon as it is known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..._errors import AbbeError
from ...models import LoadedModel, Window, swap
from ...words.names import BASELINE
from .._engine.capacity.truncation import top_keys
from .._engine.loss import window_losses
from .._engine.parts import Parts

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
    """Mean losses of windows, (window,) in nats, by what was truncated; those of some windows are known from all."""

    def __init__(
        self,
        model: LoadedModel,
        parts: Parts,
        on_window: Callable[[Window, str], object],
        last: int | None = None,
    ) -> None:
        """`last` targets of every window are scored, None for all."""
        self._model, self._parts, self._on_window, self._last = model, parts, on_window, last
        self._baseline: dict[int, dict[int, float]] = {}  # by length and number of the window

    def baseline(self, windows: Sequence[Window]) -> Tensor:
        """Of the model as it is."""
        known = self._baseline.setdefault(windows[0].length, {})
        losses = _chosen(known, windows)
        if losses is None:
            losses = self._kept(windows, BASELINE)
        if losses is None:
            losses = self._measured(windows, "baseline loss")
            self._keep(windows, BASELINE, losses)
        if not 0 < float(losses.mean()) < float("inf"):
            raise AbbeError(
                f"{self._model.name} has a loss of {float(losses.mean()):g} at length {windows[0].length}: "
                "a rise relative to it has no meaning"
            )
        known.update(_by_window(windows, losses))
        return losses

    def truncated(self, windows: Sequence[Window], how: Truncation) -> Tensor:
        losses = self._kept(windows, how.name)
        if losses is None:
            with swap(self._model, how.what):
                losses = self._measured(windows, how.words)
            self._keep(windows, how.name, losses)
        return losses

    def _measured(self, windows: Sequence[Window], step: str) -> Tensor:
        return window_losses(self._model, windows, lambda window: self._on_window(window, step), self._last)

    def kept_lengths(self) -> Counter[int]:
        """How many windows of each length an earlier call left."""
        counts: Counter[int] = Counter()
        folder = self._parts.folder
        for path in sorted((folder / _FOLDER).glob("*-*.json")) if folder is not None else ():
            length, _, _ = path.name.partition("-")
            if length.isdecimal():
                counts[int(length)] += len(self._read(path.stem))
        return counts

    def _kept(self, windows: Sequence[Window], name: str) -> Tensor | None:
        """What an earlier call left; None if it is not there, damaged, or not of all these windows."""
        return _chosen(self._read(_name(windows, name)), windows)

    def _read(self, name: str) -> dict[int, float]:
        """By number of the window."""
        kept = self._parts.json(f"{_FOLDER}/{name}") or {"by_window": {}}
        return {int(index): float(loss) for index, loss in kept["by_window"].items()}

    def _keep(self, windows: Sequence[Window], name: str, losses: Tensor) -> None:
        self._parts.keep_json(f"{_FOLDER}/{_name(windows, name)}", {"by_window": _by_window(windows, losses)})


def _name(windows: Sequence[Window], name: str) -> str:
    return f"{windows[0].length}-{name}"


def _by_window(windows: Sequence[Window], losses: Tensor) -> dict[int, float]:
    return dict(zip((window.index for window in windows), losses.tolist(), strict=True))


def _chosen(known: Mapping[int, float], windows: Sequence[Window]) -> Tensor | None:
    """The losses of these windows, if all are known."""
    if any(window.index not in known for window in windows):
        return None
    return torch.tensor([known[window.index] for window in windows], dtype=torch.float64)
