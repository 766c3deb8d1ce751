"""calibrate: after a swap, fit every head's temperature, and what the spec lets learn, to the baseline's outputs.

text -> windows, some held out -> rows of the original model -> fit, layer by layer -> losses on the held-out windows ->
optionally fine-tuning of the same few numbers.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import polars as pl
import torch
from torch import Tensor

from ..._arguments import whole
from ..._errors import AbbeError
from ..._tensors import has_float64
from ...models import DeviceLike, DeviceMap, DtypeLike, Tap, Window, plan, swap, tap
from ...normalizers import Learned, Normalizer
from ...runs.cost import estimate, plan_memory
from ...runs.inputs import FolderLike, ModelLike, Placed, Settings, TextLike, check_softmax, settings_for, windows_for
from ...runs.loss import check_causal, window_losses
from ...runs.measuring import Job, at_work, window_places
from ...runs.study import study
from ...words.names import BASELINE
from .._shared.fitting import LayerRows, RowReader, fine_tune, fit, judge, learnable_rules
from .result import CALIBRATED, FINETUNED, FITTED, SWAPPED, TUNED, Calibration, calibration_findings, stage_losses

_LENGTH = 512
_LOSSES, _TUNING = "losses", "tuning"  # parts in the folder, beside the layers
_TUNING_PASSES = 4  # the time of a step of fine-tuning, in forward passes
T = TypeVar("T")


@study(Calibration, named_by="normalizer")
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
    fitted = learnable_rules(normalizer)
    with at_work(Calibration, model, text, folder, tokenizer, progress, Placed(device, dtype, device_map)) as job:
        check_softmax(job.model, "calibrating")
        lacking = [name for name in job.model.devices.split("+") if not has_float64(torch.device(name))]
        if lacking:
            raise AbbeError(f"{lacking[0]} has no float64, which the fit needs for its sums: calibrate with device cpu")
        context = job.model.context
        length = min(_LENGTH, context or _LENGTH) if length is None else whole("length", length)
        base = settings_for(
            context, lengths=[length], windows=whole("windows", windows, least=1), queries=queries, seed=seed,
            level=level, resamples=resamples,
        )  # fmt: skip
        # What is fitted is not in the spec: a folder of a version that fitted something else is another run.
        spec = normalizer if isinstance(normalizer, str) else dict(normalizer)
        settings = {"spec": spec, "fitted": fitted, "length": length, "held_out": whole("held_out", held_out, least=1)}
        settings |= {"steps": whole("steps", steps, least=0), "finetune": whole("finetune", finetune, least=0)}
        settings |= {key: base.as_json()[key] for key in ("windows", "queries", "seed", "level", "resamples")}
        return _Work(job, base, settings).run()


@dataclass(eq=False)
class _Group:
    """Heads of one layer that share a normalizer.

    Attributes:
        start: values of its parameters before the fit.
        columns: of the table of heads: numbers per head.
    """

    layer: int
    name: str
    heads: tuple[int, ...]
    normalizer: Normalizer
    start: dict[str, list[float]]
    columns: dict[str, Tensor] = field(default_factory=dict)

    def at(self, rows: LayerRows, work: Callable[..., T], *more: Any) -> T:
        """Run `work` with the normalizer on the device of the rows, which may differ from that of its layer."""
        home = next((parameter.device for parameter in self.normalizer.parameters()), None)
        result = work(self.normalizer.to(rows.logits.device), rows.of_heads(self.heads), *more)
        if home is not None:
            self.normalizer.to(home)
        return result


def values_of(normalizer: Normalizer) -> dict[str, list[float]]:
    """Each learned parameter, such as "t", "alpha" or "a.alpha" of a part a, with its value for each head."""
    return {
        ".".join(part for part in path.split(".") if part not in ("learned", "of")): (
            learned.value().detach().cpu().double().flatten().tolist()
        )
        for path, learned in normalizer.named_modules()
        if isinstance(learned, Learned)
    }


def _heads_table(groups: Sequence[_Group]) -> pl.DataFrame:
    rows = []
    for group in groups:
        where = {"layer": group.layer, "name": group.name, "spec": group.normalizer.initial_spec}
        numbers = torch.stack([column.cpu() for column in group.columns.values()], -1).tolist()
        for head, of_head in zip(group.heads, numbers, strict=True):
            rows.append(where | {"head": head} | dict(zip(group.columns, of_head, strict=True)))
    return Calibration.frame().of(rows).sort("layer", "head")


def _parameters_table(groups: Sequence[_Group]) -> pl.DataFrame:
    rows = [
        (group.layer, head, name, start, value)
        for group in groups
        for name, values in values_of(group.normalizer).items()
        for head, start, value in zip(group.heads, group.start[name], values, strict=True)
    ]
    return Calibration.frame("parameters").of(rows).sort("layer", "head", "parameter")


class _Work:
    """One calibration, from the windows to the result."""

    def __init__(self, job: Job, base: Settings, settings: Mapping[str, Any]) -> None:
        self.job, self.model, self.watch, self.base, self.settings = job, job.model, job.watch, base, settings
        self.length, self.finetune = base.lengths[0], settings["finetune"]
        self.windows, self.held_out, self.skipped = self._cut()
        self.has_loss = True
        try:
            check_causal(self.model, "fine-tuning" if self.finetune else "the loss")
        except AbbeError as error:
            if self.finetune:
                raise
            self.has_loss = False
            self.skipped.append(f"losses: {error}")
        self.layers: dict[str, list[_Group]] = {}  # by part; heads that keep the baseline's attention are left out
        for layer, (name, groups) in enumerate(plan(self.model, settings["fitted"]).items()):
            for group in groups:
                if (made := group.normalizer) is not None:
                    fitted = _Group(layer, name, group.heads, made, values_of(made))
                    self.layers.setdefault(f"layers/{layer}", []).append(fitted)

    def run(self) -> Calibration:
        job = self.job
        plan_memory(self.model, self.windows, self.watch.say, queries=self.base.queries, losses=self.has_loss)
        job.describe(self.settings)
        with tap(self.model) as open_tap:
            timed = job.check(open_tap, self.windows)
            job.claim()
            self.parts = job.parts
            self._fit(open_tap, timed)
        groups = [group for layer in self.layers.values() for group in layer]
        normalizers = {f"layers.{one.layer}.heads.{','.join(map(str, one.heads))}": one.normalizer for one in groups}
        fitted = _parameters_table(groups)  # now: fine-tuning changes them
        losses = stage_losses(self._losses(normalizers), self.base)
        if self.finetune:
            self._judge_tuned()
        table, name = _heads_table(groups), TUNED if self.finetune else CALIBRATED
        places = {"windows": window_places(self.windows), "held_out": window_places(self.held_out)}
        return Calibration(
            spec=self.settings["spec"],
            normalizers=normalizers,
            losses=losses,
            table=table,
            parameters=_parameters_table(groups),
            findings=calibration_findings(losses, table, fitted, len(self.held_out), self.base.level),
            manifest=job.manifest(places | {"skipped": self.skipped}),
            file=None if job.folder is None else job.folder / name,
        )

    def _cut(self) -> tuple[list[Window], list[Window], list[str]]:
        """Windows to fit on and windows held out, drawn from all over the text; no two overlap."""
        wanted = self.base.windows + self.settings["held_out"]
        cut = windows_for(self.model, self.job.text, self.base.lengths, wanted, self.base.seed)
        if len(cut) < 2:
            raise AbbeError(
                f"{self.job.text.name} has room for {len(cut)} window of {self.length} tokens, but one to fit on and "
                "one held out are needed: give more text or a smaller length"
            )
        held = min(self.settings["held_out"], max(1, len(cut) * self.settings["held_out"] // wanted))
        generator = random.Random(f"abbe calibrate, seed {self.base.seed}")
        draws = [generator.random() for _ in cut]
        chosen = set(sorted(range(len(cut)), key=draws.__getitem__)[:held])
        windows, held_out = ([w for w in cut if (w.index in chosen) == out] for out in (False, True))
        return windows, held_out, list(cut.skipped)

    def _fit(self, open_tap: Tap, timed: tuple[int, float]) -> None:
        """Every layer is a part, fitted to the rows of the original model; `timed` are tokens and seconds of a pass."""
        left = [part for part in self.layers if not self._load(part)]
        steps, tuned = self.finetune, bool(self.finetune)
        stages = 3 + tuned if self.has_loss else 0
        passes = (1 + tuned) * len(self.windows) + stages * len(self.held_out) + _TUNING_PASSES * steps
        cost = estimate(self.model, [self.length] * passes, *timed, 1.0, losses=self.has_loss)
        self.watch.say(f"{len(left)} of {len(self.layers)} layers to fit, after that {cost}")
        self.watch.expect(len(left) + stages * len(self.held_out) + steps + tuned * len(self.layers))
        reader = self._reader(open_tap, left)

        def make(part: str) -> None:
            tensors, of_layer = dict[str, Tensor](), reader.rows(self.layers[part][0].name)
            # A copy: a fit that fails halfway has changed its normalizers.
            for number, group in enumerate(copy.deepcopy(self.layers[part])):
                facts = group.at(of_layer, fit, self.settings["steps"])
                tensors |= {f"{number}.state.{key}": value for key, value in group.normalizer.state_dict().items()}
                tensors |= {f"{number}.{key}": value for key, value in vars(facts).items()}
            self.parts.keep_tensors(part, tensors)

        self.parts.each(left, make, lambda part: self.watch.step(f"fitting {self.layers[part][0].name}"), self._load)
        for part in left:
            self._load(part)

    def _reader(self, open_tap: Tap, parts: Sequence[str]) -> RowReader:
        heads = max(len(group.heads) for groups in self.layers.values() for group in groups)
        names = [self.layers[part][0].name for part in parts]
        return RowReader(self.model, open_tap, self.windows, self.base, names, heads)

    def _load(self, part: str) -> bool:
        """Take over what an earlier call fitted, if the part is there."""
        if (kept := self.parts.tensors(part)) is None:
            return False
        for number, group in enumerate(self.layers[part]):
            of_group = {key.partition(".")[2]: x for key, x in kept[0].items() if key.startswith(f"{number}.")}
            state = {key.removeprefix("state."): x for key, x in of_group.items() if key.startswith("state.")}
            group.normalizer.load_state_dict(state)
            group.columns = {key: x for key, x in of_group.items() if not key.startswith("state.")}
        return True

    def _losses(self, normalizers: Mapping[str, Normalizer]) -> dict[str, list[float]]:
        """Losses of the held-out windows at every stage; the normalizers stay as they are after the last one."""
        losses: dict[str, list[float]] = self.parts.json(_LOSSES) or {}
        folder = self.parts.folder

        def measure(stage: str) -> None:
            if self.has_loss and stage not in losses:
                of_windows = window_losses(self.model, self.held_out, lambda _: self.watch.step(f"loss, {stage}"))
                losses[stage] = of_windows.tolist()
                self.parts.keep_json(_LOSSES, losses)

        measure(BASELINE)
        with swap(self.model, self.settings["spec"]):
            measure(SWAPPED)
        with swap(self.model, normalizers) as handle:
            measure(FITTED)
            if folder is not None:
                handle.save(folder / CALIBRATED)
            if self.finetune:
                kept = self.parts.tensors(_TUNING)
                fine_tune(
                    self.model, list(handle.parameters()), self.windows, self.finetune, kept and kept[0],
                    lambda state: self.parts.keep_tensors(_TUNING, state),
                    lambda step: self.watch.step(f"fine-tuning, step {step}"),
                )  # fmt: skip
                measure(FINETUNED)
                if folder is not None:
                    handle.save(folder / TUNED)
        return {stage: losses[stage] for stage in (BASELINE, SWAPPED, FITTED, FINETUNED) if stage in losses}

    def _judge_tuned(self) -> None:
        """Errors and zeros after fine-tuning, on the same rows, which are read again."""
        with tap(self.model) as open_tap:
            reader = self._reader(open_tap, list(self.layers))
            for groups in self.layers.values():
                of_layer = reader.rows(groups[0].name)
                for group in groups:
                    tuned = group.at(of_layer, judge)
                    group.columns |= dict(zip(("error_tuned", "zeros_tuned"), tuned, strict=True))
                self.watch.step(f"errors of {groups[0].name}")
