"""Sensitivity of weights to logits: norms of the Jacobian, exact or by iteration, and finite differences."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from .. import bounds, normalizers
from .._attention.engine import beside_sink, with_sink
from .._errors import AbbeError
from .._kernels.calls import KernelsBrokenError, over_rows
from ..normalizers import Normalizer
from ._rows import Rows, RowSummary, flat, row_kernel
from ._state import Reading

__all__ = ["differences", "sensitivity"]

_MOST_STEPS = 60  # a handful is enough; the bound is for rows in which rounding keeps the steps going
_LANCZOS_STEPS = 64  # at most; it takes a few dozen where the largest eigenvalues are close
_BETWEEN_TESTS = 4  # steps: a test needs the eigenvalues of a small matrix per row
_TOLERANCE = 1e-6  # of an eigenvalue; half as much in its root, which is reported


def rank_one_norms(rows: Rows, p: Tensor, missing: Tensor, directions: Tensor) -> tuple[Tensor, Tensor]:
    """Largest eigenvalue of diag(p) - p p^T, and the length of its product with a unit direction: (head, query) each.

    p is (head, query, key), `missing` is 1 - sum p; `directions` (query, key) is restricted to the visible keys of a
    row and normalised.
    """
    if rows.fused and p.dtype == torch.float32:
        with suppress(KernelsBrokenError):
            return _fused(rows, p, missing, directions)
    g = torch.where(rows.visible, directions, 0.0)
    moved = p * (g - (p * g).sum(-1, keepdim=True))
    return largest_eigenvalue(p, missing), moved.norm(dim=-1) / or_one(g.norm(dim=-1))


def _fused(rows: Rows, p: Tensor, missing: Tensor, directions: Tensor) -> tuple[Tensor, Tensor]:
    norms = torch.empty(rows.heads * rows.queries, 2)
    missing = missing.detach().expand(rows.heads, rows.queries).reshape(-1).contiguous()
    over_rows(
        row_kernel("rank_one_norms"), len(norms), flat(rows.logits), flat(p), missing, directions.contiguous(),
        rows.facts.last.reshape(-1).contiguous(), norms,
    )  # fmt: skip
    worst, random = norms.view(rows.heads, rows.queries, 2).unbind(-1)
    return worst, random


def largest_eigenvalue(p: Tensor, missing: Tensor) -> Tensor:
    """Of diag(p) - p p^T, p >= 0 (..., key) with at least one key: the specification of the kernel."""
    top = p.amax(-1, keepdim=True)
    rest = torch.where(p < top, p, 0.0)
    second, m = rest.amax(-1, keepdim=True), missing.unsqueeze(-1)
    width = top - second
    tied = (p == top).sum(-1, keepdim=True) > 1
    x = (rest.sum(-1, keepdim=True) + m) * width  # not 1 - top, which is 0 in a peaked row; above the root
    for _ in range(_MOST_STEPS):
        safe = or_one(x)
        share, of_sink = safe / (safe + second - rest), safe / (safe + second)
        value = (rest * share).sum(-1, keepdim=True) + m * of_sink
        s = (rest * share**2).sum(-1, keepdim=True) + m * of_sink**2
        step = torch.where(x > 0, _root(top, width, (value - s).clamp(min=0) / safe, s), 0.0)
        done = (step - x).abs() <= torch.finfo(p.dtype).eps * (second + step)
        x = step
        if bool(done.all()):
            break
    # For a tiny top, top (1 - top) <= norm <= top is exact up to rounding.
    return torch.where(tied | (top < torch.finfo(p.dtype).eps), top, second + x).squeeze(-1)


def _root(top: Tensor, width: Tensor, r: Tensor, s: Tensor) -> Tensor:
    """The x in (0, width) with top/(width - x) = r + s/x."""
    b = top + s - r * width
    root = torch.sqrt(b**2 + 4 * r * s * width)
    # The form of the root that subtracts no nearly equal numbers.
    return torch.where(b > 0, 2 * s * width / or_one(b + root), (root - b) / or_one(2 * r))


def or_one(x: Tensor) -> Tensor:
    return torch.where(x > 0, x, 1.0)


def jacobian_norms(normalizer: Callable[[Tensor], Tensor], logits: Tensor, directions: Tensor) -> tuple[Tensor, Tensor]:
    """Spectral norm of the Jacobian, and the length of its product with a unit direction: (head, query) each.

    J^T J is applied by forward- and reverse-mode differentiation, to all rows at once; the Lanczos recurrence, a power
    iteration that keeps its past, finds its largest eigenvalue. It stops when four further steps change no eigenvalue
    by more than one part in a million (in float32 3 in 100,000, where rounding begins), or after 64 steps. The result
    is never above the norm, except by rounding.
    """
    logits = logits.detach()
    visible = logits != -torch.inf
    start = torch.where(visible, directions, 0.0)
    start = start / or_one(start.norm(dim=-1, keepdim=True))
    pull_back = torch.func.vjp(normalizer, logits)[1]

    def push(v: Tensor) -> Tensor:
        moved: Tensor = torch.func.jvp(normalizer, (logits,), (v,))[1]
        return torch.where(visible, moved, 0.0)

    def square(v: Tensor) -> Tensor:
        return torch.where(visible, pull_back(push(v))[0], 0.0)

    return _lanczos(square, start).clamp(min=0).sqrt().to(logits.dtype), push(start).norm(dim=-1)


def _lanczos(square: Callable[[Tensor], Tensor], start: Tensor) -> Tensor:
    """Largest eigenvalue of symmetric positive operators on the last dimension, from unit start vectors; float64."""
    before, here = torch.zeros_like(start), start
    beta = start.new_zeros(*start.shape[:-1], 1)
    diagonal: list[Tensor] = []
    off_diagonal: list[Tensor] = []
    # Smaller changes are rounding, and would never end.
    tolerance = max(_TOLERANCE, 256 * torch.finfo(start.dtype).eps)
    largest = torch.zeros(start.shape[:-1], dtype=torch.float64, device=start.device)
    for step in range(1, _LANCZOS_STEPS + 1):
        after = square(here) - beta * before
        alpha = (here * after).sum(-1, keepdim=True)
        after = after - alpha * here
        diagonal.append(alpha.squeeze(-1))
        if step % _BETWEEN_TESTS == 0:
            last, largest = largest, _largest_ritz(diagonal, off_diagonal)
            if bool((largest - last <= tolerance * largest).all()):
                break
        beta = after.norm(dim=-1, keepdim=True)
        # In an invariant subspace the rest is rounding: from there on the row adds nothing.
        active = beta > 8 * torch.finfo(start.dtype).eps * torch.stack(diagonal).amax(0).unsqueeze(-1)
        beta = torch.where(active, beta, 0.0)
        before, here = here, torch.where(active, after / or_one(beta), 0.0)
        off_diagonal.append(beta.squeeze(-1))
    return largest


def _largest_ritz(diagonal: list[Tensor], off_diagonal: list[Tensor]) -> Tensor:
    """Largest eigenvalue of the tridiagonal matrices."""
    # Small matrices: float64 costs nothing, and resolves close eigenvalues.
    main, off = torch.stack(diagonal, -1).double(), torch.stack(off_diagonal, -1).double()
    matrix = torch.diag_embed(main) + torch.diag_embed(off, 1) + torch.diag_embed(off, -1)
    largest: Tensor = torch.linalg.eigvalsh(matrix)[..., -1]
    return largest


def sensitivity(
    rows: Rows, normalizer: Normalizer, temperatures: Sequence[float], generator: torch.Generator
) -> dict[str, Reading]:
    """How much the weights move when the logits move a little, in the worst and in a random direction.

    The Jacobian is that of l -> normalizer(l/T). Worst is its spectral norm, exact for softmax, sinks, selections and
    entmax; random is ||J u||, u a uniform random unit vector on the visible keys (the heads of a query share its
    draw). The limit is the normalizer's Lipschitz constant for n keys, over T. High means that a small change of the
    logits moves the weights a lot, low that none does.

    Args:
        rows: a block of attention rows, which may have a sink.
        normalizer: of the weights; with a learned sink, which is one key more for it.
        temperatures: T > 0.
        generator: of the directions; drawn from query by query, so that any blocks give the same numbers.

    Returns:
        Readings sensitivity_worst and sensitivity_random, "@T=0.1" in the name at temperatures other than 1; weight per
        logit, (head, query).

    Examples:
        >>> logits = torch.zeros(1, 1, 2)
        >>> rows = abbe.measures.Rows(logits, logits.softmax(-1), torch.randn(1, 2, 4), softmax=True)
        >>> generator = torch.Generator().manual_seed(0)
        >>> readings = abbe.measures.sensitivity(rows, abbe.normalizer("softmax"), [1, 0.5], generator)
        >>> [(name, round(float(reading.limit), 3)) for name, reading in readings.items() if "worst" in name]
        [('sensitivity_worst', 0.5), ('sensitivity_worst@T=0.5', 1.0)]
    """
    norms = change_norms(rows, normalizer, temperatures, generator)
    return sensitivity_readings(rows.summary, normalizer, norms)


class ChangeNorms(NamedTuple):
    """How far the weights of a row move, (head, query)."""

    worst: Tensor  # the spectral norm of the Jacobian
    random: Tensor  # its product with a random unit vector


def change_norms(
    rows: Rows, normalizer: Normalizer, temperatures: Sequence[float], generator: torch.Generator
) -> dict[float, ChangeNorms]:
    """By temperature, not yet divided by it."""
    for t in temperatures:
        if not (isinstance(t, int | float) and 0 < t < math.inf):
            raise AbbeError(f"temperatures must be positive numbers, got {t!r}")
    if rows.sink and rows.sink_logits is None and str(normalizer) != "softmax":
        raise AbbeError(f"rows with a learned sink need its sink_logits for the Jacobian of {normalizer}")
    random = directions(rows, generator)
    return {t: _norms(rows, normalizer, float(t), random) for t in temperatures}


def sensitivity_readings(
    rows: RowSummary, normalizer: Normalizer, norms: Mapping[float, ChangeNorms]
) -> dict[str, Reading]:
    readings: dict[str, Reading] = {}
    constant, defined = _limit(rows, normalizer), rows.count > 0
    for t, (worst, random) in norms.items():
        limit = constant / t
        suffix = "" if t == 1 else f"@T={short(t)}"
        readings[f"sensitivity_worst{suffix}"] = Reading(worst / t, defined, limit, quantiles=True)
        readings[f"sensitivity_random{suffix}"] = Reading(random / t, defined, limit, quantiles=True)
    return readings


def short(x: float) -> str:
    return f"{x:g}" if float(f"{x:g}") == x else repr(x)


def directions(rows: Rows, generator: torch.Generator) -> Tensor:
    """Standard normal (query, key), by the Box-Muller transform: torch's own would depend on the block."""
    half = (rows.keys + 1) // 2
    uniform = torch.rand(rows.queries, half, 2, generator=generator, dtype=rows.logits.dtype)
    # Of 1 - u: u may be 0, whose logarithm is infinite.
    radius, angle = torch.sqrt(-2 * torch.log1p(-uniform[..., 0])), 2 * math.pi * uniform[..., 1]
    normal = torch.stack([radius * torch.cos(angle), radius * torch.sin(angle)], -1).flatten(1)
    return normal[:, : rows.keys].contiguous().to(rows.logits.device)


# Their Jacobian is scale (diag w - w w^T); almost everywhere for a selection.
_SOFTMAX_LIKE = ("softmax", "sink", "topk", "topp", "threshold")


class _RankOne(NamedTuple):
    """A Jacobian factor * (diag(p) - p p^T), p summing to 1 - missing."""

    p: Tensor
    missing: Tensor  # (head, query) or one number for all
    factor: Tensor | float  # (head, query)


def _norms(rows: Rows, normalizer: Normalizer, t: float, random: Tensor) -> ChangeNorms:
    """Of the Jacobian at logits/t."""
    with torch.no_grad():
        softmax_sink = rows.sink and str(normalizer) == "softmax"
        form = _sink_form(rows, t) if softmax_sink else _form(rows, normalizer, t)
        if form is None:
            sink = None if rows.sink_logits is None else rows.sink_logits / t
            weights = partial(beside_sink, normalizer, sink=sink)
            return ChangeNorms(*jacobian_norms(normalizer if sink is None else weights, rows.logits / t, random))
        return ChangeNorms(*(form.factor * norm for norm in rank_one_norms(rows, form.p, form.missing, random)))


def _sink_form(rows: Rows, t: float) -> _RankOne:
    """Softmax with a sink, whose logit is recovered from its weight where the rows do not have it."""
    missing = (1 - rows.facts.total).clamp(min=0)
    if t == 1:
        return _RankOne(rows.weights, missing, 1.0)
    if rows.sink_logits is not None:
        sink = rows.sink_logits.to(rows.logits.dtype)
    else:
        top, largest = rows.logits.amax(-1), torch.where(rows.facts.largest > 0, rows.facts.largest, 1.0)
        sink = torch.where(rows.count > 0, top, 0.0) + torch.log(missing) - torch.log(largest)
    # The sink's weight is computed: 1 minus the sum of the others would lose a small one.
    weights = normalizers.normalizer("softmax")(with_sink(rows.logits / t, sink / t))
    return _RankOne(weights[..., 1:].contiguous(), weights[..., 0], 1.0)


def _form(rows: Rows, normalizer: Normalizer, t: float) -> _RankOne | None:
    """Closed form for softmax at any scale, with a sink or over selected keys, and for entmax; None for the others.

    A learned sink is one key more, whose row and column are left out. Entmax: J = scale (diag u - u u^T/sum u),
    u = w^(2 - alpha) on the support; with p = u/sum u it is scale (sum u) (diag p - p p^T).
    """
    none = rows.logits.new_zeros(())
    if not normalizer.is_one_map:
        return None
    if rows.softmax and t == 1 and str(normalizer) == "softmax":
        return _RankOne(rows.weights, none, 1.0)
    logits = rows.logits / t if rows.sink_logits is None else with_sink(rows.logits / t, rows.sink_logits / t)
    keys = slice(0 if rows.sink_logits is None else 1, None)
    which, params = normalizer._map(logits)
    scale = params[..., :1].to(logits.dtype).expand(rows.heads, rows.queries, 1).squeeze(-1)
    if which.name in _SOFTMAX_LIKE:
        w = normalizer(logits)
        missing = (1 - w.sum(-1)).clamp(min=0) if which.name == "sink" else none
        missing = missing if rows.sink_logits is None else missing + w[..., 0]
        return _RankOne(w[..., keys].contiguous(), missing, scale)
    powers: dict[str, Tensor | float] = {"sparsemax": 0.0, "entmax15": 0.5, "entmax": 1 - params[..., 1:2]}
    if which.name not in powers:
        return None
    w = normalizer(logits)
    u = torch.where(w > 0, torch.where(w > 0, w, 1.0) ** powers[which.name], 0.0)
    total = u.sum(-1)
    p = u / torch.where(total > 0, total, 1.0).unsqueeze(-1)
    return _RankOne(p[..., keys].contiguous(), none if rows.sink_logits is None else p[..., 0], scale * total)


def _limit(rows: RowSummary, normalizer: Normalizer) -> Tensor:
    """The Lipschitz constant for the n of every row, (head, query)."""
    of_softmax = rows.sink and str(normalizer) == "softmax"
    applied, more = (normalizers.normalizer("sink"), 0) if of_softmax else (normalizer, int(rows.sink))
    # A constant may take a search: it is computed once per n.
    counts, place = torch.unique(rows.count, return_inverse=True)
    constants = torch.tensor([applied.lipschitz(max(1, int(n) + more)) for n in counts], dtype=torch.float64)
    return constants.to(place.device)[place]


def differences(
    rows: Rows, temperatures: Sequence[float], steps: Sequence[float], generator: torch.Generator
) -> dict[str, Reading]:
    """How far softmax moves when the logits take a step of a given length, over that length.

    difference_random takes a uniform random direction on the visible keys (the heads of a query share its draw);
    difference_pair pushes the second largest logit up and the largest down, each by eps/sqrt 2, and is 0 in a row of
    one key. The limit is the supremum over all rows and directions, below min{1/(2T), sqrt 2/eps}. High means that such
    a step moves the weights a lot, low that it hardly does.

    Args:
        rows: of softmax, with or without a learned sink: its logit takes part but does not move, and its weight is not
            part of the difference.
        temperatures: T > 0, all different.
        steps: eps > 0 in logits, all different.
        generator: of the directions; drawn from query by query, so that any blocks give the same numbers.

    Returns:
        Readings "difference_random@T=0.1,eps=0.001" and the like, weight per logit.

    Examples:
        >>> logits = torch.randn(2, 5, 8)
        >>> rows = abbe.measures.Rows(logits, logits.softmax(-1), torch.randn(1, 8, 4), softmax=True)
        >>> readings = abbe.measures.differences(rows, [1.0], [0.1], torch.Generator().manual_seed(0))
        >>> sorted(readings)
        ['difference_pair@T=1,eps=0.1', 'difference_random@T=1,eps=0.1']
    """
    temperatures, steps = _checked("temperatures", temperatures), _checked("steps", steps)
    if not (rows.softmax or rows.sink):
        raise AbbeError("differences are measured for softmax only, with or without a sink: give softmax or sink rows")
    lengths = _lengths(rows, temperatures, steps, directions(rows, generator))
    defined = rows.count > 0
    readings: dict[str, Reading] = {}
    for i, t in enumerate(temperatures):
        for j, step in enumerate(steps):
            limit = (bounds.change_bound_by_norm(step, t) / step).to(defined.device)
            for direction, length in zip(("random", "pair"), lengths[i, j], strict=True):
                value = torch.where(defined, length / step, 0.0)
                name = f"difference_{direction}@T={short(t)},eps={short(step)}"
                readings[name] = Reading(value, defined, limit.expand(defined.shape), quantiles=True)
    return readings


def _checked(name: str, values: Sequence[float]) -> tuple[float, ...]:
    for x in values:
        if not isinstance(x, int | float) or isinstance(x, bool) or not 0 < x < math.inf:
            raise AbbeError(f"{name} must be positive finite numbers, got {x!r}")
    numbers = tuple(float(x) for x in values)
    if len(set(numbers)) < len(numbers):
        raise AbbeError(f"{name} must be different numbers, got {list(numbers)}")
    return numbers


def _lengths(rows: Rows, temperatures: Sequence[float], steps: Sequence[float], random: Tensor) -> Tensor:
    """||softmax((l + eps u)/T) - softmax(l/T)||, (temperature, step, direction, head, query)."""
    shape = (len(temperatures), len(steps), 2, rows.heads, rows.queries)
    ratios = torch.empty(shape, dtype=torch.float64, device=rows.logits.device)
    with torch.no_grad():
        for head, row in enumerate(_heads(rows, random)):  # one at a time stays in the cache
            for i, t in enumerate(temperatures):
                scaled = row.logits / t
                weights, top = torch.softmax(scaled, -1), _top_two(row, scaled)
                for j, step in enumerate(steps):
                    ratios[i, j, 0, head] = _moved(row, scaled, weights, step / t)
                    ratios[i, j, 1, head] = _exchanged(top, step / t)
    return ratios


class _Head(NamedTuple):
    """The rows of one head in float64, (query, key); a sink is one more column at the end."""

    logits: Tensor  # minus the largest: exact where it matters, also at a low temperature
    direction: Tensor  # unit vectors on the visible keys, 0 elsewhere
    first: Tensor  # (query, 1) position of the largest logit, the sink among them
    pair: Tensor  # (query, 2) positions of the largest and the second largest logit of a key
    both: Tensor  # (query,) there are two visible keys
    keys: int  # columns without the sink


def _heads(rows: Rows, random: Tensor) -> Iterator[_Head]:
    sinks = _sink_logits(rows) if rows.sink else None
    for head in range(rows.heads):
        logits = rows.logits[head].detach().double()
        visible = logits != -torch.inf
        direction = torch.where(visible, random.double(), 0.0)
        length = direction.norm(dim=-1, keepdim=True)
        direction = direction / torch.where(length > 0, length, 1.0)
        first = logits.argmax(-1, keepdim=True)
        second = logits.scatter(-1, first, -torch.inf).argmax(-1, keepdim=True)
        if sinks is not None:
            logits = torch.cat([logits, sinks[head].unsqueeze(-1)], -1)
            direction = torch.nn.functional.pad(direction, (0, 1))
        top, place = logits.max(-1, keepdim=True)
        logits = logits - torch.where(top == -torch.inf, 0.0, top)
        pair = torch.cat([first, second], -1)
        yield _Head(logits, direction, place, pair, visible.sum(-1) > 1, rows.keys)


def _sink_logits(rows: Rows) -> Tensor:
    """(head, query): those of the rows, or from the sink's weight relative to the largest."""
    if rows.sink_logits is not None:
        return rows.sink_logits.detach().double().unsqueeze(-1).expand(rows.logits.shape[:2])
    top, facts = rows.logits.detach().amax(-1).double(), rows.facts
    least = torch.finfo(rows.weights.dtype).tiny  # if the sink took all: weights round to 0
    missing, largest = (1 - facts.total.double()).clamp(min=0), facts.largest.double().clamp(min=least)
    return torch.where(rows.count > 0, top, 0.0) + torch.log(missing) - torch.log(largest)


def _moved(row: _Head, scaled: Tensor, weights: Tensor, step: float) -> Tensor:
    """Length of the difference, (query,), after a step along the direction."""
    change = torch.softmax(torch.add(scaled, row.direction, alpha=step), -1).sub_(weights)
    change.scatter_(-1, row.first, 0.0)
    change.scatter_(-1, row.first, -change.sum(-1, keepdim=True))
    length: Tensor = torch.linalg.vector_norm(change[:, : row.keys], dim=-1)
    return length


class _TopTwo(NamedTuple):
    """The row as the pair direction sees it, each (query,)."""

    first: Tensor  # logarithm of the largest weight
    second: Tensor  # of the second
    rest: Tensor  # of the weight of all others, the sink among them
    share: Tensor  # length of the weights of the others, without the sink, over the weight of them all
    both: Tensor  # there are two keys


def _top_two(row: _Head, scaled: Tensor) -> _TopTwo:
    """In logarithms, because a step may lift a weight that has rounded to 0."""
    others = scaled.scatter(-1, row.pair, -torch.inf)
    logs = torch.cat([scaled.gather(-1, row.pair), others.logsumexp(-1, keepdim=True)], -1)
    first, second, rest = (logs - logs.logsumexp(-1, keepdim=True)).unbind(-1)
    share = torch.linalg.vector_norm(torch.softmax(others, -1)[:, : row.keys], dim=-1)
    return _TopTwo(first, second, rest, torch.where(rest > -torch.inf, share, 0.0), row.both)


def _exchanged(top: _TopTwo, step: float) -> Tensor:
    """Length of the difference, (query,), when the largest logit falls and the second rises by step/sqrt 2.

    With b = step/sqrt 2, u = e^-b, weights p, q, r (largest, second, all others) and Z = p u + q/u + r, the changes
    are (1 - u)/Z times: -p ((1 + u) q/u + r) of the largest, ((1 + u) p + r) q/u of the second, and p - q/u times its
    weight of any other. Numerator and denominator are divided by the largest term of Z, so that nothing overflows.
    """
    b = step / math.sqrt(2)
    terms = torch.stack([top.first - b, top.second + b, top.rest])
    pu, qu, r = torch.exp(terms - terms.amax(0))
    p, rest, u = torch.exp(top.first), torch.exp(top.rest), math.exp(-b)
    of_first, of_second = p * ((1 + u) * qu + r), qu * ((1 + u) * p + rest)
    of_others = top.share * (p * r - rest * qu)
    length = torch.sqrt(of_first**2 + of_second**2 + of_others**2) * -math.expm1(-b) / (pu + qu + r)
    return torch.where(top.both, length, 0.0)
