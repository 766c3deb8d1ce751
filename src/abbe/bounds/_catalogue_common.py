"""What the parts of the catalogue share: names of sources, sizes to try, and quantities of a point."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from ._statements import Point, Sizes

PAPER = "arXiv 2508.17821"
OURS = "this project"

KEYS: tuple[Sizes, ...] = tuple({"keys": k} for k in (2, 3, 5, 16, 64))
COUNTED: tuple[Sizes, ...] = tuple(
    {"keys": k, "count": n} for k, n in ((2, 1), (3, 1), (3, 2), (8, 3), (32, 4), (32, 31))
)
PLACED: tuple[Sizes, ...] = tuple(
    {"keys": k, "count": n, "width": d} for k, n, d in ((2, 1, 1), (3, 1, 2), (4, 2, 2), (7, 3, 3), (8, 6, 2))
)
SMALL: tuple[Sizes, ...] = tuple(
    {"keys": k, "count": n, "width": d} for k, n, d in ((2, 1, 1), (3, 1, 1), (4, 2, 2), (6, 2, 2), (6, 5, 2))
)


def keys_of(point: Point) -> int:
    return point.sizes["keys"]


def count_of(point: Point) -> int:
    return point.sizes["count"]


def placed(function: Callable[..., Tensor]) -> Callable[[Point], Tensor]:
    """A function of (weights, vectors, count) as a quantity of a point."""
    return lambda point: function(point.weights, point["vectors"], count_of(point))
