"""diagnose: text -> windows -> model with a tap -> measures in blocks of queries -> one tidy table."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from torch import nn

from .._errors import AbbeError
from ..models import LoadedModel, Text, Window, load, read_text, tap, wrap
from ..models import windows as cut_windows
from ..normalizers import Normalizer
from ..results import FORMAT, Run
from ._cost import estimate
from ._folder import RunFolder, identity_of
from ._memory import PeakMemory
from ._settings import Settings, settings_for
from ._tables import table, window_record
from ._window import WindowReader, check_model, check_tokens

_PACKAGES = ("abbe", "torch", "transformers", "numba", "numpy", "polars", "safetensors", "tokenizers")


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
    started = time.perf_counter()
    loaded = _as_model(model, tokenizer)
    source = _as_text(text)
    settings = settings_for(
        loaded.context, lengths=lengths, windows=windows, queries=queries, grid=grid, vectors=vectors,
        normalizer=normalizer, temperatures=temperatures, seed=seed, level=level, resamples=resamples,
    )  # fmt: skip
    cut = cut_windows(
        source, settings.lengths, settings.windows, seed, tokenizer=loaded.tokenizer, context=loaded.context
    )
    facts = _facts(loaded, source, settings)
    show = Console(stderr=True, quiet=not progress)
    with ExitStack() as stack:
        memory = PeakMemory()
        open_tap = stack.enter_context(tap(loaded))
        probe = check_tokens(loaded, cut)
        checked = time.perf_counter()
        error = check_model(loaded, open_tap, probe)
        a_pass = (time.perf_counter() - checked) / 2
        kept = RunFolder(folder, identity_of(facts["model"], facts["text"], facts["settings"]))
        left = [window for window in cut if window not in kept]
        show.print(f"{loaded.name}: self-check error {error:.1e} (allowed 1e-3)", highlight=False)
        show.print(
            str(estimate(loaded, left, len(probe), a_pass)) if left else "all windows were measured before",
            highlight=False,
        )
        reader = WindowReader(loaded, open_tap, settings)
        _measure(left, reader, kept, len(open_tap.layers), show)
        layers = open_tap.layers
    records = {length: [_record(kept, w) for w in cut if w.length == length] for length in settings.lengths}
    heads = table(loaded.name, {length: group for length, group in records.items() if group}, settings)
    manifest = facts | {
        "format": FORMAT,
        "finished": True,
        "identity": kept.identity,
        "layers": layers,
        "self_check": {"error": error, "tokens": len(probe)},
        "windows": [{"length": w.length, "index": w.index, "start": w.start, "end": w.end} for w in cut],
        "skipped": [*cut.skipped, *_reasons(cut, kept), *_unseen_sizes(settings)],
        "seconds": {"windows": _seconds(cut, kept), "total": round(time.perf_counter() - started, 3)},
        "peak_extra_megabytes": memory.extra(),
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    run = Run(heads, manifest)
    if folder is not None:
        run.save(folder)
    return run


def _as_model(model: str | os.PathLike[str] | LoadedModel | nn.Module, tokenizer: Any) -> LoadedModel:
    if isinstance(model, nn.Module):
        if tokenizer is None:
            raise AbbeError("a network comes without its tokenizer: give tokenizer=...")
        return wrap(model, tokenizer)
    if isinstance(model, LoadedModel):
        return model
    if not os.fspath(model).strip():
        raise AbbeError("the model has no name: give embedded, smollm2, a folder, a .gguf file or a hub id")
    return load(model)


def _as_text(text: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | Text | None) -> Text:
    if isinstance(text, Text):
        return text
    if isinstance(text, str) and ("\n" in text or not text.strip()):
        return Text("text", text)
    return read_text(text)


def _facts(model: LoadedModel, text: Text, settings: Settings) -> dict[str, Any]:
    return {
        "versions": {"python": platform.python_version()} | {name: version(name) for name in _PACKAGES},
        "machine": {"system": platform.platform(terse=True), "threads": torch.get_num_threads()},
        "model": {
            "name": model.name,
            "about": model.about,
            "kind": model.kind,
            "source": model.source,
            "class": type(model.network).__name__,
            "fingerprint": model.fingerprint,
            "configuration": model.configuration,
        },
        "text": {"name": text.name, "characters": len(text.content), "fingerprint": text.fingerprint},
        "settings": settings.as_json(),
    }


def _measure(windows: Sequence[Window], reader: WindowReader, kept: RunFolder, layers: int, show: Console) -> None:
    """Measure what is left."""
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, TimeRemainingColumn(), console=show, transient=True) as bar:
        task = bar.add_task("windows", total=len(windows))
        for window in windows:
            start = time.perf_counter()
            record = window_record(reader.measure(window), layers)
            kept.keep(window, record, time.perf_counter() - start, list(reader.skipped))
            bar.update(task, advance=1, description=f"windows of {window.length}")


def _seconds(cut: Sequence[Window], kept: RunFolder) -> dict[str, float]:
    """Of all windows of each length, also those that an earlier call measured."""
    times: dict[str, float] = {}
    for window in cut:
        times[str(window.length)] = round(times.get(str(window.length), 0.0) + kept.notes(window)["seconds"], 3)
    return times


def _record(kept: RunFolder, window: Window) -> Any:
    record = kept.record(window)
    assert record is not None, window
    return record


def _reasons(cut: Sequence[Window], kept: RunFolder) -> list[str]:
    """What was left out of windows, each reason once."""
    return list(dict.fromkeys(why for window in cut for why in kept.notes(window)["skipped"]))


def _unseen_sizes(settings: Settings) -> list[str]:
    """Set sizes that a window is too short for."""
    return [
        f"length {length}: sets of {', '.join(str(n) for n in settings.grid if n >= length)}, "
        "because no query sees more keys"
        for length in settings.lengths
        if settings.grid[-1] >= length
    ]
