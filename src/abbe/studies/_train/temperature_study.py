"""train_temperature: is low temperature hard to train, and how much of that remains if its scale is compensated?"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ..._arguments import is_number, positive, shown, whole, yes_or_no
from ..._errors import AbbeError
from ...models import DeviceLike
from .._engine.inputs import FolderLike, TextLike, as_text
from .._engine.sharing.calls import shareable
from .configuration import Configuration, can_be_compensated
from .experiment import Plan, checked_normalizers, run_experiment, seeds_from
from .optimizers import OPTIMIZERS
from .result import Experiment
from .statements import judge_temperature
from .tasks import make_task
from .temperature import temperature

NORMALIZERS = ("softmax", "ssmax", "sparsemax", "entmax:alpha=1.5")
TEMPERATURES = (1.0, 0.1, 0.01)
# Half a decade apart around rates that train at T = 1; the best ones differ a lot between maps and temperatures.
RATES = {"sgd": (0.1, 0.3, 1.0, 3.0), "adamw": (3e-3, 1e-2, 3e-2, 1e-1), "muon": (3e-3, 1e-2, 3e-2, 1e-1)}
_STEPS = {"recall": 400}  # per run; other tasks have their own default
_USUAL: dict[str, Any] = {
    "normalizers": NORMALIZERS, "temperatures": TEMPERATURES, "optimizers": tuple(RATES), "seeds": 5, "qk_norm": True,
}  # fmt: skip
_QUICK: dict[str, Any] = {
    "normalizers": ("softmax", "sparsemax"), "temperatures": (1.0, 0.01), "optimizers": ("sgd", "adamw"), "seeds": 3,
    "qk_norm": False, "steps": 150,
}  # fmt: skip


@shareable
def train_temperature(
    *, task: str = "recall", temperatures: float | str | Sequence[float | str] | None = None,
    normalizers: str | Sequence[str] | None = None, optimizers: str | Sequence[str] | None = None,
    rates: float | Sequence[float] | None = None, seeds: int | None = None, steps: int | None = None,
    qk_norm: bool | None = None, decay: float = 0.0, text: TextLike | None = None, quick: bool = False, seed: int = 0,
    workers: int | None = None, device: DeviceLike | None = None, folder: FolderLike | None = None,
    progress: bool = True,
) -> Experiment:  # fmt: skip
    """Train small transformers at several temperatures, each beside its compensated control.

    A temperature in front of softmax is a re-parametrisation: with the initial query map times T and its rate times
    T^2 (SGD) or T (AdamW, Muon), training at T equals training at T = 1, step by step. So if low temperature is hard
    and its control is easy, the reason is scale, not softmax.

    Args:
        task: "recall" (key-value recall with one head), "mqar", "maximum" or "text".
        temperatures: numbers, "learned", or schedules such as "geometric:1:0.1". The baseline 1 is always added.
        normalizers: specs; by default softmax, ssmax, sparsemax and entmax:alpha=1.5.
        optimizers: of "sgd", "adamw" and "muon"; by default all.
        rates: learning rates for all optimizers; by default four for each.
        seeds: number of seeds, from `seed` on; intervals come from them.
        steps: per run, >= 10; by default those of the task.
        qk_norm: also train softmax with normalized queries and keys, whose scale nothing can absorb; by default yes.
        decay: decoupled weight decay, >= 0.
        text: for the task "text".
        quick: fewer normalizers, temperatures, seeds and steps: less than a minute.
        seed: the first seed.
        workers: runs at a time; by default one per core, or one on an accelerator.
        device: where networks are trained: "cpu", "cuda", "cuda:1", "mps", "xpu" or "auto"; by default the CPU.
        folder: for finished runs; an interrupted experiment is resumed.
        progress: report the cost and show a bar on standard error.

    Returns:
        Every run of every seed, curves, the results at the best rates, and judged statements.

    Examples:
        >>> small = {"rates": 0.01, "seeds": 1, "steps": 10, "qk_norm": False, "workers": 1, "progress": False}
        >>> result = abbe.train_temperature(temperatures=0.5, normalizers="softmax", optimizers="adamw", **small)
        >>> result.summary.select("temperature", "compensated").rows()
        [('1', False), ('0.5', False), ('0.5', True)]
    """
    if text is not None and task != "text":
        raise AbbeError(f"text is read by the task text only, and the task is {task}: leave one of them out")
    trained = make_task(task, text=as_text(text) if task == "text" else None)
    defaults = {"steps": _STEPS.get(task, trained.steps)} | (_QUICK if yes_or_no("quick", quick) else _USUAL)
    given = {
        "normalizers": normalizers, "temperatures": temperatures, "optimizers": optimizers, "seeds": seeds,
        "steps": steps, "qk_norm": qk_norm,
    }  # fmt: skip
    options = defaults | {name: value for name, value in given.items() if value is not None}
    words = _temperatures(options["temperatures"])
    specs, names = checked_normalizers(options["normalizers"], trained), checked_optimizers(options["optimizers"])
    normed = yes_or_no("qk_norm", options["qk_norm"]) and "softmax" in specs
    shared: dict[str, Any] = {
        "steps": whole("steps", options["steps"], least=10), "batch": trained.batch, "width": trained.width,
        "heads": trained.heads, "seeds": seeds_from(options["seeds"], seed), "decay": checked_decay(decay),
    }  # fmt: skip
    by_optimizer = {name: rates_for(name, rates, RATES) for name in names}

    def runs(spec: str, qk_norm: bool) -> list[Configuration]:
        return [
            Configuration(
                normalizer=spec, temperature=one, optimizer=name, rate=rate, qk_norm=qk_norm, compensated=compensated,
                **shared,
            )
            for name in names
            for one in words
            for compensated in (False, True)
            if not compensated or can_be_compensated(temperature(one), qk_norm)
            for rate in by_optimizer[name]
        ]  # fmt: skip

    choices = [choice for spec in specs for choice in runs(spec, False)] + (runs("softmax", True) if normed else [])
    settings = shared | {
        "normalizers": list(specs), "temperatures": list(words), "optimizers": list(names), "qk_norm": normed,
        "rates": {name: list(some) for name, some in by_optimizer.items()}, "seeds": list(shared["seeds"]),
    }  # fmt: skip
    plan = Plan("temperature", trained, choices, settings, judge_temperature)
    return run_experiment(plan, device, folder, workers, progress)


def _temperatures(given: float | str | Sequence[float | str]) -> tuple[str, ...]:
    some = (given,) if isinstance(given, str | int | float) else tuple(given)
    return tuple(dict.fromkeys(str(temperature(one)) for one in ("1", *some)))


def checked_decay(given: object) -> float:
    if not (is_number(given) and 0 <= given < math.inf):  # type: ignore[operator]
        raise AbbeError(f"decay is {shown(given)}, but must be a number >= 0")
    return float(given)  # type: ignore[arg-type]


def checked_optimizers(given: str | Sequence[str]) -> tuple[str, ...]:
    names = (given,) if isinstance(given, str) else tuple(given)
    if not names:
        raise AbbeError(f"there is no optimizer: name at least one of {', '.join(OPTIMIZERS)}")
    for name in names:
        if name not in OPTIMIZERS:
            raise AbbeError(f"there is no optimizer {name!r}: choose one of {', '.join(OPTIMIZERS)}")
    return tuple(dict.fromkeys(names))


def rates_for(
    optimizer: str, given: float | Sequence[float] | None, defaults: Mapping[str, tuple[float, ...]]
) -> tuple[float, ...]:
    return defaults[optimizer] if given is None else positive("rates", given, ", such as 0.001,0.01")
