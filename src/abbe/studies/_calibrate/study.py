"""calibrate: after a swap, fit every head's temperature, and what the spec lets learn, to the baseline's outputs.

text -> windows, some held out -> rows of the original model -> fit, layer by layer -> losses on the held-out windows ->
optionally fine-tuning of the same few numbers.
"""

from __future__ import annotations

import copy
import random
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from ..._arguments import whole
from ..._errors import AbbeError
from ..._float64 import has_float64
from ...models import DeviceLike, DeviceMap, DtypeLike, LoadedModel, Text, Window, evaluating, plan, swap, tap
from ...normalizers import Normalizer
from ...runs.cost import estimate, plan_memory
from ...runs.folder import claim_folder
from ...runs.inputs import FolderLike, ModelLike, Placed, TextLike, load_inputs, windows_for
from ...runs.loss import check_causal, window_losses
from ...runs.measuring import finished_manifest, manifest_facts, window_places
from ...runs.settings import settings_for
from ...runs.study import study
from ...runs.watch import Watch, watching
from ...runs.window import allowed_error, check_model, check_tokens
from ...words.names import BASELINE, FINETUNED, FITTED, SWAPPED
from .._shared.calibrated import learnable_rules
from .._shared.fitting import LayerRows, RowReader, fine_tune, portions
from . import layers
from .layers import FittedGroup
from .result import (
    CALIBRATED,
    TUNED,
    Calibration,
    CalibrationSettings,
    calibration_findings,
    opened_calibration,
    stage_losses,
)

_LENGTH = 512
_LOSSES, _TUNING = "losses", "tuning"  # parts in the folder, beside the layers
_MEASURED = "measured"  # in a shared folder: both are complete
_TUNING_PASSES = 4  # the time of a step of fine-tuning, in forward passes


@study(Calibration, named_by="normalizer", opened=opened_calibration)
def calibrate(
    model: ModelLike = "embedded", text: TextLike | None = None, *,
    normalizer: str | Mapping[str, str] = "entmax:alpha=1.5", windows: int = 8, held_out: int = 8,
    length: int | None = None, queries: int | str = 32, steps: int = 20, finetune: int = 0,
    seed: int = 0, level: float = 0.95, resamples: int = 1000, folder: FolderLike | None = None, tokenizer: Any = None,
    device: DeviceLike | None = None, dtype: DtypeLike | None = None, device_map: DeviceMap | None = None,
    progress: bool = True,
) -> Calibration:  # fmt: skip
    """Swap a normalizer in and fit its temperature head by head to the outputs of the unchanged model.

    Give a model another normalizer, fitted head by head to the attention outputs of the baseline.

    Each head gets a temperature. Its other parameters (alpha, b, beta, ...) stay as the spec has them; only those of a
    normalizer with learn=true are fitted, too. The fit minimises the squared difference from the original output of the
    head, on the original model's logits and values: a small error means that the head computes as before. An encoder is
    fitted likewise, but has no loss and cannot be fine-tuned.

    Args:
        model, text: as for `diagnose`.
        normalizer: its spec, or patterns with their specs, as for `swap`.
        windows: how many windows to fit on.
        held_out: how many further windows to measure the losses on, which share no text with the others; fewer than
            six give numbers, but cannot show a change.
        length: of all windows, in tokens; 512 by default, or the model's context if that is less.
        queries: how many queries per window, one from each of as many equal stretches, or "all".
        steps: of the fit, at most.
        finetune: further steps of Adam on the loss of the windows, end to end, for the same parameters only.
        seed: random seed; the same seed gives the same numbers.
        level: coverage of the intervals, in (0, 1).
        resamples: number of bootstrap resamples, >= 1.
        folder: keep layers, losses and the fitted swap there; an interrupted run is resumed.
        tokenizer, device, dtype, device_map, progress: as for `diagnose`.

    Returns:
        The fitted normalizers, and losses and errors before and after.

    Raises:
        AbbeError: an argument is wrong, the text is too short, or the self-check fails; one line says what to do.

    Commands:
        abbe calibrate --with entmax:alpha=1.5
        abbe calibrate smollm2 --with topk:k=32 --text book.txt --finetune 50 --out fitted
        abbe calibrate --with 'layers.2-5=sparsemax; layers.0.heads.3=topk:k=32' --figures figures

    Examples:
        >>> model = abbe.load("embedded")
        >>> small = {"length": 32, "windows": 2, "held_out": 2, "steps": 2, "progress": False}
        >>> calibration = abbe.calibrate(model, normalizer="topk:k=8", **small)
        >>> [stage.stage for stage in calibration.losses]
        ['baseline', 'swapped', 'calibrated']
        >>> with abbe.swap(model, calibration.normalizers):
        ...     _ = model(input_ids=torch.arange(16)[None])
    """
    started = time.perf_counter()
    rules = learnable_rules(normalizer)
    place, source, loaded = load_inputs(model, text, folder, tokenizer, progress, Placed(device, dtype, device_map))
    _check_devices(loaded)
    length = min(_LENGTH, loaded.context or _LENGTH) if length is None else whole("length", length)
    base = settings_for(
        loaded.context, lengths=[length], windows=windows, queries=queries, sizes=None, vectors="value",
        normalizer=None, temperatures=(), seed=seed, level=level, resamples=resamples,
    )  # fmt: skip
    settings = CalibrationSettings(
        normalizer, base.windows, whole("held_out", held_out), whole("steps", steps), whole("finetune", finetune), base
    )
    job = _Calibrating(loaded, source, settings, rules)
    with watching(progress) as watch, evaluating(loaded.network):
        return job.run(place, watch, started)


def _check_devices(model: LoadedModel) -> None:
    """The fit sums in float64 on the devices of the normalizers."""
    lacking = [place for place in model.devices.split("+") if not has_float64(torch.device(place))]
    if lacking:
        raise AbbeError(f"{lacking[0]} has no float64, which the fit needs for its sums: calibrate with device cpu")


class _Calibrating:
    """One calibration, from the windows to the result."""

    def __init__(
        self, model: LoadedModel, text: Text, settings: CalibrationSettings, rules: str | Mapping[str, str]
    ) -> None:
        self.model, self.text, self.settings = model, text, settings
        self.skipped: list[str] = []
        self.no_loss = self._why_no_loss()
        self.windows, self.held_out = self._cut()
        self.groups = layers.groups_to_fit(plan(model, rules))
        self.heads = max(len(group.heads) for groups in self.groups.values() for group in groups)

    def run(self, place: Path | None, watch: Watch, started: float) -> Calibration:
        with tap(self.model) as open_tap:
            pass_seconds = self._check(open_tap, watch)
            self.parts = claim_folder(
                place, Calibration.study, self.model, self.text, self.settings.as_json(), watch.announce
            )
            groups = self._fitted(open_tap, pass_seconds, watch)
        normalizers = {group.pattern: group.normalizer for group in groups}
        fitted = layers.parameters_table(groups)  # now: fine-tuning changes them
        losses = self._losses(normalizers, watch)
        groups = self._judged(groups, watch) if self.settings.finetune else groups
        heads, parameters = layers.heads_table(groups), layers.parameters_table(groups)
        level = self.settings.base.level
        folder, name = self.parts.folder, TUNED if self.settings.finetune else CALIBRATED
        return Calibration(
            spec=self.settings.rules,
            normalizers=normalizers,
            losses=losses,
            table=heads,
            parameters=parameters,
            findings=calibration_findings(losses, heads, fitted, len(self.held_out), level),
            manifest=self._manifest(time.perf_counter() - started),
            file=None if folder is None else folder / name,
        )

    def _why_no_loss(self) -> str | None:
        try:
            check_causal(self.model, "fine-tuning" if self.settings.finetune else "the loss")
        except AbbeError as error:
            if self.settings.finetune:
                raise
            return f"losses: {error}"
        return None

    def _cut(self) -> tuple[list[Window], list[Window]]:
        """Windows to fit on and windows held out, drawn from all over the text; no two overlap."""
        settings = self.settings
        wanted = settings.windows + settings.held_out
        cut = windows_for(self.model, self.text, settings.base.lengths, wanted, settings.base.seed)
        if len(cut) < 2:
            raise AbbeError(
                f"{self.text.name} has room for {len(cut)} window of {self.length} tokens, but one to fit on and one "
                "held out are needed: give more text or a smaller length"
            )
        self.skipped += cut.skipped
        held = min(settings.held_out, max(1, len(cut) * settings.held_out // wanted))
        generator = random.Random(f"abbe calibrate, seed {settings.base.seed}")
        draws = [generator.random() for _ in cut]
        chosen = set(sorted(range(len(cut)), key=draws.__getitem__)[:held])
        return [w for w in cut if w.index not in chosen], [w for w in cut if w.index in chosen]

    def _fitted(self, open_tap: Any, pass_seconds: float, watch: Watch) -> list[FittedGroup]:
        """Every layer is a part, fitted to the rows of the original model."""
        by_part = {layers.layer_part(groups): groups for groups in self.groups.values()}
        left = [part for part, groups in by_part.items() if layers.kept_layer(self.parts, groups) is None]
        self._say_cost(pass_seconds, len(left), watch)
        rows = _Rows(self, open_tap, [by_part[part][0].name for part in left])

        def make(part: str) -> None:
            groups = copy.deepcopy(by_part[part])  # a fit that fails halfway has changed its normalizers
            layers.keep_layer(self.parts, layers.fit_layer(groups, rows.of(groups[0].name), self.settings.steps))

        self.parts.each(
            left,
            make,
            lambda part: watch.step(f"fitting {by_part[part][0].name}"),
            lambda part: layers.kept_layer(self.parts, by_part[part]) is not None,
        )
        kept = {layer: layers.kept_layer(self.parts, groups) for layer, groups in self.groups.items()}
        return [group for layer in sorted(kept) for group in kept[layer] or ()]

    def _judged(self, groups: Sequence[FittedGroup], watch: Watch) -> list[FittedGroup]:
        """Errors and zeros after fine-tuning, on the same rows, which are read again."""
        by_layer: dict[str, list[FittedGroup]] = {}
        for group in groups:
            by_layer.setdefault(group.name, []).append(group)

        def judge_one(name: str, rows: LayerRows) -> None:
            by_layer[name] = layers.judge_layer(by_layer[name], rows)
            watch.step(f"errors of {name}")

        with tap(self.model) as open_tap:
            rows = _Rows(self, open_tap, list(by_layer))
            for name in by_layer:
                judge_one(name, rows.of(name))
        return [group for some in by_layer.values() for group in some]

    @property
    def length(self) -> int:
        return self.settings.base.lengths[0]

    def _check(self, open_tap: Any, watch: Watch) -> float:
        """Check memory and model; returns the seconds of a pass."""
        self.probe, queries = check_tokens(self.model, self.windows), self.settings.base.queries
        plan_memory(self.model, [self.length], len(self.probe), watch.say, queries=queries, losses=self.no_loss is None)
        started = time.perf_counter()
        self.error = check_model(self.model, open_tap, self.probe)
        return (time.perf_counter() - started) / 2

    def _say_cost(self, pass_seconds: float, to_fit: int, watch: Watch) -> None:
        steps, tuned = self.settings.finetune, bool(self.settings.finetune)
        stages = 0 if self.no_loss else 3 + tuned
        passes = (1 + tuned) * len(self.windows) + stages * len(self.held_out) + _TUNING_PASSES * steps
        cost = estimate(self.model, [self.length] * passes, len(self.probe), pass_seconds, 1.0, losses=stages > 0)
        watch.say_checked(self.model.name, self.error, allowed_error(self.model))
        watch.say(f"{to_fit} of {len(self.groups)} layers to fit, after that {cost}")
        watch.expect(to_fit + stages * len(self.held_out) + steps + tuned * len(self.groups))

    def _losses(self, normalizers: Mapping[str, Normalizer], watch: Watch) -> Any:
        """Measure every stage; the normalizers stay as they are after the last one."""
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

    def _manifest(self, seconds: float) -> dict[str, Any]:
        facts = manifest_facts(Calibration.study, self.model, self.text, self.settings.as_json()) | {
            "self_check": {"error": self.error, "tokens": len(self.probe)},
            "windows": window_places(self.windows),
            "held_out": window_places(self.held_out),
            "skipped": self.skipped,
        }
        return finished_manifest(facts, self.parts, {"total": seconds})


class _Rows:
    """The rows of layers, read from the original model in portions that fit in memory, and dropped once used."""

    def __init__(self, job: _Calibrating, open_tap: Any, names: Sequence[str]) -> None:
        queries = min(job.settings.base.queries or job.length, job.length)
        self._portions = list(portions(list(names), job.heads, len(job.windows), queries, job.length))
        self._reader = RowReader(job.model, open_tap, job.windows, job.settings.base)
        self._read: dict[str, LayerRows] = {}

    def of(self, name: str) -> LayerRows:
        if name not in self._read:
            self._read = self._reader.read(next(portion for portion in self._portions if name in portion))
        if name not in self._read:
            raise AbbeError(f"{name} was not called on this text: exclude it with a pattern")
        return self._read.pop(name)
