"""A comparison while it goes on: every normalizer reads the same windows and prompts, part by part."""

from __future__ import annotations

import math
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..._held import held
from ...models import LoadedModel, Text, Windows, plan, swap
from ...words.names import BASELINE, CALIBRATED
from .._engine.folder import claim_folder
from .._engine.given import windows_for
from .._engine.loss import window_losses
from .._engine.measuring import finished_manifest, manifest_facts
from .._engine.passes import model_inputs
from .._engine.watch import Watch
from .._engine.window import check_tokens
from .alternatives import is_file, is_spec
from .calibrated import calibrated_swap, fitted_rules, halves
from .folder import Kept
from .needle import batches, margins, needle_table
from .needle_prompts import Prompt, PromptMaker
from .reading import SwapReader
from .result import CompareSettings, Comparison
from .rule import judge
from .sensitivity import Logits, at_equal_selectivity, own_logits, theory
from .speed import ROUNDS, costs
from .tables import comparison_table, numbers, resampled_windows
from .truncated import capacity_points, truncated_swap

SEARCH = 4  # passes over its windows that a search for the capacity takes, about
_OVERHEAD = 2.0  # time of all over that of plain passes


class Study:
    """One comparison: what it measures with, and its parts in the order in which they are measured."""

    def __init__(
        self, model: LoadedModel, text: Text, settings: CompareSettings, folder: str | os.PathLike[str] | None,
        watch: Watch,
    ) -> None:  # fmt: skip
        self.started = time.perf_counter()
        self.model, self.text, self.settings, self.watch = model, text, settings, watch
        self.folder = None if folder is None else Path(folder)
        self.for_fitting: Text | None
        self.for_fitting, read = halves(text) if settings.calibrate else (None, text)
        self.windows: Windows = windows_for(model, read, (settings.length,), settings.windows, settings.seed)
        self.facts = manifest_facts(Comparison.study, model, text, settings.as_json())
        maker = PromptMaker(model.tokenizer, read, settings.seed)
        self.prompts: list[Prompt] = maker.make(settings.needle_lengths, settings.prompts)
        self.skipped = [*self.windows.skipped, *maker.skipped]
        self._logits: Logits | None = None
        self._own_losses: list[float | None] = []  # by window; own is the first that is read

    def run(self) -> Comparison:
        self._check_alternatives()
        with held(self.folder):
            error = self._check()
            settings = self.settings.as_json()
            self.kept = Kept(
                claim_folder(self.folder, Comparison.study, self.model, self.text, settings, self.watch.announce)
            )
            return self._compared(error)

    def _check_alternatives(self) -> None:
        """That each can be swapped into this model: a mistake is reported before anything is measured."""
        for spec in self.settings.alternatives:
            plan(self.model, spec)
            if self.for_fitting is not None and not is_file(spec):
                plan(self.model, fitted_rules(spec))

    def _compared(self, error: float) -> Comparison:
        with tempfile.TemporaryDirectory() as scratch:
            contenders = self._contenders(Path(scratch))
            records = {name: self._record(name, what) for name, what in contenders.items()}
            found = {name: self._needle(name, what) for name, what in contenders.items()}
            speed = self.kept.part("speed", lambda: self._speed(contenders), self._timed(len(contenders)))
        s = self.settings
        needle = needle_table(self.prompts, found, s.level, s.resamples, s.seed)
        table = comparison_table(records, speed, needle, s)
        judgements, recommendation = judge(table, len(self.windows), s.level)
        comparison = Comparison(table, needle, judgements, recommendation, self._manifest(error, records))
        if self.kept.path is not None:
            comparison.save(self.kept.path)
            comparison.to_html(self.kept.path / comparison.page)
        return comparison

    def _check(self) -> float:
        """That softmax swapped in is the model itself; gives the cost."""
        with swap(self.model, "softmax") as trial:
            error = trial.check(**model_inputs(self.model, check_tokens(self.model, self.windows)))
        start = time.perf_counter()  # the check has warmed up
        window_losses(self.model, self.windows[:1])
        a_token = (time.perf_counter() - start) / self.settings.length
        alternatives = self.settings.alternatives
        count = 1 + len(alternatives) + self.settings.calibrate * sum(not is_file(spec) for spec in alternatives)
        self.watch.say(f"{self.model.name}: softmax swapped in differs by {error:.1e} (allowed 1e-3)")
        self.watch.say(_cost(count, count * self._tokens(), a_token))
        self.watch.expect(count * (self._passes() + len(batches(self.prompts))))
        return error

    def _passes(self) -> int:
        """Of one normalizer, without the needles."""
        return (1 + SEARCH) * len(self.windows) + ROUNDS

    def _tokens(self) -> int:
        return self._passes() * self.settings.length + sum(prompt.length for prompt in self.prompts)

    def _contenders(self, scratch: Path) -> dict[str, str | None]:
        """What to swap, by the name that is shown; None is the model's own attention."""
        found: dict[str, str | None] = {BASELINE: None}
        for number, spec in enumerate(self.settings.alternatives):
            found[spec] = spec
            if self.for_fitting is not None and not is_file(spec):
                found[spec + CALIBRATED], skipped = calibrated_swap(
                    self.model, spec, self.for_fitting, length=self.settings.length, windows=self.settings.windows,
                    seed=self.settings.seed, folder=(self.kept.path or scratch) / "calibrated" / str(number),
                )  # fmt: skip
                self.skipped += [f"{spec}{CALIBRATED}: {why}" for why in skipped]
        self.places = {name: place for place, name in enumerate(found)}
        return found

    def _timed(self, contenders: int) -> Callable[[], None]:
        return lambda: self._step("time and memory", ROUNDS * contenders)

    def _part(self, name: str, what: str, make: Any, steps: int) -> dict[str, Any]:
        """Kept under the place of the normalizer: their names are no file names."""
        return self.kept.part(f"{self.places[name]}-{what}", make, lambda: self._step(f"{name}: {what}", steps))

    def _step(self, what: str, steps: int = 1) -> None:
        for _ in range(steps):
            self.watch.step(what)

    def _record(self, name: str, what: str | None) -> dict[str, Any]:
        """Losses and selectivity, capacity, and sensitivity at equal selectivity."""
        swapped = what or "softmax"
        windows = self._part(name, "windows", lambda: self._read(name, what, swapped), len(self.windows))
        if name == BASELINE:
            self._own_losses = windows["loss"]
        steps = SEARCH * len(self.windows)
        capacity = self._part(name, "capacity", lambda: self._capacity(name, swapped, windows), steps)
        equal = self._part(name, "sensitivity", lambda: self._equal(swapped), 0)
        return {"windows": windows, "capacity": capacity, "sensitivity": equal, "theory": self._theory(name)}

    def _theory(self, name: str) -> float | None:
        """What is proved holds at the parameters of the spec: nothing is known after they were fitted."""
        if name.endswith(CALIBRATED) or not is_spec(name):
            return None
        return theory("softmax" if name == BASELINE else name, self.settings.length)

    def _read(self, name: str, what: str | None, swapped: str) -> dict[str, list[float]]:
        """By window; the loss of own is that of the model as it is."""
        found: dict[str, list[float]] = {}
        with swap(self.model, swapped) as running:
            reader = SwapReader(self.model, running, self.settings.reading())
            for window in self.windows:
                for key, value in reader.read(window).items():
                    found.setdefault(key, []).append(value)
                self._step(f"{name}: windows")
        return found if what is not None else found | {"loss": window_losses(self.model, self.windows).tolist()}

    def _capacity(self, name: str, swapped: str, windows: Mapping[str, Any]) -> dict[str, Any]:
        full, own = numbers(windows["loss"]), numbers(self._own_losses)

        def losses_with(keep: int) -> list[float]:
            with swap(self.model, truncated_swap(self.model, swapped, keep)):
                found: list[float] = window_losses(
                    self.model, self.windows, lambda _: self._step(f"{name}: {keep} largest weights")
                ).tolist()
            return found

        counts = resampled_windows(len(self.windows), self.settings)
        points = capacity_points(losses_with, full, own, counts, self.settings.tau, self.settings.length)
        return {"full": windows["loss"], "points": points}

    def _equal(self, swapped: str) -> dict[str, Any]:
        if self._logits is None:
            self._logits = own_logits(self.model, self.windows, self.settings.reading())
        return at_equal_selectivity(self._logits, plan(self.model, swapped), self.settings.reading(), self.windows[0])

    def _needle(self, name: str, what: str | None) -> list[float]:
        def make() -> dict[str, Any]:
            if what is None:
                return {"margins": self._margins(name)}
            with swap(self.model, what):
                return {"margins": self._margins(name)}

        found = self._part(name, "needle", make, len(batches(self.prompts)))["margins"]
        return [math.nan if margin is None else margin for margin in found]

    def _margins(self, name: str) -> list[float]:
        return margins(self.model, self.prompts, lambda _: self._step(f"{name}: needles"))

    def _speed(self, contenders: Mapping[str, str | None]) -> dict[str, Any]:
        return costs(self.model, self.windows[0].tokens, contenders, lambda: self._step("time and memory"))

    def _manifest(self, error: float, records: Mapping[str, Any]) -> dict[str, Any]:
        infinite = [
            f"{name}: the loss is not finite in {lost} of {len(self.windows)} windows"
            for name, record in records.items()
            if (lost := sum(loss is None for loss in record["windows"]["loss"]))
        ]
        before = 0 if self.for_fitting is None else len(self.for_fitting.content)  # places are those of the whole text
        places = [
            {"length": w.length, "index": w.index, "start": before + w.start, "end": before + w.end}
            for w in self.windows
        ]
        facts = self.facts | {
            "self_check": {"error": error, "tokens": len(check_tokens(self.model, self.windows))},
            "windows": places,
            "prompts": len(self.prompts),
            "skipped": [*self.skipped, *infinite],
        }
        return finished_manifest(facts, self.kept.parts, {"total": time.perf_counter() - self.started})


def _cost(normalizers: int, tokens: int, seconds_a_token: float) -> str:
    """Measures and searches take about as long again as the passes."""
    seconds = _OVERHEAD * seconds_a_token * tokens
    needed = f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
    return f"{normalizers} normalizers, {tokens:,} tokens: about {needed}"
