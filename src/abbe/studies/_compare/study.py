"""compare: what replacing softmax would gain in this model, and what it would cost.

Every normalizer reads the same windows and prompts, part by part.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ... import measures
from ..._arguments import between, whole, yes_or_no
from ...measures import Reading, Rows, State
from ...models import (
    AttentionCall,
    DeviceLike,
    DeviceMap,
    DtypeLike,
    LoadedModel,
    Text,
    Window,
    Windows,
    evaluating,
    plan,
    swap,
)
from ...results import finite
from ...runs.cost import plan_memory
from ...runs.folder import claim_folder
from ...runs.inputs import FolderLike, Job, ModelLike, Placed, TextLike, load_inputs, windows_for
from ...runs.loss import check_causal, window_losses
from ...runs.measuring import finished_manifest, manifest_facts, window_places
from ...runs.settings import MOST_RESAMPLES, checked_seed
from ...runs.study import study
from ...runs.watch import watching
from ...runs.window import BLOCK, allowed_error, check_tokens, model_inputs, seeded
from ...words.names import BASELINE, RENORMALISED
from ...words.numbers import about
from .._shared.calibrated import learnable_rules
from .._shared.estimates import window_numbers, with_nan
from .._shared.prompts import Prompt, PromptMaker, batches, margins
from .._shared.swapped import ROUNDS, Logits, SwapReading, at_equal_selectivity, baseline_logits, costs, theory
from .._shared.truncation import Sizes, has_sinks, trace, truncated_rules
from .alternatives import Alternative, NormalizersLike, Rules, as_alternatives, calibrated, halves, opened_calibrated
from .result import (
    ALTERNATIVES,
    LENGTH,
    SELECTIVITY,
    CompareSettings,
    Comparison,
    needle_lengths_for,
    opened_comparison,
)
from .rule import judge
from .tables import comparison_table, curve_record, needle_table

Contenders = Mapping[str, Alternative | None]  # by the name in tables; None is the baseline
Maker = Callable[[str, Alternative | None], object]
SOFTMAX = "softmax"  # swapped in to read the baseline
_PARTS, _SPEED, _TIMED = "parts", "speed", "time and memory"
# Total time over that of as many plain passes: 1.25 to 1.9 in small runs of the embedded model, 1.46 by default.
_SWAPPED = 1.5
_TRIES = 2  # the best counts: the first one warms up, and disturbances only make a pass slower


@study(Comparison, extra="all", opened=opened_comparison)
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
    place, source, loaded = load_inputs(model, text, folder, tokenizer, progress, Placed(device, dtype, device_map))
    check_causal(loaded, "comparing normalizers")
    length = min(LENGTH, loaded.context or LENGTH) if length is None else whole("length", length)
    settings = CompareSettings(
        alternatives, length, whole("windows", windows), whole("queries", queries, least=1),
        between("tau", tau, 0, 1, 0.05), needle_lengths_for(length, needle_lengths, loaded.context),
        whole("prompts", prompts), yes_or_no("calibrate", calibrate), checked_seed(seed),
        between("level", level, 0, 1, 0.95), whole("resamples", resamples, least=1, most=MOST_RESAMPLES), grid,
    )  # fmt: skip
    with watching(progress) as watch, evaluating(loaded.network):
        return _Comparing(loaded, source, settings, place, watch).run()


class _Comparing(Job[CompareSettings]):
    """One comparison: its inputs, and its parts in the order in which they are measured."""

    def __post_init__(self) -> None:
        model, text, settings = self.model, self.text, self.settings
        self.for_fitting: Text | None
        self.for_fitting, read = halves(text) if settings.calibrate else (None, text)
        self.windows: Windows = windows_for(model, read, (settings.length,), settings.windows, settings.seed)
        self.facts = manifest_facts(Comparison.study, model, text, settings.as_json())
        maker = PromptMaker(model.tokenizer, read, settings.seed)
        self.prompts: list[Prompt] = maker.make(settings.needle_lengths, settings.prompts)
        self.skipped = [*self.windows.skipped, *maker.skipped]
        self._logits: Logits | None = None
        self._baseline_losses: list[float | None] = []  # by window; the baseline is read first

    def run(self) -> Comparison:
        self._check_alternatives()
        error = self._check()
        self.parts = claim_folder(
            self.folder, Comparison.study, self.model, self.text, self.facts["settings"], self.watch.announce
        )
        return self._compared(error)

    def _check_alternatives(self) -> None:
        """Each must fit this model: a mistake is reported before anything is measured."""
        for alternative in self.settings.alternatives:
            plan(self.model, alternative.what)
            if self.for_fitting is not None and alternative.rules is not None:
                plan(self.model, learnable_rules(alternative.rules))

    def _compared(self, error: float) -> Comparison:
        with tempfile.TemporaryDirectory() as scratch:
            contenders = self._contenders(Path(scratch))
            self._make_parts(contenders)
            records = {name: self._record(name, alternative) for name, alternative in contenders.items()}
            of_prompts = {name: self._needle(name, alternative) for name, alternative in contenders.items()}
            speed = self._speed_of(contenders)
        s = self.settings
        needle = needle_table(self.prompts, of_prompts, s.level, s.resamples, s.seed)
        table = comparison_table(records, speed, needle, s)
        judgements, recommendation = judge(table, len(self.windows), s.level)
        return Comparison(table, needle, judgements, recommendation, self._manifest(error, records))

    def _check(self) -> float:
        """Check that softmax swapped in reproduces the model; announce the cost."""
        tokens, settings = check_tokens(self.model, self.windows), self.settings
        lengths = (settings.length, *settings.needle_lengths)
        plan_memory(self.model, lengths, len(tokens), self.watch.say, queries=settings.queries, losses=True)
        with swap(self.model, SOFTMAX) as trial:
            error = trial.check(**model_inputs(self.model, tokens))
            sinks = has_sinks(self.model, trial, tokens)
        self._sizes = Sizes.of(settings.grid, settings.length + sinks)
        alternatives = settings.alternatives
        count = 1 + len(alternatives) + settings.calibrate * sum(one.rules is not None for one in alternatives)
        self.watch.say_checked(self.model.name, error, allowed_error(self.model))
        tokens_to_read, seconds = expected_cost(self.model, self.windows[0], self.prompts, self._passes(), count)
        self.watch.say(f"{count} normalizers, {tokens_to_read:,} tokens: about {about(seconds)}")
        self.watch.expect(count * (self._passes() + len(batches(self.prompts))))
        return error

    def _passes(self) -> int:
        """Of one normalizer, without the needles."""
        return (1 + self._sizes.expected(1)) * len(self.windows) + ROUNDS

    def _contenders(self, scratch: Path) -> Contenders:
        """The baseline, and every alternative, followed by its calibrated version if wanted."""
        fitted = self._calibrated(scratch) if self.for_fitting is not None else {}
        contenders: dict[str, Alternative | None] = {BASELINE: None}
        for number, alternative in enumerate(self.settings.alternatives):
            contenders[alternative.name] = alternative
            if number in fitted:
                contenders[fitted[number][0].name] = fitted[number][0]
                self.skipped += fitted[number][1]
        self.places = {name: place for place, name in enumerate(contenders)}
        return contenders

    def _calibrated(self, scratch: Path) -> dict[int, tuple[Alternative, list[str]]]:
        """The calibrated alternatives by number; each is a part, with the run of `abbe calibrate` in its own folder."""
        alternatives = {n: one for n, one in enumerate(self.settings.alternatives) if one.rules is not None}
        parts = {f"{_PARTS}/calibrated-{number}": number for number in alternatives}
        folders = {number: (self.folder or scratch) / "calibrated" / str(number) for number in alternatives}
        size, text = self.settings, self.for_fitting
        made: dict[int, tuple[Alternative, list[str]]] = {}
        assert text is not None

        def make(part: str) -> None:
            number = parts[part]
            name, rules = alternatives[number].name, alternatives[number].rules
            assert rules is not None
            options: dict[str, Any] = {"length": size.length, "windows": size.windows, "seed": size.seed}
            made[number] = calibrated(self.model, name, rules, text, **options, folder=folders[number])
            self.parts.keep_json(part, {})

        self.parts.each(parts, make)
        absent = {number: one for number, one in alternatives.items() if number not in made}  # made elsewhere
        return made | {number: opened_calibrated(one.name, folders[number]) for number, one in absent.items()}

    def _make_parts(self, contenders: Contenders) -> None:
        """Everything that is measured of a contender, except the times, is a part."""

        def make_capacity(name: str, alternative: Alternative | None) -> None:
            self._windows(BASELINE, None)
            self._capacity(name, alternative, self._windows(name, alternative)["loss"])

        makers: dict[str, Maker] = {
            "windows": self._windows,
            "capacity": make_capacity,
            "sensitivity": self._sensitivity,
            "needle": self._needle,
        }
        parts = {f"{_PARTS}/{self.places[name]}-{what}": (name, what) for name in contenders for what in makers}

        def make(part: str) -> None:
            name, what = parts[part]
            makers[what](name, contenders[name])

        self.parts.each(parts, make)

    def _part(self, name: str, what: str, make: Callable[[], Mapping[str, Any]], steps: int) -> dict[str, Any]:
        """Kept under the place of the normalizer, as its name may not be a valid file name."""
        return self._kept(f"{self.places[name]}-{what}", make, f"{name}: {what}", steps)

    def _kept(self, name: str, make: Callable[[], Mapping[str, Any]], step: str, steps: int) -> dict[str, Any]:
        """A part from an earlier call, or else from `make`, as it comes back from JSON."""
        kept = self.parts.json(f"{_PARTS}/{name}")
        if kept is not None:
            for _ in range(steps):
                self.watch.step(step)
            return kept
        content: dict[str, Any] = finite(make())
        self.parts.keep_json(f"{_PARTS}/{name}", content)
        return content

    def _record(self, name: str, alternative: Alternative | None) -> dict[str, Any]:
        windows = self._windows(name, alternative)
        capacity = self._capacity(name, alternative, windows["loss"])
        sensitivity = self._sensitivity(name, alternative)
        # The theory is for the parameters of one spec for all heads: fitted ones are in a file, which has none.
        spec = SOFTMAX if alternative is None else alternative.spec
        proved = None if spec is None else theory(spec, self.settings.length)
        return {"windows": windows, "capacity": capacity, "sensitivity": sensitivity, "theory": proved}

    def _windows(self, name: str, alternative: Alternative | None) -> dict[str, Any]:
        """Loss and selectivity by window; the baseline's loss is that of the unchanged model."""

        def make() -> dict[str, Any]:
            with swap(self.model, _swapped(alternative)) as running:
                reader = SwapReader(self.model, running, self.settings.reading())
                by_window = reader.read_all(self.windows, lambda: self.watch.step(f"{name}: windows"))
            if name == BASELINE:
                by_window["loss"] = window_losses(self.model, self.windows).tolist()
            return by_window

        windows = self._part(name, "windows", make, len(self.windows))
        if name == BASELINE:
            self._baseline_losses = windows["loss"]
        return windows

    def _capacity(self, name: str, alternative: Alternative | None, losses: Sequence[float | None]) -> dict[str, Any]:
        """After the windows of the baseline."""

        def losses_with(keep: int) -> Tensor:
            say = f"{name}: top {keep} weights"
            with swap(self.model, truncated_rules(self.model, _swapped(alternative), keep)):
                return window_losses(self.model, self.windows, lambda _: self.watch.step(say))

        def make() -> dict[str, Any]:
            baseline, full = window_numbers(self._baseline_losses), window_numbers(losses)
            taus, length = [self.settings.tau], self.settings.length
            return curve_record(trace(losses_with, baseline, full, taus, self._sizes, length=length, way=RENORMALISED))

        return self._part(name, "capacity", make, self._sizes.expected(1) * len(self.windows))

    def _sensitivity(self, name: str, alternative: Alternative | None) -> dict[str, Any]:
        """At equal selectivity."""

        def make() -> dict[str, Any]:
            reading, planned = self.settings.reading(), plan(self.model, _swapped(alternative))
            if self._logits is None:
                self._logits = baseline_logits(self.model, self.windows, reading)
            return at_equal_selectivity(self._logits, planned, reading, self.windows[0])

        return self._part(name, "sensitivity", make, 0)

    def _needle(self, name: str, alternative: Alternative | None) -> list[float]:
        def make() -> dict[str, Any]:
            with nullcontext() if alternative is None else swap(self.model, alternative.what):
                return {"margins": margins(self.model, self.prompts, lambda _: self.watch.step(f"{name}: needles"))}

        of_prompts = self._part(name, "needle", make, len(batches(self.prompts)))["margins"]
        return with_nan(of_prompts)

    def _speed_of(self, contenders: Contenders) -> dict[str, Any]:
        def make() -> dict[str, Any]:
            whats = {name: None if one is None else one.what for name, one in contenders.items()}
            return costs(self.model, self.windows[0].tokens, whats, lambda: self.watch.step(_TIMED))

        return self._kept(_SPEED, make, _TIMED, ROUNDS * len(contenders))

    def _manifest(self, error: float, records: Mapping[str, Any]) -> dict[str, Any]:
        infinite = [
            f"{name}: the loss is not finite in {lost} of {len(self.windows)} windows"
            for name, record in records.items()
            if (lost := sum(loss is None for loss in record["windows"]["loss"]))
        ]
        before = 0 if self.for_fitting is None else len(self.for_fitting.content)  # places are in the whole text
        facts = self.facts | {
            "self_check": {"error": error, "tokens": len(check_tokens(self.model, self.windows))},
            "windows": window_places(self.windows, before),
            "prompts": len(self.prompts),
            "skipped": [*self.skipped, *infinite],
        }
        return finished_manifest(facts, self.parts, {"total": time.perf_counter() - self.started})


def _swapped(alternative: Alternative | None) -> Rules:
    """The swap under which a contender is read."""
    return SOFTMAX if alternative is None else alternative.what


def expected_cost(
    model: LoadedModel, window: Window, prompts: Sequence[Prompt], passes: int, normalizers: int
) -> tuple[int, float]:
    """Tokens and seconds: for each normalizer N passes on windows like this one, and one for every batch of prompts.

    A pass of every length is timed, on the unchanged model. Times are not scaled from length to length: a short pass is
    mostly fixed cost.
    """
    seconds = passes * _seconds(lambda: window_losses(model, [window])) + _needle_seconds(model, prompts)
    tokens = passes * window.length + sum(prompt.length for prompt in prompts)
    return normalizers * tokens, normalizers * _SWAPPED * seconds


def _needle_seconds(model: LoadedModel, prompts: Sequence[Prompt]) -> float:
    """A batch takes the fixed cost of a pass once, and for each of its prompts the rest of the time of one alone."""
    by_length = {prompt.length: prompt for prompt in prompts}
    alone = {
        length: _seconds(lambda prompt=prompt: margins(model, [prompt]))  # type: ignore[misc]
        for length, prompt in sorted(by_length.items())
    }
    fixed = max(0.0, min((_at_zero(*ends) for ends in pairwise(alone.items())), default=0.0))
    return sum(fixed + len(batch) * (alone[batch[0].length] - fixed) for batch in batches(prompts))


def _at_zero(short: tuple[int, float], long: tuple[int, float]) -> float:
    """The intercept of the line through two lengths and their times."""
    slope = (long[1] - short[1]) / (long[0] - short[0])
    return short[1] - slope * short[0]


def _seconds(work: Callable[[], object]) -> float:
    times = []
    for _ in range(_TRIES):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return min(times)


class SwapReader(SwapReading[State]):
    """Listens to a swap; `read` gives the loss of a window and the mean over heads of every measure.

    All normalizers see the same queries and random sets, so they can be compared window by window.
    """

    def _note(
        self, call: AttentionCall, window: Window, positions: Tensor, weights_of: Callable[[Tensor], Tensor]
    ) -> State:
        chance = seeded(self._settings, window, f"random sets of {call.name}")
        rows_at_once = max(1, BLOCK // (call.query.shape[1] * call.key.shape[-2]))
        state: State = {}
        for block in torch.split(positions, rows_at_once):
            logits, weights = call.logits(block)[0].float(), weights_of(block).to(call.value.device).float()
            state = measures.update(
                state, readings(Rows(logits, weights, call.value[0].float()), self._settings.sizes, chance)
            )
        return state

    def _means(self, noted: Sequence[State]) -> dict[str, float]:
        """Every head of every layer counts the same; heads without a value are left out, NaN if none has one."""
        of_layers = [measures.compute(state) for state in noted]
        # Layers may lie on different devices.
        values = {name: [layer[name].value.flatten().cpu() for layer in of_layers] for name in SELECTIVITY}
        return {name: float(torch.cat(of_all).nanmean()) for name, of_all in values.items()}


def readings(rows: Rows, grid: tuple[int, ...], chance: torch.Generator) -> dict[str, Reading]:
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
