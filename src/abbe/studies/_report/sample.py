"""One window to look at: its tokens as text, and what every head selects for some queries, with its ball."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ... import normalizers
from ...measures import Rows
from ...models import AttentionCall, LoadedModel, Tap, Text, Window
from ...words.finding import Place
from .._engine.loss import loss_and_guessing
from .._engine.settings import Settings
from .._engine.vectors import token_vectors
from .._engine.window import is_over, lacks_vectors, rows_of_call, seeded
from .heat import Heat, heat_codes, heat_grid
from .result import Ball, Sample, SampleRow
from .sample_tokens import token_texts

SIZES = (5, 20)
LONGEST_WINDOW = 256  # tokens that fit on a screen
MOST_ROWS = 2400  # heads x queries, for the size of the page
FEWEST_QUERIES = 2
QUERIES = 8
_NEAREST, _AT_RANDOM = 12, 10  # unselected points to show
_ROUNDING = 1e-9  # relative to the length: anything shorter has no direction


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


class SampleReader:
    """Takes the sample from one forward pass: what every head does with up to `queries` positions of one window.

    Weights and vectors are those of the run. Models with very many heads get fewer queries, at least 2. Cross attention
    without vectors has no rows.
    """

    def __init__(
        self, model: LoadedModel, open_tap: Tap, chosen: Window, settings: Settings, sizes: tuple[int, ...] = SIZES,
        queries: int = QUERIES,
    ) -> None:  # fmt: skip
        self.model, self.chosen, self.settings, self.sizes, self.queries = model, chosen, settings, sizes, queries
        self.layers = len(open_tap.layers)
        self.normalizer = None if settings.normalizer is None else normalizers.normalizer(settings.normalizer)
        self.positions = torch.tensor([], dtype=torch.long)
        self.of_layers: dict[int, list[SampleRow]] = {}
        self.window: Window | None = None
        self.grid: tuple[tuple[int, ...], tuple[int, ...]] = ((), (0,))
        self.heat_of: dict[Place, bytes] = {}
        open_tap.listen(self._read)

    def wants(self, window: Window) -> bool:
        return (window.length, window.index) == (self.chosen.length, self.chosen.index) and not self.of_layers

    def done(self, window: Window) -> None:
        """Nothing to do: layers are read as they are called."""

    def parts_of(self, window: Window) -> Sequence[str]:
        return ()

    def sample(self, text: Text) -> Sample:
        """After the pass."""
        rows = tuple(row for _, of_layer in sorted(self.of_layers.items()) for row in of_layer)
        tokens = token_texts(self.model.tokenizer, text, self.chosen)
        heat = Heat(*self.grid, dict(sorted(self.heat_of.items()))) if self.heat_of else None
        of_window = self.chosen.length, self.chosen.index, tokens, self.sizes, tuple(self.positions.tolist()), rows
        return Sample(*of_window, *loss_and_guessing(self.model, self.chosen), heat)

    def _read(self, call: AttentionCall) -> None:
        if self.window is None:
            return
        if not len(self.positions):
            heads = call.query.shape[1] * self.layers
            self.positions = sample_positions(self.model, self.window, self.settings, heads, self.queries)
            self.grid = heat_grid(self.window.length, heads)
        if lacks_vectors(call, self.settings.vectors):
            return
        layer, tokens = call.place, self.window.tokens.to(call.query.device)
        vectors = token_vectors(self.settings.vectors, call, self.model.network, tokens[None])
        rows = rows_of_call(call, self.positions, vectors, self.normalizer)
        rows = Rows(rows.logits.cpu(), rows.weights.cpu(), rows.vectors.cpu())
        generator = seeded(self.settings, self.window, f"sample of layer {layer}")
        self.of_layers[layer] = sample_rows(rows, layer, self.positions.tolist(), self.sizes, generator)
        if is_over(call, self.window.length):  # else a cell would name the wrong token
            wide = rows_of_call(call, torch.tensor(self.grid[0]), vectors, self.normalizer)
            codes = heat_codes(wide.weights.cpu(), self.grid[1])
            self.heat_of |= {(layer, head): cells for head, cells in enumerate(codes)}


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
            keys = order[head, place, : int(seen.sum())]
            usable = sizes if bool(alive[head, place]) else ()
            balls = _balls(weights.double()[:, None] * vectors, keys, seen, usable, generator)
            sampled.append(SampleRow(layer, head, query, tuple(keys.tolist()), tuple(weights[keys].tolist()), balls))
    return sampled


def _balls(
    weighted: Tensor, keys: Tensor, seen: Tensor, sizes: Sequence[int], generator: torch.Generator
) -> tuple[Ball, ...]:
    """Of every size that leaves some of the seen keys out."""
    balls = []
    for size in sizes:
        unselected = seen.clone()
        unselected[keys[:size]] = False
        others = unselected.nonzero()[:, 0]
        if len(others):
            balls.append(ball_of(weighted, keys[:size], others, generator))
    return tuple(balls)


def ball_of(weighted: Tensor, members: Tensor, others: Tensor, generator: torch.Generator) -> Ball:
    """The ball of the members (in the order of their weights) among all points y_i = a_i x_i, float64 (key, feature).

    s is the sum of the members, the radius its distance from the nearest of the others, as for separability and
    precision.
    """
    centre = weighted[members].sum(0)
    far = (weighted - centre).norm(dim=-1)
    of_members, rest = far[members], far[others]
    radius = rest.amin()
    some_others = others[_some(rest, generator)]
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


def _some(distances: Tensor, generator: torch.Generator) -> Tensor:
    """Places of the nearest, and of some of the rest at random, in the order of their distances."""
    order = distances.argsort(stable=True)
    left = order[_NEAREST:]
    drawn = torch.randperm(len(left), generator=generator)[:_AT_RANDOM].sort().values
    return torch.cat([order[:_NEAREST], left[drawn]])


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
