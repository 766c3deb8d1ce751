"""abbe train temperature, length, recall and text: experiments of the lab, and their examples."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

from .._errors import AbbeError
from . import _complete
from ._options import TextFiles, numbers, setting, with_option
from ._study import AnyResult, Shared, study

GROUP = "train"
_JSON = "Print runs, summary, early warnings, findings and manifest as JSON; the curves are in the folder."

Normalizers = Annotated[
    list[str] | None, with_option("A normalizer to train with, such as entmax:alpha=1.5; may be repeated.")
]
Optimizers = Annotated[
    list[str] | None,
    setting("sgd, adamw or muon; may be repeated.", "--optimizer", autocompletion=_complete.optimizers),
]
Rates = Annotated[str | None, setting("Learning rates to try, such as 0.001,0.01,0.1.")]
Seeds = Annotated[int | None, setting("Seeds per run, starting at --seed; intervals are computed over them.")]
Steps = Annotated[int | None, setting("Training steps per run.")]
Temperature = Annotated[
    str | None, setting("Temperature of all runs: a number, learned, or a schedule such as geometric:1:0.1.")
]
Normed = Annotated[bool, setting("Normalize queries and keys.", "--qk-norm/--no-qk-norm")]
Quick = Annotated[bool, setting("Fewer choices, seeds and steps: less than a minute.", "--quick")]
Workers = Annotated[int | None, setting("Runs in parallel; by default one per core, or one on an accelerator.")]
_HELP = """Train small transformers to test claims about training attention. Nothing is downloaded.

[bold]temperature[/]: is low temperature hard to train, and does it remain so when its scale is compensated?

[bold]length[/]: which normalizer still finds the maximum in lists longer than those it was trained on?

[bold]recall[/]: which normalizer learns key-value recall, and at which learning rates?

[bold]text[/]: which normalizer trains the better character model of a text?

--quick takes about a minute on 2 cores, the defaults 1 to 15; each prints its cost before it starts. Every seed \
of every run is kept, and a stopped experiment resumes from its folder.
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


@study(json=_JSON, group=GROUP)
def temperature(
    *,
    task: Annotated[
        str, setting("What is learned: recall, mqar, maximum or text.", autocompletion=_complete.tasks)
    ] = "recall",
    temperatures: Annotated[
        str | None,
        setting("Temperatures: numbers, learned, or schedules such as geometric:1:0.1; 1 is always included."),
    ] = None,
    normalizers: Normalizers = None, optimizers: Optimizers = None, rates: Rates = None, seeds: Seeds = None,
    steps: Steps = None,
    qk_norm: Annotated[
        bool | None,
        setting(
            "Also train softmax with normalized queries and keys; on by default, except with --quick.",
            "--qk-norm/--no-qk-norm",
        ),
    ] = None,
    decay: Annotated[float, setting("Decoupled weight decay.")] = 0.0,
    text: TextFiles = None, quick: Quick = False, workers: Workers = None, shared: Shared,
) -> AnyResult:  # fmt: skip
    """Is low temperature hard to train? Every T with a control whose scale is compensated, over rates and seeds."""
    if text is not None and task != "text":
        raise AbbeError(f"only --task text reads --text, but the task is {task}: leave one of them out")
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
    lengths: Annotated[str | None, setting("Test list lengths, such as 16,256,4096.")] = None,
    seeds: Seeds = None, steps: Steps = None, quick: Quick = False, workers: Workers = None, shared: Shared,
) -> AnyResult:  # fmt: skip
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
        setting("recall (one head) or mqar (causal, two layers).", autocompletion=_complete.recall_tasks),
    ] = "recall",
    normalizers: Normalizers = None, temperature: Temperature = None, qk_norm: Normed = False,
    optimizers: Optimizers = None, rates: Rates = None, seeds: Seeds = None, steps: Steps = None,
    pairs: Annotated[int | None, setting("Keys with a value per sequence; 24, with mqar 4.")] = None,
    symbols: Annotated[int | None, setting("Different tokens; 128, with mqar 64.")] = None,
    length: Annotated[int | None, setting("Tokens of a sequence of mqar; 32.")] = None,
    width: Annotated[int | None, setting("Width of the network; 16, with mqar 64.")] = None,
    quick: Quick = False, workers: Workers = None, shared: Shared,
) -> AnyResult:  # fmt: skip
    """Which normalizer learns key-value recall, and at which learning rates?"""
    return _trained(
        "train_recall", shared, task=task, normalizers=normalizers, temperature=temperature, qk_norm=qk_norm,
        optimizers=optimizers, rates=rates, seeds=seeds, steps=steps, pairs=pairs, symbols=symbols, length=length,
        width=width, quick=quick, workers=workers,
    )  # fmt: skip


@study(json=_JSON, group=GROUP)
def text(
    *, text: TextFiles = None, normalizers: Normalizers = None, temperature: Temperature = None,
    qk_norm: Normed = False, optimizers: Optimizers = None, rates: Rates = None, seeds: Seeds = None,
    steps: Steps = None, quick: Quick = False, workers: Workers = None, shared: Shared,
) -> AnyResult:  # fmt: skip
    """Which normalizer trains the better character model of a text?"""
    return _trained(
        "train_text", shared, text=text, normalizers=normalizers, temperature=temperature, qk_norm=qk_norm,
        optimizers=optimizers, rates=rates, seeds=seeds, steps=steps, quick=quick, workers=workers,
    )  # fmt: skip


def _trained(name: str, shared: Shared, *, rates: str | None, **options: Any) -> AnyResult:
    """Run the experiment; absent options are left to its defaults."""
    from .. import studies

    options["rates"] = numbers("--rates", rates, float)
    chosen = {option: value for option, value in options.items() if value is not None}
    return getattr(studies, name)(**chosen, **shared)


def make_group(add: Callable[[typer.Typer, Callable[..., None], Sequence[str]], None]) -> typer.Typer:
    """The group of commands; `add` puts one of them into it, with its examples."""
    group = typer.Typer(name=GROUP, help=_HELP, no_args_is_help=True, rich_markup_mode="rich")
    for command in (temperature, length, recall, text):
        add(group, command, _EXAMPLES[command.__name__])
    return group
