"""One window to look at: its tokens as text, what every head selects for some queries, with its ball, and heat maps."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from ... import normalizers
from ...measures import Rows
from ...models import AttentionCall, LoadedModel, Text, Window, token_texts
from ...runs.inputs import Settings
from ...runs.loss import loss_and_guessing
from ...runs.window import PassReader, is_over, rows_of_call, seeded, token_vectors

SIZES = (5, 20)
LONGEST_WINDOW = 256  # tokens that fit on a screen
MOST_ROWS = 2400  # heads x queries, for the size of the page
FEWEST_QUERIES = 2
QUERIES = 8
_NEAREST, _AT_RANDOM = 12, 10  # unselected points to show
_ROUNDING = 1e-9  # relative to the length: anything shorter has no direction

MOST_CELLS = 64  # along one side
MOST_BYTES = 1_200_000  # over all heads: with very many of them, the maps get coarser
LEAST = 1e-4  # of a weight: below, a cell is white on the map
_STEPS = 254  # of a byte, whose 0 stands for less than LEAST
_POWERS = 4  # from LEAST to 1


@dataclass(frozen=True)
class Heat:
    """A heat map of every head on one window: some queries by stretches of keys, small enough for a page.

    Rows are `queries`, column i holds the keys `edges[i]` to `edges[i + 1] - 1`.

    `heads` has the bytes of every (layer, head), row by row. A cell is the sum of the weights on its stretch, so a row
    sums to 1. It is stored as one byte on a logarithmic scale: 0 stands for less than 10^-4, 1 to 255 for 10^-4 to 1 in
    equal factors of 3.7 %.
    """

    queries: tuple[int, ...]
    edges: tuple[int, ...]
    heads: Mapping[tuple[int, int], bytes] = field(repr=False)

    def as_json(self) -> dict[str, Any]:
        heads = [(*place, base64.b64encode(codes).decode("ascii")) for place, codes in self.heads.items()]
        return {"queries": self.queries, "edges": self.edges, "heads": heads}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Heat:
        heads = {(layer, head): base64.b64decode(codes) for layer, head, codes in stored["heads"]}
        return cls(tuple(stored["queries"]), tuple(stored["edges"]), heads)


@dataclass(frozen=True)
class Ball:
    """The selected set of one size around its sum s, seen from s: every point at its true distance, in some direction.

    Directions are azimuths around the line from s to the origin, where tokens without weight lie; distances are exact,
    so points drawn inside the circle lie inside the ball.

    Attributes:
        size: N.
        radius: distance of s from the nearest unselected point.
        inside: of the selected, in the order of their weights: distance <= radius.
        distances: of the selected from s.
        angles: of the selected, in degrees.
        other_keys: some of the unselected: the nearest, and some at random.
        other_distances: of these from s.
        other_angles: of these, in degrees.
        intruders: unselected points that lie no farther from s than the farthest selected one.
    """

    size: int
    radius: float
    inside: tuple[bool, ...]
    distances: tuple[float, ...]
    angles: tuple[float, ...]
    other_keys: tuple[int, ...]
    other_distances: tuple[float, ...]
    other_angles: tuple[float, ...]
    intruders: int


@dataclass(frozen=True)
class SampleRow:
    """One query of one head.

    Attributes:
        layer: from 0.
        head: from 0.
        query: its position in the window.
        keys: of largest weight, in order.
        weights: of these keys.
        balls: one for every size below its keys.
    """

    layer: int
    head: int
    query: int
    keys: tuple[int, ...]
    weights: tuple[float, ...]
    balls: tuple[Ball, ...]


@dataclass(frozen=True)
class Sample:
    """One window to look at, and how every head treats some of its queries.

    Attributes:
        length: in tokens.
        index: its number among the windows of its length.
        tokens: as text.
        sizes: N of the balls.
        queries: their positions.
        rows: one per query and head.
        loss: of the next token in the window (of its last ones, if the vocabulary is large), in nats; None where the
            model does not predict the next token.
        guessing: loss of a model that gives all tokens the same probability, ln V, in nats.
        heat: weights of all queries, coarse; None if no layer attends over the window itself.
    """

    length: int
    index: int
    tokens: tuple[str, ...]
    sizes: tuple[int, ...]
    queries: tuple[int, ...]
    rows: tuple[SampleRow, ...]
    loss: float | None = None
    guessing: float | None = None
    heat: Heat | None = None

    def as_json(self) -> dict[str, Any]:
        """JSON for the run folder and the page; numbers of rows and balls have 4 significant digits."""
        rows = _rounded([asdict(row) for row in self.rows])
        return vars(self) | {"rows": rows, "heat": None if self.heat is None else self.heat.as_json()}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Sample:
        """The inverse of `as_json`, as exact as that form is.

        Args:
            stored: from `as_json`.
        """
        rows = [
            SampleRow(**_frozen(row) | {"balls": tuple(Ball(**_frozen(ball)) for ball in row["balls"])})
            for row in stored["rows"]
        ]
        heat = None if stored["heat"] is None else Heat.from_json(stored["heat"])
        return cls(**_frozen(stored) | {"rows": tuple(rows), "heat": heat})


def _rounded(value: Any) -> Any:
    """Nested numbers with 4 significant digits: finer than a pixel of their picture."""
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, dict):
        return {key: _rounded(inner) for key, inner in value.items()}
    return [_rounded(inner) for inner in value] if isinstance(value, list | tuple) else value


def _frozen(stored: Mapping[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in stored.items()}


def sample_window(windows: Sequence[Window]) -> Window:
    """The first of the largest length that fits on a screen, else of the shortest."""
    lengths = {window.length for window in windows}
    length = max((length for length in lengths if length <= LONGEST_WINDOW), default=min(lengths))
    return min((window for window in windows if window.length == length), key=lambda window: window.index)


def sample_positions(model: LoadedModel, window: Window, settings: Settings, heads: int, queries: int) -> Tensor:
    """The last position, and one drawn from each of the equal stretches before it.

    Causal models start at an eighth of the window, because queries before it see few keys.
    """
    count = min(queries, max(FEWEST_QUERIES, MOST_ROWS // heads))
    first, last = 0 if model.kind == "encoder" else window.length // 8, window.length - 1
    stretches = min(count - 1, last - first)
    edges = first + torch.arange(stretches + 1) * (last - first) // max(1, stretches)
    draws = torch.rand(stretches, generator=seeded(settings, window, "sample queries"), dtype=torch.float64)
    drawn = edges[:-1] + (draws * (edges[1:] - edges[:-1])).long()
    return torch.cat([drawn, torch.tensor([last])])


_PART, _LOSS = "sample/rows", "sample/loss"


class SampleReader(PassReader):
    """Takes the sample from one forward pass: what every head does with up to `queries` positions of one window.

    Weights and vectors are those of the run. Models with very many heads get fewer queries, at least 2. Cross attention
    without vectors has no rows.
    """

    def __init__(
        self, model: LoadedModel, windows: Sequence[Window], settings: Settings, sizes: tuple[int, ...] = SIZES,
        queries: int = QUERIES,
    ) -> None:  # fmt: skip
        self.model, self.chosen, self.settings, self.most_queries = model, sample_window(windows), settings, queries
        self.normalizer = None if settings.normalizer is None else normalizers.normalizer(settings.normalizer)
        self.taken = Sample(self.chosen.length, self.chosen.index, (), sizes, (), ())

    def wants(self, window: Window) -> bool:
        is_chosen = (window.length, window.index) == (self.chosen.length, self.chosen.index)
        return is_chosen and self.parts.json(_PART) is None

    def done(self, window: Window) -> None:
        """Keep what was read; tokens and loss come later, without a tap."""
        self.parts.keep_json(_PART, self.taken.as_json())

    def sample(self, text: Text) -> Sample:
        """The sample, after the run."""
        stored = self.parts.json(_PART)
        assert stored is not None
        loss = self.parts.get_or_make(
            _LOSS, lambda: dict(zip(("loss", "guessing"), loss_and_guessing(self.model, self.chosen), strict=True))
        )
        sample = self.taken if self.taken.queries else Sample.from_json(stored)
        return replace(sample, tokens=token_texts(self.model.tokenizer, text, self.chosen), **loss)

    def read(self, call: AttentionCall, window: Window, *weights_of: object) -> None:
        if not self.taken.queries:
            heads = call.query.shape[1] * self.layers
            self.grid = heat_grid(window.length, heads)
            positions = sample_positions(self.model, window, self.settings, heads, self.most_queries)
            self.taken = replace(self.taken, queries=tuple(positions.tolist()))
        vectors = token_vectors(self.settings.vectors, call, self.model.network, window.tokens[None])
        if vectors is None:
            return
        layer, heat = call.place, self.taken.heat
        rows = rows_of_call(call, torch.tensor(self.taken.queries), vectors, self.normalizer)
        rows = Rows(rows.logits.cpu(), rows.weights.cpu(), rows.vectors.cpu())
        generator = seeded(self.settings, window, f"sample of layer {layer}")
        listed = sample_rows(rows, layer, self.taken.queries, self.taken.sizes, generator)
        if is_over(call, window.length):  # else a cell would name the wrong token
            heat = heat or Heat(*self.grid, {})
            wide = rows_of_call(call, torch.tensor(heat.queries), vectors, self.normalizer)
            codes = heat_codes(wide.weights.cpu(), heat.edges)
            heat = replace(heat, heads={**heat.heads, **{(layer, head): cells for head, cells in enumerate(codes)}})
        self.taken = replace(self.taken, rows=(*self.taken.rows, *listed), heat=heat)


def sample_rows(
    rows: Rows, layer: int, queries: Sequence[int], sizes: Sequence[int], generator: torch.Generator
) -> list[SampleRow]:
    """What the heads of a layer do with these queries; row by row, so that only (key, feature) is in memory."""
    order, visible, alive = rows.order(max(sizes)), rows.visible, rows.alive
    sampled = []
    for head in range(rows.heads):
        vectors = rows.group(head).double()
        for place, query in enumerate(queries):
            seen, weights = visible[head, place], rows.weights[head, place]
            keys, weighted, balls = order[head, place, : int(seen.sum())], weights.double()[:, None] * vectors, []
            for size in sizes if bool(alive[head, place]) else ():
                unselected = seen.clone()
                unselected[keys[:size]] = False
                if bool(unselected.any()):
                    balls.append(ball_of(weighted, keys[:size], unselected.nonzero()[:, 0], generator))
            top = tuple(keys.tolist()), tuple(weights[keys].tolist())
            sampled.append(SampleRow(layer, head, query, *top, tuple(balls)))
    return sampled


def ball_of(weighted: Tensor, members: Tensor, others: Tensor, generator: torch.Generator) -> Ball:
    """The ball of the members (in the order of their weights) among all points y_i = a_i x_i, float64 (key, feature).

    s is the sum of the members, the radius its distance from the nearest of the others, as for separability and
    precision.
    """
    centre = weighted[members].sum(0)
    far = (weighted - centre).norm(dim=-1)
    of_members, rest = far[members], far[others]
    radius = rest.amin()
    order = rest.argsort(stable=True)  # shown are the nearest, and some of the rest at random
    left = order[_NEAREST:]
    drawn = torch.randperm(len(left), generator=generator)[:_AT_RANDOM].sort().values
    some_others = others[torch.cat([order[:_NEAREST], left[drawn]])]
    angles = azimuths(weighted[torch.cat([members, some_others])], centre).tolist()
    return Ball(
        size=len(members),
        radius=float(radius),
        inside=tuple((of_members <= radius).tolist()),
        distances=tuple(of_members.tolist()),
        angles=tuple(angles[: len(members)]),
        other_keys=tuple(some_others.tolist()),
        other_distances=tuple(far[some_others].tolist()),
        other_angles=tuple(angles[len(members) :]),
        intruders=int((rest <= of_members.amax()).sum()),
    )


def azimuths(weighted: Tensor, centre: Tensor) -> Tensor:
    """Degrees, 0 <= angle < 360, around the line from the centre s to the origin, for the points (point, feature).

    From s, tokens of small weight all lie within a degree of the direction to the origin: their directions differ only
    in the part of y_i perpendicular to that line. The two largest principal components of its unit vectors span the
    plane of the angles; each axis points to the side of its farthest point. A point on the line has 0.
    """
    line = centre / centre.norm().clamp(min=torch.finfo(centre.dtype).tiny)
    across = weighted - (weighted @ line)[:, None] * line
    lengths = across.norm(dim=-1, keepdim=True)
    on_line = lengths <= _ROUNDING * weighted.norm(dim=-1, keepdim=True)
    units = torch.where(on_line, 0.0, across / torch.where(on_line, 1.0, lengths))
    squares, axes = torch.linalg.eigh(units @ units.mT)  # in rising order
    squares, axes = squares.flip(-1)[:2].clamp(min=0), axes.flip(-1)[:, :2]
    along = axes * squares.sqrt()
    along = torch.where(along.abs() > _ROUNDING, along, 0.0)  # without a direction only rounding is left
    farthest = along.gather(0, along.abs().argmax(0, keepdim=True))
    along = along * torch.where(farthest < 0, -1.0, 1.0)
    first, second = along.unbind(-1)
    # Adding 0 turns -0 into 0: for a point without direction, atan2 of 0 and -0 would give 180 degrees.
    return torch.rad2deg(torch.atan2(second + 0.0, first + 0.0)).remainder(360)


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
