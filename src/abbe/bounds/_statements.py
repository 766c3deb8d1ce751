"""The record of one statement, the points at which it is tried, and what the parts of the catalogue share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

Status = Literal["proved", "refuted", "conditional", "approximation"]
Sizes = Mapping[str, int]
T = TypeVar("T")

PAPER = "arXiv 2508.17821"
OURS = "this project"
# By statement: who else has it, found independently of this project.
INDEPENDENTLY = {
    "log-margin": "arXiv 2512.13898; its growth like ln L as a critical scale: arXiv 2510.05554, arXiv 2605.12697",
    "spectral": "arXiv 2510.23012",
    "one-norm": "arXiv 2510.23012",
    "inf-to-one": "arXiv 2602.18849",
    "deletion-error": "arXiv 2512.07647",
    "renormalised-error": "arXiv 2512.07647",
    "mass-law": "arXiv 2512.07647",
}

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


@dataclass(frozen=True)
class Point:
    """A batch of inputs at which a statement is tried.

    Attributes:
        values: tensors that a search may move: "logits", "log_temperature" and others by name.
        sizes: whole numbers that stay: "keys", "count", "width".
    """

    values: dict[str, Tensor]
    sizes: Sizes

    def __getitem__(self, name: str) -> Tensor:
        return self.values[name]

    @property
    def temperature(self) -> Tensor:
        """T > 0, one per row of the batch."""
        return self.values["log_temperature"].exp()

    @property
    def weights(self) -> Tensor:
        """Softmax of the logits at the temperature, (batch, keys)."""
        return torch.softmax(self["logits"] / self.temperature.unsqueeze(-1), -1)


Sampler = Callable[[torch.Generator, int, Sizes], Point]
Quantity = Callable[[Point], Tensor]


@dataclass(frozen=True)
class Statement:
    """One statement of the theory: `measured` <= `bound` (side "upper"), >= ("lower") or = ("equal").

    Attributes:
        name: used in documents and by `abbe verify`.
        section: weights, distance, separability, gradient or capacity.
        text: the statement in plain characters.
        latex: the statement as a formula.
        source: where it is from.
        assumptions: under which it holds.
        status: "proved", "refuted", "conditional" (holds under stated assumptions that real models need not meet) or
            "approximation".
        tight: whether equality is reached or approached.
        sampler: draws a batch of points.
        measured: the quantity that is bounded.
        bound: its bound.
        side: on which side the bound lies.
        sizes: to try it at.
        searchable: whether a gradient search for counterexamples makes sense.
        noise: standard error of `measured`, if that is simulated.
        tolerance: rounding error allowed in the ratio.
    """

    name: str
    section: str
    text: str
    latex: str
    source: str
    assumptions: str
    status: Status
    tight: bool
    sampler: Sampler
    measured: Quantity
    bound: Quantity
    side: Literal["upper", "lower", "equal"] = "upper"
    sizes: tuple[Sizes, ...] = ()
    searchable: bool = True
    noise: Quantity | None = None
    tolerance: float = 1e-9  # of the ratio: float64 rounding of sums over some thousand keys, with room to spare

    def ratio(self, point: Point) -> Tensor:
        """How close the points come to the bound: above 1 the statement does not hold there, 1 is equality.

        measured/bound for an upper bound, bound/measured for a lower one. A simulated quantity gets the benefit of four
        standard errors.

        Args:
            point: a batch of inputs, as drawn by `statement.sampler(generator, trials, sizes)`.

        Returns:
            One ratio per input.

        Examples:
            >>> statement = abbe.bounds.catalogue()[0]
            >>> point = statement.sampler(torch.Generator().manual_seed(0), 100, {"keys": 8})
            >>> bool((statement.ratio(point) <= 1 + statement.tolerance).all())
            True
        """
        measured, bound = self.measured(point), self.bound(point)
        slack = 4 * self.noise(point) if self.noise is not None else 0.0
        tiny = 1e-6  # below this both sides are rounding
        over = _quotient(measured - slack + tiny, bound + tiny)
        under = _quotient(bound + tiny, measured + slack + tiny)
        if self.side == "equal":
            return torch.maximum(over, under)
        return over if self.side == "upper" else under


def _quotient(part: Tensor, whole: Tensor) -> Tensor:
    """part/whole; any part above a whole <= 0 counts as far too much (1e6: finite, so that a search can continue)."""
    below = whole <= 0  # False for NaN, which must propagate
    return torch.where(below, torch.where(part <= whole, 0.0, 1e6), part / torch.where(below, 1.0, whole))


def entries(section: str, **shared: Any) -> Callable[..., Statement]:
    """A maker of the entries of a table, with the fields that they share; an entry names the others."""

    def entry(name: str, text: str, latex: str, measured: Quantity, bound: Quantity, **other: Any) -> Statement:
        others = INDEPENDENTLY.get(name)
        source = OURS if others is None else f"{OURS}; independently {others}"
        fields = {"source": source, "status": "proved", "tight": True, **shared, **other}
        return Statement(name, section, text, latex, measured=measured, bound=bound, **fields)

    return entry


def keys_of(point: Point) -> int:
    return point.sizes["keys"]


def count_of(point: Point) -> int:
    return point.sizes["count"]


def placed(function: Callable[..., T]) -> Callable[[Point], T]:
    """A function of (weights, vectors, count) as a quantity of a point."""
    return lambda point: function(point.weights, point["vectors"], count_of(point))


def normal(generator: torch.Generator, *shape: int, spread: float = 1.0) -> Tensor:
    return spread * torch.randn(*shape, generator=generator, dtype=torch.float64)


def rows(generator: torch.Generator, trials: int, sizes: Sizes) -> Point:
    """Logits of many spreads and shapes (including two-level rows), temperatures from 0.05 to 20."""
    keys = sizes["keys"]
    spread = 10 ** (2 * torch.rand(trials, 1, generator=generator, dtype=torch.float64) - 1)
    logits = spread * normal(generator, trials, keys)
    two_level = torch.rand(trials, 1, generator=generator, dtype=torch.float64) < 0.3
    level = torch.rand(trials, 1, generator=generator, dtype=torch.float64)
    steps = spread * (torch.rand(trials, keys, generator=generator, dtype=torch.float64) < level).double()
    log_temperature = (6 * torch.rand(trials, generator=generator, dtype=torch.float64) - 3).clamp(-3, 3)
    return Point({"logits": torch.where(two_level, steps, logits), "log_temperature": log_temperature}, sizes)


def rows_and_vectors(generator: torch.Generator, trials: int, sizes: Sizes) -> Point:
    """Rows with token vectors: isotropic, or around a common direction."""
    point = rows(generator, trials, sizes)
    shape = trials, sizes["keys"], sizes["width"]
    common = 3 * torch.rand(trials, 1, 1, generator=generator, dtype=torch.float64)
    vectors = normal(generator, *shape) + common * normal(generator, trials, 1, sizes["width"])
    return Point({**point.values, "vectors": vectors}, sizes)
