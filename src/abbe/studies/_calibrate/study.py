"""calibrate: after a swap, fit every head's temperature, and what the spec lets learn, to the baseline's outputs.

text -> windows, some held out -> rows of the original model -> fit, layer by layer -> losses on the held-out windows ->
optionally fine-tuning of the same few numbers.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import torch

from ..._arguments import whole
from ..._errors import AbbeError
from ..._float64 import has_float64
from ..._locks import held
from ...models import DeviceLike, DeviceMap, DtypeLike, LoadedModel, evaluating
from .._engine.calibrated import learnable_rules
from .._engine.inputs import FolderLike, ModelLike, Placed, TextLike, load_inputs
from .._engine.settings import settings_for
from .._engine.sharing.calls import shareable
from .._engine.watch import watching
from .job import Job
from .result import Calibration, CalibrationSettings

_LENGTH = 512


@shareable
def calibrate(
    model: ModelLike = "embedded", text: TextLike | None = None, *,
    normalizer: str | Mapping[str, str] = "entmax:alpha=1.5", windows: int = 8, held_out: int = 8,
    length: int | None = None, queries: int | str = 32, steps: int = 20, finetune: int = 0,
    seed: int = 0, level: float = 0.95, resamples: int = 1000, folder: FolderLike | None = None, tokenizer: Any = None,
    device: DeviceLike | None = None, dtype: DtypeLike | None = None, device_map: DeviceMap | None = None,
    progress: bool = True,
) -> Calibration:  # fmt: skip
    """Give a model another normalizer, fitted head by head to the attention outputs of the baseline.

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
        level: of the intervals, in (0, 1).
        resamples: of the bootstrap, >= 1.
        folder: keep layers, losses and the fitted swap there; an interrupted run is resumed.
        tokenizer, device, dtype, device_map, progress: as for `diagnose`.

    Returns:
        The fitted normalizers, and losses and errors before and after.

    Raises:
        AbbeError: an argument is wrong, the text is too short, or the self-check fails; one line says what to do.

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
    job = Job(loaded, source, settings, rules)
    with held(place), watching(progress) as watch, evaluating(loaded.network):
        return job.run(place, watch, started)


def _check_devices(model: LoadedModel) -> None:
    """The fit sums in float64 on the devices of the normalizers."""
    lacking = [place for place in model.devices.split("+") if not has_float64(torch.device(place))]
    if lacking:
        raise AbbeError(f"{lacking[0]} has no float64, which the fit needs for its sums: calibrate with device cpu")
