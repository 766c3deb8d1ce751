"""One run: all windows of a text through a model, measured by one set of settings, kept in a folder as it goes on."""

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

from ..._held import held
from ...models import LoadedModel, Text, Window, Windows, tap
from ...results import FORMAT, Run
from .cost import DIAGNOSIS, estimate, kernels_loaded
from .folder import RunFolder, identity_of
from .given import windows_for
from .memory import PeakMemory
from .settings import Settings
from .tables import table, window_record
from .watch import Watch
from .window import WindowReader, check_model, check_tokens

NO_QUERY = "because no query sees more keys"
_PACKAGES = ("abbe", "torch", "transformers", "numba", "numpy", "polars", "safetensors", "tokenizers")


def measure_run(
    model: LoadedModel,
    text: Text,
    settings: Settings,
    folder: str | os.PathLike[str] | None,
    watch: Watch,
    overhead: float = DIAGNOSIS,
    cut: Windows | None = None,
) -> Run:
    """Measure the windows that the folder does not hold yet, then make the table of all.

    `overhead` is the time with these measures over that without, for the estimate of the cost. `cut` are the windows,
    if the caller needs them, too.
    """
    with held(folder):
        return _measured(model, text, settings, folder, watch, overhead, cut)


def _measured(
    model: LoadedModel,
    text: Text,
    settings: Settings,
    folder: str | os.PathLike[str] | None,
    watch: Watch,
    overhead: float,
    cut: Windows | None,
) -> Run:
    started = time.perf_counter()
    cut = windows_of(model, text, settings) if cut is None else cut
    facts = _facts(model, text, settings)
    with ExitStack() as stack:
        memory, warm = PeakMemory(), kernels_loaded()
        open_tap = stack.enter_context(tap(model))
        probe = check_tokens(model, cut)
        checked = time.perf_counter()
        error = check_model(model, open_tap, probe)
        a_pass = (time.perf_counter() - checked) / 2
        kept = RunFolder(folder, identity_of(facts["model"], facts["text"], facts["settings"]), watch.announce)
        left = [window.length for window in cut if window not in kept]
        watch.say(f"{model.name}: self-check error {error:.1e} (allowed 1e-3)")
        watch.say(
            str(estimate(model, left, len(probe), a_pass, overhead, queries=settings.queries, warm=warm))
            if left
            else "all windows were measured before"
        )
        _measure(cut, WindowReader(model, open_tap, settings), kept, len(open_tap.layers), watch)
        layers, unread = open_tap.layers, open_tap.skipped
    records = {length: [_record(kept, w) for w in cut if w.length == length] for length in settings.lengths}
    heads = table(model.name, {length: group for length, group in records.items() if group}, settings)
    manifest = facts | {
        "format": FORMAT,
        "finished": True,
        "identity": kept.identity,
        "layers": layers,
        "self_check": {"error": error, "tokens": len(probe)},
        "windows": [{"length": w.length, "index": w.index, "start": w.start, "end": w.end} for w in cut],
        "skipped": [*cut.skipped, *unread, *_reasons(cut, kept), *_unseen_sizes(settings)],
        "measured_again": kept.parts.measured_again,
        "seconds": {"windows": _seconds(cut, kept), "total": round(time.perf_counter() - started, 3)},
        "peak_extra_megabytes": memory.extra(),
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    run = Run(heads, manifest)
    if folder is not None:
        run.save(folder)
    return run


def windows_of(model: LoadedModel, text: Text, settings: Settings) -> Windows:
    return windows_for(model, text, settings.lengths, settings.windows, settings.seed)


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


def _measure(windows: Sequence[Window], reader: WindowReader, kept: RunFolder, layers: int, watch: Watch) -> None:
    """Measure what is left."""
    watch.expect(len(windows))
    for window in windows:
        if window not in kept:
            start = time.perf_counter()
            record = window_record(reader.measure(window), layers)
            record |= reader.distances.tests(window.length, reader.settings.grid)
            kept.keep(window, record, time.perf_counter() - start, list(reader.skipped))
        watch.step(f"windows of {window.length}")


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
        f"length {length}: sets of {', '.join(str(n) for n in settings.grid if n >= length)}, {NO_QUERY}"
        for length in settings.lengths
        if settings.grid[-1] >= length
    ]
