"""diff: two models, checkpoints of a training run, or finished runs, head by head."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import torch
from torch import Tensor

from ..._errors import AbbeError
from ...models import DeviceLike, DeviceMap, DtypeLike, LoadedModel, Text, Windows, evaluating
from ...results import Run, open_run
from ...runs.executors import all_stages
from ...runs.folder import RunFolder, claim_without_model
from ...runs.inputs import FolderLike, ModelLike, Placed, TextLike, as_folder, as_model, as_text, room_for
from ...runs.loss import check_causal, window_losses
from ...runs.measuring import finished_manifest, measure_run, study_facts, windows_of
from ...runs.parts import Parts
from ...runs.settings import Settings, settings_for
from ...runs.study import study
from ...runs.tables import Record
from ...runs.watch import Watch, watching
from ...words.measures import usual_size
from .findings import MAIN, findings, fitted_findings
from .fitted import fitted_rows
from .paired import difference_table
from .result import CURVE_SCHEMA, Difference, opened_difference
from .sources import check_shapes, check_tokens, is_run, model_shape, names_of, provisional_id, read_runs, sources

LENGTH = 256
_RUNS = "runs"  # folder with one run per side


@study(Difference, named_by="other", opened=opened_difference)
def diff(
    model: ModelLike | Sequence[ModelLike], other: ModelLike | None = None, text: TextLike | None = None, *,
    lengths: int | Sequence[int] | None = None, windows: int = 8, queries: int | str = 64,
    sizes: int | Sequence[int] | None = None, vectors: str = "value", seed: int = 0, level: float = 0.95,
    resamples: int = 1000, folder: FolderLike | None = None, tokenizer: Any = None, device: DeviceLike | None = None,
    dtype: DtypeLike | None = None, device_map: DeviceMap | None = None, progress: bool = True,
) -> Difference:  # fmt: skip
    """Two models, or checkpoints, head by head on the same text: what changed beyond chance, and what did not.

    All sides need the same numbers of layers and heads, and the same tokens for a text.

    Args:
        model: the first side: a model as for `diagnose`, or the folder of a run of `diagnose` or `report`. A folder or
            a glob of checkpoints, or a list of models, stands for several sides: first and last are compared, and all
            of them give curves.
        other: the second side.
        text: as for `diagnose`; leave it out for finished runs, which have theirs.
        lengths: of windows in tokens; by default 256, or the model's context if less.
        windows: per length; intervals come from resampling them.
        queries: per window, one from each of as many equal stretches, or "all".
        sizes: sizes N of the selected set; by default 1, 2, 5, 10, 20, 50 and 100.
        vectors: token vectors of the geometry: "value", "output", "hidden" or "embedding", as for `diagnose`.
        seed: random seed: the same seed gives the same numbers.
        level: of intervals; a change counts if its q value (Benjamini and Hochberg over all heads and measures) is at
            most 1 - level.
        resamples: number of bootstrap resamples, >= 1.
        folder: for the runs; an interrupted study is resumed.
        tokenizer, device, dtype, device_map, progress: as for `diagnose`.

    Returns:
        A row for each head and measure with both values and their difference, the largest changes first. A small
        `q_value` means that a difference is beyond chance.

    Raises:
        AbbeError: an argument is wrong, the text is too short, or the self-check fails; one line says what to do.

    Commands:
        abbe diff smollm2 ./sharper --text book.txt --open
        abbe diff ./run-with-checkpoints --windows 12 --lengths 128
        abbe diff abbe-report-first abbe-report-second --json

    Examples:
        >>> half = abbe.load("embedded", dtype="bfloat16")
        >>> diff = abbe.diff("embedded", half, lengths=32, windows=2, queries=4, sizes=5, progress=False)
        >>> diff.heads, len(diff.names)
        (48, 2)
    """
    place, side_sources, placed = as_folder(folder), sources(model, other), Placed(device, dtype, device_map)
    runs = [is_run(source) for source in side_sources]
    if any(runs):
        if not all(runs):
            raise AbbeError("a run cannot be compared with a model: give two models, or two runs")
        if text is not None:
            raise AbbeError("runs were measured on a text already: leave the text out")
        return _of_runs([os.fspath(run) for run in side_sources], place)  # type: ignore[arg-type]
    source = as_text(text)
    # The first two are loaded together, so that a misfit is refused before anything is measured; others one by one.
    loaded = [as_model(one, tokenizer, progress, placed) for one in side_sources[:2]]
    context = room_for(loaded[0], source, LENGTH)
    settings = settings_for(
        context, lengths=min(LENGTH, context or LENGTH) if lengths is None else lengths, windows=windows,
        queries=queries, sizes=sizes, vectors=vectors, normalizer=None, temperatures=(1.0,), seed=seed, level=level,
        resamples=resamples,
    )  # fmt: skip
    with watching(progress) as watch:
        return _Study(source, settings, place, watch, tokenizer, placed).run(loaded, side_sources[2:])


@dataclass(frozen=True)
class _Side:
    """One side, measured."""

    run: Run
    records: dict[int, list[Record]]
    losses: dict[int, Tensor]  # empty if the model does not predict the next token, or for finished runs


@dataclass(frozen=True)
class _Study:
    """One study in progress."""

    text: Text
    settings: Settings
    place: Path | None
    watch: Watch
    tokenizer: Any
    placed: Placed

    def run(self, loaded: list[LoadedModel], more: Sequence[ModelLike]) -> Difference:
        started = time.perf_counter()
        names = names_of([*loaded, *more])
        cut = windows_of(loaded[0], self.text, self.settings)
        self._check(names[:2], loaded, cut)
        facts = {
            "models": [[model.fingerprint, model.configuration] for model in loaded],
            "more": [provisional_id(model) for model in more],
            "text": self.text.fingerprint,
        }
        parts = claim_without_model(self.place, Difference.study, facts, self.settings.as_json(), self.watch.announce)

        def measure(number: int) -> _Side:
            source = [*loaded, *more][number]
            model = source if isinstance(source, LoadedModel) else as_model(source, self.tokenizer, placed=self.placed)
            if number >= len(loaded):
                self._check([names[0], names[number]], [loaded[0], model], cut)
            return self._measure(model, number, names[number], cut, parts)

        sides = all_stages(partial(measure, number) for number in range(len(names)))
        again = [line for side in sides for line in side.run.manifest["measured_again"]]
        return _result(sides, names, self.settings, parts, started, again)

    def _check(self, names: Sequence[str], models: Sequence[LoadedModel], cut: Windows) -> None:
        """Refuse a second model that has another shape or other tokens than the first."""
        check_shapes(names, [model_shape(model) for model in models])
        check_tokens(names, [cut, windows_of(models[1], self.text, self.settings)])

    def _measure(self, model: LoadedModel, number: int, name: str, cut: Windows, parts: Parts) -> _Side:
        run_folders: list[RunFolder] = []

        def beside(_: Any, run_folder: RunFolder) -> tuple[()]:
            run_folders.append(run_folder)
            return ()

        folder = None if self.place is None else self.place / _RUNS / str(number)
        if folder is not None:
            folder.parent.mkdir(parents=True, exist_ok=True)
        self.watch.part = name
        with evaluating(model.network):
            run = measure_run(model, self.text, self.settings, folder, self.watch, cut=cut, beside=beside)
            losses = _losses(model, cut, parts, f"losses/{number}")
        records: dict[int, list[Record]] = {}
        for window in cut:
            record = run_folders[0].record(window)
            assert record is not None, window
            records.setdefault(window.length, []).append(record)
        return _Side(run, records, losses)


def _losses(model: LoadedModel, cut: Windows, parts: Parts, name: str) -> dict[int, Tensor]:
    """Mean next-token loss of every window, by length, kept in the folder."""
    try:
        check_causal(model, "a loss")
    except AbbeError:
        return {}
    stored = parts.json(name)
    if stored is None:
        stored = {"losses": window_losses(model, cut).tolist()}
        parts.keep_json(name, stored)
    by_length: dict[int, list[float]] = {}
    for window, loss in zip(cut, stored["losses"], strict=True):
        by_length.setdefault(window.length, []).append(loss)
    return {length: torch.tensor(losses, dtype=torch.float64) for length, losses in by_length.items()}


def _of_runs(folders: Sequence[str], place: Path | None) -> Difference:
    """The difference of finished runs: nothing is measured."""
    started = time.perf_counter()
    names, records = read_runs(folders)
    sides = [_Side(open_run(folder), of_run, {}) for folder, of_run in zip(folders, records, strict=True)]
    manifests = [side.run.manifest for side in sides]
    settings = Settings.from_json(manifests[0]["settings"])
    facts = {
        "models": [manifest["model"]["fingerprint"] for manifest in manifests],
        "text": manifests[0]["text"]["fingerprint"],
    }
    parts = claim_without_model(place, Difference.study, facts, settings.as_json())
    return _result(sides, names, settings, parts, started)


def _result(
    sides: Sequence[_Side], names: Sequence[str], settings: Settings, parts: Parts, started: float,
    again: Sequence[str] = (),
) -> Difference:  # fmt: skip
    first, last = sides[0], sides[-1]
    fitted, left_out = fitted_rows(first.records, last.records, names, settings)
    losses = [first.losses, last.losses] if first.losses and last.losses else []
    table = difference_table(first.records, last.records, settings, losses, fitted)
    size = usual_size(first.run.table)
    main = pl.col("head").is_null() | (
        pl.col("measure").is_in(MAIN) & (pl.col("n").is_null() | (pl.col("n") == (size or 0)))
    )
    curves = [
        side.run.table.filter(main).select(pl.lit(number, pl.Int32).alias("side"), *side.run.table.columns)
        for number, side in enumerate(sides)
    ]
    windows = max(len(records) for records in first.records.values())
    sentences = [*findings(table, names, size, settings.level, windows), *fitted_findings(table, left_out)]
    manifest = _manifest(sides, names, settings)
    manifest = finished_manifest(manifest, parts, {"total": time.perf_counter() - started}, again)
    return Difference(table, pl.concat(curves).cast(CURVE_SCHEMA), tuple(sentences), manifest)  # type: ignore[arg-type]


def _manifest(sides: Sequence[_Side], names: Sequence[str], settings: Settings) -> dict[str, Any]:
    manifests = [side.run.manifest for side in sides]
    models = [
        {key: value for key, value in manifest["model"].items() if key != "source"} | {"name": name}
        for manifest, name in zip(manifests, names, strict=True)
    ]
    return study_facts(Difference.study, settings.as_json()) | {
        "model": {"name": f"{names[0]} and {names[-1]}", "about": models[0].get("about", "")},
        "models": models,
        **{key: manifests[0][key] for key in ("text", "layers", "windows")},
        "self_check": {"error": max(manifest["self_check"]["error"] for manifest in manifests)},
        "skipped": list(dict.fromkeys(why for manifest in manifests for why in manifest["skipped"])),
    }
