"""A calibration at work: rows of the original model -> fit, layer by layer -> losses on the held-out windows."""

from __future__ import annotations

import copy
import random
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..._errors import AbbeError
from ...models import LoadedModel, Text, Window, plan, swap, tap
from ...normalizers import Normalizer
from ...words.names import BASELINE, FINETUNED, FITTED, SWAPPED
from .._engine.cost import estimate
from .._engine.fitting.rows import LayerRows, RowReader, portions
from .._engine.fitting.tune import fine_tune
from .._engine.folder import claim_folder
from .._engine.inputs import windows_for
from .._engine.loss import check_causal, window_losses
from .._engine.measuring import finished_manifest, manifest_facts, window_places
from .._engine.memory import plan_memory
from .._engine.parts import JSON, TENSORS
from .._engine.sharing.board import Unit
from .._engine.sharing.crew import leave_to_merge, share, unit_in
from .._engine.watch import Watch
from .._engine.window import allowed_error, check_model, check_tokens
from .findings import calibration_findings
from .layers import (
    FittedGroup,
    fit_layer,
    groups_to_fit,
    heads_table,
    judge_layer,
    keep_layer,
    kept_layer,
    layer_part,
    parameters_table,
)
from .result import CALIBRATED, TUNED, Calibration, CalibrationSettings, stage_losses

_LOSSES, _TUNING = "losses", "tuning"  # parts in the folder, beside the layers
_MEASURED = "measured"  # of a shared folder: says that both are complete
_TUNING_PASSES = 4  # a step of fine-tuning takes about as long as so many forward passes


class Job:
    """One calibration, from the windows to the result."""

    def __init__(
        self, model: LoadedModel, text: Text, settings: CalibrationSettings, rules: str | Mapping[str, str]
    ) -> None:
        self.model, self.text, self.settings = model, text, settings
        self.skipped: list[str] = []
        self.no_loss = self._why_no_loss()
        self.windows, self.held_out = self._cut()
        self.groups = groups_to_fit(plan(model, rules))
        self.heads = max(len(group.heads) for groups in self.groups.values() for group in groups)

    def run(self, place: Path | None, watch: Watch, started: float) -> Calibration:
        with tap(self.model) as open_tap:
            a_pass = self._check(open_tap, watch)
            self.parts = claim_folder(
                place, Calibration.study, self.model, self.text, self.settings.as_json(), watch.announce
            )
            self._share_layers(open_tap, watch)
            groups = self._fitted(open_tap, a_pass, watch)
        normalizers: dict[str, Normalizer] = {group.pattern: group.made for group in groups}
        self._share_losses(normalizers, watch)
        leave_to_merge()
        losses = self._losses(normalizers, watch)
        groups = self._judged(groups, watch) if self.settings.finetune else groups
        heads, parameters = heads_table(groups), parameters_table(groups)
        calibration = Calibration(
            spec=self.settings.rules,
            normalizers=normalizers,
            losses=losses,
            table=heads,
            parameters=parameters,
            findings=calibration_findings(
                losses, heads, set(parameters["parameter"]), len(self.held_out), self.settings.base.level
            ),
            manifest=self._manifest(time.perf_counter() - started),
            file=self._file(TUNED if self.settings.finetune else CALIBRATED),
        )
        if self.parts.folder is not None:
            calibration.save(self.parts.folder)
        return calibration

    def _why_no_loss(self) -> str | None:
        try:
            check_causal(self.model, "fine-tuning" if self.settings.finetune else "the loss")
        except AbbeError as error:
            if self.settings.finetune:
                raise
            return f"losses: {error}"
        return None

    def _cut(self) -> tuple[list[Window], list[Window]]:
        """Windows to fit on and windows held out, drawn from all over the text; no two share a token of it."""
        settings = self.settings
        wanted = settings.windows + settings.held_out
        cut = windows_for(self.model, self.text, settings.base.lengths, wanted, settings.base.seed)
        if len(cut) < 2:
            raise AbbeError(
                f"{self.text.name} has room for {len(cut)} window of {settings.base.lengths[0]} tokens, but one to fit "
                "on and one held out are needed: give more text or a smaller length"
            )
        self.skipped += cut.skipped
        held = min(settings.held_out, max(1, len(cut) * settings.held_out // wanted))
        order = sorted(range(len(cut)), key=_drawn(settings.base.seed, len(cut)).__getitem__)
        chosen = set(order[:held])
        return [w for w in cut if w.index not in chosen], [w for w in cut if w.index in chosen]

    def _share_layers(self, open_tap: Any, watch: Watch) -> None:
        """In a shared folder every layer is a part."""
        units = {self._unit(layer_part(groups), TENSORS): groups for groups in self.groups.values()}
        by_name = {unit.name: groups for unit, groups in units.items()}

        def make(unit: Unit) -> None:
            groups = copy.deepcopy(by_name[unit.name])  # a fit that failed halfway has changed its normalizers

            def fit_one(name: str, rows: LayerRows) -> None:
                keep_layer(self.parts, fit_layer(groups, rows, self.settings.steps))

            self._for_rows(open_tap, [groups[0].name], fit_one)

        share(list(units), make, watch)

    def _share_losses(self, normalizers: Mapping[str, Normalizer], watch: Watch) -> None:
        """All losses and the fine-tuning are one part: each stage goes on from the one before."""

        def make(unit: Unit) -> None:
            self._losses(normalizers, watch)
            self.parts.keep_json(_MEASURED, {})

        share([self._unit(_MEASURED, JSON)], make)

    def _unit(self, part: str, suffix: str) -> Unit:
        folder = self.parts.folder or Path()
        return unit_in(folder, part, [folder / f"{part}{suffix}"])

    def _fitted(self, open_tap: Any, a_pass: float, watch: Watch) -> list[FittedGroup]:
        done: dict[int, list[FittedGroup]] = {}
        for layer, groups in self.groups.items():
            if (kept := kept_layer(self.parts, groups)) is not None:
                done[layer] = kept
        left = {groups[0].name: layer for layer, groups in self.groups.items() if layer not in done}
        self._say_cost(a_pass, len(left), watch)

        def fit_one(name: str, rows: LayerRows) -> None:
            done[left[name]] = fit_layer(self.groups[left[name]], rows, self.settings.steps)
            keep_layer(self.parts, done[left[name]])
            watch.step(f"fitting {name}")

        self._for_rows(open_tap, left, fit_one)
        return [group for layer in sorted(done) for group in done[layer]]

    def _judged(self, groups: Sequence[FittedGroup], watch: Watch) -> list[FittedGroup]:
        """What fine-tuning has made of errors and zeros, on the same rows: they are read again."""
        layers: dict[str, list[FittedGroup]] = {}
        for group in groups:
            layers.setdefault(group.name, []).append(group)

        def judge_one(name: str, rows: LayerRows) -> None:
            layers[name] = judge_layer(layers[name], rows)
            watch.step(f"errors of {name}")

        with tap(self.model) as open_tap:
            self._for_rows(open_tap, layers, judge_one)
        return [group for some in layers.values() for group in some]

    def _for_rows(self, open_tap: Any, names: Collection[str], use: Callable[[str, LayerRows], None]) -> None:
        """The rows of each of these layers, one after the other; no more are held than fit in memory."""
        reader = RowReader(self.model, open_tap, self.windows, self.settings.base)
        queries = min(self.settings.base.queries or self._length, self._length)
        for some in portions(list(names), self.heads, len(self.windows), queries, self._length):
            rows = reader.read(some)
            for name in some:
                if name not in rows:
                    raise AbbeError(f"{name} was not called on this text: leave it out by a pattern")
                use(name, rows.pop(name))

    @property
    def _length(self) -> int:
        return self.settings.base.lengths[0]

    def _check(self, open_tap: Any, watch: Watch) -> float:
        """Check memory and model; how long a pass takes."""
        tokens, queries = len(check_tokens(self.model, self.windows)), self.settings.base.queries
        plan_memory(self.model, [self._length], tokens, watch.say, queries=queries, losses=self.no_loss is None)
        checked = time.perf_counter()
        self.error = check_model(self.model, open_tap, check_tokens(self.model, self.windows))
        return (time.perf_counter() - checked) / 2

    def _say_cost(self, a_pass: float, layers: int, watch: Watch) -> None:
        """Say the cost, show the bar."""
        probe = check_tokens(self.model, self.windows)
        tuned = bool(self.settings.finetune)
        stages = 0 if self.no_loss else 3 + tuned
        passes = (1 + tuned) * len(self.windows) + stages * len(self.held_out) + _TUNING_PASSES * self.settings.finetune
        cost = estimate(self.model, [self._length] * passes, len(probe), a_pass, 1.0, losses=stages > 0)
        watch.say_checked(self.model.name, self.error, allowed_error(self.model))
        watch.say(f"{layers} of {len(self.groups)} layers to fit, after that {cost}")
        watch.expect(layers + stages * len(self.held_out) + self.settings.finetune + tuned * len(self.groups))

    def _losses(self, normalizers: Mapping[str, Normalizer], watch: Watch) -> Any:
        """Measure every stage; leaves the normalizers as they are after the last one."""
        losses: dict[str, list[float]] = self.parts.json(_LOSSES) or {}
        if self.no_loss is None:
            self._measure(BASELINE, losses, watch)
            with swap(self.model, self.settings.rules):
                self._measure(SWAPPED, losses, watch)
        else:
            self.skipped.append(self.no_loss)
        with swap(self.model, normalizers) as handle:
            if self.no_loss is None:
                self._measure(FITTED, losses, watch)
            self._save(handle, CALIBRATED)
            if self.settings.finetune:
                kept = self.parts.tensors(_TUNING)
                fine_tune(
                    self.model, list(handle.parameters()), self.windows, self.settings.finetune, kept and kept[0],
                    lambda state: self.parts.keep_tensors(_TUNING, state),
                    lambda step: watch.step(f"fine-tuning, step {step}"),
                )  # fmt: skip
                self._measure(FINETUNED, losses, watch)
                self._save(handle, TUNED)
        order = [stage for stage in (BASELINE, SWAPPED, FITTED, FINETUNED) if stage in losses]
        return stage_losses({stage: losses[stage] for stage in order}, self.settings.base)

    def _measure(self, stage: str, losses: dict[str, list[float]], watch: Watch) -> None:
        if stage not in losses:
            losses[stage] = window_losses(self.model, self.held_out, lambda _: watch.step(f"loss, {stage}")).tolist()
            self.parts.keep_json(_LOSSES, losses)

    def _save(self, handle: Any, name: str) -> None:
        if self.parts.folder is not None:
            handle.save(self.parts.folder / name)

    def _file(self, name: str) -> Path | None:
        return None if self.parts.folder is None else self.parts.folder / name

    def _manifest(self, seconds: float) -> dict[str, Any]:
        facts = manifest_facts(Calibration.study, self.model, self.text, self.settings.as_json()) | {
            "self_check": {"error": self.error, "tokens": len(check_tokens(self.model, self.windows))},
            "windows": window_places(self.windows),
            "held_out": window_places(self.held_out),
            "skipped": self.skipped,
        }
        return finished_manifest(facts, self.parts, {"total": seconds})


def _drawn(seed: int, count: int) -> list[float]:
    """A number for each window; the smallest are held out."""
    generator = random.Random(f"abbe calibrate, seed {seed}")
    return [generator.random() for _ in range(count)]
