"""compare: what replacing softmax would gain in this model, and what it would cost.

Every normalizer reads the same windows and prompts, part by part. What can be compared: a spec, patterns with their
specs, or a saved swap; each as it is, or calibrated. Calibration fits on the first half of the text, the comparison
reads the second.
"""

from __future__ import annotations

import hashlib
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ... import measures, models
from ..._arguments import between, shown, whole, yes_or_no
from ..._errors import AbbeError
from ...measures import Reading, Rows, State
from ...models import DeviceLike, DeviceMap, DtypeLike, LoadedModel, Plan, Swap, Text, Window, plan, swap
from ...normalizers import Normalizer, normalizer
from ...results import finite
from ...runs.cost import plan_memory
from ...runs.inputs import MOST_RESAMPLES, FolderLike, ModelLike, Placed, TextLike, checked_seed, windows_for
from ...runs.loss import check_causal, window_losses
from ...runs.measuring import Job, at_work, window_places
from ...runs.study import study
from ...runs.watch import Stages
from ...runs.window import rows_at_once, seeded
from ...words.names import BASELINE, CALIBRATED, RENORMALISED
from ...words.numbers import about
from .._shared.estimates import window_numbers, with_nan
from .._shared.fitting import learnable_rules
from .._shared.prompts import Prompt, PromptMaker, batches, margins, rising_lengths
from .._shared.swapped import ROUNDS, Logits, Reader, at_equal_selectivity, baseline_logits, best_seconds, costs, theory
from .._shared.truncation import Sizes, checked_grid, has_sinks, trace, truncated_rules
from .result import Comparison
from .rules import SELECTIVITY, CompareSettings, comparison_table, curve_record, judge, needle_table

ALTERNATIVES = ("entmax:alpha=1.5", "sparsemax", "topk:k=32", "topp:p=0.9")
LENGTH = 512
NEEDLE_LENGTHS = (128, 256, 512, 1024)
MOST_PROMPTS = 100_000  # all are made before the first is read
SOFTMAX = "softmax"  # swapped in to read the baseline
Rules = str | Mapping[str, str]  # one spec for all heads, or specs by pattern
NormalizersLike = str | Mapping[str, str] | Sequence[str | Mapping[str, str]]
_SPEED = "parts/speed"
# Total time over that of as many plain passes: 1.25 to 1.9 in small runs of the embedded model, 1.46 by default.
_SWAPPED = 1.5
_TRIES = 2  # the best counts: the first one warms up, and disturbances only make a pass slower


@study(Comparison, extra="all")
def compare(
    model: ModelLike = "embedded", text: TextLike | None = None, *,
    normalizers: NormalizersLike | None = None, length: int | None = None, windows: int = 8, queries: int = 32,
    tau: float = 0.05, grid: str = "coarse",
    needle_lengths: int | Sequence[int] | None = None, prompts: int = 4, calibrate: bool = False,
    seed: int = 0, level: float = 0.95, resamples: int = 1000, folder: FolderLike | None = None, tokenizer: Any = None,
    device: DeviceLike | None = None, dtype: DtypeLike | None = None, device_map: DeviceMap | None = None,
    progress: bool = True,
) -> Comparison:  # fmt: skip
    """What replacing softmax would change: loss, sparsity, speed, retrieval.

    Each alternative is swapped into all layers and heads, or into some of them; all read the same windows.

    Args:
        model, text: as for `diagnose`.
        normalizers: what to swap: specs, patterns with specs (a mapping, or in one line "layers.3=topk:k=32; ..."), or
            "file:PATH" of a saved swap. By default entmax:alpha=1.5, sparsemax, topk:k=32 and topp:p=0.9.
        length: of the windows, in tokens; by default 512, or the model's context where it is shorter.
        windows: how many; intervals come from resampling them, and fewer than 6 (8 at a level of 0.99) give no
            recommendation.
        queries: how many of each window selectivity is measured on.
        tau: relative rise of the loss that the capacity allows, in (0, 1).
        grid: of the capacity search, as for `capacity`: "coarse" (powers of 2, with N interpolated between them) or
            "exact" (whole numbers, about twice as many passes).
        needle_lengths: of the prompts of the needle test; by default 128, 256, 512 and 1024, as far as the context
            goes, and `length` if it is longer.
        prompts: how many of each kind, length and depth.
        calibrate: also compare every alternative (except files) after calibration on the first half of the text; all
            windows are then from the second half.
        seed: random seed; the same seed gives the same numbers.
        level: coverage of the intervals, in (0, 1).
        resamples: number of bootstrap resamples, >= 1.
        folder: keep measurements there, and the page `compare.html` (`abbe.compare` writes it); an interrupted
            comparison is resumed.
        tokenizer, device, dtype, device_map, progress: as for `diagnose`.

    Returns:
        A row for the baseline and for every alternative, and which one to take, or that none helps. A rise of the loss
        above 0 and a large time ratio are costs; high shares of zeros and of needles are gains.

    Raises:
        AbbeError: an argument is wrong, the text is too short, or the self-check fails; one line says what to do.

    Commands:
        abbe compare
        abbe compare smollm2 --with entmax:alpha=1.5 --with topk:k=32 --text book.txt
        abbe compare smollm2 --with 'layers.10-29=softmax:temperature=0.8' --with file:fitted.safetensors
        abbe compare ./my-model --with sparsemax --calibrate --figures figures --json

    Examples:
        >>> comparison = abbe.compare(
        ...     normalizers="topk:k=8", length=32, windows=2, queries=4, needle_lengths=64, prompts=1, progress=False
        ... )
        >>> comparison.table["normalizer"].to_list()
        ['baseline', 'topk:k=8']
        >>> comparison.recommendation.sentence
        'Too few windows to judge: ...'
    """
    alternatives = as_alternatives(ALTERNATIVES if normalizers is None else normalizers)
    with at_work(Comparison, model, text, folder, tokenizer, progress, Placed(device, dtype, device_map)) as job:
        check_causal(job.model, "comparing normalizers")
        context = job.model.context
        length = min(LENGTH, context or LENGTH) if length is None else whole("length", length)
        settings = CompareSettings(
            length, whole("windows", windows), whole("queries", queries, least=1), between("tau", tau, 0, 1, 0.05),
            needle_lengths_for(length, needle_lengths, context), whole("prompts", prompts, least=1, most=MOST_PROMPTS),
            yes_or_no("calibrate", calibrate), checked_seed(seed), between("level", level, 0, 1, 0.95),
            whole("resamples", resamples, least=1, most=MOST_RESAMPLES), checked_grid(grid),
        )  # fmt: skip
        return _Comparing(job, settings, alternatives).run()


def needle_lengths_for(length: int, needle_lengths: int | Sequence[int] | None, context: int | None) -> tuple[int, ...]:
    """Lengths of prompts: by default 128, 256, 512 and 1024 as far as the context goes, and a longer `length`."""
    if needle_lengths is None:
        usual = [n for n in NEEDLE_LENGTHS if context is None or n <= context]
        return (*usual, length) if length > max(usual, default=0) else tuple(usual)
    return rising_lengths("needle_lengths", needle_lengths, context)


# -- Alternatives -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Alternative:
    """A name for tables, and what is swapped: rules, or a saved swap; None for the baseline."""

    name: str
    what: Rules | None
    digest: str = ""  # of a file: a comparison must not resume with another swap of the same name

    @property
    def rules(self) -> Rules | None:
        """None for the baseline and for a file."""
        return None if isinstance(self.what, str) and self.what.startswith(models.FILE_PREFIX) else self.what

    def swapped(self, model: LoadedModel) -> Rules | None:
        """The swap under which it is read; None for normalizers that the model has."""
        return SOFTMAX if self.what is None and model.plan is None else self.what


def as_alternatives(normalizers: NormalizersLike) -> tuple[Alternative, ...]:
    """A single one needs no list. Patterns and files are checked against the model later."""
    if isinstance(normalizers, str | bytes | Mapping) or not isinstance(normalizers, Iterable):
        normalizers = [normalizers]
    alternatives = tuple(map(_alternative, normalizers))
    if not alternatives:
        raise AbbeError("there is nothing to compare with: name a normalizer, such as entmax:alpha=1.5")
    names = [alternative.name for alternative in alternatives]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise AbbeError(f"{twice} is given twice: name each normalizer once")
    return alternatives


def _alternative(given: Any) -> Alternative:
    for spec in given.values() if isinstance(given, Mapping) else [given]:
        if isinstance(spec, Normalizer):  # it may belong to one layer of a model, and only its owner knows which
            raise AbbeError(
                f"compare cannot take the Normalizer instance {spec}: save the swap and give file:PATH, or give this "
                "spec, which makes a new one for each layer"
            )
        if not isinstance(spec, str):
            raise AbbeError(f"{shown(spec)} is not a spec: write a normalizer as text, such as 'entmax:alpha=1.5'")
    name = "; ".join(f"{pattern}={spec}" for pattern, spec in given.items()) if isinstance(given, Mapping) else given
    if name.startswith(models.FILE_PREFIX):
        path = Path(name.removeprefix(models.FILE_PREFIX))
        try:
            return Alternative(name, name, hashlib.sha256(path.read_bytes()).hexdigest())
        except OSError as error:
            raise AbbeError(f"{path} cannot be read: {error.strerror}") from None
    rules = models.rules_in(name)
    for spec in rules.values() if isinstance(rules, Mapping) else [rules]:
        normalizer(spec)  # a mistake is reported before a model is loaded
    return Alternative(name, rules)


def halves(text: Text) -> tuple[Text, Text]:
    """The text in two parts that share no word, cut at a space near its middle."""
    middle = len(text.content) // 2
    cut = next((place for place in range(middle, len(text.content)) if text.content[place].isspace()), middle)
    return Text(f"{text.name}, first half", text.content[:cut]), Text(f"{text.name}, second half", text.content[cut:])


# -- The work ---------------------------------------------------------------------------------------------------------


class _Comparing:
    """One comparison: what is measured of every contender is a part, except the times, which one process takes."""

    def __init__(self, job: Job, settings: CompareSettings, alternatives: Sequence[Alternative]) -> None:
        self.job, self.model, self.watch, self.settings = job, job.model, job.watch, settings
        self.alternatives, self.reading = alternatives, settings.reading()
        self.for_fitting: Text | None
        self.for_fitting, read = halves(job.text) if settings.calibrate else (None, job.text)
        self.windows = windows_for(self.model, read, (settings.length,), settings.windows, settings.seed)
        maker = PromptMaker(self.model.tokenizer, read, settings.seed)
        self.prompts: list[Prompt] = maker.make(settings.needle_lengths, settings.prompts)
        self.skipped = [*self.windows.skipped, *maker.skipped]
        self._logits: Logits | None = None
        self.fitted: dict[str, int] = {}  # number of the alternative by part
        for number, alternative in enumerate(alternatives):
            # Each must fit this model: a mistake is reported before anything is measured.
            plan(self.model, alternative.swapped(self.model) or SOFTMAX)
            if settings.calibrate and alternative.rules is not None:
                plan(self.model, learnable_rules(alternative.rules))
                self.fitted[f"parts/calibrated-{number}"] = number
        named: dict[str, Any] = {"alternatives": [alternative.name for alternative in alternatives]}
        if files := {alternative.name: alternative.digest for alternative in alternatives if alternative.digest}:
            named["files"] = files
        job.describe(settings.as_json() | named)

    def run(self) -> Comparison:
        self._check(1 + len(self.alternatives) + len(self.fitted))
        self.job.claim()
        self.parts = self.job.parts
        with tempfile.TemporaryDirectory() as scratch:
            self.contenders = self._contenders(self.job.folder or Path(scratch))
            # The number of a contender, since its name may not be a valid file name.
            places = range(len(self.contenders))
            parts = {f"parts/{place}-{what}": (place, what) for place in places for what in self._steps}
            self.parts.each(parts, lambda part: self._part(*parts[part]), self.stages.end)
            records = {one.name: self._records(place, one) for place, one in enumerate(self.contenders)}
            speed = self._speed()
        margins_of = {name: with_nan(record["needle"]["margins"]) for name, record in records.items()}
        needle = needle_table(self.prompts, margins_of, self.settings)
        table = comparison_table(records, speed, needle, self.settings)
        judgements, recommendation = judge(table, len(self.windows), self.settings.level)
        return Comparison(
            table=table, needle=needle, judgements=judgements, recommendation=recommendation,
            manifest=self._manifest(records),
        )  # fmt: skip

    def _check(self, contenders: int) -> None:
        """Check that softmax swapped in reproduces the model; announce the cost."""
        settings, windows = self.settings, len(self.windows)
        longest = max(settings.needle_lengths, default=0)
        plan_memory(self.model, self.windows, self.watch.say, longest=longest, queries=settings.queries, losses=True)
        with swap(self.model, SOFTMAX) as trial:
            self.job.check(trial, self.windows)
            sinks = has_sinks(self.model, trial, self.windows[0].tokens)
        self._sizes = Sizes.of(settings.grid, settings.length + sinks)
        capacity = self._sizes.expected(1) * windows
        prompts = len(batches(self.prompts))
        self._steps = {"windows": windows, "capacity": capacity, "sensitivity": 0, "needle": prompts}
        counts = {f"parts/{place}-{what}": self._steps[what] for place in range(contenders) for what in self._steps}
        self.stages = Stages(self.watch, dict.fromkeys(self.fitted, 1) | counts | {_SPEED: ROUNDS * contenders})
        passes = windows + capacity + ROUNDS
        to_read, seconds = expected_cost(self.model, self.windows[0], self.prompts, passes, contenders)
        self.watch.say(f"{contenders} normalizers, {to_read:,} tokens: about {about(seconds)}")

    def _contenders(self, folder: Path) -> list[Alternative]:
        """The baseline and every alternative, each followed by its calibrated version.

        A calibration is a part, with the run of `abbe calibrate` in its own folder.
        """
        from ... import studies  # the public functions: studies do not import each other

        public: Any = studies
        calibrations: dict[str, Any] = {}
        folders = {part: folder / "calibrated" / str(number) for part, number in self.fitted.items()}

        def make(part: str) -> None:
            s = self.settings
            calibrations[part] = public.calibrate(
                self.model, self.for_fitting, normalizer=self.alternatives[self.fitted[part]].rules, length=s.length,
                windows=s.windows, held_out=1, seed=s.seed, folder=folders[part], progress=False,
            )  # fmt: skip
            self.parts.keep_json(part, {})

        self.parts.each(self.fitted, make, self.stages.end)
        contenders = [Alternative(BASELINE, None)]
        for number, alternative in enumerate(self.alternatives):
            contenders.append(alternative)
            if (part := f"parts/calibrated-{number}") in self.fitted:
                calibration = calibrations.get(part) or public.open(folders[part])  # or made by another process
                name = alternative.name + CALIBRATED
                if calibration.file is None:
                    raise AbbeError(f"calibration of {alternative.name} left no file to swap in {folders[part]}")
                contenders.append(Alternative(name, f"{models.FILE_PREFIX}{calibration.file}"))
                self.skipped += [f"{name}: {why}" for why in calibration.manifest["skipped"]]
        return contenders

    def _part(self, place: int, what: str) -> dict[str, Any]:
        """A record of an earlier call, or measured now, as it comes back from JSON."""
        make, part, contender = getattr(self, f"_measure_{what}"), f"parts/{place}-{what}", self.contenders[place]

        def step(_: object = None) -> None:
            self.stages.step(part, f"{contender.name}: {what}")

        return self.parts.get_or_make(part, lambda: finite(make(place, contender, step)))

    def _records(self, place: int, one: Alternative) -> dict[str, Any]:
        # The theory is for the parameters of one spec for all heads: fitted ones are in a file, which has none.
        spec = one.swapped(self.model) if one.what is None else one.rules
        proved = theory(spec, self.settings.length) if isinstance(spec, str) else None
        return {what: self._part(place, what) for what in self._steps} | {"theory": proved}

    def _measure_windows(self, place: int, one: Alternative, step: Callable[[], None]) -> dict[str, Any]:
        """Loss and selectivity by window; the baseline's loss is that of the unchanged model."""
        with Swap(self.model, one.swapped(self.model)) as running:
            by_window = selectivity_reader(self.model, running, self.reading).read_all(self.windows, step)
        if one.what is None:
            by_window["loss"] = window_losses(self.model, self.windows).tolist()
        return by_window

    def _measure_capacity(self, place: int, one: Alternative, step: Callable[..., None]) -> dict[str, Any]:
        baseline, full = (window_numbers(self._part(who, "windows")["loss"]) for who in (0, place))

        def losses_with(keep: int) -> Tensor:
            with swap(self.model, truncated_rules(self.model, one.swapped(self.model), keep)):
                return window_losses(self.model, self.windows, step)

        taus, length = [self.settings.tau], self.settings.length
        return curve_record(trace(losses_with, baseline, full, taus, self._sizes, length=length, way=RENORMALISED))

    def _measure_sensitivity(self, place: int, one: Alternative, step: Callable[[], None]) -> dict[str, Any]:
        """Sensitivity at equal selectivity."""
        if self._logits is None:
            self._logits = baseline_logits(self.model, self.windows, self.reading)
        standing, groups_of = self.model.plan, Plan(self.model.network, one.swapped(self.model))
        return at_equal_selectivity(self._logits, groups_of, self.reading, self.windows[0], standing)

    def _measure_needle(self, place: int, one: Alternative, step: Callable[..., None]) -> dict[str, Any]:
        with nullcontext() if one.what is None else swap(self.model, one.what):
            return {"margins": margins(self.model, self.prompts, step)}

    def _speed(self) -> dict[str, Any]:
        whats, tokens = {one.name: one.what for one in self.contenders}, self.windows[0].tokens
        step = lambda: self.stages.step(_SPEED, "time and memory")  # noqa: E731
        best = self.parts.get_or_make(_SPEED, lambda: finite(costs(self.model, tokens, whats, step)))
        self.stages.end(_SPEED)
        return best

    def _manifest(self, records: Mapping[str, Any]) -> dict[str, Any]:
        infinite = [
            f"{name}: the loss is not finite in {lost} of {len(self.windows)} windows"
            for name, record in records.items()
            if (lost := sum(loss is None for loss in record["windows"]["loss"]))
        ]
        before = 0 if self.for_fitting is None else len(self.for_fitting.content)  # places are in the whole text
        places, skipped = window_places(self.windows, before), [*self.skipped, *infinite]
        return self.job.manifest({"windows": places, "prompts": len(self.prompts), "skipped": skipped})


def expected_cost(
    model: LoadedModel, window: Window, prompts: Sequence[Prompt], passes: int, normalizers: int
) -> tuple[int, float]:
    """Tokens and seconds: for each normalizer N passes on windows like this one, and one for every batch of prompts.

    A pass of every length is timed, on the unchanged model. Times are not scaled from length to length: a short pass is
    mostly fixed cost. A batch takes that cost once, and for each of its prompts the rest of the time of one alone.
    """
    by_length = sorted({prompt.length: prompt for prompt in prompts}.items())
    alone = {
        length: best_seconds(partial(margins, model, [prompt]), _TRIES, time.perf_counter)
        for length, prompt in by_length
    }
    # The intercepts of the lines through neighbouring lengths and their times.
    at_zero = [short - m * (long - short) / (n - m) for (m, short), (n, long) in pairwise(alone.items())]
    fixed = max(0.0, min(at_zero, default=0.0))
    seconds = passes * best_seconds(partial(window_losses, model, [window]), _TRIES, time.perf_counter)
    seconds += sum(fixed + len(batch) * (alone[batch[0].length] - fixed) for batch in batches(prompts))
    tokens = passes * window.length + sum(prompt.length for prompt in prompts)
    return normalizers * tokens, normalizers * _SWAPPED * seconds


# -- Selectivity ------------------------------------------------------------------------------------------------------


def selectivity_reader(model: LoadedModel, swapped: Any, settings: Any) -> Reader:
    """Reads the loss of a window and the mean over heads of every measure of a swap.

    All normalizers see the same queries and random sets, so they can be compared window by window.
    """

    def note(
        call: models.AttentionCall, window: Window, positions: Tensor, weights_of: Callable[[Tensor], Tensor]
    ) -> State:
        chance = seeded(settings, window, f"random sets of {call.name}")
        state: State = {}
        for block in torch.split(positions, rows_at_once(call.query.shape[1], call.key.shape[-2])):
            logits, weights = call.logits(block)[0].float(), weights_of(block).to(call.value.device).float()
            readings = _readings(Rows(logits, weights, call.value[0].float()), settings.sizes, chance)
            state = measures.update(state, readings)
        return state

    def means(noted: Sequence[State]) -> dict[str, float]:
        """Every head of every layer counts the same; heads without a value are left out, NaN if none has one."""
        of_layers = [measures.compute(state) for state in noted]
        # Layers may lie on different devices.
        values = {name: [layer[name].value.flatten().cpu() for layer in of_layers] for name in SELECTIVITY}
        return {name: float(torch.cat(of_all).nanmean()) for name, of_all in values.items()}

    return Reader(model, swapped, settings, note, means)


def _readings(rows: Rows, grid: tuple[int, ...], chance: torch.Generator) -> dict[str, Reading]:
    """The measures of selectivity; those of sets are for the one size of the grid."""
    keys, zero = rows.count, (rows.visible & (rows.weights == 0)).sum(-1)
    of_sets = measures.geometry(rows, measures.choose_sets(rows, grid, chance))
    return {
        "effective_tokens": measures.dispersion(rows)["effective_tokens"],
        "active": measures.active_keys(rows),
        "zeros": Reading(zero / keys.clamp(min=1), keys > 0),
        "separable": measures.separable_weight(rows, grid[0]),
        "separability": of_sets["separability"],
        "distance_per_token": of_sets["distance_per_token"],
    }
