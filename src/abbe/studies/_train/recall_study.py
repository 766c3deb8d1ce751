"""train_recall: how well do normalizers learn to look up a value by its key?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..._arguments import whole, yes_or_no
from ..._errors import AbbeError
from ...models import DeviceLike
from .._engine.inputs import FolderLike
from .._engine.sharing.calls import shareable
from .experiment import Plan, run_experiment
from .grid import Defaults, grid
from .judges import judge_accuracy
from .result import Experiment
from .tasks import make_task
from .tasks.recall import Mqar, Recall
from .temperature_study import NORMALIZERS, RATES

USUAL = {
    Recall.name: Defaults((*NORMALIZERS, "topk:k=4"), RATES, steps=Recall.steps, seeds=5),
    Mqar.name: Defaults(
        NORMALIZERS, {"sgd": (0.1, 0.3, 1.0), "adamw": (1e-3, 3e-3, 1e-2), "muon": (1e-3, 3e-3, 1e-2)},
        steps=Mqar.steps, readings=20,
    ),
}  # fmt: skip
QUICK = {
    Recall.name: replace(USUAL[Recall.name], normalizers=("softmax", "sparsemax"), steps=200, seeds=3),
    Mqar.name: replace(
        USUAL[Mqar.name], normalizers=("softmax", "sparsemax"), steps=100, readings=10, test_size=128,
        rates={"sgd": (0.3,), "adamw": (3e-3,), "muon": (3e-3,)},
    ),
}  # fmt: skip


@shareable
def train_recall(
    *, task: str = "recall", normalizers: str | Sequence[str] | None = None, temperature: float | str = 1.0,
    optimizers: str | Sequence[str] = "adamw", rates: float | Sequence[float] | None = None, seeds: int | None = None,
    steps: int | None = None, pairs: int | None = None, symbols: int | None = None, length: int | None = None,
    width: int | None = None, qk_norm: bool = False, quick: bool = False, seed: int = 0, workers: int | None = None,
    device: DeviceLike | None = None, folder: FolderLike | None = None, progress: bool = True,
) -> Experiment:  # fmt: skip
    """Train small networks to recall values by their keys, with each normalizer at its own best rate.

    Args:
        task: "recall" (one head, 24 pairs) or "mqar" (multi-query associative recall, a causal transformer of two
            layers, arXiv 2312.04927).
        normalizers: specs; by default softmax, ssmax, sparsemax and entmax:alpha=1.5, for "recall" also topk:k=4.
        temperature: in front of the normalizer: a number, "learned", or a schedule such as "geometric:1:0.1".
        optimizers: of "sgd", "adamw" and "muon".
        rates: learning rates for all optimizers; by default three or four for each.
        seeds: number of seeds, from `seed` on; intervals come from them.
        steps: per run, >= 10; by default those of the task.
        pairs, symbols: keys with a value in each sequence, and different tokens; 24 of 128 for "recall", 4 of 64 for
            "mqar".
        length: tokens of a sequence of "mqar", >= 3 pairs; by default 32.
        width: features of the network; 16 for "recall", 64 for "mqar".
        qk_norm: normalize queries and keys.
        quick: fewer normalizers, seeds and steps: less than a minute.
        seed, workers, device, folder, progress: as for `train_temperature`.

    Returns:
        Every run of every seed, curves, the results at the best rates, and judged statements.

    Examples:
        >>> result = abbe.train_recall(normalizers="softmax", rates=0.01, seeds=1, steps=20, workers=1, progress=False)
        >>> result.summary.select("normalizer", "best_rate").rows()
        [('softmax', 0.01)]
    """
    if task not in USUAL:
        raise AbbeError(f"there is no recall task {task!r}: choose one of {', '.join(USUAL)}")
    sizes = {"pairs": pairs, "symbols": symbols, "length": length}
    trained = make_task(task, {name: size for name, size in sizes.items() if size is not None})
    trained.width = whole("width", trained.width if width is None else width, least=1, most=1024)
    defaults = (QUICK if yes_or_no("quick", quick) else USUAL)[task]
    choices, settings = grid(
        trained, defaults, normalizers, optimizers, rates, seeds, steps, seed, temperature, qk_norm
    )
    return run_experiment(Plan("recall", trained, choices, settings, judge_accuracy), device, folder, workers, progress)
