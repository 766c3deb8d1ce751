"""diagnose: text -> windows -> model with a tap -> measures in blocks of queries -> one tidy table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..models import DeviceLike, DeviceMap, DtypeLike, Loss
from ..normalizers import Normalizer
from ..results import Run
from ..runs.inputs import LENGTHS, FolderLike, ModelLike, Placed, TextLike, TokensLike, settings_for
from ..runs.measuring import at_work, measure_runs
from ..runs.study import study


@study(Run)
def diagnose(
    model: ModelLike = "embedded", text: TextLike | None = None, *, tokens: TokensLike | None = None,
    lengths: int | Sequence[int] | None = None, normalizer: str | Normalizer | None = None, vectors: str = "value",
    queries: int | str = 64, windows: int = 8, sizes: int | Sequence[int] | None = None,
    temperatures: float | Sequence[float] = (1.0,),
    seed: int = 0, level: float = 0.95, resamples: int = 1000, folder: FolderLike | None = None, tokenizer: Any = None,
    loss: Loss | None = None,
    device: DeviceLike | None = None, dtype: DtypeLike | None = None, device_map: DeviceMap | None = None,
    progress: bool = True,
) -> Run:  # fmt: skip
    """Measure how selective every attention head of a model is: dispersion, distance, separability, sensitivity.

    `abbe.measures.list_measures` says what high and low mean.

    Args:
        model: a name for `load`, what `load` gave, or a transformers network (then with its `tokenizer`). A network in
            training mode is measured in evaluation mode and put back; wrappers of torch.compile or distributed training
            are ignored.
        text: file or files, "-" for standard input, a `Text`, the text itself (a string that is not a path and has a
            space or a line break), or None for the sample that comes with abbe.
        tokens: instead of a text, token ids: a tensor, an array, a list, or a .npy or .safetensors file.
        lengths: window lengths in tokens; by default 64, 256 and 1024, as far as they fit the context, or
            all of a shorter text.
        normalizer: another normalizer for the same logits; by default the model's own softmax, with its sinks.
        vectors: token vectors of the geometry: "value", "output" (values through the output projection), "hidden" (the
            layer's input states) or "embedding" (L2-normalised token embeddings, as in arXiv 2508.17821).
        queries: how many queries per window, one from each of as many equal stretches, or "all".
        windows: how many windows of each length; intervals come from resampling them.
        sizes: sizes N of the selected set; by default 1, 2, 5, 10, 20, 50 and 100.
        temperatures: T > 0 at which the sensitivity is measured; none leaves it out.
        seed: of windows, queries, random sets and resampling.
        level: coverage of the intervals, in (0, 1).
        resamples: number of bootstrap resamples, >= 1.
        folder: keep the run there; an interrupted run is resumed.
        tokenizer: of a network in memory; with `tokens` it needs none.
        loss: of a network that is not from transformers, as for `abbe.models.wrap`.
        device: "cpu" (the default), "cuda", "cuda:1", "mps", "xpu", or "auto" for an accelerator if there is one. A
            network in memory stays where it is.
        dtype: of the weights: "float32" (the default), "bfloat16" or "float16"; a network in memory stays as it is.
        device_map: instead of `device`, to spread the model over devices: "auto", or a mapping as in transformers.
        progress: show cost and a bar on standard error.

    Returns:
        A row per layer, head, length, size and measure, with interval, limit and control.

    Raises:
        AbbeError: an argument is wrong, the text is too short, or the self-check fails; one line says what to do.

    Commands:
        abbe diagnose
        abbe diagnose smollm2 --text book.txt --lengths 256,1024 --out run
        abbe diagnose ./my-model --with entmax:alpha=1.5 --json

    Examples:
        >>> import polars as pl
        >>> run = abbe.diagnose("embedded", lengths=32, windows=2, queries=4, progress=False)
        >>> run.table.filter(pl.col("measure") == "separability").columns
        ['model', 'layer', 'head', 'length', 'n', 'measure', 'value', 'low', 'high', 'limit', 'control']
    """
    with at_work(Run, model, text, folder, tokenizer, progress, Placed(device, dtype, device_map), tokens, loss) as job:
        settings = settings_for(
            job.room(LENGTHS[0]), lengths=lengths, windows=windows, queries=queries, sizes=sizes,
            vectors=vectors, normalizer=normalizer, temperatures=temperatures, seed=seed, level=level,
            resamples=resamples,
        )  # fmt: skip
        return measure_runs(job, [settings], job.windows(settings))[0].run
