"""lift: search for a plan that helps a model, then test it once on held-out text.

text -> training, validation and test text -> every candidate fitted in every layer -> scan -> nested plans -> rounds of
tuning on the training text, measured on the validation text -> one plan, tested once on the test text beside its
control: softmax, tuned the same way.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter, thread_time
from typing import Any

import polars as pl

from ..._arguments import between, shown, whole
from ..._errors import AbbeError
from ..._locks import held
from ...measures import enough_windows
from ...models import DeviceLike, DeviceMap, DtypeLike, LoadedModel, Text, Windows, plan, swap
from ...results import finite
from ...runs.cost import estimate
from ...runs.inputs import (
    MOST_RESAMPLES,
    FolderLike,
    ModelLike,
    Placed,
    TextLike,
    check_softmax,
    checked_seed,
    windows_for,
)
from ...runs.loss import check_causal, window_losses
from ...runs.measuring import Job, at_work, window_places
from ...runs.study import study
from ...runs.watch import Stages
from ...words.names import BASELINE
from ...words.numbers import about
from .._shared.estimates import mean, share_right, with_nan
from .._shared.prompts import DEPTHS, KINDS, PassKeyMaker, PromptMaker, answers, margins
from .._shared.swapped import ROUNDS as SPEED_ROUNDS
from .._shared.swapped import at_equal_selectivity, baseline_logits, best_seconds, costs
from . import fits, rules, search
from .fits import LEARNING, PLANS, SCAN, TESTING, Fits, What, Work, learns
from .result import CONTROL_FILE, PLAN_FILE, Lift
from .rules import CONTROL, CONTROL_SPEC, LENGTH, PLAN, RETRIEVAL, Judged, LiftSettings
from .search import MEANS, Search, Tried

MOST_GROUPS, SCAN_WINDOWS, TUNED, CONTENDERS = 12, 4, 4, 3
TUNING_PASSES = 4  # forward passes that take as long as a step of tuning
# Most of the budget that each stage leaves to the later ones: what these will take is a guess from a few timed passes.
_KEPT = {LEARNING: 1 / 2, SCAN: 2 / 5, PLANS: 1 / 3}
_TIMED = 5
_LEAST_STEPS = 8
_LEAST_LENGTH = 128
_LONGER = 4  # times the length: for retrieval the loss is tested there as well
_LONGEST_WORD = 200  # characters
TRAINING, VALIDATION, TEST = "training", "validation", "test"
_ENDS = {TRAINING: 0.5, VALIDATION: 0.75, TEST: 1.0}  # of the text, as shares of its characters
_SEEDS = {TRAINING: 0, VALIDATION: 1, TEST: 2}  # added to three times the seed: no two parts draw the same windows
_ADVICE = "the text is cut into a half, a quarter and a quarter; give more text or a smaller length"
_NAMED_KINDS = dict(zip(KINDS, ("lists", "sentences"), strict=True))
_NAMES = {  # of the sizes of a search
    "groups": "groups of layers", "scan_windows": "windows of the scan", "plans": "plans", "tuned": "tuned plans",
    "steps": "steps of tuning",
}  # fmt: skip


@study(Lift, named_by="goal", shared="no")
def lift(
    model: ModelLike = "embedded", text: TextLike | None = None, *,
    goal: str = "sparse", max_loss: float | str = "0.5%", budget: float | str | None = "20m",
    normalizers: str | Sequence[str] | None = None, length: int | None = None, windows: int = 12, queries: int = 16,
    steps: int = 48, lengths: int | Sequence[int] | None = None, prompts: int = 4,
    seed: int = 0, level: float = 0.95, resamples: int = 1000, folder: FolderLike | None = None, tokenizer: Any = None,
    device: DeviceLike | None = None, dtype: DtypeLike | None = None, device_map: DeviceMap | None = None,
    progress: bool = True,
) -> Lift:  # fmt: skip
    """Search for layers that do better with another normalizer, then test the best plan once on held-out text.

    The text is cut into training, validation and test text. Temperatures are fitted and tuned on the first, plans are
    chosen on the second, and one plan is tested on the third, once, by a rule that was fixed before. Its control is
    softmax, tuned the same way: the loss must hold against the model and against the control.

    Args:
        model, text: as for `diagnose`.
        goal: "sparse" (exact zeros at little loss), "loss" (a lower loss), or "retrieval" (pass keys at `lengths`
            tokens).
        max_loss: allowed relative rise of the loss over the model's and over the control's, such as "0.5%" or 0.005.
        budget: time that the search may take, such as "20m"; None for no limit. One that is not reached changes
            nothing; the manifest lists what it cut.
        normalizers: specs to try; by default entmax, sparsemax, top-p and top-k (for retrieval: temperatures, and
            temperatures that fall with the visible keys). For retrieval, specs with learn=true are learned from pass
            keys, for all heads at once; the others are scanned group by group.
        length: of the windows, in tokens; by default 512, or the model's context if that is shorter; 256 or 128 if
            the text is too short for the windows.
        windows: how many of the validation and of the test text; twice as many for training. Fewer than 6 never lift.
        queries: how many queries per window are fitted, and used to count zeros.
        steps: of tuning, for the plans of the last round, or of learning from pass keys; 0 for none. The same steps
            give the same result.
        lengths: of the pass keys, for retrieval; by default the three longest of 256 to 4096 in the context.
        prompts: per kind, length and depth.
        seed: random seed: the same seed gives the same numbers.
        level: coverage of the intervals, in (0, 1).
        resamples: number of bootstrap resamples, >= 1.
        folder: for all measurements, the plan `plan.safetensors` and the page; an interrupted search is resumed.
        tokenizer, device, dtype, device_map, progress: as for `diagnose`.

    Returns:
        Whether the plan passed the rule, the plan, and everything that was tried. A low loss, and high shares of zeros
        and of pass keys found, are good.

    Raises:
        AbbeError: an argument is wrong, the text is too short, or the self-check fails; one line says what to do.

    Commands:
        abbe lift
        abbe lift smollm2 --text book.txt --max-loss 0.5% --budget 30m --out lifted
        abbe lift smollm2 --text book.txt --goal loss --with softmax --with entmax:alpha=1.25
        abbe lift smollm2 --text book.txt --goal retrieval --lengths 2048,4096,7900 --max-loss 0.2% --budget 3h

    Examples:
        >>> small = {"length": 64, "windows": 2, "queries": 4, "steps": 0, "prompts": 1, "progress": False}
        >>> result = abbe.lift("embedded", normalizers="topk:k=16", **small)
        >>> result.lifted  # from two windows nothing is lifted
        False
        >>> result.table["contender"].to_list()
        ['baseline', 'softmax, tuned the same way', 'plan']
    """
    if goal not in rules.GOALS:
        raise AbbeError(f"goal is {shown(goal)}, but must be one of {', '.join(rules.GOALS)}")
    max_loss, budget = rules.share("max_loss", max_loss), rules.seconds("budget", budget)
    rules.candidates_for(goal, normalizers, ())  # a mistake is reported before a model is loaded
    with at_work(Lift, model, text, folder, tokenizer, progress, Placed(device, dtype, device_map)) as job:
        check_causal(job.model, "lifting a model")
        check_softmax(job.model, "lifting a model")
        windows, context = whole("windows", windows, least=2), job.model.context
        key_lengths = rules.pass_key_lengths(goal, lengths, context)
        settings = LiftSettings(
            goal=goal, max_loss=max_loss, budget=budget,
            candidates=rules.candidates_for(goal, normalizers, key_lengths),
            length=usual_length(job.model, job.text, windows) if length is None else whole("length", length),
            windows=windows, queries=whole("queries", queries, least=1), steps=whole("steps", steps, least=0),
            needle_lengths=rules.needle_lengths_for(context), lengths=key_lengths,
            prompts=whole("prompts", prompts, least=1, most=10_000), seed=checked_seed(seed),
            level=between("level", level, 0, 1, 0.95),
            resamples=whole("resamples", resamples, least=1, most=MOST_RESAMPLES),
        )  # fmt: skip
        return _Lifting(job, settings).run()


# -- Training, validation and test text: a half and two quarters that never mix ----------------------------------------


@dataclass(frozen=True)
class TextPart:
    """One of the three parts; `start` is its offset in the whole text, in characters."""

    name: str
    text: Text
    start: int
    seed: int


class Sealed:
    """The test text: it cannot be read before it is opened, and it opens once."""

    def __init__(self, part: TextPart) -> None:
        self._part: TextPart | None = part
        self.start = part.start

    def open(self) -> TextPart:
        if self._part is None:
            raise AbbeError("the test text was read already: it can be read only once")
        part, self._part = self._part, None
        return part


def cut(text: Text, seed: int) -> dict[str, TextPart]:
    """Half of the text, a quarter and a quarter, cut at spaces."""
    parts: dict[str, TextPart] = {}
    start = 0
    for name, until in _ENDS.items():
        end = _space_after(text.content, round(until * len(text.content)))
        content = Text(f"{text.name}, {name} text", text.content[start:end])
        parts[name] = TextPart(name, content, start, 3 * seed + _SEEDS[name])
        start = end
    return parts


def _space_after(content: str, place: int) -> int:
    """The next space, or the place itself if none is near."""
    near = range(place, min(len(content), place + _LONGEST_WORD))
    return next((at for at in near if content[at].isspace()), place)


def usual_length(model: LoadedModel, text: Text, windows: int) -> int:
    """512 tokens, or the context; halved for a short text until the validation text has room for all windows."""
    length = min(LENGTH, model.context or LENGTH)
    content = cut(text, 0)[VALIDATION].text.content
    if len(content) > 32 * length * windows or not callable(model.tokenizer):
        return length
    tokens = len(model.tokenizer(content, truncation=False, padding=False, verbose=False)["input_ids"])
    while length > _LEAST_LENGTH and tokens < windows * length:
        length //= 2
    return length


def judged_lengths(
    model: LoadedModel, validation: TextPart, settings: LiftSettings
) -> tuple[tuple[int, ...], list[str]]:
    """Lengths at which the loss is judged, and a line for each that is left out.

    A temperature that depends on the visible keys may spare short windows, so retrieval is judged on long ones, too.
    The validation text is as long as the test text, which stays sealed, so it shows which lengths fit.
    """
    lengths, left_out, needed = [settings.length], [], enough_windows(settings.level)
    # At the longest pass key, too: a loss over rows that a plan leaves unchanged would say nothing.
    longer = {_LONGER * settings.length, *settings.lengths[-1:]} if settings.goal == RETRIEVAL else set()
    for length in sorted(n for n in longer if n > settings.length):
        why = f"the model's context is {model.context or 0:,} tokens"
        if model.context is None or length <= model.context:
            room = len(longer_windows(model, validation, settings, length))
            why = f"which is as long as the test text, has room for {room} windows of {needed} needed"
            why = f"{validation.text.name}, {why}" if room < needed else ""
        if why:
            left_out.append(f"the loss is not judged at {length:,} tokens, because {why}")
        else:
            lengths.append(length)
    return tuple(lengths), left_out


def longer_windows(model: LoadedModel, part: TextPart, settings: LiftSettings, length: int) -> Windows:
    """Windows of a length that may not fit; too few to judge on make the rule fail, since it names the length."""
    try:
        return windows_for(model, part.text, (length,), settings.windows, part.seed)
    except AbbeError as error:  # not one fits
        return Windows([], {length: str(error)})


def windows_of(model: LoadedModel, part: TextPart, settings: LiftSettings) -> Windows:
    """Twice as many for training; refused if the part is too short for its purpose."""
    count = settings.windows * (2 if part.name == TRAINING else 1)
    # Too few windows to judge on are no reason to throw the search away: the rule then says so.
    needed = min(settings.windows, enough_windows(settings.level)) if part.name == VALIDATION else 1
    try:
        windows = windows_for(model, part.text, (settings.length,), count, part.seed)
    except AbbeError as error:
        raise AbbeError(f"{error} ({_ADVICE})") from None
    if len(windows) < needed:
        raise AbbeError(
            f"{part.text.name} has room for {len(windows)} windows of {settings.length} tokens, and {needed} are "
            f"needed: {_ADVICE}"
        )
    return windows


# -- How much of the full search fits into the budget, fixed before it starts -----------------------------------------


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
    """Work of the search, in plain passes over one window."""
    return load.fit_passes + load.windows + sum(_stages(schedule, load).values())


def _stages(schedule: Schedule, load: Load) -> dict[str, float]:
    """Passes by stage. A pass under a swap takes 1 to 1.6 times as long as a plain one, which it counts as here.

    The least is taken: too high a guess would cut a search that fits, and one that does not is cut when time is up.
    """
    # Half of the steps for all plans, the other half for two of them; the same for their controls.
    measured = schedule.plans + 2 * (schedule.tuned + 2 if schedule.steps else 1)
    tuning = TUNING_PASSES * schedule.steps * 2 * (schedule.tuned / 2 + 1)
    return {
        LEARNING: load.learned_passes,
        SCAN: schedule.groups * load.candidates * (schedule.scan_windows + load.prompt_passes),
        PLANS: measured * (load.windows + load.prompt_passes) + tuning,
        TESTING: load.judged_passes,
    }


def seconds_of_a_pass(run_pass: Callable[[], object], on_cpu: bool) -> float:
    """The best of several, on a machine with nothing else to do: what is searched must not depend on other programs.

    This thread works as long as any other of a pass on the CPU; time that it waits for a core does not count.
    """
    return best_seconds(run_pass, _TIMED, thread_time if on_cpu else perf_counter)


def reserves(schedule: Schedule, load: Load, a_pass: float, budget: float | None) -> dict[str, float]:
    """Seconds that each stage leaves to the later ones, by stage."""
    stages = _stages(schedule, load)
    later = {stage: sum(list(stages.values())[place:]) for place, stage in enumerate(stages, 1)}
    return {stage: min(later[stage] * a_pass, kept * (budget or 0.0)) for stage, kept in _KEPT.items()}


def fitting(load: Load, a_pass: float, budget: float | None) -> Schedule:
    """The largest search that fits into the budget; refused if none does."""
    schedule, half = full(load), (1, 2)
    cuts = (
        ("plans", 2 * load.candidates, half), ("steps", _LEAST_STEPS, half), ("groups", 2, (2, 3)),
        ("scan_windows", 2, half), ("tuned", 2, half), ("plans", 2, half),
    )  # fmt: skip
    for name, least, (times, over) in 4 * cuts:
        if budget is None or passes(schedule, load) * a_pass <= budget:
            return schedule
        now = getattr(schedule, name)
        schedule = replace(schedule, **{name: min(now, max(least, now * times // over))})
    needed = passes(schedule, load) * a_pass
    if budget is None or needed <= budget:
        return schedule
    raise AbbeError(
        f"the budget of {about(budget)} is too small for one candidate: about {about(max(needed, 1.0))} are needed "
        "with these settings; give a larger budget, fewer normalizers or fewer windows"
    )


def what_was_cut(schedule: Schedule, load: Load) -> list[str]:
    """A line for each part of the search that the budget made smaller."""
    whole, done = vars(full(load)), vars(schedule)
    return [f"{_NAMES[key]}: {done[key]} instead of {whole[key]}" for key in whole if done[key] < whole[key]]


# -- The work ---------------------------------------------------------------------------------------------------------


class _Lifting:
    """One search, from the parts of the text to the result."""

    def __init__(self, job: Job, settings: LiftSettings) -> None:
        self.job, self.watch, self.settings, self.folder = job, job.watch, settings, job.folder
        model = self.model = job.model
        self.text_parts = cut(job.text, settings.seed)
        self.sealed = Sealed(self.text_parts.pop(TEST))
        parts = list(self.text_parts.values())
        training, validation = (windows_of(model, part, settings) for part in parts)
        makers = [PassKeyMaker(model.tokenizer, part.text, part.seed) for part in parts if settings.lengths]
        keys = [maker.pass_keys(settings.lengths, 1) for maker in makers] or [[], []]
        haystacks = makers[0].haystacks(settings.lengths[-1], search.HAYSTACKS) if makers else ()
        self.work = Work(model, settings, training, validation, keys[0], keys[1], haystacks)
        if settings.goal == RETRIEVAL and not (settings.steps and haystacks) and all(map(learns, settings.candidates)):
            why = f"its first half has no room for {settings.lengths[-1]} tokens" if settings.steps else "steps is 0"
            raise AbbeError(
                f"{settings.candidates[0]} cannot be learned, {why}: give more text or steps, or another normalizer"
            )
        self.loss_lengths, self.left_out = judged_lengths(model, self.text_parts[VALIDATION], settings)
        self.rule = rules.rule_text(settings.goal, settings.max_loss, settings.level, self.loss_lengths)
        job.describe(settings.as_json() | {"rule": self.rule})

    def run(self) -> Lift:
        work = self.work
        with held(self.folder):
            with swap(self.model, CONTROL_SPEC) as trial:  # must reproduce the model
                self.job.check(trial, self.work.validation)
            load = self._load()
            # Before the folder is claimed: a budget that is too small leaves nothing behind.
            again = self.folder is not None and (self.folder / "parts" / "schedule.json").exists()
            first = None if again else self._first_schedule(load)
            self.job.claim()
            work.parts = self.job.parts
            fitted = Fits(work)
            # Fixed by the first call together with the seconds of a pass, which vary from call to call.
            scheduled = work.get("schedule") or first or self._first_schedule(load)
            schedule, a_pass = Schedule(**scheduled["schedule"]), scheduled["a_pass"]
            self._say_cost(schedule, load, a_pass, fitted)
            begun = time.perf_counter()
            fitted.make()
            work.spent += time.perf_counter() - begun
            work.keep("schedule", scheduled)  # only now, since the fits do not depend on it
            searching = Search(work, fitted, schedule, reserves(schedule, load, a_pass, self.settings.budget))
            winner = searching.run()
            control, chosen = searching.control(winner), searching.tuner.normalizers(winner.plan, winner.steps)
            contenders = {BASELINE: None} | ({} if control is None else {CONTROL: control}) | {PLAN: chosen}
            # Fixes plan and rule before the test text is opened.
            work.keep("chosen", {"plan": winner.plan.name, "steps": winner.steps, "rule": self.rule})
            return self._tested(searching, winner, contenders, [*what_was_cut(schedule, load), *searching.cut])

    def _load(self) -> Load:
        s, read = self.settings, self.work
        needles = len(KINDS) * len(DEPTHS) * s.prompts * sum(s.needle_lengths) / s.length
        keys = sum(len(prompt.tokens) for prompt in read.validation_keys) / s.length
        learned = sum(map(learns, s.candidates)) if s.goal == RETRIEVAL else 0
        haystacks = sum(len(haystack.body) for haystack in read.haystacks) / s.length
        rounds = fits.ROUNDS * (haystacks + len(self.work.validation) + keys) + s.steps * len(read.haystacks)
        longer = s.windows * sum(self.loss_lengths[1:]) / s.length
        # Windows and prompts of each contender, and the passes that are timed, after one that warms up.
        judged = CONTENDERS * (s.windows + longer + needles + 2 * s.prompts * keys + 1 + SPEED_ROUNDS) + 2 * s.windows
        judged += len(search.TEMPERATURES) * keys  # for the control of retrieval, which no lack of time makes weaker
        return Load(
            layers=len(plan(self.model, CONTROL_SPEC)), candidates=len(s.candidates) - learned,
            windows=len(self.work.validation), steps=0 if s.goal == RETRIEVAL else s.steps,
            fit_passes=min(fits.ROWS_FROM, len(self.work.training)), prompt_passes=keys, judged_passes=judged,
            learned_passes=learned * rounds,
        )  # fmt: skip

    def _first_schedule(self, load: Load) -> dict[str, Any]:
        a_pass = seconds_of_a_pass(
            lambda: window_losses(self.model, [self.work.validation[0]]), self.model.devices == "cpu"
        )
        return {"schedule": vars(fitting(load, a_pass, self.settings.budget)), "a_pass": a_pass}

    def _say_cost(self, schedule: Schedule, load: Load, a_pass: float, fitted: Fits) -> None:
        s, haystacks = self.settings, len(self.work.haystacks)
        cost = estimate(self.model, [s.length] * round(passes(schedule, load)), s.length, a_pass, 1.0, losses=True)
        groups = f"{schedule.groups} groups of {load.layers} layers"
        learned = len(s.candidates) - load.candidates
        also = f", {learned} learned for all heads from {haystacks} texts" if learned else ""
        self.watch.say(f"{load.candidates} normalizers in {groups}, {schedule.plans} plans{also}: {cost}")
        if lines := what_was_cut(schedule, load):
            self.watch.say(f"the budget cuts {'; '.join(lines)}")
        tuning = 2 * (schedule.steps // 2 * schedule.tuned + schedule.steps)
        counts = {
            fits.FITTING: len(fitted.layers), fits.BASELINE_STAGE: load.windows,
            LEARNING: learned * (fits.ROUNDS * (load.windows + haystacks) + s.steps),
            SCAN: schedule.groups * load.candidates * schedule.scan_windows,
            PLANS: (schedule.plans + 2 * (schedule.tuned + 2)) * load.windows + tuning,  # and those of their controls
            fits.HEADS: 1 + sum(fitted.heads) if s.goal == RETRIEVAL and load.candidates else 0,
            TESTING: CONTENDERS * s.windows * len(self.loss_lengths),
        }  # fmt: skip
        self.work.stages = Stages(self.watch, counts)

    def _tested(self, searched: Search, winner: Tried, contenders: Mapping[str, What | None], cuts: list[str]) -> Lift:
        for name, file in ((PLAN, PLAN_FILE), (CONTROL, CONTROL_FILE)):
            if self.folder is not None and (what := contenders.get(name)) is not None:
                plan(self.model, what).save(self.folder / file)
        test = _Test(self.work, self.sealed.open(), contenders, self.loss_lengths[1:])
        judged, table, keys = test.run()
        decision, tables = rules.decide(judged, self.settings), searched.tables()
        starts = {name: part.start for name, part in self.text_parts.items()} | {TEST: self.sealed.start}
        windows = {TRAINING: self.work.training, VALIDATION: self.work.validation, TEST: test.windows}
        facts = {
            "loss_lengths": list(self.loss_lengths), "rule": self.rule, "lifted": decision.lifted, "cut": cuts,
            "windows": {name: window_places(of, starts[name]) for name, of in windows.items()},
            "skipped": [*self.left_out, *self.work.training.skipped, *self.work.validation.skipped, *test.skipped],
        }  # fmt: skip
        name, scan = winner.plan.name, tables["scan"]
        sentences = rules.findings(decision, name, winner.steps, table, scan, self.settings, self.rule, cuts)
        return Lift(
            lifted=decision.lifted, plan=name, table=table, **tables, keys=keys, findings=sentences,
            manifest=self.job.manifest(facts), file=None if self.folder is None else self.folder / PLAN_FILE,
        )  # fmt: skip


class _Test:
    """The test, once: baseline, control (softmax, tuned the same way) and plan on the same windows and prompts."""

    def __init__(
        self, work: Work, part: TextPart, contenders: Mapping[str, What | None], longer: Sequence[int]
    ) -> None:
        """`longer` are further lengths at which the loss is tested."""
        self.work, self.model, self.settings, self.contenders = work, work.model, work.settings, contenders
        self.windows = windows_of(self.model, part, self.settings)
        self.longer = {length: longer_windows(self.model, part, self.settings, length) for length in longer}
        maker = PromptMaker(self.model.tokenizer, part.text, part.seed)
        self.prompts = maker.make(self.settings.needle_lengths, self.settings.prompts)
        keys = PassKeyMaker(self.model.tokenizer, part.text, part.seed, for_test=True)
        self.keys = keys.pass_keys(self.settings.lengths, self.settings.prompts)
        more = [line for windows in self.longer.values() for line in windows.skipped]
        self.skipped = [*self.windows.skipped, *more, *maker.skipped]

    def run(self) -> tuple[Judged, pl.DataFrame, pl.DataFrame]:
        """Numbers for the rule, the table, and the pass keys by length and depth."""
        records = {
            name: self.work.get_or_make(f"judged-{place}", partial(self._record, name, what))
            for place, (name, what) in enumerate(self.contenders.items())
        }
        ratios = self.work.get_or_make("judged-sensitivity", self._sensitivities)["ratios"]
        speed = self.work.get_or_make("judged-speed", self._speed)["best"]
        self.work.stages.end(TESTING)
        losses = {self.settings.length: {name: with_nan(record["loss"]) for name, record in records.items()}}
        for n in self.longer:
            losses[n] = {name: with_nan(record["longer"][str(n)]) for name, record in records.items()}
        judged = Judged(
            losses=losses,
            zeros={name: with_nan(record["zeros"]) for name, record in records.items()},
            needles={name: [(margin or 0.0) > 0 for margin in record["margins"]] for name, record in records.items()},
            keys={name: record["right"] for name, record in records.items()},
            kinds=[_NAMED_KINDS[prompt.kind] for prompt in self.prompts],
        )
        rows = [
            {"time_ratio": speed[name] / speed[BASELINE], "seconds": speed[name], "sensitivity_ratio": ratios.get(name)}
            | {key: mean(record[key]) for key in MEANS}
            | self._row(name, judged)
            for name, record in records.items()
        ]
        return judged, Lift.frame().of(finite(rows)), self._keys_table(records)

    def _record(self, name: str, what: What | None) -> dict[str, Any]:
        """Numbers by window and by prompt; the loss of the baseline is measured without a swap."""
        step = self.work.step(TESTING, f"testing: {name}")
        with swap(self.model, CONTROL_SPEC if what is None else what) as running:
            record: dict[str, Any] = search.sparsity_reader(self.model, running, self.settings).read_all(
                self.windows, step
            )
        with nullcontext() if what is None else swap(self.model, what):
            if what is None:
                record["loss"] = window_losses(self.model, self.windows).tolist()
            record["longer"] = {
                str(length): window_losses(self.model, windows, step).tolist() if windows else []
                for length, windows in self.longer.items()
            }
            record["margins"] = margins(self.model, self.prompts)
            record["log_probability"], record["right"] = answers(self.model, self.keys)
        return record

    def _sensitivities(self) -> dict[str, Any]:
        """Sensitivities at equal selectivity, relative to the baseline, on the logits of the unchanged model."""
        reading = self.settings.reading()
        logits = baseline_logits(self.model, self.windows, reading)
        swapped = {name: plan(self.model, what) for name, what in self.contenders.items() if what is not None}
        equal = {name: at_equal_selectivity(logits, of, reading, self.windows[0]) for name, of in swapped.items()}
        return {"ratios": {name: fits.sensitivity_ratio(numbers) for name, numbers in equal.items()}}

    def _speed(self) -> dict[str, Any]:
        best = costs(self.model, self.windows[0].tokens, self.contenders, lambda: None)["seconds"]
        return {"best": best, "rounds": SPEED_ROUNDS}

    def _row(self, name: str, judged: Judged) -> dict[str, Any]:
        loss, *longer = (mean(of[name]) for of in judged.losses.values())
        row: dict[str, Any] = {"contender": name, "loss": loss, "pass_keys": mean(judged.keys[name])}
        row |= {kind: mean(judged.of_kind(kind)[name]) for kind in dict.fromkeys(judged.kinds)}
        row["longer_loss"] = longer[-1] if longer else None
        changes = {} if name == BASELINE else rules.changes_over(judged, name, BASELINE, self.settings)
        if name == PLAN and CONTROL in self.contenders:
            changes["control_rise"] = rules.changes_over(judged, name, CONTROL, self.settings)["rise"]
        for column, change in changes.items():
            row |= change.columns(column)
        return row

    def _keys_table(self, records: Mapping[str, Mapping[str, Any]]) -> pl.DataFrame:
        cells: dict[tuple[int, float], list[int]] = {}
        for place, key in enumerate(self.keys):
            cells.setdefault((key.length, key.depth), []).append(place)
        rows = []
        for name, record in records.items():
            for (length, depth), places in cells.items():
                right = share_right(sum(record["right"][i] for i in places), len(places), self.settings.level)
                digits = mean([record["log_probability"][i] for i in places])
                row = {"contender": name, "length": length, "depth": depth, "prompts": len(places)}
                rows.append(row | right.columns("right") | {"log_probability": digits})
        return Lift.frame("keys").of(rows)
