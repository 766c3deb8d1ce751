"""One run: all windows of a text through a model, with one set of settings, kept in a folder window by window."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

import torch

from .._locks import held
from ..models import LoadedModel, Tap, Text, Window, Windows, tap
from ..results import FORMAT, Run
from ..words.manifest import without_folder
from .cost import DIAGNOSIS, PeakMemory, estimate, kernels_loaded, plan_memory
from .executors import Shard, current
from .folder import RunFolder, claim_folder, window_part
from .inputs import as_folder, windows_for
from .parts import Parts
from .settings import Settings, Vectors
from .study import current_call
from .tables import table
from .watch import Watch
from .window import PassReader, WindowReader, allowed_error, check_model, check_tokens, read_window

NO_QUERY = "because no query sees more keys"
Folder = str | os.PathLike[str] | None
Beside = Callable[[Tap, RunFolder], Sequence[PassReader]]  # other readers of the passes of a run
_PACKAGES = ("abbe", "torch", "transformers", "numba", "numpy", "polars", "safetensors", "scipy", "tokenizers")


def measure_runs(
    model: LoadedModel, text: Text, by_vectors: Sequence[Settings], folders: Sequence[Folder], watch: Watch,
    cut: Windows, *, overhead: float = DIAGNOSIS, beside: Beside = lambda open_tap, run_folder: (),
    study: str = Run.study, save: bool = True,
) -> list[Run]:  # fmt: skip
    """Measure the windows that the folders lack, then make the tables of all.

    Settings of several runs differ only in the kind of vectors: every window is read once for all of them. `overhead`
    is the time with these measures over the time without, for the cost estimate. Readers `beside` share the passes. A
    run that is the whole study is saved by its caller (`save=False`).
    """
    started = time.perf_counter()
    settings, probe = by_vectors[0], check_tokens(model, cut)
    plan_memory(model, [window.length for window in cut], len(probe), watch.say, queries=settings.queries)
    # Hashes the weights, so it comes first: pages of a file that are read for the first time would count as memory.
    facts = [manifest_facts(study, model, text, one.as_json()) for one in by_vectors]
    import scipy.stats  # noqa: F401 - needed for the tables, and large: loaded now, it does not count as memory either

    with ExitStack() as stack:
        for folder in folders:
            stack.enter_context(held(folder, current().lock))
        # Before the tap, whose check loads the kernels.
        memory, warm = PeakMemory(), kernels_loaded()
        open_tap = stack.enter_context(tap(model))
        checked = time.perf_counter()
        error = check_model(model, open_tap, probe)
        pass_seconds = (time.perf_counter() - checked) / 2  # the check is two passes
        run_folders = [
            RunFolder(claim_folder(as_folder(folder), study, model, text, one.as_json(), watch.announce))
            for folder, one in zip(folders, by_vectors, strict=True)
        ]
        left = [window.length for window in cut if any(window not in run for run in run_folders)]
        watch.say_checked(model.name, error, allowed_error(model))
        cost = estimate(model, left, len(probe), pass_seconds, overhead, queries=settings.queries, warm=warm)
        watch.say(str(cost) if left else "all windows were measured before")
        reader = WindowReader(model, open_tap, settings, [each.vectors for each in by_vectors])
        by_kind = dict(zip(reader.kinds, run_folders, strict=True))
        readers = beside(open_tap, run_folders[0])
        seen = {
            "layers": open_tap.layers,
            "self_check": {"error": error, "tokens": len(probe)},
            "skipped": [*cut.skipped, *open_tap.skipped],
        }
        windows = {window_part(window): window for window in cut}

        def has(name: str) -> bool:
            wanted = any(other.wants(windows[name]) for other in readers)
            return not wanted and all(windows[name] in run for run in run_folders)

        watch.expect(len(cut))
        run_folders[0].parts.each(
            windows,
            lambda name: _measure(windows[name], reader, by_kind, readers),
            lambda name: watch.step(f"windows of {windows[name].length}"),
            has,
        )
        runs = []
        for each, fact, folder, run in zip(by_vectors, facts, folders, run_folders, strict=True):
            runs.append(_finished(each, cut, run, fact | seen, memory, started))
            if folder is not None and save and not isinstance(current(), Shard):
                runs[-1].save(folder)
    return runs


def _measure(
    window: Window, reader: WindowReader, run_folders: Mapping[Vectors, RunFolder], beside: Sequence[PassReader]
) -> None:
    """Make the missing records of one window, in one pass for all runs and readers."""
    missing = [kind for kind, run in run_folders.items() if window not in run]
    if not missing:
        read_window(reader.model, window, beside)
        return
    start = time.perf_counter()
    records = reader.measure(window, beside)
    seconds = (time.perf_counter() - start) / len(missing)
    for kind in missing:
        run_folders[kind].keep(window, records[kind], seconds, list(reader.skipped))


def _finished(
    settings: Settings, cut: Windows, run_folder: RunFolder, facts: dict[str, Any], memory: PeakMemory, started: float
) -> Run:
    """The table of these windows, and the manifest."""
    records, seconds = dict[int, list[Any]](), dict[str, float]()  # by length, of earlier calls as well
    reasons = dict.fromkeys(facts["skipped"])  # each once
    for window in cut:
        records.setdefault(window.length, []).append(run_folder.record(window))
        notes, key = run_folder.notes(window), str(window.length)
        seconds[key] = round(seconds.get(key, 0.0) + notes["seconds"], 3)
        reasons |= dict.fromkeys(notes["skipped"])
    for length in settings.lengths:
        if unseen := ", ".join(str(n) for n in settings.sizes if n >= length):
            reasons[f"length {length}: sets of {unseen}, {NO_QUERY}"] = None
    by_length = {length: records[length] for length in settings.lengths if length in records}
    heads = table(without_folder(facts["model"]["name"]), by_length, settings)
    facts |= {"windows": window_places(cut), "peak_extra_megabytes": memory.extra(), "skipped": [*reasons]}
    times = {"windows": seconds, "total": time.perf_counter() - started}
    return Run(heads, finished_manifest(facts, run_folder.parts, times))


def finished_manifest(
    facts: Mapping[str, Any], parts: Parts, seconds: Mapping[str, Any], again: Sequence[str] = ()
) -> dict[str, Any]:
    """The end of every manifest; `again` are lines about damaged parts of other runs."""
    return dict(facts) | {
        "finished": True,
        "identity": parts.identity,
        "measured_again": [*parts.measured_again, *again],
        "seconds": {name: round(one, 3) if isinstance(one, float) else one for name, one in seconds.items()},
        "call": current_call(),
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def window_places(windows: Sequence[Window], before: int = 0) -> list[dict[str, int]]:
    """Their positions in a text, in characters; `before` characters precede the part that was read."""
    return [{"length": w.length, "index": w.index, "start": before + w.start, "end": before + w.end} for w in windows]


def windows_of(model: LoadedModel, text: Text, settings: Settings) -> Windows:
    return windows_for(model, text, settings.lengths, settings.windows, settings.seed)


def manifest_facts(study: str, model: LoadedModel, text: Text, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The start of the manifest of a study of one model."""
    return study_facts(study, settings) | {
        "model": {
            "name": model.name,
            "about": model.about,
            "kind": model.kind,
            "source": model.source,
            "class": type(model.network).__name__,
            "fingerprint": model.fingerprint,
            "configuration": model.configuration,
            "device": model.devices,
            "dtype": model.precision,
        },
        "text": {"name": text.name, "characters": len(text.content), "fingerprint": text.fingerprint},
    }


def study_facts(study: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The start of every manifest: study, versions, machine and settings."""
    return {
        "format": FORMAT,
        "study": study,
        "versions": {"python": platform.python_version()} | {name: version(name) for name in _PACKAGES},
        "machine": {"system": platform.platform(terse=True), "threads": torch.get_num_threads()},
        "settings": dict(settings),
    }
