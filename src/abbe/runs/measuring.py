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
from .cost import DIAGNOSIS, PeakMemory, estimate, kernels_loaded, plan_memory
from .executors import Shard, current
from .folder import RunFolder, identity_of, model_identity, window_part
from .inputs import windows_for
from .parts import Parts
from .settings import Settings, Vectors
from .study import current_call
from .tables import table
from .watch import Watch
from .window import PassReader, WindowReader, allowed_error, check_model, check_tokens, read_window

NO_QUERY = "because no query sees more keys"
Beside = Callable[[Tap, RunFolder], Sequence[PassReader]]  # other readers of the passes of a run
_PACKAGES = ("abbe", "torch", "transformers", "numba", "numpy", "polars", "safetensors", "scipy", "tokenizers")


def measure_run(
    model: LoadedModel, text: Text, settings: Settings, folder: str | os.PathLike[str] | None, watch: Watch,
    overhead: float = DIAGNOSIS, cut: Windows | None = None, beside: Beside = lambda open_tap, run_folder: (),
    study: str = Run.study, save: bool = True,
) -> Run:  # fmt: skip
    """Measure the windows that the folder lacks, then make the table of all.

    `overhead` is the time with these measures over the time without, for the cost estimate. `cut` are the windows, if
    the caller has them already. Readers `beside` share the passes. A run that is the whole study is saved by its caller
    (`save=False`).
    """
    cut = windows_of(model, text, settings) if cut is None else cut
    (run,) = measure_runs(model, text, [settings], [folder], watch, cut, overhead, beside, study, save)
    return run


def measure_runs(
    model: LoadedModel, text: Text, by_vectors: Sequence[Settings], folders: Sequence[str | os.PathLike[str] | None],
    watch: Watch, cut: Windows, overhead: float = DIAGNOSIS, beside: Beside = lambda open_tap, run_folder: (),
    study: str = Run.study, save: bool = True,
) -> list[Run]:  # fmt: skip
    """Runs whose settings differ only in the kind of vectors: every window is read once for all of them."""
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
        identities = [identity_of(one["model"], one["text"], one["settings"]) for one in facts]
        run_folders = [RunFolder(*pair, watch.announce, study) for pair in zip(folders, identities, strict=True)]
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
            runs.append(finished_run(each, cut, run, fact | seen, memory, started))
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


def finished_run(
    settings: Settings,
    cut: Windows,
    run_folder: RunFolder,
    facts: Mapping[str, Any],
    memory: PeakMemory,
    started: float,
) -> Run:
    """The table of these windows, and the manifest."""
    records = {length: [_record(run_folder, w) for w in cut if w.length == length] for length in settings.lengths}
    heads = table(facts["model"]["name"], {length: group for length, group in records.items() if group}, settings)
    seconds = {"windows": _seconds(cut, run_folder), "total": time.perf_counter() - started}
    skipped = [*facts["skipped"], *_reasons(cut, run_folder), *_unseen_sizes(settings)]
    more = {"windows": window_places(cut), "peak_extra_megabytes": memory.extra(), "skipped": skipped}
    return Run(heads, finished_manifest({**facts, **more}, run_folder.parts, seconds))


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
            **model_identity(model),
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


def _seconds(cut: Sequence[Window], run_folder: RunFolder) -> dict[str, float]:
    """Of all windows of each length, including those measured by an earlier call."""
    times: dict[str, float] = {}
    for window in cut:
        times[str(window.length)] = round(times.get(str(window.length), 0.0) + run_folder.notes(window)["seconds"], 3)
    return times


def _record(run_folder: RunFolder, window: Window) -> Any:
    record = run_folder.record(window)
    assert record is not None, window
    return record


def _reasons(cut: Sequence[Window], run_folder: RunFolder) -> list[str]:
    """Why parts of windows were left out, each reason once."""
    return list(dict.fromkeys(why for window in cut for why in run_folder.notes(window)["skipped"]))


def _unseen_sizes(settings: Settings) -> list[str]:
    """Set sizes that a window is too short for."""
    return [
        f"length {length}: sets of {', '.join(str(n) for n in settings.sizes if n >= length)}, {NO_QUERY}"
        for length in settings.lengths
        if settings.sizes[-1] >= length
    ]
