"""abbe train temperature, length, recall and text: experiments of the lab"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

from .._errors import AbbeError
from . import _complete
from ._options import TextFiles, measured, numbers, with_option
from ._study import Measured, Shared, study

_GROUP = "train"
_HELP = """Train small transformers and judge what is said about their training. Nothing is downloaded.

[bold]temperature[/]: is low temperature hard to train, and what of it is left when its scale is compensated?

[bold]length[/]: which normalizer still finds the maximum in lists longer than those it was trained on?

[bold]recall[/]: which normalizer learns to recall, at which learning rates?

[bold]text[/]: which normalizer trains the better character model of a text?

Each takes up to 15 minutes on 2 cores, with --quick less than a minute; the cost is said before. Every seed of every \
run is kept, and a stopped experiment resumes from its folder.
"""
_EXAMPLES: dict[str, Sequence[str]] = {
    "temperature": (
        "abbe train temperature --quick",
        "abbe train temperature --temperatures 1,0.3,0.1,learned --optimizer adamw --seeds 8 --open",
        "abbe train temperature --task mqar --with softmax --with entmax:alpha=1.5 --no-qk-norm --figures figures",
    ),
    "length": (
        "abbe train length --quick",
        "abbe train length --with softmax --with ssmax --rates 0.001,0.003,0.01 --seeds 5 --open",
    ),
    "recall": (
        "abbe train recall --quick",
        "abbe train recall --task mqar --with softmax --with sparsemax --optimizer muon --json",
    ),
    "text": (
        "abbe train text --quick",
        "abbe train text --text book.txt --with softmax --with entmax:alpha=1.5 --steps 1000 --out book",
    ),
}
_JSON = "Print runs, summary, early warnings, findings and manifest as JSON; the curves are in the folder."

Normalizers = Annotated[
    list[str] | None, with_option("A normalizer to train with, such as entmax:alpha=1.5; may be repeated.")
]
Optimizers = Annotated[
    list[str] | None,
    measured("sgd, adamw or muon; may be repeated.", "--optimizer", autocompletion=_complete.optimizers),
]
Rates = Annotated[str | None, measured("Learning rates that are tried, such as 0.001,0.01,0.1.")]
Seeds = Annotated[int | None, measured("Seeds of every run, from --seed on; intervals come from them.")]
Steps = Annotated[int | None, measured("Steps of every run.")]
Quick = Annotated[bool, measured("Fewer choices, seeds and steps: less than a minute.", "--quick")]
Workers = Annotated[int | None, measured("Runs at a time; by default one per core.")]


@study(json=_JSON, group=_GROUP)
def temperature(
    *,
    shared: Shared,
    task: Annotated[
        str, measured("What is learned: recall, mqar, maximum or text.", autocompletion=_complete.tasks)
    ] = "recall",
    temperatures: Annotated[
        str | None,
        measured("Temperatures: numbers, learned, or schedules such as geometric:1:0.1; 1 is always among them."),
    ] = None,
    normalizers: Normalizers = None,
    optimizers: Optimizers = None,
    rates: Rates = None,
    seeds: Seeds = None,
    steps: Steps = None,
    qk_norm: Annotated[
        bool | None,
        measured(
            "Also train softmax with normed queries and keys; by default yes, not with --quick.",
            "--qk-norm/--no-qk-norm",
        ),
    ] = None,
    decay: Annotated[float, measured("Decoupled weight decay.")] = 0.0,
    text: TextFiles = None,
    quick: Quick = False,
    workers: Workers = None,
) -> Measured:
    """Is low temperature hard to train? Every T beside its compensated control, over rates and seeds."""
    if text is not None and task != "text":
        raise AbbeError(f"--text is read by --task text only, and the task is {task}: leave one of them out")
    if not 0 <= decay < math.inf:
        raise AbbeError(f"--decay is {decay:g}, but must be a number >= 0")
    listed = None if temperatures is None else [one.strip() for one in temperatures.split(",")]
    return _trained(
        "train_temperature", shared, task=task, temperatures=listed, normalizers=normalizers, optimizers=optimizers,
        rates=rates, seeds=seeds, steps=steps, qk_norm=qk_norm, decay=decay, text=text, quick=quick, workers=workers,
    )  # fmt: skip


@study(json=_JSON, group=_GROUP)
def length(
    *, shared: Shared, normalizers: Normalizers = None, optimizers: Optimizers = None, rates: Rates = None,
    seeds: Seeds = None, steps: Steps = None, quick: Quick = False, workers: Workers = None,
) -> Measured:  # fmt: skip
    """Which normalizer finds the maximum in lists longer than it was trained on? Beside published numbers."""
    return _trained(
        "train_length", shared, normalizers=normalizers, optimizers=optimizers, rates=rates, seeds=seeds, steps=steps,
        quick=quick, workers=workers,
    )  # fmt: skip


@study(json=_JSON, group=_GROUP)
def recall(
    *,
    shared: Shared,
    task: Annotated[
        str,
        measured("recall (one head, one layer) or mqar (causal, two layers).", autocompletion=_complete.recall_tasks),
    ] = "recall",
    normalizers: Normalizers = None,
    optimizers: Optimizers = None,
    rates: Rates = None,
    seeds: Seeds = None,
    steps: Steps = None,
    quick: Quick = False,
    workers: Workers = None,
) -> Measured:
    """Which normalizer learns to recall, and at which learning rates?"""
    return _trained(
        "train_recall", shared, task=task, normalizers=normalizers, optimizers=optimizers, rates=rates, seeds=seeds,
        steps=steps, quick=quick, workers=workers,
    )  # fmt: skip


@study(json=_JSON, group=_GROUP)
def text(
    *, shared: Shared, text: TextFiles = None, normalizers: Normalizers = None, optimizers: Optimizers = None,
    rates: Rates = None, seeds: Seeds = None, steps: Steps = None, quick: Quick = False, workers: Workers = None,
) -> Measured:  # fmt: skip
    """Which normalizer trains the better character model of a text?"""
    return _trained(
        "train_text", shared, text=text, normalizers=normalizers, optimizers=optimizers, rates=rates, seeds=seeds,
        steps=steps, quick=quick, workers=workers,
    )  # fmt: skip


def _trained(name: str, shared: Shared, *, rates: str | None, **given: Any) -> Measured:
    """The experiment; what was not given is left to its defaults."""
    from .. import studies

    options = {"rates": numbers("--rates", rates, float), **given}
    asked = {option: value for option, value in options.items() if value is not None}
    return Measured(getattr(studies, name)(**asked, **shared), "train_table", "save_train_figures")


def make_group(add: Callable[[typer.Typer, Callable[..., None], Sequence[str]], None]) -> typer.Typer:
    """The commands below `abbe train`; `add` puts one of them into it, with its examples."""
    group = typer.Typer(name=_GROUP, help=_HELP, no_args_is_help=True, rich_markup_mode="rich")
    for command in (temperature, length, recall, text):
        add(group, command, _EXAMPLES[command.__name__])
    return group
