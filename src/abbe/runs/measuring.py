"""A study at work: its inputs, self-check, folder and manifest; and the run that most studies make or contain.

A run is all windows of a text through a model, with one set of settings, kept in a folder window by window.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import torch

from .._locks import held
from ..models import (
    LoadedModel,
    Loss,
    Swap,
    Tap,
    Text,
    Tokens,
    Window,
    Windows,
    class_name,
    evaluating,
    self_check_tolerance,
    tap,
)
from ..results import FORMAT, Result, Run
from ..words.manifest import without_folder
from .cost import DIAGNOSIS, PeakMemory, estimate, kernels_loaded, plan_memory
from .executors import Shard, current
from .inputs import FolderLike, ModelLike, Placed, Settings, TextLike, as_folder, as_model, as_text, windows_for
from .parts import Parts, claim_folder
from .study import current_call
from .tables import Record, table
from .watch import Watch, watching
from .window import Passes, PassReader, WindowReader, check_model, check_tokens, run_model, window_part

NO_QUERY = "because no query sees more keys"
_LONG_TOKEN = 32  # characters: a text with more per token is not counted beforehand
_PACKAGES = ("abbe", "torch", "transformers", "numba", "numpy", "polars", "safetensors", "scipy", "tokenizers")


@dataclass(eq=False)
class Job:
    """A study at work on one model and text."""

    study: str
    model: LoadedModel
    text: Text
    folder: Path | None
    watch: Watch
    started: float = field(default_factory=time.perf_counter, init=False)
    parts: Parts = field(init=False)
    facts: dict[str, Any] = field(default_factory=dict, init=False)  # for the manifest

    def room(self, shortest: int) -> int | None:
        """The longest window: the model's context, or all of a text that is shorter than the shortest usual one."""
        text, context = self.text.content, self.model.context
        if isinstance(self.text, Tokens):
            tokens = len(self.text.ids)
            return min(tokens, context or tokens) if 2 <= tokens < shortest else context
        if len(text) > shortest * _LONG_TOKEN or not callable(self.model.tokenizer):
            return context
        tokens = len(self.model.tokenizer(text, truncation=False, padding=False, verbose=False)["input_ids"])
        return min(tokens, context or tokens) if 2 <= tokens < shortest else context

    def windows(self, settings: Settings) -> Windows:
        return windows_for(self.model, self.text, settings.lengths, settings.windows, settings.seed)

    def describe(self, settings: Mapping[str, Any]) -> None:
        """The start of the manifest; hashes the weights."""
        model, text = self.model, self.text
        names = ("name", "about", "kind", "source", "fingerprint", "configuration")
        described = {name: getattr(model, name) for name in names} | {"class": class_name(model.network)}
        if (standing := model.plan) is not None:
            described["normalizers"] = standing.as_lines()
            described["swapped"] = model.swapped
        self.facts |= study_facts(self.study, settings) | {
            "model": described | {"device": model.devices, "dtype": model.precision},
            "text": text.facts(),
        }

    def check(self, source: Tap | Swap, windows: Sequence[Window]) -> tuple[int, float]:
        """The self-check of a tap or swap; tokens and seconds of a pass, of which it makes two."""
        tokens, started = check_tokens(self.model, windows), time.perf_counter()
        error = check_model(self.model, source, tokens)
        seconds = (time.perf_counter() - started) / 2
        weights = [weight.dtype for weight in self.model.network.parameters() if weight.is_floating_point()]
        allowed = max(map(self_check_tolerance, weights or [torch.float32]))  # what rounding of the coarsest explains
        limit = f"{allowed:.2g}" if allowed > 0.01 else f"{allowed:.0e}".replace("e-0", "e-")
        self.watch.say(f"{self.model.name}: self-check error {error:.1e} (allowed {limit})")
        self.facts["self_check"] = {"error": error, "tokens": len(tokens)}
        return len(tokens), seconds

    def claim(self) -> None:
        """Take the folder for this model, text and settings."""
        model = self.model
        # Kernels of other devices round differently, and a table must not mix them; which of several equal devices
        # computed does not matter.
        kinds = "+".join(sorted({device.partition(":")[0] for device in model.devices.split("+")}))
        facts = {"model": model.fingerprint, "configuration": model.configuration, "dtype": model.precision}
        facts["text"] = self.text.fingerprint
        self.parts = claim_folder(self.folder, self.study, facts, self.facts["settings"], self.watch.announce, kinds)

    def manifest(
        self, facts: Mapping[str, Any], *, seconds: Mapping[str, Any] | None = None, again: Sequence[str] = ()
    ) -> dict[str, Any]:
        """The whole manifest, at the end of the work; `again` are lines about damaged parts of runs within it."""
        times = {"total": time.perf_counter() - self.started} | dict(seconds or {})
        return finished_manifest(self.facts | dict(facts), self.parts, times, again)


@contextmanager
def at_work(
    result: type[Result], model: ModelLike, text: TextLike | None, folder: FolderLike | None, tokenizer: Any,
    progress: bool, placed: Placed, tokens: object = None, loss: Loss | None = None,
) -> Iterator[Job]:  # fmt: skip
    """A study of one model, with its progress shown and its network in evaluation mode."""
    place, source = as_folder(folder), as_text(text, tokens)
    loaded = as_model(model, tokenizer, progress, placed, isinstance(source, Tokens), loss)  # after quick refusals
    with watching(progress) as watch, evaluating(loaded.network):
        yield Job(result.study, loaded, source, place, watch)


class Measured(NamedTuple):
    """A run, and its records of windows by length."""

    run: Run
    records: Mapping[int, Sequence[Record]]


def measure_runs(
    job: Job, by_vectors: Sequence[Settings], cut: Windows, folders: Sequence[Path | None] | None = None, *,
    overhead: float = DIAGNOSIS, beside: Sequence[PassReader] = (),
) -> list[Measured]:  # fmt: skip
    """Measure the windows that the folders lack, then make the tables of all.

    Settings of several runs differ only in the kind of vectors: every window is read once for all of them. `overhead`
    is the time with these measures over the time without, for the cost estimate. Readers `beside` share the passes.
    Without `folders` the run is the study itself, which is saved when it ends; with them, they are runs within it.
    """
    jobs = [job] if folders is None else [replace(job, study=Run.study, folder=folder) for folder in folders]
    job, model, watch, settings = jobs[0], job.model, job.watch, by_vectors[0]
    plan_memory(model, cut, watch.say, queries=settings.queries)
    # Hashes the weights, so it comes first: pages of a file that are read for the first time would count as memory.
    for one, of_run in zip(jobs, by_vectors, strict=True):
        one.describe(of_run.as_json())
    import scipy.stats  # noqa: F401 - needed for the tables, and large: loaded now, it does not count as memory either

    with ExitStack() as stack:
        for one in jobs:
            stack.enter_context(held(one.folder, current().lock))
        # Before the tap, whose check loads the kernels.
        memory, warm = PeakMemory(), kernels_loaded()
        open_tap = stack.enter_context(tap(model))
        timed = job.check(open_tap, cut)
        for one in jobs:
            one.claim()
        reader = WindowReader(
            model, open_tap, settings, [each.vectors for each in by_vectors], [one.parts for one in jobs]
        )
        left = [window.length for window in cut if reader.wants(window)]
        cost = estimate(model, left, *timed, overhead, queries=settings.queries, warm=warm)
        watch.say(str(cost) if left else "all windows were measured before")
        for other in beside:
            other.start(job.parts, len(open_tap.layers))
        windows, passes = {window_part(window): window for window in cut}, Passes(model, open_tap)

        def wanting(name: str) -> list[PassReader]:
            return [one for one in (reader, *beside) if one.wants(windows[name])]

        watch.expect(len(cut))
        job.parts.each(
            windows,
            lambda name: passes.read(windows[name], *wanting(name), run=run_model),
            lambda name: watch.step(f"windows of {windows[name].length}"),
            lambda name: not wanting(name),
        )
        skipped = [*cut.skipped, *open_tap.skipped]
        seen = {"layers": open_tap.layers, "self_check": job.facts["self_check"], "skipped": skipped}
        measured = []
        for one, of_run in zip(jobs, by_vectors, strict=True):
            one.facts |= seen
            measured.append(_finished(one, of_run, cut, memory))
            if one.folder is not None and folders is not None and not isinstance(current(), Shard):
                measured[-1].run.save(one.folder)
    return measured


def _finished(job: Job, settings: Settings, cut: Windows, memory: PeakMemory) -> Measured:
    """The table of these windows, and the manifest."""
    records, seconds = dict[int, list[Record]](), dict[str, float]()  # by length, of earlier calls as well
    reasons = dict.fromkeys(job.facts["skipped"])  # each once
    for window in cut:
        kept = job.parts.tensors(window_part(window))
        assert kept is not None
        record, notes = kept
        records.setdefault(window.length, []).append(record)
        key = str(window.length)
        seconds[key] = round(seconds.get(key, 0.0) + notes["seconds"], 3)
        reasons |= dict.fromkeys(notes["skipped"])
    for length in settings.lengths:
        if unseen := ", ".join(str(n) for n in settings.sizes if n >= length):
            reasons[f"length {length}: sets of {unseen}, {NO_QUERY}"] = None
    by_length = {length: records[length] for length in settings.lengths if length in records}
    heads = table(without_folder(job.model.name), by_length, settings)
    facts = {"windows": window_places(cut), "peak_extra_megabytes": memory.extra(), "skipped": [*reasons]}
    return Measured(Run(heads, job.manifest(facts, seconds={"windows": seconds})), records)


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


def study_facts(study: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The start of every manifest: study, versions, machine and settings."""
    return {
        "format": FORMAT,
        "study": study,
        "versions": {"python": platform.python_version()} | {name: version(name) for name in _PACKAGES},
        "machine": {"system": platform.platform(terse=True), "threads": torch.get_num_threads()},
        "settings": dict(settings),
    }
