"""Swapped models: loss and weights window by window, sensitivity at equal selectivity, time and memory.

What is special: any normalizer becomes insensitive if it is made flat. So each head's temperature is chosen, on the
logits of the baseline, to match the mean effective number of tokens of the baseline's softmax, and only then are the
Jacobians compared. A learned sink counts as one more key, for both.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ... import bounds
from ..._errors import AbbeError
from ...measures import Rows, sensitivity
from ...models import AttentionCall, HeadGroup, LoadedModel, Swap, Window, swap
from ...normalizers import Normalizer, normalizer
from ...runs.inputs import Settings
from ...runs.loss import next_token_losses
from ...runs.window import Passes, PassReader, query_positions, run_model, seeded

WINDOWS, QUERIES = 8, 8
_HOTTEST, _GRID = 1e3, 25  # temperatures from 1/hottest to hottest; an odd number, to include 1
_STEPS = 11  # of a bisection: a step of the grid, ln T = 0.58, is narrowed to 0.0003, far below the tolerance
_TOLERANCE = 0.02  # of the effective number: beyond it, the number jumps there, and the head is not matched
_THEORY = {"softmax": "softmax", "sparsemax": "sparsemax", "entmax:alpha=1.5": "entmax15"}
ROUNDS = 5  # the best one counts: disturbances only slow a pass down

Logits = dict[str, Tensor]  # by path of the layer: (head, window, query, key)
Brackets = tuple[Tensor, Tensor, Tensor, Tensor]  # low and high ln T, sign at the low one, whether there is a root
Rules = Any  # what `swap` takes


class Reader(PassReader):
    """Reads windows under a swap: the loss of each, and what `means` makes of the notes of its layers."""

    def __init__(
        self, model: LoadedModel, swapped: Swap, settings: Settings,
        note: Callable[[AttentionCall, Window, Tensor, Callable[[Tensor], Tensor]], Any],
        means: Callable[[Sequence[Any]], dict[str, float]],
    ) -> None:  # fmt: skip
        """`note` gets a call of a layer, the window, the queries that are read, and the weights at queries."""
        self._passes, self._settings, self._note, self._means = Passes(model, swapped), settings, note, means

    def begin(self, window: Window) -> None:
        self._noted: list[Any] = []

    def read(self, call: AttentionCall, window: Window, *weights_of: Callable[[Tensor], Tensor]) -> None:
        positions = query_positions(call.query.shape[-2], self._settings, window)
        self._noted.append(self._note(call, window, positions, *weights_of))

    def read_all(self, windows: Sequence[Window], on_window: Callable[[], object]) -> dict[str, list[float]]:
        """The loss, and the means over the layers, by window."""
        by_window: dict[str, list[float]] = {}
        for window in windows:
            loss = float(self._passes.read(window, self, run=next_token_losses).mean())
            for name, value in ({"loss": loss} | self._means(self._noted)).items():
                by_window.setdefault(name, []).append(value)
            on_window()
        return by_window


@torch.no_grad()
def baseline_logits(model: LoadedModel, windows: Sequence[Window], settings: Settings) -> Logits:
    """Logits of a sample of queries and windows, layer by layer."""
    by_layer: dict[str, list[Tensor]] = {}
    sampled = replace(settings, queries=QUERIES)
    with Swap(model, "softmax" if model.plan is None else None) as swapped:

        def hear(call: AttentionCall, _: Callable[[Tensor], Tensor]) -> None:
            positions = query_positions(call.query.shape[-2], sampled, window)
            noted.setdefault(call.name, []).append(call.logits(positions, sink=True)[0].float().cpu())

        swapped.listen(hear)
        for window in spread(windows, WINDOWS):
            noted: dict[str, list[Tensor]] = {}  # several per layer if its module is called several times
            run_model(model, window.tokens)
            for path, calls in noted.items():
                by_layer.setdefault(path, []).append(torch.cat(calls, 1))
    return {path: torch.stack(of_windows, 1) for path, of_windows in by_layer.items()}


def spread(windows: Sequence[Window], most: int) -> list[Window]:
    """At most this many windows, evenly over the text, in its order."""
    count = min(most, len(windows))
    return [windows[round(place * (len(windows) - 1) / max(count - 1, 1))] for place in range(count)]


def at_equal_selectivity(
    logits: Logits, groups_of: Mapping[str, Sequence[HeadGroup]], settings: Settings, window: Window,
    standing: Mapping[str, Sequence[HeadGroup]] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Mean worst-direction sensitivity per window, of alternative and baseline, over the matched heads.

    Heads that are not swapped do not count. The baseline is softmax, or what the heads compute with (`standing`).
    """
    groups = []
    generator = seeded(settings, window, "directions at equal selectivity")
    swapped = [
        # The logits are on the CPU; a normalizer that learns is where its layer is, and may be in use there.
        (
            logits[path][list(group.heads)],
            deepcopy(group.normalizer).cpu(),
            _baseline(group, standing[path] if standing else None),
        )
        for path in logits
        for group in groups_of[path]
        if group.normalizer is not None
    ]
    for of_heads, other, softmax in swapped:
        temperature, matched = matched_temperatures(other, of_heads, effective_tokens(softmax, of_heads))
        # The alternative first: both draw from the same generator.
        by_other = _sensitivities(other, of_heads, temperature, generator)
        by_softmax = _sensitivities(softmax, of_heads, torch.ones_like(temperature), generator)
        groups.append((temperature, matched, by_other, by_softmax))
    temperature, matched, alternative, baseline = (torch.cat(column) for column in zip(*groups, strict=True))
    chosen = temperature[matched]
    return {
        "heads": len(matched),
        "matched": int(matched.sum()),
        "temperature": float(chosen.log().mean().exp()) if len(chosen) else None,
        "alternative": alternative[matched].mean(0).tolist() if len(chosen) else [],
        "baseline": baseline[matched].mean(0).tolist() if len(chosen) else [],
        "jumps": any(not other.continuous for _, other, _ in swapped),
    }


def _baseline(group: HeadGroup, standing: Sequence[HeadGroup] | None) -> Normalizer:
    """What the heads of a group compute with before they are swapped."""
    below = [one for one in standing or () if not {*one.heads}.isdisjoint(group.heads)]
    if len(below) > 1 or any(one.normalizer is not None and one.heads != group.heads for one in below):
        raise AbbeError(
            f"heads {group.heads} compute with {len(below)} normalizers already: compare on a model whose layers have "
            "one each, or swap the same heads"
        )
    return normalizer("softmax") if not below or below[0].normalizer is None else deepcopy(below[0].normalizer).cpu()


@torch.no_grad()
def effective_tokens(rule: Normalizer, logits: Tensor, temperature: Tensor | None = None) -> Tensor:
    """Mean over rows of (sum w)^2 / sum w^2 per head, (head,); rows without weight do not count."""
    if temperature is not None:
        logits = logits / temperature[:, None, None, None].to(logits.dtype)
    weights = _weights(rule, logits).double()
    squares = (weights**2).sum(-1)
    effective = weights.sum(-1) ** 2 / torch.where(squares > 0, squares, torch.nan)
    return effective.flatten(1).nanmean(1)


def matched_temperatures(rule: Normalizer, logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Per head, the temperature at which the effective number of these logits is the target, and whether it matches.

    The effective number need not rise with the temperature: of the roots that a coarse grid of ln T shows, the one
    nearest T = 1 is taken. A head does not match if the grid shows none, or if the number jumps there.
    """
    low, high, sign, there = _nearest_brackets(rule, logits, target)
    for _ in range(_STEPS):
        middle = (low + high) / 2
        beyond = _above(rule, logits, middle, target) * sign <= 0
        low, high = torch.where(beyond, low, middle), torch.where(beyond, middle, high)
    log_temperature = (low + high) / 2
    return log_temperature.exp(), there & ((_above(rule, logits, log_temperature, target) / target).abs() <= _TOLERANCE)


def _above(rule: Normalizer, logits: Tensor, log_temperature: Tensor, target: Tensor) -> Tensor:
    return effective_tokens(rule, logits, log_temperature.exp()) - target


def _nearest_brackets(rule: Normalizer, logits: Tensor, target: Tensor) -> Brackets:
    """Brackets of the roots, from ln T = 0 outwards, until every head has one or the grid ends."""
    grid = torch.linspace(-math.log(_HOTTEST), math.log(_HOTTEST), _GRID, dtype=target.dtype)
    above = torch.full((_GRID, len(target)), torch.nan, dtype=target.dtype)
    brackets = _brackets(grid, above)
    for step in range(_GRID // 2 + 1):
        for place in {_GRID // 2 - step, _GRID // 2 + step}:
            above[place] = _above(rule, logits, grid[place].expand_as(target), target)
        brackets = _brackets(grid, above)
        if brackets[-1].all():
            break
    return brackets


def _brackets(grid: Tensor, above: Tensor) -> Brackets:
    """Per head, the step of the grid with the root nearest 0.

    above: (place, head), the effective number minus the target; NaN if unknown. Both steps next to 0 may hold a root:
    linear interpolation tells which is nearer. A head that matches at T = 1 already, or has no root, stays there.
    """
    left, right = above[:-1], above[1:]
    share = (left / (left - right)).nan_to_num(0.0)
    crossing = grid[:-1, None] + share * grid.diff()[:, None]
    distance = torch.where(left * right <= 0, crossing.abs(), torch.inf)
    nearest, place = distance.min(0)
    low, high, sign = grid[place], grid[place + 1], left.gather(0, place[None])[0].sign()
    stays = (above[len(grid) // 2] == 0) | nearest.isinf()
    low, high = (torch.where(stays, 0.0, end) for end in (low, high))
    return low, high, sign, nearest.isfinite()


@torch.no_grad()
def _sensitivities(rule: Normalizer, logits: Tensor, temperature: Tensor, generator: torch.Generator) -> Tensor:
    """(head, window): the mean over queries of the spectral norm of the Jacobian of l -> weights(l/T)."""
    heads, windows, queries, keys = logits.shape
    divided = (logits / temperature[:, None, None, None].to(logits.dtype)).reshape(heads, windows * queries, keys)
    rows = Rows(divided, rule(divided), divided.new_zeros(1, keys, 1), softmax=str(rule) == "softmax")
    reading = sensitivity(rows, rule, (1.0,), generator)["sensitivity_worst"]
    worst = torch.where(reading.defined, reading.value.double(), torch.nan).view(heads, windows, queries)
    return worst.nanmean(-1) / temperature[:, None]


def _weights(rule: Normalizer, logits: Tensor) -> Tensor:
    """Weights of (head, window, query, key); a normalizer with a value per head needs the heads third from the end."""
    weights: Tensor = rule(logits.flatten(1, 2))
    return weights.view(logits.shape)


def theory(spec: str, keys: int) -> float | None:
    """The proved value for one key with a weight of 0.9 among `keys`, at a margin of 1; None if there is none."""
    name = _THEORY.get(str(normalizer(spec)))
    return None if name is None or keys < 3 else float(bounds.sensitivity_at_equal_selectivity(name, keys))


def best_seconds(work: Callable[[], object], tries: int, clock: Callable[[], float]) -> float:
    """The shortest of several times: a first one warms up, and disturbances only make it longer."""
    times = []
    for _ in range(tries):
        started = clock()
        work()
        times.append(clock() - started)
    return min(times)


@torch.no_grad()
def costs(
    model: LoadedModel, tokens: Tensor, contenders: Mapping[str, Rules | None], on_pass: Callable[[], object]
) -> dict[str, dict[str, Any]]:
    """Best time of a forward pass and peak memory of its tensors in MB, for each named swap (None: no swap).

    Every round takes all in turn, so that a machine that is busy for a while slows down all of them.
    """
    times: dict[str, list[float]] = {name: [] for name in contenders}
    memory: dict[str, float | None] = {}
    for number in range(ROUNDS + 1):
        for name, what in contenders.items():
            with nullcontext() if what is None else swap(model, what):
                if number == 0:  # also the pass that warms up
                    memory[name] = peak_megabytes(lambda: _forward(model, tokens))
                    continue
                start = time.perf_counter()
                _forward(model, tokens)
                times[name].append(time.perf_counter() - start)
            on_pass()
    return {"seconds": {name: min(seconds) for name, seconds in times.items()}, "megabytes": memory}


def _forward(model: LoadedModel, tokens: Tensor) -> None:
    network: Any = model.network
    network(input_ids=tokens[None].to(model.device), use_cache=False)


def peak_megabytes(work: Callable[[], object]) -> float | None:
    """Peak memory of the tensors created by `work`, in MB; None if unknown."""
    try:
        with _quiet_profiler(), torch.autograd.profiler.profile(profile_memory=True) as seen:
            work()
        results: Any = seen.kineto_results
        changes = sorted((event.start_ns(), event.nbytes()) for event in results.events() if event.name() == "[memory]")
    except (AttributeError, RuntimeError):
        return None
    now = most = 0
    for _, change in changes:
        now += change
        most = max(most, now)
    return most / 1e6 if changes else None


@contextmanager
def _quiet_profiler() -> Iterator[None]:
    """Without this the profiler writes lines on standard error."""
    name = "KINETO_LOG_LEVEL"
    before = os.environ.get(name)
    os.environ[name] = "99"
    try:
        yield
    finally:
        os.environ.pop(name)
        os.environ.update({} if before is None else {name: before})
