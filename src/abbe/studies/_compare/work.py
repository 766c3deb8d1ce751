"""A comparison in progress: every normalizer reads the same windows and prompts, part by part."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from torch import Tensor

from ..._locks import held
from ...models import Text, Windows, plan, swap
from ...results import finite
from ...words.names import BASELINE, RENORMALISED
from .._engine.calibrated import learnable_rules
from .._engine.capacity.curve import trace
from .._engine.capacity.search import Sizes
from .._engine.capacity.truncation import has_sinks, truncated_rules
from .._engine.folder import claim_folder
from .._engine.inputs import Job, windows_for
from .._engine.loss import window_losses
from .._engine.measuring import finished_manifest, manifest_facts, window_places
from .._engine.memory import plan_memory
from .._engine.needles.margins import batches, margins
from .._engine.needles.prompts import Prompt, PromptMaker
from .._engine.parts import JSON
from .._engine.passes import model_inputs
from .._engine.sharing.board import Unit
from .._engine.sharing.crew import alone, is_shared, leave_to_merge, need, refuse_without, share, unit_in
from .._engine.swapped.sensitivity import Logits, at_equal_selectivity, baseline_logits, theory
from .._engine.swapped.speed import ROUNDS, costs
from .._engine.window import allowed_error, check_tokens
from .alternatives import Alternative, Rules, calibrated, halves, opened_calibrated
from .cost import cost
from .reading import SwapReader
from .result import CompareSettings, Comparison
from .rule import judge
from .tables import comparison_table, curve_record, needle_table, window_numbers

Contenders = Mapping[str, Alternative | None]  # by the name in tables; None is the baseline
Maker = Callable[[str, Alternative | None], object]
SOFTMAX = "softmax"  # swapped in to read the baseline
_PARTS, _SPEED, _TIMED = "parts", "speed", "time and memory"
_BUSY = f"{_TIMED} on an idle machine: workers shared this run, and others may have been busy during the measurement"


class Study(Job[CompareSettings]):
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
        with held(self.folder):
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
            contenders = self._share(self._contenders(Path(scratch)))
            leave_to_merge()
            records = {name: self._record(name, alternative) for name, alternative in contenders.items()}
            of_prompts = {name: self._needle(name, alternative) for name, alternative in contenders.items()}
            speed = self._speed_of(contenders)
        s = self.settings
        needle = needle_table(self.prompts, of_prompts, s.level, s.resamples, s.seed)
        table = comparison_table(records, speed, needle, s)
        judgements, recommendation = judge(table, len(self.windows), s.level)
        comparison = Comparison(table, needle, judgements, recommendation, self._manifest(error, records))
        if self.folder is not None:
            comparison.save(self.folder)
            comparison.to_html(self.folder / comparison.page)
        return comparison

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
        self.watch.say(str(cost(self.model, self.windows[0], self.prompts, self._passes(), count)))
        self.watch.expect(count * (self._passes() + len(batches(self.prompts))))
        return error

    def _passes(self) -> int:
        """Of one normalizer, without the needles."""
        return (1 + self._sizes.expected(1)) * len(self.windows) + ROUNDS

    def _contenders(self, scratch: Path) -> Contenders:
        """The baseline, and every alternative, followed by its calibrated version if wanted."""
        contenders: dict[str, Alternative | None] = {BASELINE: None}
        for number, alternative in enumerate(self.settings.alternatives):
            contenders[alternative.name] = alternative
            if self.for_fitting is not None and alternative.rules is not None:
                fitted, skipped = self._calibrated(number, alternative, scratch)
                contenders[fitted.name] = fitted
                self.skipped += skipped
        self.places = {name: place for place, name in enumerate(contenders)}
        return contenders

    def _calibrated(self, number: int, alternative: Alternative, scratch: Path) -> tuple[Alternative, list[str]]:
        """The calibration of an alternative; in a shared folder one worker makes it, and the others wait."""
        assert self.for_fitting is not None
        assert alternative.rules is not None
        name, rules, text = alternative.name, alternative.rules, self.for_fitting
        folder = (self.folder or scratch) / "calibrated" / str(number)

        def make() -> tuple[Alternative, list[str]]:
            return calibrated(
                self.model, name, rules, text, length=self.settings.length, windows=self.settings.windows,
                seed=self.settings.seed, folder=folder,
            )  # fmt: skip

        def make_part(_: Unit) -> None:
            with alone():
                make()
            self.parts.keep_json(f"{_PARTS}/calibrated-{number}", {})

        if not is_shared():
            return make()
        need([self._unit(f"calibrated-{number}")], make_part)
        return opened_calibrated(name, folder)

    def _share(self, contenders: Contenders) -> Contenders:
        """In a shared folder: make the parts of all contenders, and leave out those with a failed part."""
        if self.folder is None:
            return contenders

        def make_capacity(name: str, alternative: Alternative | None) -> None:
            need([units[one, "windows"] for one in dict.fromkeys((BASELINE, name))], make)
            self._windows(BASELINE, None)
            self._capacity(name, alternative, self._windows(name, alternative)["loss"])

        makers: dict[str, Maker] = {
            "windows": self._windows, "capacity": make_capacity, "sensitivity": self._sensitivity,
            "needle": self._needle,
        }  # fmt: skip
        # Windows come first, so that few workers wait for them.
        units = {(name, what): self._unit(f"{self.places[name]}-{what}") for what in makers for name in contenders}
        by_unit = {unit: key for key, unit in units.items()}
        speed = self._unit(_SPEED)

        def make(unit: Unit) -> None:
            if unit == speed:
                self._speed_of(contenders)
            else:
                name, what = by_unit[unit]
                makers[what](name, contenders[name])

        failed = share([*by_unit, speed], make, needed=False)
        for unit in (speed, *(units[BASELINE, what] for what in makers)):
            if unit.name in failed:
                refuse_without(failed[unit.name])
        names = {by_unit[unit][0]: failed[unit.name] for unit in by_unit if unit.name in failed}
        self.skipped += [f"{name}: {failure}" for name, failure in names.items()]
        return {name: alternative for name, alternative in contenders.items() if name not in names}

    def _unit(self, part: str) -> Unit:
        folder = self.folder or Path()
        return unit_in(folder, f"{_PARTS}/{part}", [folder / f"{_PARTS}/{part}{JSON}"])

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
        return [math.nan if margin is None else margin for margin in of_prompts]

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
            "skipped": [*self.skipped, *infinite, *([_BUSY] if is_shared() else [])],
        }
        return finished_manifest(facts, self.parts, {"total": time.perf_counter() - self.started})


def _swapped(alternative: Alternative | None) -> Rules:
    """The swap under which a contender is read."""
    return SOFTMAX if alternative is None else alternative.what
