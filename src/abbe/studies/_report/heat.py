"""A heat map of every head on one window: some queries by stretches of keys, small enough for a page.

A cell is the sum of the weights on its stretch, so a row sums to 1. It is stored as one byte on a logarithmic scale:
0 stands for less than 10^-4, 1 to 255 for 10^-4 to 1 in equal factors of 3.7 %.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

MOST_CELLS = 64  # along one side
MOST_BYTES = 1_200_000  # over all heads: with very many of them, the maps get coarser
LEAST = 1e-4  # of a weight: below, a cell is white on the map
_STEPS = 254  # of a byte, whose 0 stands for less than LEAST
_POWERS = 4  # from LEAST to 1


@dataclass(frozen=True)
class Heat:
    """Weights of every head: rows are `queries`, column i holds the keys `edges[i]` to `edges[i + 1] - 1`.

    `heads` has the bytes of every (layer, head), row by row.
    """

    queries: tuple[int, ...]
    edges: tuple[int, ...]
    heads: Mapping[tuple[int, int], bytes] = field(repr=False)


def heat_grid(length: int, heads: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Queries and edges for a window: all of them if it is short, else the last query of each of equal stretches."""
    side = min(length, MOST_CELLS, max(8, int((MOST_BYTES / max(1, heads)) ** 0.5)))
    edges = tuple(length * i // side for i in range(side + 1))
    return tuple(edge - 1 for edge in edges[1:]), edges


def heat_codes(weights: Tensor, edges: Sequence[int]) -> list[bytes]:
    """The cells of every head, from the weights (head, query, key) of the queries of the grid."""
    stretch = torch.bucketize(torch.arange(weights.shape[-1]), torch.tensor(edges[1:]), right=True)
    sums = torch.zeros(*weights.shape[:-1], len(edges) - 1, dtype=torch.float64)
    sums.index_add_(-1, stretch, weights.double())
    shares = sums.nan_to_num(0.0).clamp(LEAST, 1.0)
    codes = 1 + (_STEPS * (shares.log10() / _POWERS + 1)).round()
    codes = torch.where(sums >= LEAST, codes, 0.0).to(torch.uint8)
    return [bytes(head.flatten().tolist()) for head in codes]


def weight_of(code: int) -> float:
    """The weight that a byte stands for."""
    return 0.0 if code == 0 else float(10.0 ** (_POWERS * ((code - 1) / _STEPS - 1)))


def heat_as_json(heat: Heat) -> dict[str, Any]:
    return {
        "queries": list(heat.queries),
        "edges": list(heat.edges),
        "layer": [layer for layer, _ in heat.heads],
        "head": [head for _, head in heat.heads],
        "weights": [base64.b64encode(codes).decode("ascii") for codes in heat.heads.values()],
    }


def heat_from_json(stored: Mapping[str, Any]) -> Heat:
    places = zip(stored["layer"], stored["head"], strict=True)
    codes = (base64.b64decode(text) for text in stored["weights"])
    return Heat(tuple(stored["queries"]), tuple(stored["edges"]), dict(zip(places, codes, strict=True)))
