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

from ..._held import held
from ...models import LoadedModel, Text, Windows, plan, swap
from ...results import finite
from ...words.names import BASELINE, RENORMALISED
from .._engine.capacity.curve import trace
from .._engine.capacity.search import Sizes
from .._engine.capacity.truncation import has_sinks, truncated_rules
from .._engine.folder import claim_folder
from .._engine.given import windows_for
from .._engine.loss import window_losses
from .._engine.measuring import finished_manifest, manifest_facts, window_places
from .._engine.passes import model_inputs
from .._engine.room import plan_memory
from .._engine.watch import Watch
from .._engine.window import allowed_error, check_tokens
from .alternatives import Alternative, Rules
from .calibrated import calibrated, fitted_rules, halves
from .capacities import curve_record, window_numbers
from .cost import cost
from .needle import batches, margins, needle_table
from .needle_prompts import Prompt, PromptMaker
from .reading import SwapReader
from .result import CompareSettings, Comparison
from .rule import judge
from .sensitivity import Logits, at_equal_selectivity, baseline_logits, theory
from .speed import ROUNDS, costs
from .tables import comparison_table

Contenders = Mapping[str, Alternative | None]  # by the name that is shown; None is the baseline
SOFTMAX = "softmax"  # what is swapped in to read the baseline
_PARTS, _TIMED = "parts", "time and memory"


class Study:
    """One comparison: what it measures with, and its parts in the order in which they are measured."""

    def __init__(
        self, model: LoadedModel, text: Text, settings: CompareSettings, folder: Path | None, watch: Watch
    ) -> None:
        self.started = time.perf_counter()
        self.model, self.text, self.settings, self.watch = model, text, settings, watch
        self.folder = folder
        self.for_fitting: Text | None
        self.for_fitting, read = halves(text) if settings.calibrate else (None, text)
        self.windows: Windows = windows_for(model, read, (settings.length,), settings.windows, settings.seed)
        self.facts = manifest_facts(Comparison.study, model, text, settings.as_json())
        maker = PromptMaker(model.tokenizer, read, settings.seed)
        self.prompts: list[Prompt] = maker.make(settings.needle_lengths, settings.prompts)
        self.skipped = [*self.windows.skipped, *maker.skipped]
        self._logits: Logits | None = None
        self._baseline_losses: list[float | None] = []  # by window; the baseline is the first that is read
        self._sizes = Sizes.of(settings.grid, settings.length)

    def run(self) -> Comparison:
        self._check_alternatives()
        with held(self.folder):
            error = self._check()
            self.parts = claim_folder(
                self.folder, Comparison.study, self.model, self.text, self.facts["settings"], self.watch.announce
            )
            return self._compared(error)

    def _check_alternatives(self) -> None:
        """That each can be swapped into this model: a mistake is reported before anything is measured."""
        for alternative in self.settings.alternatives:
            plan(self.model, alternative.what)
            if self.for_fitting is not None and alternative.rules is not None:
                plan(self.model, fitted_rules(alternative.rules))

    def _compared(self, error: float) -> Comparison:
        with tempfile.TemporaryDirectory() as scratch:
            contenders = self._contenders(Path(scratch))
            records = {name: self._record(name, alternative) for name, alternative in contenders.items()}
            of_prompts = {name: self._needle(name, alternative) for name, alternative in contenders.items()}
            speed = self._kept("speed", lambda: self._speed(contenders), _TIMED, ROUNDS * len(contenders))
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
        """That softmax swapped in is the model itself; says the cost."""
        tokens, settings = check_tokens(self.model, self.windows), self.settings
        lengths = (settings.length, *settings.needle_lengths)
        plan_memory(self.model, lengths, len(tokens), self.watch.say, queries=settings.queries, losses=True)
        with swap(self.model, SOFTMAX) as trial:
            error = trial.check(**model_inputs(self.model, tokens))
            sinks = has_sinks(self.model, trial, tokens)
        self._sizes = Sizes.of(self.settings.grid, self.settings.length + sinks)
        alternatives = self.settings.alternatives
        count = 1 + len(alternatives) + self.settings.calibrate * sum(one.rules is not None for one in alternatives)
        self.watch.say_checked(self.model.name, error, allowed_error(self.model))
        self.watch.say(str(cost(self.model, self.windows[0], self.prompts, self._passes(), count)))
        self.watch.expect(count * (self._passes() + len(batches(self.prompts))))
        return error

    def _passes(self) -> int:
        """Of one normalizer, without the needles."""
        return (1 + self._sizes.expected(1)) * len(self.windows) + ROUNDS

    def _contenders(self, scratch: Path) -> Contenders:
        """Every alternative, and after it itself calibrated, if that was asked for."""
        contenders: dict[str, Alternative | None] = {BASELINE: None}
        for number, alternative in enumerate(self.settings.alternatives):
            contenders[alternative.name] = alternative
            if self.for_fitting is not None and alternative.rules is not None:
                fitted, skipped = calibrated(
                    self.model, alternative.name, alternative.rules, self.for_fitting, length=self.settings.length,
                    windows=self.settings.windows, seed=self.settings.seed,
                    folder=(self.folder or scratch) / "calibrated" / str(number),
                )  # fmt: skip
                contenders[fitted.name] = fitted
                self.skipped += skipped
        self.places = {name: place for place, name in enumerate(contenders)}
        return contenders

    def _part(self, name: str, what: str, make: Callable[[], Mapping[str, Any]], steps: int) -> dict[str, Any]:
        """Kept under the place of the normalizer: their names are no file names."""
        return self._kept(f"{self.places[name]}-{what}", make, f"{name}: {what}", steps)

    def _kept(self, name: str, make: Callable[[], Mapping[str, Any]], step: str, steps: int) -> dict[str, Any]:
        """What an earlier call left of a part, or what `make` gives, as JSON gives it back."""
        kept = self.parts.json(f"{_PARTS}/{name}")
        if kept is not None:
            self._step(step, steps)
            return kept
        made: dict[str, Any] = finite(make())
        self.parts.keep_json(f"{_PARTS}/{name}", made)
        return made

    def _step(self, what: str, steps: int = 1) -> None:
        for _ in range(steps):
            self.watch.step(what)

    def _record(self, name: str, alternative: Alternative | None) -> dict[str, Any]:
        """Losses and selectivity, capacity, and sensitivity at equal selectivity."""
        swapped: Rules = SOFTMAX if alternative is None else alternative.what
        windows = self._part(name, "windows", lambda: self._read(name, swapped), len(self.windows))
        if name == BASELINE:
            self._baseline_losses = windows["loss"]
        steps = self._sizes.expected(1) * len(self.windows)
        capacity = self._part(name, "capacity", lambda: self._capacity(name, swapped, windows["loss"]), steps)
        equal = self._part(name, "sensitivity", lambda: self._equal(swapped), 0)
        # What is proved holds at the parameters of a spec for all heads: fitted ones are in a file, which has none.
        spec = SOFTMAX if alternative is None else alternative.spec
        proved = None if spec is None else theory(spec, self.settings.length)
        return {"windows": windows, "capacity": capacity, "sensitivity": equal, "theory": proved}

    def _read(self, name: str, swapped: Rules) -> dict[str, list[float]]:
        """By window; the loss of the baseline is that of the model as it is."""
        by_window: dict[str, list[float]] = {}
        with swap(self.model, swapped) as running:
            reader = SwapReader(self.model, running, self.settings.reading())
            for window in self.windows:
                for key, value in reader.read(window).items():
                    by_window.setdefault(key, []).append(value)
                self._step(f"{name}: windows")
        if name == BASELINE:
            by_window["loss"] = window_losses(self.model, self.windows).tolist()
        return by_window

    def _capacity(self, name: str, swapped: Rules, losses: Sequence[float | None]) -> dict[str, Any]:
        def losses_with(keep: int) -> Tensor:
            with swap(self.model, truncated_rules(self.model, swapped, keep)):
                return window_losses(self.model, self.windows, lambda _: self._step(f"{name}: top {keep} weights"))

        baseline, full = window_numbers(self._baseline_losses), window_numbers(losses)
        return curve_record(
            trace(
                losses_with, baseline, full, [self.settings.tau], self._sizes, length=self.settings.length,
                way=RENORMALISED,
            )
        )  # fmt: skip

    def _equal(self, swapped: Rules) -> dict[str, Any]:
        if self._logits is None:
            self._logits = baseline_logits(self.model, self.windows, self.settings.reading())
        return at_equal_selectivity(self._logits, plan(self.model, swapped), self.settings.reading(), self.windows[0])

    def _needle(self, name: str, alternative: Alternative | None) -> list[float]:
        def make() -> dict[str, Any]:
            with nullcontext() if alternative is None else swap(self.model, alternative.what):
                return {"margins": margins(self.model, self.prompts, lambda _: self._step(f"{name}: needles"))}

        of_prompts = self._part(name, "needle", make, len(batches(self.prompts)))["margins"]
        return [math.nan if margin is None else margin for margin in of_prompts]

    def _speed(self, contenders: Contenders) -> dict[str, Any]:
        whats = {name: None if alternative is None else alternative.what for name, alternative in contenders.items()}
        return costs(self.model, self.windows[0].tokens, whats, lambda: self._step(_TIMED))

    def _manifest(self, error: float, records: Mapping[str, Any]) -> dict[str, Any]:
        infinite = [
            f"{name}: the loss is not finite in {lost} of {len(self.windows)} windows"
            for name, record in records.items()
            if (lost := sum(loss is None for loss in record["windows"]["loss"]))
        ]
        before = 0 if self.for_fitting is None else len(self.for_fitting.content)  # places are those of the whole text
        facts = self.facts | {
            "self_check": {"error": error, "tokens": len(check_tokens(self.model, self.windows))},
            "windows": window_places(self.windows, before),
            "prompts": len(self.prompts),
            "skipped": [*self.skipped, *infinite],
        }
        return finished_manifest(facts, self.parts, {"total": time.perf_counter() - self.started})
