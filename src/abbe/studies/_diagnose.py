"""diagnose: text -> windows -> model with a tap -> measures in blocks of queries -> one tidy table."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from torch import nn

from .._errors import AbbeError
from ..models import LoadedModel, Text, load, read_text, wrap
from ..normalizers import Normalizer
from ..results import Run
from ._measuring import measure_run
from ._progress import watching
from ._settings import settings_for


def diagnose(
    model: str | os.PathLike[str] | LoadedModel | nn.Module = "embedded",
    text: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | Text | None = None,
    *,
    lengths: Sequence[int] | None = None,
    normalizer: str | Normalizer | None = None,
    vectors: str = "value",
    queries: int | str = 64,
    windows: int = 8,
    grid: Sequence[int] | None = None,
    temperatures: Sequence[float] = (1.0,),
    seed: int = 0,
    level: float = 0.95,
    resamples: int = 1000,
    folder: str | os.PathLike[str] | None = None,
    tokenizer: Any = None,
    progress: bool = True,
) -> Run:
    """Measure how selective every attention head of a model is.

    Args:
        model: a name for `load`, what `load` gave, or a transformers network (then with its `tokenizer`).
        text: file or files, "-" for standard input, a `Text`, the text itself if it has several lines, or None for
            the sample that comes with abbe.
        lengths: window lengths in tokens; by default 64, 256 and 1024, as far as the model's context goes.
        normalizer: another normalizer for the same logits; by default the model's own softmax, with its sinks.
        vectors: token vectors of the geometry: "value", "output" (values through the output projection), "hidden" (the
            layer's input states) or "embedding" (L2-normalised token embeddings, as in arXiv 2508.17821).
        queries: how many queries a window, one from each of as many equal stretches, or "all".
        windows: how many windows of each length; intervals come from resampling them.
        grid: sizes N of the selected set; by default 1, 2, 5, 10, 20, 50 and 100.
        temperatures: where the sensitivity is measured; none leaves it out.
        seed: of windows, queries, random sets and resampling.
        level: of the intervals.
        resamples: of the bootstrap.
        folder: keep the run there; a run that was stopped goes on where it was.
        progress: say the cost and show a bar on standard error.

    Example:
        >>> run = abbe.diagnose("smollm2", "book.txt", lengths=[256, 1024])
        >>> run.heads.filter(pl.col("measure") == "separability")
    """
    loaded = as_model(model, tokenizer)
    source = as_text(text)
    settings = settings_for(
        loaded.context, lengths=lengths, windows=windows, queries=queries, grid=grid, vectors=vectors,
        normalizer=normalizer, temperatures=temperatures, seed=seed, level=level, resamples=resamples,
    )  # fmt: skip
    with watching(progress) as watch:
        return measure_run(loaded, source, settings, folder, watch)


def as_model(model: str | os.PathLike[str] | LoadedModel | nn.Module, tokenizer: Any) -> LoadedModel:
    if isinstance(model, nn.Module):
        if tokenizer is None:
            raise AbbeError("a network comes without its tokenizer: give tokenizer=...")
        return wrap(model, tokenizer)
    if isinstance(model, LoadedModel):
        return model
    if not os.fspath(model).strip():
        raise AbbeError("the model has no name: give embedded, smollm2, a folder, a .gguf file or a hub id")
    return load(model)


def as_text(text: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | Text | None) -> Text:
    if isinstance(text, Text):
        return text
    if isinstance(text, str) and ("\n" in text or not text.strip()):
        return Text("text", text)
    return read_text(text)
