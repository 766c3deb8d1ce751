"""The settings of a search, checked."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..._arguments import is_number, is_whole, plain, several, shown
from ..._errors import AbbeError
from ...normalizers import normalizer
from ...runs.settings import Settings, plain_settings, window_settings
from .._shared.calibrated import learnable

SPARSE, RETRIEVAL, LOSS = "sparse", "retrieval", "loss"
GOALS = (SPARSE, RETRIEVAL, LOSS)
CONTROL_SPEC = "softmax"
SPARSE_CANDIDATES = ("entmax:alpha=1.5", "sparsemax", "topp:p=0.9", "topk:k=32")
LENGTH = 512
_NEEDLE_LENGTHS = (128, 256, 512)
_PASS_KEY_LENGTHS = (256, 512, 1024, 2048, 4096)
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}
_LEAST_NEEDLE = 64  # tokens: a shorter prompt has no room for a pass key and its decoys


@dataclass(frozen=True)
class LiftSettings:
    """Everything that determines the numbers, apart from model and text."""

    goal: str
    max_loss: float
    budget: float | None  # seconds
    candidates: tuple[str, ...]
    length: int
    windows: int  # of the validation and of the test text; twice as many for training
    queries: int
    steps: int
    needle_lengths: tuple[int, ...]
    lengths: tuple[int, ...]  # of the pass keys; empty unless the goal is retrieval
    prompts: int  # of each kind, length and depth
    seed: int
    level: float
    resamples: int

    def __post_init__(self) -> None:
        self.reading()  # checks what all studies share

    def reading(self) -> Settings:
        """How windows are read."""
        return window_settings(self.length, self.windows, self.queries, self.seed, self.level, self.resamples)

    def as_json(self) -> dict[str, Any]:
        return plain_settings(self)


def checked_goal(given: object) -> str:
    if given not in GOALS:
        raise AbbeError(f"goal is {shown(given)}, but must be one of {', '.join(GOALS)}")
    return str(given)


def share(what: str, given: object) -> float:
    """0.005, or "0.5%"."""
    value = plain(given)
    if isinstance(value, str):
        read = re.fullmatch(r"\s*([0-9.]+(?:e-?[0-9]+)?)\s*(%?)\s*", value)
        try:
            value = float(read[1]) / (100 if read[2] else 1) if read else None
        except ValueError:
            value = None
    if not is_number(value) or not 0 < value < 1:
        raise AbbeError(f"{what} is {shown(given)}, but must be a share of the loss, such as 0.5% or 0.005")
    return float(value)


def seconds(what: str, given: object) -> float | None:
    """90, "90s", "20m" or "1.5h"; None for no bound."""
    value = plain(given)
    if value is None:
        return None
    if isinstance(value, str):
        read = re.fullmatch(r"\s*([0-9.]+)\s*([smh]?)\s*", value)
        try:
            value = float(read[1]) * _UNITS[read[2] or "s"] if read else None
        except ValueError:
            value = None
    if not is_number(value) or not 0 < value < math.inf:
        raise AbbeError(f"{what} is {shown(given)}, but must be a time such as 90s, 20m or 1.5h")
    return float(value)


def candidates_for(goal: str, given: object, lengths: Sequence[int]) -> tuple[str, ...]:
    """The specs to try; their temperatures are fitted, and parameters with learn=true, except for retrieval."""
    specs = _usual(goal, lengths or (LENGTH,)) if given is None else _specs(given)
    if goal == RETRIEVAL:
        return tuple(str(normalizer(spec)) for spec in specs)
    for spec in specs:
        learnable(spec)  # refuses a spec without anything to fit
    return specs


def _usual(goal: str, lengths: Sequence[int]) -> tuple[str, ...]:
    if goal == SPARSE:
        return SPARSE_CANDIDATES
    if goal == LOSS:
        return (CONTROL_SPEC, *SPARSE_CANDIDATES)
    # The temperature falls with the visible keys, from a length at which the model still works; or it is one for all.
    # The first has a learned slope per head: rows up to the second longest length stay as they are.
    *shorter, longest = lengths
    learned = f"logn:trained={max(2, shorter[-1] if shorter else longest // 2)},slope=0,beyond=true,learn=true"
    from_length = [f"logn:trained={max(2, longest // part)},floor=1" for part in (2, 4, 8)]
    return (learned, *from_length, *(f"softmax:temperature={t}" for t in (0.8, 0.9, 1.1)))


def _specs(given: object) -> tuple[str, ...]:
    specs: list[Any] = [given] if isinstance(given, str) or not isinstance(given, Sequence) else list(given)
    if not specs:
        raise AbbeError("there is nothing to try: name a normalizer, such as entmax:alpha=1.5")
    for spec in specs:
        if not isinstance(spec, str):
            raise AbbeError(f"{shown(spec)} is not a spec: write a normalizer as text, such as 'entmax:alpha=1.5'")
        if spec.startswith("file:") or ";" in spec or "=" in spec.partition(":")[0]:
            raise AbbeError(f"{shown(spec)} names layers or a file: lift chooses the layers, give only a spec")
        normalizer(spec)
    if twice := next((spec for spec in specs if specs.count(spec) > 1), None):
        raise AbbeError(f"{twice} is given twice: name each normalizer once")
    return tuple(specs)


def needle_lengths_for(context: int | None) -> tuple[int, ...]:
    return tuple(n for n in _NEEDLE_LENGTHS if context is None or n <= context) or (context or LENGTH,)


def pass_key_lengths(goal: str, given: int | Sequence[int] | None, context: int | None) -> tuple[int, ...]:
    """The given ones, checked; else the three longest of 256 to 4096 that fit into the context."""
    if goal != RETRIEVAL:
        if given is not None:
            raise AbbeError("lengths are those of the pass keys: give goal='retrieval' (--goal retrieval) with them")
        return ()
    if given is None:
        return tuple(n for n in _PASS_KEY_LENGTHS if context is None or n <= context)[-3:] or (context or LENGTH,)
    lengths = several("lengths", given)
    rising = bool(lengths) and all(is_whole(n) for n in lengths) and sorted(set(lengths)) == list(lengths)
    if not rising or lengths[0] < _LEAST_NEEDLE:
        raise AbbeError(
            f"lengths must be whole numbers from {_LEAST_NEEDLE} in rising order, such as 512,1024; "
            f"got {shown(list(lengths))}"
        )
    if context is not None and lengths[-1] > context:
        raise AbbeError(f"length {lengths[-1]} is above the model's context of {context} tokens")
    return lengths
