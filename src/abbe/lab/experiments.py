"""The four experiments: what each trains by default, on which task, over which grid, and how it is judged."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from .. import normalizers as _normalizers
from .._arguments import is_number, positive, several, shown, whole, yes_or_no
from .._errors import AbbeError
from ..models import DeviceLike, as_device
from ..runs.executors import Local, current
from ..runs.inputs import FolderLike, TextLike, as_folder, as_text
from ..runs.measuring import finished_manifest, study_facts
from ..runs.parts import Parts, claim_folder
from ..runs.study import study
from ..runs.watch import Watch, watching
from ..training import list_rules
from ..words.finding import Finding
from ..words.numbers import about, many
from .judges import judge_accuracy, judge_length, judge_loss, judge_temperature
from .network import temperature as parse_temperature
from .optimizers import OPTIMIZERS
from .result import HARD_MAXIMUM, Experiment
from .run import CPU, Configuration, can_be_compensated, one_thread, train, train_all, usual_workers
from .tables import LEVEL, Part, tables_of
from .tasks import Maximum, Mqar, NextCharacter, Recall, Task, make_task

MOST_ITEMS = 1 << 17  # of one test set: a row of logits and its features have to fit


# -- Declarations -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Defaults:
    """What an experiment trains by default.

    `for_inference` maps normalizers that are made for trained networks to the ones that these are trained with.
    """

    normalizers: tuple[str, ...]
    rates: Mapping[str, tuple[float, ...]]
    steps: int
    seeds: int = 3
    decay: float = 0.0
    cooldown: float = 0.0
    readings: int = 40
    test_size: int = 512
    for_inference: Mapping[str, str] = field(default_factory=dict)
    temperatures: float | str | Sequence[float | str] = (1.0,)
    optimizers: tuple[str, ...] = ("adamw",)
    qk_norm: bool = False


def _rates(sgd: tuple[float, ...], others: tuple[float, ...]) -> dict[str, tuple[float, ...]]:
    return {"sgd": sgd, "adamw": others, "muon": others}


_FOUR = ("softmax", "ssmax", "sparsemax", "entmax:alpha=1.5")
_TWO = ("softmax", "sparsemax")
# Half a decade apart around rates that train at T = 1; the best ones differ a lot between maps and temperatures.
_WIDE_RATES = _rates((0.1, 0.3, 1.0, 3.0), (3e-3, 1e-2, 3e-2, 1e-1))
_DEEP_RATES = _rates((0.1, 0.3, 1.0), (1e-3, 3e-3, 1e-2))  # for more than one layer
_ONE_RATE = _rates((0.3,), (3e-3,))

USUAL = {
    "temperature": Defaults(
        _FOUR, _WIDE_RATES, steps=400, seeds=5, temperatures=(1.0, 0.1, 0.01), optimizers=OPTIMIZERS, qk_norm=True
    ),
    "length": Defaults(
        (
            *("softmax", HARD_MAXIMUM, "adaptive-temperature", "learned-temperature", "ssmax:learn=true", "sparsemax"),
            *("entmax:alpha=1.5", "entmax:alpha=1.5,learn=true", "asentmax:alpha=1.5,learn=true", "topk:k=4"),
            "hybrid:a=softmax,b=sparsemax",
        ),
        _rates((0.03, 0.1, 0.3), (3e-3, 1e-2, 3e-2)),
        steps=Maximum.steps,
        seeds=5,
        decay=1e-3,
        cooldown=1.0,
        readings=20,
        test_size=256,
        for_inference={HARD_MAXIMUM: "softmax", "adaptive-temperature": "softmax"},
    ),
    "recall": Defaults((*_FOUR, "topk:k=4"), _WIDE_RATES, steps=Recall.steps, seeds=5),
    "mqar": Defaults(_FOUR, _DEEP_RATES, steps=Mqar.steps, readings=20),
    "text": Defaults(_FOUR, _DEEP_RATES, steps=NextCharacter.steps, readings=20, test_size=128),
}
QUICK = {
    "temperature": Defaults(_TWO, _WIDE_RATES, steps=150, temperatures=(1.0, 0.01), optimizers=("sgd", "adamw")),
    "length": replace(
        USUAL["length"],
        normalizers=("softmax", HARD_MAXIMUM, "adaptive-temperature", "sparsemax"),
        rates=_rates((0.1, 0.3), (3e-3, 1e-2)),
        steps=500,
        readings=10,
        test_size=128,
    ),
    "recall": Defaults(_TWO, _WIDE_RATES, steps=200),
    "mqar": Defaults(_TWO, _ONE_RATE, steps=100, readings=10, test_size=128),
    "text": Defaults(_TWO, _ONE_RATE, steps=60, readings=10, test_size=32),
}
_QUICK_LENGTHS = (16, 64, 256, 1024, 4096)
_RECALL_TASKS = (Recall.name, Mqar.name)


# -- Experiments ------------------------------------------------------------------------------------------------------


@study(Experiment, command="train temperature", page="yes")
def train_temperature(
    *, task: str = "recall", temperatures: float | str | Sequence[float | str] | None = None,
    normalizers: str | Sequence[str] | None = None, optimizers: str | Sequence[str] | None = None,
    rates: float | Sequence[float] | None = None, seeds: int | None = None, steps: int | None = None,
    qk_norm: bool | None = None, decay: float = 0.0, text: TextLike | None = None, quick: bool = False, seed: int = 0,
    workers: int | None = None, device: DeviceLike | None = None, folder: FolderLike | None = None,
    progress: bool = True,
) -> Experiment:  # fmt: skip
    """Is low temperature hard to train? Every T with a control whose scale is compensated, over rates and seeds.

    Train small transformers at several temperatures, each beside its compensated control.

    A temperature in front of softmax is a re-parametrisation: with the initial query map times T and its rate times
    T^2 (SGD) or T (AdamW, Muon), training at T equals training at T = 1, step by step. So if low temperature is hard
    and its control is easy, the reason is scale, not softmax.

    Args:
        task: "recall" (key-value recall with one head), "mqar", "maximum" or "text".
        temperatures: numbers, "learned", or schedules such as "geometric:1:0.1". The baseline 1 is always added.
        normalizers: specs; by default softmax, ssmax, sparsemax and entmax:alpha=1.5.
        optimizers: one or more of "sgd", "adamw" and "muon"; by default all.
        rates: learning rates for all optimizers; by default four for each.
        seeds: number of seeds, from `seed` on; intervals come from them.
        steps: how many per run, >= 10; by default those of the task.
        qk_norm: also train softmax with normalized queries and keys, whose scale nothing can absorb; by default yes.
        decay: decoupled weight decay, >= 0.
        text: what the task "text" reads.
        quick: fewer normalizers, temperatures, seeds and steps: less than a minute.
        seed: the first seed.
        workers: runs at a time; by default one per core, or one on an accelerator.
        device: where networks are trained: "cpu", "cuda", "cuda:1", "mps", "xpu" or "auto"; by default the CPU.
        folder: for finished runs; an interrupted experiment is resumed.
        progress: report the cost and show a bar on standard error.

    Returns:
        Every run of every seed, curves, the results at the best rates, and judged statements.

    Commands:
        abbe train temperature --quick
        abbe train temperature --temperatures 1,0.3,0.1,learned --seeds 8 --open
        abbe train temperature --task mqar --with entmax:alpha=1.5 --no-qk-norm

    Examples:
        >>> small = {"rates": 0.01, "seeds": 1, "steps": 10, "qk_norm": False, "workers": 1, "progress": False}
        >>> result = abbe.train_temperature(temperatures=0.5, normalizers="softmax", optimizers="adamw", **small)
        >>> result.summary.select("temperature", "compensated").rows()
        [('1', False), ('0.5', False), ('0.5', True)]
    """
    if text is not None and task != "text":
        raise AbbeError(f"text is read by the task text only, and the task is {task}: leave one of them out")
    trained = make_task(task, text=as_text(text) if task == "text" else None)
    defaults = _defaults("temperature", quick)
    if not quick and task != Recall.name:
        defaults = replace(defaults, steps=trained.steps)
    return _experiment(
        "temperature", trained, defaults, judge_temperature, normalizers=normalizers, optimizers=optimizers,
        rates=rates, seeds=seeds, steps=steps, seed=seed, workers=workers, device=device, folder=folder,
        progress=progress, temperatures=temperatures, qk_norm=qk_norm,
        decay=_checked_decay(decay), controls=True,
    )  # fmt: skip


@study(Experiment, command="train length", page="yes")
def train_length(
    *, normalizers: str | Sequence[str] | None = None, rates: float | Sequence[float] | None = None,
    optimizers: str | Sequence[str] = "adamw", seeds: int | None = None, steps: int | None = None,
    lengths: int | Sequence[int] | None = None, quick: bool = False, seed: int = 0, workers: int | None = None,
    device: DeviceLike | None = None, folder: FolderLike | None = None, progress: bool = True,
) -> Experiment:  # fmt: skip
    """Which normalizer still finds the maximum in lists longer than those it was trained on? With published numbers.

    Train one head to find the item of the highest priority among up to 16, and test it on up to 16,384.

    The task of arXiv 2410.01104, whose row for softmax (98.6, 94.3, 81.3, 53.8, 22.6, 12.4 %) stands beside the result.
    Each normalizer is trained at several rates and judged at its best one. Accuracy is reported at the trained length
    and at longer ones, since a map can fit its training data and generalise to nothing. As in that paper,
    adaptive-temperature is not trained: networks are trained with softmax and tested with it. So is topk:k=1, the hard
    maximum on the trained softmax logits: what it loses, the logits have lost, and not the normalizer.

    Args:
        normalizers: specs; by default softmax, the hard maximum on its logits, adaptive and learned temperature, ssmax,
            sparsemax, entmax (fixed and learned alpha), asentmax, topk and a hybrid of softmax and sparsemax.
        rates: learning rates for all optimizers; by default three. They fall linearly to 0 over the run.
        optimizers: one or more of "sgd", "adamw" and "muon".
        seeds: number of seeds, from `seed` on; intervals come from them.
        steps: how many per run, >= 10.
        lengths: items per set in the tests, 16 being the longest of training.
        quick: fewer normalizers, rates and steps: less than a minute.
        seed, workers, device, folder, progress: as for `train_temperature`.

    Returns:
        Every run of every seed, curves, the results at the best rates, and judged statements. High accuracy on long
        sets means that selection generalises; high entropy there, that the weight is spread over many items.

    Commands:
        abbe train length --quick
        abbe train length --with softmax --with ssmax --rates 0.001,0.01 --seeds 5

    Examples:
        >>> small = {"rates": 0.01, "seeds": 1, "steps": 10, "workers": 1, "progress": False}
        >>> result = abbe.train_length(normalizers="softmax", lengths=16, **small)
        >>> result.lengths["length"].to_list()
        [16]
    """
    defaults = _defaults("length", quick)
    tested = _lengths(lengths if lengths is not None else _QUICK_LENGTHS if quick else Maximum.test_lengths)
    task = make_task(Maximum.name, {"lengths": tested})
    return _experiment(
        "length", task, defaults, judge_length, normalizers=normalizers, optimizers=optimizers, rates=rates,
        seeds=seeds, steps=steps, seed=seed, workers=workers, device=device, folder=folder, progress=progress,
        more={"lengths": list(tested)},
    )  # fmt: skip


@study(Experiment, command="train recall", page="yes")
def train_recall(
    *, task: str = "recall", normalizers: str | Sequence[str] | None = None, temperature: float | str = 1.0,
    optimizers: str | Sequence[str] = "adamw", rates: float | Sequence[float] | None = None, seeds: int | None = None,
    steps: int | None = None, pairs: int | None = None, symbols: int | None = None, length: int | None = None,
    width: int | None = None, qk_norm: bool = False, quick: bool = False, seed: int = 0, workers: int | None = None,
    device: DeviceLike | None = None, folder: FolderLike | None = None, progress: bool = True,
) -> Experiment:  # fmt: skip
    """Which normalizer learns key-value recall, and at which learning rates?

    Train small networks to recall values by their keys, with each normalizer at its own best rate.

    Args:
        task: "recall" (one head, 24 pairs) or "mqar" (multi-query associative recall, a causal transformer of two
            layers, arXiv 2312.04927).
        normalizers: specs; by default softmax, ssmax, sparsemax and entmax:alpha=1.5, for "recall" also topk:k=4.
        temperature: a number, in front of the normalizer, "learned", or a schedule such as "geometric:1:0.1".
        optimizers: one or more of "sgd", "adamw" and "muon".
        rates: learning rates for all optimizers; by default three or four for each.
        seeds: number of seeds, from `seed` on; intervals come from them.
        steps: how many per run, >= 10; by default those of the task.
        pairs, symbols: keys with a value in each sequence, and different tokens; 24 of 128 for "recall", 4 of 64 for
            "mqar".
        length: tokens of a sequence of "mqar", >= 3 pairs; by default 32.
        width: features of the network; 16 for "recall", 64 for "mqar".
        qk_norm: normalize queries and keys.
        quick: fewer normalizers, seeds and steps: less than a minute.
        seed, workers, device, folder, progress: as for `train_temperature`.

    Returns:
        Every run of every seed, curves, the results at the best rates, and judged statements.

    Commands:
        abbe train recall --quick
        abbe train recall --task mqar --with sparsemax --optimizer muon --json

    Examples:
        >>> result = abbe.train_recall(normalizers="softmax", rates=0.01, seeds=1, steps=20, workers=1, progress=False)
        >>> result.summary.select("normalizer", "best_rate").rows()
        [('softmax', 0.01)]
    """
    if task not in _RECALL_TASKS:
        raise AbbeError(f"there is no recall task {task!r}: choose one of {', '.join(_RECALL_TASKS)}")
    sizes = {"pairs": pairs, "symbols": symbols, "length": length}
    trained = make_task(task, {name: size for name, size in sizes.items() if size is not None})
    trained.width = whole("width", trained.width if width is None else width, least=1, most=1024)
    return _experiment(
        "recall", trained, _defaults(task, quick), judge_accuracy, normalizers=normalizers, optimizers=optimizers,
        rates=rates, seeds=seeds, steps=steps, seed=seed, workers=workers, device=device, folder=folder,
        progress=progress, temperatures=temperature, qk_norm=qk_norm,
    )  # fmt: skip


@study(Experiment, command="train text", page="yes")
def train_text(
    text: TextLike | None = None, *, normalizers: str | Sequence[str] | None = None, temperature: float | str = 1.0,
    optimizers: str | Sequence[str] = "adamw", rates: float | Sequence[float] | None = None, seeds: int | None = None,
    steps: int | None = None, qk_norm: bool = False, quick: bool = False, seed: int = 0, workers: int | None = None,
    device: DeviceLike | None = None, folder: FolderLike | None = None, progress: bool = True,
) -> Experiment:  # fmt: skip
    """Which normalizer trains the better character model of a text?

    Train character models of a text, with each normalizer at its own best rate, and compare their held-out loss.

    Args:
        text: whatever `abbe.read_text` takes; by default the built-in sample. The last tenth is held out.
        normalizers: specs; by default softmax, ssmax, sparsemax and entmax:alpha=1.5.
        temperature: a number, in front of the normalizer, "learned", or a schedule such as "geometric:1:0.1".
        optimizers: one or more of "sgd", "adamw" and "muon".
        rates: learning rates for all optimizers; by default three for each.
        seeds: number of seeds, from `seed` on; intervals come from them.
        steps: how many per run, >= 10.
        qk_norm: normalize queries and keys.
        quick: fewer normalizers, rates and steps: less than a minute.
        seed, workers, device, folder, progress: as for `train_temperature`.

    Returns:
        Every run of every seed, curves, the results at the best rates, and judged statements. A low held-out
        loss means that the next character is predicted well.

    Commands:
        abbe train text --quick
        abbe train text --text book.txt --with softmax --with entmax:alpha=1.5

    Examples:
        >>> text = "It was a dark and stormy night. " * 200
        >>> small = {"rates": 0.01, "seeds": 1, "steps": 10, "workers": 1, "progress": False}
        >>> result = abbe.train_text(text, normalizers="softmax", **small)
        >>> result.summary.select("normalizer", "best_rate").rows()
        [('softmax', 0.01)]
    """
    defaults, task = _defaults("text", quick), make_task(NextCharacter.name, text=as_text(text))
    return _experiment(
        "text", task, defaults, judge_loss, normalizers=normalizers, optimizers=optimizers, rates=rates, seeds=seeds,
        steps=steps, seed=seed, workers=workers, device=device, folder=folder, progress=progress,
        temperatures=temperature, qk_norm=qk_norm,
    )  # fmt: skip


# -- Grids ------------------------------------------------------------------------------------------------------------


def _defaults(name: str, quick: bool) -> Defaults:
    return (QUICK if yes_or_no("quick", quick) else USUAL)[name]


def _grid(
    task: Task, defaults: Defaults, seed: int, controls: bool, given: Mapping[str, Any]
) -> tuple[list[Configuration], dict[str, Any]]:
    """All runs, and their settings for the manifest; what is `given` replaces a default, unless it is None.

    With `controls` the temperature 1 is always among the runs, every other one has a compensated control where there
    can be one, and `qk_norm` adds runs of softmax; else it holds for all runs.
    """
    chosen = replace(defaults, **{name: value for name, value in given.items() if value is not None})
    specs = _checked_normalizers(_names(chosen.normalizers), defaults, task)
    names = list(dict.fromkeys(_names(chosen.optimizers)))
    if not names:
        raise AbbeError(f"there is no optimizer: name at least one of {', '.join(OPTIMIZERS)}")
    if unknown := [name for name in names if name not in OPTIMIZERS]:
        raise AbbeError(f"there is no optimizer {unknown[0]!r}: choose one of {', '.join(OPTIMIZERS)}")
    by_optimizer = chosen.rates
    if chosen.rates is not defaults.rates:
        by_optimizer = dict.fromkeys(names, positive("rates", chosen.rates, ", such as 0.001,0.01"))
    count = whole("seeds", chosen.seeds, least=1, most=1000)
    first = whole("seed", seed, least=0, most=2**31)
    shared: dict[str, Any] = {name: getattr(task, name) for name in ("batch", "width", "heads")}
    shared |= {"steps": whole("steps", chosen.steps, least=10), "decay": chosen.decay}
    shared["seeds"] = tuple(range(first, first + count))
    spread: dict[str, Any] = {name: getattr(chosen, name) for name in ("cooldown", "readings", "test_size")}
    normed = yes_or_no("qk_norm", chosen.qk_norm)
    listed = (chosen.temperatures,) if isinstance(chosen.temperatures, str | int | float) else chosen.temperatures
    words = list(dict.fromkeys(str(parse_temperature(word)) for word in (("1", *listed) if controls else listed)))
    networks = [(spec, normed and not controls) for spec in specs]
    if controls:
        normed = normed and "softmax" in specs
        networks += [("softmax", True)] * normed
    choices = [
        Configuration(
            normalizer=spec, temperature=word, optimizer=optimizer, rate=rate, qk_norm=with_norm,
            compensated=compensated, trained_with=defaults.for_inference.get(spec, ""), **shared, **spread,
        )
        for spec, with_norm in networks
        for optimizer in names
        for word in words
        for compensated in ((False, True) if controls else (False,))
        if not compensated or can_be_compensated(parse_temperature(word), with_norm)
        for rate in by_optimizer[optimizer]
    ]  # fmt: skip
    more = {"temperatures": words} if controls else {"temperature": words[0], **spread}
    return choices, shared | more | {
        "normalizers": list(specs), "optimizers": names, "seeds": list(shared["seeds"]), "qk_norm": normed,
        "rates": {name: list(by_optimizer[name]) for name in names},
    }  # fmt: skip


def _names(given: str | Sequence[str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)


def _checked_normalizers(given: Sequence[str], defaults: Defaults, task: Task) -> tuple[str, ...]:
    """Some need a task whose keys are in causal order."""
    if not given:
        raise AbbeError("there is no normalizer to train: name at least one, such as softmax")
    known = {spec: _normalizers.normalizer(spec) for spec in given}
    for spec, normalizer in known.items():
        if any(getattr(part, "needs_order", False) for part in normalizer.modules()) and not task.ordered:
            raise AbbeError(f"{spec} needs keys in causal order, which {task.name} does not have: leave it out")
    # Another spelling is the same map.
    specs = tuple(name if (name := str(known[spec])) in defaults.for_inference else spec for spec in given)
    if len(set(specs)) < len(specs):
        raise AbbeError(f"a normalizer is named twice: {', '.join(specs)}")
    return specs


def _checked_decay(given: object) -> float:
    if not (is_number(given) and 0 <= given < math.inf):  # type: ignore[operator]
        raise AbbeError(f"decay is {shown(given)}, but must be a number >= 0")
    return float(given)  # type: ignore[arg-type]


def _lengths(given: int | Sequence[int]) -> tuple[int, ...]:
    lengths = {whole("a length", length) for length in several("lengths", given)}
    if not lengths or min(lengths) < 1 or max(lengths) > MOST_ITEMS:
        raise AbbeError(f"lengths must be whole numbers from 1 to {MOST_ITEMS:,}, such as 16,256,4096")
    return tuple(sorted(lengths))


# -- Whole experiments ------------------------------------------------------------------------------------------------

_TIMED, _TESTED = 12, 8  # steps and test sequences of the short runs that are timed before the first real one
_PER_READING = 6  # time of a reading, in steps


def _experiment(
    name: str, task: Task, defaults: Defaults, judge: Callable[[Experiment], Iterable[Finding]], *, seed: int,
    device: DeviceLike | None, folder: FolderLike | None, workers: int | None, progress: bool,
    controls: bool = False, more: Mapping[str, Any] | None = None, **given: Any,
) -> Experiment:  # fmt: skip
    """Train all unfinished runs of a grid, then make tables and judgements; `more` are settings for the manifest.

    Each run is stored as soon as it is finished, so that a stopped experiment resumes.
    """
    started, target = time.perf_counter(), as_folder(folder)
    choices, chosen = _grid(task, defaults, seed, controls, given)
    place = CPU if device is None else as_device(device)
    at_once = usual_workers(place) if workers is None else whole("workers", workers, least=1)
    # Alerts are checked during training: with another rule or threshold it is another run.
    rules = {rule.name: rule.fires for rule in list_rules()}
    settings = {"experiment": name, **chosen, **(more or {}), "level": LEVEL, "rules": rules}
    with watching(progress) as watch:
        facts = {"task": task.facts()}
        parts = claim_folder(target, Experiment.study, facts, settings, watch.announce, device=place.type)
        finished = _train(task, choices, parts, at_once, watch, place)
        manifest = study_facts(Experiment.study, settings) | {
            "model": {"name": "small transformers", "parameters": None, "device": str(place)},
            "text": {"name": task.meaning} | task.facts(),
            "self_check": {"error": None, "why": "nothing of a given model is read"},
            "skipped": [],
        }
        training = sum(content["seconds"] for _, content in finished)
        seconds = {"total": time.perf_counter() - started, "training": training}
        manifest = finished_manifest(manifest, parts, seconds)
        made = Experiment(**tables_of(finished), findings=(), manifest=manifest)
        return replace(made, findings=tuple(judge(made)))


def _train(
    task: Task, choices: Sequence[Configuration], parts: Parts, workers: int, watch: Watch, device: torch.device
) -> list[Part]:
    by_key = {choice.key: choice for choice in choices}
    left = [choice for choice in choices if parts.json(choice.key) is None]
    at_once = min(workers, len(left)) if isinstance(current(), Local) else 1  # shards and actors train one at a time
    if left:
        each = _estimate(task, left, device)
        seconds = sum(each[choice.normalizer] for choice in left) / at_once
        left.sort(key=lambda choice: -each[choice.normalizer])  # the slowest first: no core waits for one at the end
        runs, seeds = many(len(left), "run"), many(len(choices[0].seeds), "seed")
        watch.say(f"{runs} of {seeds} on {task.meaning}, {at_once} at a time: about {about(seconds)}")
    else:
        watch.say("all runs were trained before")

    def make(key: str) -> None:
        with one_thread():
            parts.keep_json(key, train(task, by_key[key], device=device))

    def keep(choice: Configuration, content: dict[str, Any]) -> None:
        parts.keep_json(choice.key, content)
        watch.step(choice.label)

    if at_once > 1:
        watch.expect(len(left))
        train_all(task, left, at_once, keep, device)
    else:
        watch.expect(len(choices))
        parts.each(by_key, make, lambda key: watch.step(by_key[key].label))
    return [(choice, parts.json(choice.key) or {}) for choice in choices]


def _estimate(task: Task, left: Sequence[Configuration], device: torch.device) -> dict[str, float]:
    """Seconds per run on one core, by normalizer: scaled from a few steps and a short test."""
    without_lengths = copy.copy(task)
    without_lengths.test_lengths = ()
    each = {}
    with one_thread():
        for choice in {choice.normalizer: choice for choice in left}.values():
            one = replace(choice, steps=1, readings=1, test_size=_TESTED)
            train(without_lengths, one, device=device)  # loads kernels
            base = train(without_lengths, one, device=device)["seconds"]
            step = (train(without_lengths, replace(one, steps=1 + _TIMED), device=device)["seconds"] - base) / _TIMED
            tests = train(task, one, device=device)["seconds"] - base if task.test_lengths else 0.0
            steps = choice.steps + _PER_READING * min(choice.readings, choice.steps)
            each[choice.normalizer] = max(0.0, step) * steps + max(0.0, tests) * choice.test_size / _TESTED
    return each
