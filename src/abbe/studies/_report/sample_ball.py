"""One selected set around its sum, seen from there: distances are exact, directions are azimuths."""

from __future__ import annotations

import torch
from torch import Tensor

from .result import Ball

NEAREST, AT_RANDOM = 12, 10  # unselected points to show
_ROUNDING = 1e-9  # relative to the length: anything shorter has no direction


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
    left = order[NEAREST:]
    drawn = torch.randperm(len(left), generator=generator)[:AT_RANDOM].sort().values
    return torch.cat([order[:NEAREST], left[drawn]])


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
