"""train_text: a character model of any text, trained with each normalizer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..._arguments import yes_or_no
from ...models import DeviceLike
from .._engine.inputs import FolderLike, TextLike, as_text
from .._engine.sharing.calls import shareable
from .experiment import Plan, run_experiment
from .grid import Defaults, grid
from .judges import judge_loss
from .result import Experiment
from .tasks import make_task
from .tasks.text import NextCharacter
from .temperature_study import NORMALIZERS

USUAL = Defaults(
    NORMALIZERS, {"sgd": (0.1, 0.3, 1.0), "adamw": (1e-3, 3e-3, 1e-2), "muon": (1e-3, 3e-3, 1e-2)},
    steps=NextCharacter.steps, readings=20, test_size=128,
)  # fmt: skip
QUICK = replace(
    USUAL, normalizers=("softmax", "sparsemax"), steps=60, readings=10, test_size=32,
    rates={"sgd": (0.3,), "adamw": (3e-3,), "muon": (3e-3,)},
)  # fmt: skip


@shareable
def train_text(
    text: TextLike | None = None, *, normalizers: str | Sequence[str] | None = None, temperature: float | str = 1.0,
    optimizers: str | Sequence[str] = "adamw", rates: float | Sequence[float] | None = None, seeds: int | None = None,
    steps: int | None = None, qk_norm: bool = False, quick: bool = False, seed: int = 0, workers: int | None = None,
    device: DeviceLike | None = None, folder: FolderLike | None = None, progress: bool = True,
) -> Experiment:  # fmt: skip
    """Train character models of a text, with each normalizer at its own best rate, and compare their held-out loss.

    Args:
        text: whatever `abbe.read_text` takes; by default the built-in sample. The last tenth is held out.
        normalizers: specs; by default softmax, ssmax, sparsemax and entmax:alpha=1.5.
        temperature: in front of the normalizer: a number, "learned", or a schedule such as "geometric:1:0.1".
        optimizers: of "sgd", "adamw" and "muon".
        rates: learning rates for all optimizers; by default three for each.
        seeds: number of seeds, from `seed` on; intervals come from them.
        steps: per run, >= 10.
        qk_norm: normalize queries and keys.
        quick: fewer normalizers, rates and steps: less than a minute.
        seed, workers, device, folder, progress: as for `train_temperature`.

    Returns:
        Every run of every seed, curves, the results at the best rates, and judged statements. A low held-out
        loss means that the next character is predicted well.

    Examples:
        >>> text = "It was a dark and stormy night. " * 200
        >>> small = {"rates": 0.01, "seeds": 1, "steps": 10, "workers": 1, "progress": False}
        >>> result = abbe.train_text(text, normalizers="softmax", **small)
        >>> result.summary.select("normalizer", "best_rate").rows()
        [('softmax', 0.01)]
    """
    defaults = QUICK if yes_or_no("quick", quick) else USUAL
    task = make_task(NextCharacter.name, text=as_text(text))
    choices, settings = grid(task, defaults, normalizers, optimizers, rates, seeds, steps, seed, temperature, qk_norm)
    return run_experiment(Plan("text", task, choices, settings, judge_loss), device, folder, workers, progress)
