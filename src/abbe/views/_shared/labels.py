"""Names beside points: each as near to its point as possible, hiding no point or other name. All in pixels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

Side = Literal["left", "right", "center"]  # which side of the text is at the given place
Point = tuple[float, float]
Box = tuple[float, float, float, float]  # left, top, right, bottom
_LETTER, _LINE = 6.0, 13  # what a name needs, in a font of 10 pixels
_AROUND = 6.0  # kept free around a point
_ROUNDS = 4


@dataclass(frozen=True)
class Name:
    """Where a name stands relative to its point; a line leads to a distant one."""

    side: Side
    dx: float
    dy: float

    @property
    def far(self) -> bool:
        return math.hypot(self.dx, self.dy) > 1.5 * _LINE

    def box(self, point: Point, letters: int) -> Box:
        width = letters * _LETTER
        left = point[0] + self.dx - {"left": 0.0, "right": width, "center": width / 2}[self.side]
        return left, point[1] + self.dy - _LINE / 2, left + width, point[1] + self.dy + _LINE / 2


_STEPS = (0, 13, -13, 20, -20, 27, -27, 36, -36, 48, -48, 62, -62, 78, -78)
_BESIDE: tuple[tuple[Side, float], ...] = (("left", 9), ("right", -9), ("left", 26), ("right", -26), ("left", 48))
_TRIED = [Name(side, dx, dy) for dy in _STEPS for side, dx in _BESIDE]
_TRIED += [Name("center", 0, dy) for dy in (-14, 14)]


_OFFSETS = np.array([(name.dx, name.dy) for name in _TRIED])
_FAR = np.array([name.far for name in _TRIED])
_WAY = np.hypot(*_OFFSETS.T)
_HELD = np.array([{"left": 0.0, "right": 1.0, "center": 0.5}[name.side] for name in _TRIED])  # of the width
_ALONG = np.arange(1, 11) / 10  # places along a leading line that are checked


def place_names(
    points: Sequence[Point], names: Sequence[str], size: tuple[float, float], taken: Sequence[Box] = ()
) -> list[Name]:
    """One per point, in a panel of that size; a few rounds place every name anew among all others."""
    placed = [_TRIED[0]] * len(points)
    for _ in range(_ROUNDS):
        before = list(placed)
        for i, point in enumerate(points):
            others = [placed[j].box(points[j], len(names[j])) for j in range(len(points)) if j != i]
            dots = [_around(other) for j, other in enumerate(points) if j != i]
            hidden = np.array([*taken, *others, *dots, _around(point)])
            placed[i] = _TRIED[int(_costs(point, len(names[i]), hidden, size).argmin())]
        if placed == before:
            break
    return placed


def _around(point: Point) -> Box:
    return point[0] - _AROUND, point[1] - _AROUND, point[0] + _AROUND, point[1] + _AROUND


def _costs(point: Point, letters: int, hidden: np.ndarray, size: tuple[float, float]) -> np.ndarray:
    """Per place tried: pixels hidden or outside the panel, boxes that the leading line crosses, and the distance."""
    width = letters * _LETTER
    left = point[0] + _OFFSETS[:, :1] - width * _HELD[:, None]
    top = point[1] + _OFFSETS[:, 1:] - _LINE / 2
    wide = np.minimum(left + width, hidden[:, 2]) - np.maximum(left, hidden[:, 0])
    high = np.minimum(top + _LINE, hidden[:, 3]) - np.maximum(top, hidden[:, 1])
    shared = (wide.clip(0) * high.clip(0)).sum(1)
    beside = (-left).clip(0) + (left + width - size[0]).clip(0) + (-top).clip(0) + (top + _LINE - size[1]).clip(0)
    # The point itself, last of the boxes, is where its line begins.
    line = np.array(point) + _OFFSETS[:, None] * _ALONG[:, None]  # (places, steps, 2)
    boxes = hidden[:-1, None, None]
    inside = (boxes[..., :2] <= line) & (line <= boxes[..., 2:])
    crossed = inside.all(-1).any(-1).sum(0) * _FAR
    return np.asarray(shared + 100 * beside[:, 0] + 60 * crossed + 0.5 * _WAY)
