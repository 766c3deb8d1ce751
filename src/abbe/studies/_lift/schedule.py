"""How much of the full search fits into the budget, from the time of one pass; fixed before the search starts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from time import perf_counter, thread_time

from ..._errors import AbbeError
from ...words.numbers import about

MOST_GROUPS, SCAN_WINDOWS, TUNED, CONTENDERS = 12, 4, 4, 3
TUNING_PASSES = 4  # a step of tuning takes about as long as so many forward passes
LEARNING, SCAN, PLANS, JUDGING = "learning", "scan", "plans", "judging"  # stages, in this order
# Most of the budget that each stage leaves to the later ones: what these will take is a guess from a few timed passes.
_KEPT = {LEARNING: 1 / 2, SCAN: 2 / 5, PLANS: 1 / 3}
_TIMED = 5
_LEAST_STEPS = 8


@dataclass(frozen=True)
class Schedule:
    """The size of a search."""

    groups: int  # of layers, each scanned separately
    scan_windows: int
    plans: int  # measured before any is tuned
    tuned: int
    steps: int  # of tuning, for plans that reach the last round


@dataclass(frozen=True)
class Load:
    """The work that a model and the settings ask for: candidates, validation windows, passes of the test."""

    layers: int
    candidates: int
    windows: int
    steps: int
    fit_passes: int
    prompt_passes: float  # for the prompts that each plan reads during the choice, in passes of one window
    judged_passes: float
    learned_passes: float = 0.0  # for learning from pass keys, and for measuring the result


def full(load: Load) -> Schedule:
    groups = min(load.layers, MOST_GROUPS)
    plans = (load.candidates + 1) * groups if load.candidates else 0
    return Schedule(groups, min(SCAN_WINDOWS, load.windows), plans, TUNED, load.steps)


def passes(schedule: Schedule, load: Load) -> float:
    """In plain passes over one window."""
    return load.fit_passes + load.windows + sum(_stages(schedule, load).values())


def _stages(schedule: Schedule, load: Load) -> dict[str, float]:
    """By stage. A pass under a swap takes 1 to 1.6 times as long as a plain one, which it counts as here.

    The least is taken: too high a guess would cut a search that fits, and one that does not is cut when time is up.
    """
    # Half of the steps for all plans, the other half for two of them; the same for their controls.
    measured = schedule.plans + 2 * (schedule.tuned + 2 if schedule.steps else 1)
    tuning = TUNING_PASSES * schedule.steps * 2 * (schedule.tuned / 2 + 1)
    return {
        LEARNING: load.learned_passes,
        SCAN: schedule.groups * load.candidates * (schedule.scan_windows + load.prompt_passes),
        PLANS: measured * (load.windows + load.prompt_passes) + tuning,
        JUDGING: load.judged_passes,
    }


def seconds_of_a_pass(run_pass: Callable[[], object], on_cpu: bool) -> float:
    """The best of several, on a machine with nothing else to do: what is searched must not depend on other programs.

    This thread works as long as any other of a pass on the CPU; time that it waits for a core does not count.
    """
    clock, times = thread_time if on_cpu else perf_counter, []
    for _ in range(_TIMED):
        started = clock()
        run_pass()
        times.append(clock() - started)
    return min(times)


def reserves(schedule: Schedule, load: Load, a_pass: float, budget: float) -> dict[str, float]:
    """Seconds that each stage leaves to the later ones, by stage."""
    stages = _stages(schedule, load)
    names = list(stages)
    later = {stage: sum(stages[name] for name in names[names.index(stage) + 1 :]) for stage in _KEPT}
    return {stage: min(later[stage] * a_pass, _KEPT[stage] * budget) for stage in _KEPT}


_CUTS: tuple[Callable[[Schedule, Load], Schedule], ...] = (
    lambda one, load: replace(one, plans=min(one.plans, max(2 * load.candidates, one.plans // 2))),
    lambda one, load: replace(one, steps=min(one.steps, max(_LEAST_STEPS, one.steps // 2))),
    lambda one, load: replace(one, groups=max(2, one.groups * 2 // 3)),
    lambda one, load: replace(one, scan_windows=max(2, one.scan_windows // 2)),
    lambda one, load: replace(one, tuned=max(2, one.tuned // 2)),
    lambda one, load: replace(one, plans=min(one.plans, max(2, one.plans // 2))),
)


def fitting(load: Load, a_pass: float, budget: float | None) -> Schedule:
    """The largest search that fits into the budget; refused if none does."""
    schedule = full(load)
    if budget is None:
        return schedule
    for shorter in 4 * _CUTS:
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
    """A line for each part of the search that the budget made smaller."""
    whole, done = vars(full(load)), vars(schedule)
    names = {
        "groups": "groups of layers", "scan_windows": "windows of the scan", "plans": "plans", "tuned": "tuned plans",
        "steps": "steps of tuning",
    }  # fmt: skip
    return [f"{names[key]}: {done[key]} instead of {whole[key]}" for key in whole if done[key] < whole[key]]
