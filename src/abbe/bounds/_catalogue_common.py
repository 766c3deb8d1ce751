"""What the parts of the catalogue share: names of sources, sizes to try, and quantities of a point."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from ._statements import Point, Quantity, Sizes, Statement

T = TypeVar("T")

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


def placed(function: Callable[..., T]) -> Callable[[Point], T]:
    """A function of (weights, vectors, count) as a quantity of a point."""
    return lambda point: function(point.weights, point["vectors"], count_of(point))


def entries(section: str, **shared: Any) -> Callable[..., Statement]:
    """Make the entries of a table: what they share is said here, and an entry names what it has otherwise."""

    def entry(name: str, text: str, latex: str, measured: Quantity, bound: Quantity, **other: Any) -> Statement:
        fields = {"source": OURS, "status": "proved", "tight": True, **shared, **other}
        return Statement(name, section, text, latex, measured=measured, bound=bound, **fields)

    return entry
