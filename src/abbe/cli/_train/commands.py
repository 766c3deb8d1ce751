"""The commands below `abbe train`, one for each experiment."""

from __future__ import annotations

import math
from typing import Annotated, Any

from ..._errors import AbbeError
from .. import _complete
from .._options import TextFiles, measured, numbers
from .._study import Measured, Shared, study
from .options import Normalizers, Normed, Optimizers, Quick, Rates, Seeds, Steps, Temperature, Workers

GROUP = "train"
_JSON = "Print runs, summary, early warnings, findings and manifest as JSON; the curves are in the folder."


@study(json=_JSON, group=GROUP)
def temperature(
    *,
    task: Annotated[
        str, measured("What is learned: recall, mqar, maximum or text.", autocompletion=_complete.tasks)
    ] = "recall",
    temperatures: Annotated[
        str | None,
        measured("Temperatures: numbers, learned, or schedules such as geometric:1:0.1; 1 is always included."),
    ] = None,
    normalizers: Normalizers = None, optimizers: Optimizers = None, rates: Rates = None, seeds: Seeds = None,
    steps: Steps = None,
    qk_norm: Annotated[
        bool | None,
        measured(
            "Also train softmax with normalized queries and keys; on by default, except with --quick.",
            "--qk-norm/--no-qk-norm",
        ),
    ] = None,
    decay: Annotated[float, measured("Decoupled weight decay.")] = 0.0,
    text: TextFiles = None, quick: Quick = False, workers: Workers = None, shared: Shared,
) -> Measured:  # fmt: skip
    """Is low temperature hard to train? Every T with a control whose scale is compensated, over rates and seeds."""
    if text is not None and task != "text":
        raise AbbeError(f"--text is read by --task text only, and the task is {task}: leave one of them out")
    if not 0 <= decay < math.inf:
        raise AbbeError(f"--decay is {decay:g}, but must be a number >= 0")
    listed = None if temperatures is None else [one.strip() for one in temperatures.split(",")]
    return _trained(
        "train_temperature", shared, task=task, temperatures=listed, normalizers=normalizers, optimizers=optimizers,
        rates=rates, seeds=seeds, steps=steps, qk_norm=qk_norm, decay=decay, text=text, quick=quick, workers=workers,
    )  # fmt: skip


@study(json=_JSON, group=GROUP)
def length(
    *, normalizers: Normalizers = None, optimizers: Optimizers = None, rates: Rates = None,
    lengths: Annotated[str | None, measured("Test list lengths, such as 16,256,4096.")] = None,
    seeds: Seeds = None, steps: Steps = None, quick: Quick = False, workers: Workers = None, shared: Shared,
) -> Measured:  # fmt: skip
    """Which normalizer still finds the maximum in lists longer than those it was trained on? With published numbers."""
    return _trained(
        "train_length", shared, normalizers=normalizers, optimizers=optimizers, rates=rates,
        lengths=numbers("--lengths", lengths, int), seeds=seeds, steps=steps, quick=quick, workers=workers,
    )  # fmt: skip


@study(json=_JSON, group=GROUP)
def recall(
    *,
    task: Annotated[
        str,
        measured("recall (one head) or mqar (causal, two layers).", autocompletion=_complete.recall_tasks),
    ] = "recall",
    normalizers: Normalizers = None, temperature: Temperature = None, qk_norm: Normed = False,
    optimizers: Optimizers = None, rates: Rates = None, seeds: Seeds = None, steps: Steps = None, quick: Quick = False,
    workers: Workers = None, shared: Shared,
) -> Measured:  # fmt: skip
    """Which normalizer learns key-value recall, and at which learning rates?"""
    return _trained(
        "train_recall", shared, task=task, normalizers=normalizers, temperature=temperature, qk_norm=qk_norm,
        optimizers=optimizers, rates=rates, seeds=seeds, steps=steps, quick=quick, workers=workers,
    )  # fmt: skip


@study(json=_JSON, group=GROUP)
def text(
    *, text: TextFiles = None, normalizers: Normalizers = None, temperature: Temperature = None,
    qk_norm: Normed = False, optimizers: Optimizers = None, rates: Rates = None, seeds: Seeds = None,
    steps: Steps = None, quick: Quick = False, workers: Workers = None, shared: Shared,
) -> Measured:  # fmt: skip
    """Which normalizer trains the better character model of a text?"""
    return _trained(
        "train_text", shared, text=text, normalizers=normalizers, temperature=temperature, qk_norm=qk_norm,
        optimizers=optimizers, rates=rates, seeds=seeds, steps=steps, quick=quick, workers=workers,
    )  # fmt: skip


def _trained(name: str, shared: Shared, *, rates: str | None, **given: Any) -> Measured:
    """The experiment; what was not given is left to its defaults."""
    from ... import studies

    options = {"rates": numbers("--rates", rates, float), **given}
    asked = {option: value for option, value in options.items() if value is not None}
    return Measured(getattr(studies, name)(**asked, **shared))
