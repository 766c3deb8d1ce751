"""compare: what replacing softmax would gain in this model, and what it would cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..._arguments import between, whole, yes_or_no
from ...models import DeviceLike, DeviceMap, DtypeLike, evaluating
from .._engine.capacity.search import COARSE
from .._engine.inputs import FolderLike, ModelLike, Placed, TextLike, load_inputs
from .._engine.loss import check_causal
from .._engine.settings import MOST_RESAMPLES, checked_seed
from .._engine.sharing.calls import shareable
from .._engine.watch import watching
from .alternatives import NormalizersLike, as_alternatives
from .result import ALTERNATIVES, LENGTH, CompareSettings, Comparison, needle_lengths_for
from .work import Study


@shareable
def compare(
    model: ModelLike = "embedded", text: TextLike | None = None, *,
    normalizers: NormalizersLike | None = None, length: int | None = None, windows: int = 8, queries: int = 32,
    tau: float = 0.05, grid: str = COARSE,
    needle_lengths: int | Sequence[int] | None = None, prompts: int = 4, calibrate: bool = False,
    seed: int = 0, level: float = 0.95, resamples: int = 1000, folder: FolderLike | None = None, tokenizer: Any = None,
    device: DeviceLike | None = None, dtype: DtypeLike | None = None, device_map: DeviceMap | None = None,
    progress: bool = True,
) -> Comparison:  # fmt: skip
    """What would replacing softmax change in this causal language model: loss, sparsity, speed, retrieval?

    Each alternative is swapped into all layers and heads, or into some of them; all read the same windows.

    Args:
        model, text: as for `diagnose`.
        normalizers: what to swap: specs, patterns with specs (a mapping, or in one line "layers.3=topk:k=32; ..."), or
            "file:PATH" of a saved swap. By default entmax:alpha=1.5, sparsemax, topk:k=32 and topp:p=0.9.
        length: of the windows, in tokens; by default 512, or the model's context where it is shorter.
        windows: how many; intervals come from resampling them, and fewer than 6 (8 at a level of 0.99) give no
            recommendation.
        queries: how many of each window selectivity is measured on.
        tau: relative rise of the loss that the capacity allows, in (0, 1).
        grid: of the capacity search, as for `capacity`: "coarse" (powers of 2, with N interpolated between them) or
            "exact" (whole numbers, about twice as many passes).
        needle_lengths: of the prompts of the needle test; by default 128, 256, 512 and 1024, as far as the context
            goes, and `length` if it is longer.
        prompts: how many of each kind, length and depth.
        calibrate: also compare every alternative (except files) after calibration on the first half of the text; all
            windows are then from the second half.
        seed: random seed; the same seed gives the same numbers.
        level: of the intervals, in (0, 1).
        resamples: of the bootstrap, >= 1.
        folder: keep measurements there, and the page `compare.html` (`abbe.compare` writes it); an interrupted
            comparison is resumed.
        tokenizer, device, dtype, device_map, progress: as for `diagnose`.

    Returns:
        A row for the baseline and for every alternative, and which one to take, or that none helps. A rise of the loss
        above 0 and a large time ratio are costs; high shares of zeros and of needles are gains.

    Raises:
        AbbeError: an argument is wrong, the text is too short, or the self-check fails; one line says what to do.

    Examples:
        >>> comparison = abbe.compare(
        ...     normalizers="topk:k=8", length=32, windows=2, queries=4, needle_lengths=64, prompts=1, progress=False
        ... )
        >>> comparison.table["normalizer"].to_list()
        ['baseline', 'topk:k=8']
        >>> comparison.recommendation.sentence
        'Too few windows to judge: ...'
    """
    alternatives = as_alternatives(ALTERNATIVES if normalizers is None else normalizers)
    place, source, loaded = load_inputs(model, text, folder, tokenizer, progress, Placed(device, dtype, device_map))
    check_causal(loaded, "comparing normalizers")
    length = min(LENGTH, loaded.context or LENGTH) if length is None else whole("length", length)
    settings = CompareSettings(
        alternatives, length, whole("windows", windows), whole("queries", queries, least=1),
        between("tau", tau, 0, 1, 0.05), needle_lengths_for(length, needle_lengths, loaded.context),
        whole("prompts", prompts), yes_or_no("calibrate", calibrate), checked_seed(seed),
        between("level", level, 0, 1, 0.95), whole("resamples", resamples, least=1, most=MOST_RESAMPLES), grid,
    )  # fmt: skip
    with watching(progress) as watch, evaluating(loaded.network):
        return Study(loaded, source, settings, place, watch).run()
