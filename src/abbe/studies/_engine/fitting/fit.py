"""Fit a normalizer's parameters so that its outputs come near those of the original attention, head by head.

What is special: heads are independent, so all heads of a layer are fitted at once and each takes or refuses its own
steps. First every parameter in turn is tried on a coarse grid, then Levenberg-Marquardt steps follow (least squares
with damping; the few derivatives are differences of outputs). No step that raises a head's error is taken, so none ends
above where it started.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ....normalizers import Learned, Normalizer
from .rows import LayerRows

_GRID = (-2.0, -1.5, -1.0, -0.6, -0.3, 0.3, 0.6, 1.0, 1.5, 2.0)  # added to a raw parameter
_STEP = 2e-3  # of the differences, in the raw parameter: large beside float32 rounding, small beside its curvature
_LONGEST = 1.0  # step of a raw parameter: farther out the linear model says nothing
_EDGE = 12.0  # raw parameters of a bounded range stay within: beyond, nothing changes and nothing could learn
_SMALL_GAIN = 1e-3  # of the error; after some rounds in which no head gains more, the search ends
_PATIENCE = 2  # such rounds: one may only have raised the damping of all heads


@dataclass(frozen=True, eq=False)
class HeadFits:
    """For each head: error before and after, relative to `energy`; shares of visible keys with weight exactly 0."""

    energy: Tensor  # sum of squares of the baseline's outputs
    before: Tensor
    after: Tensor
    zeros_before: Tensor
    zeros_after: Tensor


@torch.no_grad()
def fit(made: Normalizer, rows: LayerRows, steps: int) -> HeadFits:
    """Fit all parameters of the normalizer in place, with at most so many steps after the grid."""
    problem = _Problem(made, rows)
    start = problem.point()
    before, zeros_before = problem.error(problem.outputs(start)), _zeros(made, rows)
    point, error = _search_grid(problem, start, before)
    point, error = _descend(problem, point, error, steps)
    problem.set(point)
    return HeadFits(problem.energy, before, error, zeros_before, _zeros(made, rows))


@torch.no_grad()
def judge(made: Normalizer, rows: LayerRows) -> tuple[Tensor, Tensor]:
    """Error and share of zeros of each head, as in `HeadFits`, of the normalizer as it is."""
    problem = _Problem(made, rows)
    return problem.error(problem.outputs(problem.point())), _zeros(made, rows)


class _Problem:
    """Errors of all heads as a function of a point: (parameter, head), the raw values."""

    def __init__(self, made: Normalizer, rows: LayerRows) -> None:
        self._made, self._rows = made, rows
        self._raws: list[nn.Parameter] = list(made.parameters())
        bounded = [part.low > -torch.inf for part in made.modules() if isinstance(part, Learned)]
        self._edge = torch.tensor([_EDGE if is_bounded else torch.inf for is_bounded in bounded])[:, None]
        self.energy = rows.outputs.double().square().sum((0, 2, 3))
        # A head whose outputs are all 0 has no size to be relative to: its differences are 0, too, in any unit.
        self._unit = self.energy.clamp(min=1e-30).sqrt().float()[:, None, None]

    def point(self) -> Tensor:
        return torch.stack([raw.detach().reshape(-1).clone() for raw in self._raws])

    def set(self, point: Tensor) -> None:
        for raw, values in zip(self._raws, point, strict=True):
            raw.copy_(values.view_as(raw))

    def within(self, point: Tensor, start: Tensor) -> Tensor:
        """Back from beyond the edges; who started there may stay."""
        reach = torch.maximum(self._edge.to(point), start.abs())
        return torch.maximum(torch.minimum(point, reach), -reach)

    def outputs(self, point: Tensor) -> Tensor:
        """Difference from the baseline's outputs, in units of their size: (window, head, query, width)."""
        self.set(point)
        return (self._rows.averaged(self._made(self._rows.logits)) - self._rows.outputs) / self._unit

    @staticmethod
    def error(outputs: Tensor) -> Tensor:
        return outputs.double().square().sum((0, 2, 3))


def _search_grid(problem: _Problem, start: Tensor, error: Tensor) -> tuple[Tensor, Tensor]:
    """Each parameter in turn on a grid around its start, the others where they are best so far."""
    best = start.clone()
    for number in range(len(start)):
        base = best.clone()
        for offset in _GRID:
            trial = base.clone()
            trial[number] = start[number] + offset
            trial = problem.within(trial, start)
            error_there = problem.error(problem.outputs(trial))
            better = error_there < error
            best, error = torch.where(better, trial, best), torch.where(better, error_there, error)
    return best, error


def _descend(problem: _Problem, point: Tensor, error: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    """Damped least squares, with its own damping for each head."""
    # Little damping at the start: the outputs are smooth in so few parameters, and a step that fails is damped at once.
    outputs, damping, idle = problem.outputs(point), torch.full_like(error, 1e-2), 0
    for _ in range(steps):
        trial = problem.within(point + _move(problem, point, outputs, damping).to(point), point)
        there = problem.outputs(trial)
        error_there = problem.error(there)
        better = error_there < error
        idle = 0 if bool((error - error_there > _SMALL_GAIN * error).any()) else idle + 1
        point, error = torch.where(better, trial, point), torch.where(better, error_there, error)
        outputs = torch.where(better[:, None, None], there, outputs)
        # Within bounds, so that a head that fails for long can still come back.
        damping = torch.where(better, damping / 4, damping * 8).clamp(1e-8, 1e8)
        if idle == _PATIENCE:
            break
    return point, error


def _move(problem: _Problem, point: Tensor, outputs: Tensor, damping: Tensor) -> Tensor:
    """The step of every head: (parameter, head)."""
    columns = []
    for number in range(len(point)):
        beside = point.clone()
        beside[number] += _STEP
        columns.append((problem.outputs(beside) - outputs) / _STEP)
    slopes = torch.stack([_dot(column, outputs) for column in columns], -1)
    gram = torch.stack([torch.stack([_dot(a, b) for b in columns], -1) for a in columns], -1)
    # A parameter that changes nothing has a row of zeros: the small addend keeps the system solvable.
    ridge = damping[:, None] * gram.diagonal(dim1=-2, dim2=-1) + 1e-12
    solved: Tensor = torch.linalg.solve(gram + torch.diag_embed(ridge), slopes)
    return -torch.clamp(solved.T, -_LONGEST, _LONGEST)


def _dot(a: Tensor, b: Tensor) -> Tensor:
    """(head,), summed in float64."""
    return (a * b).sum((0, 2, 3), dtype=torch.float64)


def _zeros(made: Normalizer, rows: LayerRows) -> Tensor:
    """The share of visible keys that each head gives exactly nothing."""
    visible = rows.logits > -torch.inf
    none = (made(rows.logits) == 0) & visible
    share: Tensor = none.sum((0, 2, 3)).double() / visible.sum((0, 2, 3)).clamp(min=1)
    return share
