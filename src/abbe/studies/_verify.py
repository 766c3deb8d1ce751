"""Try every statement of the theory: random draws, then a search for the worst point by gradient ascent."""

from __future__ import annotations

import difflib
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from .._arguments import whole
from .._errors import AbbeError
from ..bounds import Point, Statement, catalogue
from ..runs.settings import checked_seed

STARTS = 16
STEPS = 80
_MOST_TRIALS = 1_000_000  # those of one statement are held in memory together
_CLEARLY = 1e-6  # a counterexample must break its statement by this much, not by rounding


@dataclass(frozen=True)
class Verdict:
    """What was measured about one statement.

    Attributes:
        name: of the statement.
        section: weights, distance, separability, gradient or capacity.
        text: the statement.
        source: where it is from.
        status: what the catalogue says of it.
        tight: whether the catalogue says that equality is reached.
        draws: points that were tried.
        worst: the largest ratio seen, measured/bound for an upper bound and bound/measured for a lower one: at most 1
            when it holds, near 1 when it is tight.
        typical: the median ratio of the random draws: small where the bound says little about ordinary inputs.
        holds: whether `worst` was at most 1.
        expected: whether that agrees with the status.
        counterexample: where it does not hold; empty where it does.
        seconds: that it took.
    """

    name: str
    section: str
    text: str
    source: str
    status: str
    tight: bool
    draws: int
    worst: float
    typical: float
    holds: bool
    expected: bool
    counterexample: str
    seconds: float


def verify(
    names: str | Iterable[str] = (), trials: int = 2000, seed: int = 0, progress: Callable[[str], None] | None = None
) -> list[Verdict]:
    """Do the statements of the theory hold? Random draws, then a search for the worst point by gradient ascent.

    Args:
        names: of statements, one or several; all by default (`abbe.bounds.catalogue`).
        trials: random draws of each, about, >= 1.
        seed: of the draws.
        progress: called with the name of each statement that was tried.

    Returns:
        A verdict for each: `worst` is small where a bound has room, near 1 where it is tight, larger where it is false;
        `typical` is the median over random draws.

    Raises:
        AbbeError: a statement is unknown.

    Examples:
        >>> [(verdict.name, verdict.holds) for verdict in abbe.verify(["top-mass", "theorem-1-root"], trials=100)]
        [('top-mass', True), ('theorem-1-root', False)]
    """
    trials, seed = whole("trials", trials, least=1, most=_MOST_TRIALS), checked_seed(seed)
    verdicts, threads = [], torch.get_num_threads()
    torch.set_num_threads(1)  # many small operations: a second thread would only wait
    try:
        for statement in _chosen((names,) if isinstance(names, str) else tuple(names)):
            verdicts.append(_try(statement, trials, seed))
            if progress is not None:
                progress(statement.name)
    finally:
        torch.set_num_threads(threads)
    return verdicts


def _chosen(names: tuple[str, ...]) -> list[Statement]:
    known = {statement.name: statement for statement in catalogue()}
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
            hint = f"Did you mean {near[0]!r}?" if near else "`abbe verify --list` shows all"
            raise AbbeError(f"unknown statement {name!r}. {hint}")
    return [known[name] for name in names] if names else list(known.values())


def _try(statement: Statement, trials: int, seed: int) -> Verdict:
    start = time.perf_counter()
    generator = torch.Generator().manual_seed(seed)
    worst, draws, example = 0.0, 0, ""
    drawn = []
    for sizes in statement.sizes:
        point = statement.sampler(generator, max(1, trials // len(statement.sizes)), sizes)
        drawn.append(_checked(statement, statement.ratio(point)))
        best, tried = _search(statement, point, drawn[-1], scale=trials)
        ratio = statement.ratio(best).detach()
        draws += tried
        top = float(ratio.max())
        if top > 1 + max(statement.tolerance, _CLEARLY) and not example:
            example = _smallest_counterexample(statement, _row(best, int(ratio.argmax())))
        worst = max(worst, top)
    holds = worst <= 1 + statement.tolerance
    expected = holds == (statement.status != "refuted")
    return Verdict(
        statement.name, statement.section, statement.text, statement.source, statement.status, statement.tight,
        draws, worst, float(torch.cat(drawn).median()), holds, expected, example, time.perf_counter() - start,
    )  # fmt: skip


def _search(statement: Statement, point: Point, ratio: Tensor, scale: int) -> tuple[Point, int]:
    """The worst points found, starting from draws with these ratios, and how many points were tried."""
    draws = ratio.numel()
    order = ratio.argsort(descending=True)[:STARTS]
    best = _rows(point, order)
    if not statement.searchable:
        return best, draws
    steps = max(20, min(STEPS * scale // 2000, 20 * STEPS))
    half = order.numel() - order.numel() // 2
    spread_out = torch.linspace(0, draws - 1, half).long()  # not only from the best draws: ascent may stall there
    worst = _ascend(statement, _rows(point, torch.cat([order, spread_out])), best, steps)
    return worst, draws + steps * (len(order) + half)


def _ascend(statement: Statement, start: Point, best: Point, steps: int) -> Point:
    """Adam on the log of the ratio; keeps the worst point of every start."""
    free = {name: value.clone().requires_grad_() for name, value in start.values.items()}
    seen, kept = torch.full((len(next(iter(free.values()))),), -torch.inf, dtype=torch.float64), start
    optimizer = torch.optim.Adam(list(free.values()), lr=0.1)
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = 0.1 * 0.01 ** (step / steps)
        point = Point(free, start.sizes)
        ratio = _checked(statement, statement.ratio(point))
        better = ratio.detach() > seen
        seen = torch.where(better, ratio.detach(), seen)
        kept = Point({k: _where(better, free[k].detach(), kept.values[k]) for k in free}, start.sizes)
        optimizer.zero_grad()
        if not ratio.requires_grad:
            break
        (-torch.log(ratio.clamp(min=1e-9)).sum()).backward()  # type: ignore[no-untyped-call]
        for value in free.values():  # an extreme start may overflow: it stays where it is
            if value.grad is not None:
                value.grad = torch.nan_to_num(value.grad, 0.0, 0.0, 0.0)
        optimizer.step()
        with torch.no_grad():
            if "log_temperature" in free:
                free["log_temperature"].clamp_(-3, 3)
    joined = {k: torch.cat([kept.values[k], best.values[k]]) for k in free}
    return Point({k: v.detach() for k, v in joined.items()}, start.sizes)


def _checked(statement: Statement, ratio: Tensor) -> Tensor:
    if bool(torch.isnan(ratio).any()):
        raise AbbeError(f"{statement.name}: a measured quantity or bound is NaN, so there is no verdict")
    return ratio


def _where(rows: Tensor, yes: Tensor, no: Tensor) -> Tensor:
    return torch.where(rows.view(-1, *([1] * (yes.ndim - 1))), yes, no)


def _rows(point: Point, index: Tensor) -> Point:
    return Point({name: value[index].detach() for name, value in point.values.items()}, point.sizes)


def _row(point: Point, index: int) -> Point:
    return _rows(point, torch.tensor([index]))


def _smallest_counterexample(statement: Statement, point: Point) -> str:
    """The same point with as few digits as still break the statement, as text to type in."""
    for digits in range(7 if statement.noise is None else 0):  # what was simulated is known at this point only
        rounded = _rounded(point, digits)
        if float(statement.ratio(rounded)[0]) > 1 + max(statement.tolerance, _CLEARLY):
            return _described(statement, rounded)
    return _described(statement, point)


def _rounded(point: Point, digits: int) -> Point:
    values = {}
    for name, value in point.values.items():
        if name == "log_temperature":
            temperature = value.exp()
            size = 10.0 ** torch.floor(torch.log10(temperature))
            values[name] = (torch.round(temperature / size, decimals=digits) * size).log()
        else:
            values[name] = torch.round(value, decimals=digits)
    return Point(values, point.sizes)


def _described(statement: Statement, point: Point) -> str:
    parts = [f"{name}={value}" for name, value in point.sizes.items()]
    for name, value in point.values.items():
        if name == "log_temperature":
            parts.append(f"T={float(value.exp()[0]):.6g}")
        elif name not in ("mean", "error"):
            parts.append(f"{name}={_numbers(value[0])}")
    measured, bound = float(statement.measured(point)[0]), float(statement.bound(point)[0])
    sign = {"upper": ">", "lower": "<", "equal": "is not"}[statement.side]
    return f"{', '.join(parts)}: measured {measured:.6g} {sign} bound {bound:.6g}"


def _numbers(value: Tensor) -> str:
    if value.ndim == 0:
        return f"{float(value) + 0.0:.6g}"
    shown = ", ".join(_numbers(part) for part in value[:16])
    return f"({shown}{', ...' if len(value) > 16 else ''})"
