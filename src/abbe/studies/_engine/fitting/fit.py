"""Fit a normalizer's parameters so that its outputs approximate those of the original attention, head by head.

What is special: heads are independent, so all heads of a layer are fitted at once and each accepts or rejects its own
steps. A coarse grid search over every parameter in turn is followed by Levenberg-Marquardt steps (damped least squares;
the few derivatives are finite differences). Steps that raise a head's error are rejected, so no head ends up worse.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ....normalizers import Learned, Normalizer
from .rows import LayerRows

_GRID = (-2.0, -1.5, -1.0, -0.6, -0.3, 0.3, 0.6, 1.0, 1.5, 2.0)  # added to a raw parameter
_STEP = 2e-3  # of finite differences in the raw parameter: large against float32 rounding, small against its curvature
_LONGEST = 1.0  # step of a raw parameter: the linear model is useless beyond
_EDGE = 12.0  # limit for raw parameters of a bounded range: beyond it nothing changes and gradients vanish
_SMALL_GAIN = 1e-3  # of the error; the search ends after some rounds in which no head gains more
_PATIENCE = 2  # such rounds: a single one may only have raised the damping


@dataclass(frozen=True, eq=False)
class HeadFits:
    """Per head: error before and after, relative to `energy`; shares of visible keys with weight exactly 0."""

    energy: Tensor  # sum of squares of the baseline's outputs
    before: Tensor
    after: Tensor
    zeros_before: Tensor
    zeros_after: Tensor


@torch.no_grad()
def fit(normalizer: Normalizer, rows: LayerRows, steps: int) -> HeadFits:
    """Fit all parameters of the normalizer in place, with at most this many steps after the grid search."""
    problem = _Problem(normalizer, rows)
    start = problem.point()
    before, zeros_before = problem.error(problem.outputs(start)), _zeros(normalizer, rows)
    point, error = _search_grid(problem, start, before)
    point, error = _descend(problem, point, error, steps)
    problem.set(point)
    return HeadFits(problem.energy, before, error, zeros_before, _zeros(normalizer, rows))


@torch.no_grad()
def judge(normalizer: Normalizer, rows: LayerRows) -> tuple[Tensor, Tensor]:
    """Error and share of zeros per head, as in `HeadFits`, without fitting."""
    problem = _Problem(normalizer, rows)
    return problem.error(problem.outputs(problem.point())), _zeros(normalizer, rows)


class _Problem:
    """Errors of all heads as a function of a point: (parameter, head), the raw values."""

    def __init__(self, normalizer: Normalizer, rows: LayerRows) -> None:
        self._normalizer, self._rows = normalizer, rows
        self._raws: list[nn.Parameter] = list(normalizer.parameters())
        bounded = [part.low > -torch.inf for part in normalizer.modules() if isinstance(part, Learned)]
        self._edge = torch.tensor([_EDGE if is_bounded else torch.inf for is_bounded in bounded])[:, None]
        self.energy = rows.outputs.double().square().sum((0, 2, 3))
        # A head whose outputs are all 0 has no scale: its differences are 0 in any unit.
        self._unit = self.energy.clamp(min=1e-30).sqrt().float()[:, None, None]

    def point(self) -> Tensor:
        return torch.stack([raw.detach().reshape(-1).clone() for raw in self._raws])

    def set(self, point: Tensor) -> None:
        for raw, values in zip(self._raws, point, strict=True):
            raw.copy_(values.view_as(raw))

    def within(self, point: Tensor, start: Tensor) -> Tensor:
        """Clamp to the edges, or to the start if it lies beyond."""
        reach = torch.maximum(self._edge.to(point), start.abs())
        return torch.maximum(torch.minimum(point, reach), -reach)

    def outputs(self, point: Tensor) -> Tensor:
        """Difference from the baseline's outputs, in units of their norm: (window, head, query, width)."""
        self.set(point)
        return (self._rows.averaged(self._normalizer(self._rows.logits)) - self._rows.outputs) / self._unit

    @staticmethod
    def error(outputs: Tensor) -> Tensor:
        return outputs.double().square().sum((0, 2, 3))


def _search_grid(problem: _Problem, start: Tensor, error: Tensor) -> tuple[Tensor, Tensor]:
    """Each parameter in turn on a grid around its start, the others at their best so far."""
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
    """Damped least squares, with separate damping per head."""
    # Little damping at the start: the outputs are smooth in so few parameters, and a failed step is damped at once.
    outputs, damping, idle = problem.outputs(point), torch.full_like(error, 1e-2), 0
    for _ in range(steps):
        trial = problem.within(point + _move(problem, point, outputs, damping).to(point), point)
        there = problem.outputs(trial)
        error_there = problem.error(there)
        better = error_there < error
        idle = 0 if bool((error - error_there > _SMALL_GAIN * error).any()) else idle + 1
        point, error = torch.where(better, trial, point), torch.where(better, error_there, error)
        outputs = torch.where(better[:, None, None], there, outputs)
        # Bounded, so that a head that fails for long can still recover.
        damping = torch.where(better, damping / 4, damping * 8).clamp(1e-8, 1e8)
        if idle == _PATIENCE:
            break
    return point, error


def _move(problem: _Problem, point: Tensor, outputs: Tensor, damping: Tensor) -> Tensor:
    """The step of every head: (parameter, head)."""
    columns = []
    for number in range(len(point)):
        shifted = point.clone()
        shifted[number] += _STEP
        columns.append((problem.outputs(shifted) - outputs) / _STEP)
    slopes = torch.stack([_dot(column, outputs) for column in columns], -1)
    gram = torch.stack([torch.stack([_dot(a, b) for b in columns], -1) for a in columns], -1)
    # A parameter without effect has a row of zeros: the small addend keeps the system solvable.
    ridge = damping[:, None] * gram.diagonal(dim1=-2, dim2=-1) + 1e-12
    solved: Tensor = torch.linalg.solve(gram + torch.diag_embed(ridge), slopes)
    return -torch.clamp(solved.T, -_LONGEST, _LONGEST)


def _dot(a: Tensor, b: Tensor) -> Tensor:
    """(head,), summed in float64."""
    return (a * b).sum((0, 2, 3), dtype=torch.float64)


def _zeros(normalizer: Normalizer, rows: LayerRows) -> Tensor:
    """Per head, the share of visible keys with weight exactly 0."""
    visible = rows.logits > -torch.inf
    zeros = (normalizer(rows.logits) == 0) & visible
    share: Tensor = zeros.sum((0, 2, 3)).double() / visible.sum((0, 2, 3)).clamp(min=1)
    return share
