"""How much of the full search a budget of time has room for, from the time of one pass; fixed before it starts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

from ..._errors import AbbeError
from ...words.numbers import about

MOST_GROUPS, SCAN_WINDOWS, TUNED, CONTENDERS = 12, 4, 4, 3
TUNING_PASSES = 4  # a step of tuning takes about as long as so many forward passes
_SWAPPED = 1.6  # a pass under a swap with a reader, over a plain one
_LEAST_STEPS = 8


@dataclass(frozen=True)
class Schedule:
    """What is done: without a budget, all of it."""

    groups: int  # of layers, each scanned alone
    scan_windows: int
    plans: int  # measured before any is tuned
    tuned: int
    steps: int  # of tuning, for those that come into the last round


@dataclass(frozen=True)
class Load:
    """What a model and the settings ask for: candidates, windows to choose on, and passes of the judged part."""

    layers: int
    candidates: int
    windows: int
    steps: int
    fit_passes: int
    prompt_passes: float  # of the prompts that one plan reads while it is chosen, in passes of one window
    judged_passes: float
    learned_passes: float = 0.0  # of learning from pass keys, and of measuring what was learned


def full(load: Load) -> Schedule:
    groups = min(load.layers, MOST_GROUPS)
    plans = (load.candidates + 1) * groups if load.candidates else 0
    return Schedule(
        groups=groups, scan_windows=min(SCAN_WINDOWS, load.windows), plans=plans, tuned=TUNED, steps=load.steps
    )


def passes(schedule: Schedule, load: Load) -> float:
    """In plain passes over one window."""
    scan = schedule.groups * load.candidates * (schedule.scan_windows + load.prompt_passes)
    plans = (schedule.plans + schedule.tuned + 2) * (load.windows + load.prompt_passes)
    # Half of the steps for all, the other half for two of them, and the whole for the control.
    tuning = TUNING_PASSES * schedule.steps * (schedule.tuned / 2 + 1 + 1)
    measured = scan + plans + tuning + load.judged_passes + load.learned_passes
    return load.fit_passes + load.windows + _SWAPPED * measured


_CUTS: tuple[Callable[[Schedule, Load], Schedule], ...] = (
    lambda one, load: replace(one, plans=min(one.plans, max(2 * load.candidates, one.plans // 2))),
    lambda one, load: replace(one, steps=min(one.steps, max(_LEAST_STEPS, one.steps // 2))),
    lambda one, load: replace(one, groups=max(2, one.groups * 2 // 3)),
    lambda one, load: replace(one, scan_windows=max(2, one.scan_windows // 2)),
    lambda one, load: replace(one, tuned=max(2, one.tuned // 2)),
    lambda one, load: replace(one, plans=min(one.plans, max(2, one.plans // 2))),
)


def fitting(load: Load, a_pass: float, budget: float | None) -> Schedule:
    """The largest search that the budget has room for; refused if there is none."""
    schedule = full(load)
    if budget is None:
        return schedule
    for _ in range(4):
        for shorter in _CUTS:
            if passes(schedule, load) * a_pass <= budget:
                return schedule
            cut = shorter(schedule, load)
            groups, windows = min(cut.groups, load.layers), min(cut.scan_windows, load.windows)
            schedule = replace(cut, groups=groups, scan_windows=windows)
    needed = passes(schedule, load) * a_pass
    if needed <= budget:
        return schedule
    raise AbbeError(
        f"the budget of {about(budget)} is too small for one candidate: about {about(max(needed, 1.0))} are needed "
        "with these settings; give a larger budget, fewer normalizers or fewer windows"
    )


def what_was_cut(schedule: Schedule, load: Load) -> list[str]:
    """A line for each part that the budget made smaller."""
    whole, done = asdict(full(load)), asdict(schedule)
    names = {
        "groups": "groups of layers", "scan_windows": "windows of the scan", "plans": "plans", "tuned": "tuned plans",
        "steps": "steps of tuning",
    }  # fmt: skip
    return [f"{names[key]}: {done[key]} instead of {whole[key]}" for key in whole if done[key] < whole[key]]
