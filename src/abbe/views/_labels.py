"""Names beside points: each as near to its own as can be, without hiding a point or another name. All in pixels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Side = Literal["left", "right", "center"]  # where the text is held
Point = tuple[float, float]
Box = tuple[float, float, float, float]  # left, top, right, bottom
_LETTER, _LINE = 6.0, 13  # what a name needs, in a font of 10 pixels
_AROUND = 6.0  # of a point: that much is kept free
_ROUNDS = 4


@dataclass(frozen=True)
class Name:
    """Where a name stands, seen from its point; far off, a line has to lead to it."""

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


def place_names(
    points: Sequence[Point], names: Sequence[str], size: tuple[float, float], taken: Sequence[Box] = ()
) -> list[Name]:
    """One for every point, in a panel of that size; every name is placed anew, a few times, beside all others."""
    found = [_TRIED[0]] * len(points)
    for _ in range(_ROUNDS):
        before = list(found)
        for i, point in enumerate(points):
            others = [found[j].box(points[j], len(names[j])) for j in range(len(points)) if j != i]
            dots = [_around(other) for j, other in enumerate(points) if j != i]
            hidden = [*taken, *others, *dots, _around(point)]
            found[i] = min(_TRIED, key=lambda name: _cost(name, point, len(names[i]), hidden, size))
        if found == before:
            break
    return found


def _around(point: Point) -> Box:
    return point[0] - _AROUND, point[1] - _AROUND, point[0] + _AROUND, point[1] + _AROUND


def _cost(name: Name, point: Point, letters: int, hidden: Sequence[Box], size: tuple[float, float]) -> float:
    """Pixels that are hidden or out of the panel, boxes that the leading line crosses, and the way."""
    box = name.box(point, letters)
    shared = sum(_overlap(box[0], box[2], x, x2) * _overlap(box[1], box[3], y, y2) for x, y, x2, y2 in hidden)
    outside = max(0.0, -box[0]) + max(0.0, box[2] - size[0]) + max(0.0, -box[1]) + max(0.0, box[3] - size[1])
    crossed = sum(_crosses(name, point, other) for other in hidden[:-1]) if name.far else 0
    return shared + 100 * outside + 60 * crossed + 0.5 * math.hypot(name.dx, name.dy)


def _overlap(low: float, high: float, other_low: float, other_high: float) -> float:
    return max(0.0, min(high, other_high) - max(low, other_low))


def _crosses(name: Name, point: Point, box: Box) -> bool:
    way = [(point[0] + name.dx * step / 10, point[1] + name.dy * step / 10) for step in range(1, 11)]
    return any(box[0] <= x <= box[2] and box[1] <= y <= box[3] for x, y in way)
