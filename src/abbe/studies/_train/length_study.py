"""train_length: which normalizer finds the maximum of sets a thousand times as long as those it was trained on?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..._arguments import several, whole, yes_or_no
from ..._errors import AbbeError
from ...models import DeviceLike
from ...words.lab import HARD_MAXIMUM
from .._engine.inputs import FolderLike
from .._engine.sharing.calls import shareable
from .experiment import Plan, run_experiment
from .grid import Defaults, grid
from .judges import judge_length
from .result import Experiment
from .tasks import make_task
from .tasks.maximum import Maximum

MOST_ITEMS = 1 << 17  # of one test set: a row of logits and its features have to fit
USUAL = Defaults(
    normalizers=(
        "softmax", HARD_MAXIMUM, "adaptive-temperature", "learned-temperature", "ssmax:learn=true", "sparsemax",
        "entmax:alpha=1.5", "entmax:alpha=1.5,learn=true", "asentmax:alpha=1.5,learn=true", "topk:k=4",
        "hybrid:a=softmax,b=sparsemax",
    ),
    rates={"sgd": (0.03, 0.1, 0.3), "adamw": (3e-3, 1e-2, 3e-2), "muon": (3e-3, 1e-2, 3e-2)},
    steps=Maximum.steps,
    seeds=5,
    decay=1e-3,
    cooldown=1.0,
    readings=20,
    test_size=256,
    for_inference={HARD_MAXIMUM: "softmax", "adaptive-temperature": "softmax"},
)  # fmt: skip
QUICK = replace(
    USUAL, normalizers=("softmax", HARD_MAXIMUM, "adaptive-temperature", "sparsemax"), steps=500, readings=10,
    test_size=128, rates={"sgd": (0.1, 0.3), "adamw": (3e-3, 1e-2), "muon": (3e-3, 1e-2)},
)  # fmt: skip
_QUICK_LENGTHS = (16, 64, 256, 1024, 4096)


@shareable
def train_length(
    *, normalizers: str | Sequence[str] | None = None, rates: float | Sequence[float] | None = None,
    optimizers: str | Sequence[str] = "adamw", seeds: int | None = None, steps: int | None = None,
    lengths: int | Sequence[int] | None = None, quick: bool = False, seed: int = 0, workers: int | None = None,
    device: DeviceLike | None = None, folder: FolderLike | None = None, progress: bool = True,
) -> Experiment:  # fmt: skip
    """Train one head to find the item of the highest priority among up to 16, and test it on up to 16,384.

    The task of arXiv 2410.01104, whose row for softmax (98.6, 94.3, 81.3, 53.8, 22.6, 12.4 %) stands beside the result.
    Each normalizer is trained at several rates and judged at its best one. Accuracy is reported at the trained length
    and at longer ones, since a map can fit its training data and generalise to nothing. As in that paper,
    adaptive-temperature is not trained: networks are trained with softmax and tested with it. So is topk:k=1, the hard
    maximum on the trained softmax logits: what it loses, the logits have lost, and not the normalizer.

    Args:
        normalizers: specs; by default softmax, the hard maximum on its logits, adaptive and learned temperature, ssmax,
            sparsemax, entmax (fixed and learned alpha), asentmax, topk and a hybrid of softmax and sparsemax.
        rates: learning rates for all optimizers; by default three. They fall linearly to 0 over the run.
        optimizers: of "sgd", "adamw" and "muon".
        seeds: number of seeds, from `seed` on; intervals come from them.
        steps: per run, >= 10.
        lengths: items per set in the tests, 16 being the longest of training.
        quick: fewer normalizers, rates and steps: less than a minute.
        seed, workers, device, folder, progress: as for `train_temperature`.

    Returns:
        Every run of every seed, curves, the results at the best rates, and judged statements. High accuracy on long
        sets means that selection generalises; high entropy there, that the weight is spread over many items.

    Examples:
        >>> small = {"rates": 0.01, "seeds": 1, "steps": 10, "workers": 1, "progress": False}
        >>> result = abbe.train_length(normalizers="softmax", lengths=16, **small)
        >>> result.lengths["length"].to_list()
        [16]
    """
    defaults = QUICK if yes_or_no("quick", quick) else USUAL
    tested = _lengths(lengths if lengths is not None else _QUICK_LENGTHS if quick else Maximum.test_lengths)
    task = make_task(Maximum.name, {"lengths": tested})
    choices, settings = grid(task, defaults, normalizers, optimizers, rates, seeds, steps, seed)
    plan = Plan("length", task, choices, settings | {"lengths": list(tested)}, judge_length)
    return run_experiment(plan, device, folder, workers, progress)


def _lengths(given: int | Sequence[int]) -> tuple[int, ...]:
    lengths = {whole("a length", length) for length in several("lengths", given)}
    if not lengths or min(lengths) < 1 or max(lengths) > MOST_ITEMS:
        raise AbbeError(f"lengths must be whole numbers from 1 to {MOST_ITEMS:,}, such as 16,256,4096")
    return tuple(sorted(lengths))
