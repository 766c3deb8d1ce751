"""report: measure every head of a model over lengths, sizes and temperatures, and say what it means."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl
from torch import nn

from ..._held import held
from ..._stored import check_file, checked, read_bytes, read_json, write_json, write_whole
from ...models import LoadedModel, Text, Windows, evaluating, tap
from ...results import MANIFEST, TABLE, Run, parquet_bytes
from ...words.finding import NOT_LEARNED
from .._engine.given import as_folder, as_model, as_text
from .._engine.lookup import Lookup
from .._engine.measuring import measure_run, windows_of
from .._engine.parts import JSON, Parts
from .._engine.settings import Settings, settings_for
from .._engine.watch import Watch, watching
from .advice import advice
from .alternatives import SCHEMA as ALTERNATIVES_SCHEMA
from .alternatives import SHARPER, SPARSE, alternatives_windows, try_alternatives
from .floors import floors
from .growth import growth
from .head_verdicts import head_verdicts
from .key_numbers import key_numbers
from .result import Report, Sample
from .sample import take_sample
from .sample_json import sample_as_json, sample_from_json
from .verdicts import verdicts

LENGTHS = (64, 128, 256, 512, 1024)
TEMPERATURES = (0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 1.0, 2.0)
_ALTERNATIVES = "alternatives.parquet"
_SAMPLE = "sample"
_FINDINGS = "report.json"
_OVERHEAD = 2.0  # time with these measures over time without


def report(
    model: str | os.PathLike[str] | LoadedModel | nn.Module = "embedded",
    text: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | Text | None = None,
    *,
    lengths: int | Sequence[int] | None = None,
    windows: int = 8,
    queries: int | str = 64,
    grid: int | Sequence[int] | None = None,
    vectors: str = "value",
    temperatures: float | Sequence[float] = TEMPERATURES,
    seed: int = 0,
    level: float = 0.95,
    resamples: int = 1000,
    folder: str | os.PathLike[str] | None = None,
    tokenizer: Any = None,
    progress: bool = True,
) -> Report:
    """How selective is every head of this model, at which length does selection break down, and what can be done?

    Args:
        model, text, windows, queries, grid, vectors, seed, level, resamples, tokenizer: as for `diagnose`.
        lengths: window lengths in tokens; by default 64, 128, 256, 512 and 1024, as far as the model's context goes.
        temperatures: where the sensitivity is measured.
        folder: keep the run there, as `open_run` reads it, and the page `report.html` (`abbe.report` writes it);
            what was measured before is not measured again.
        progress: say the cost and show a bar on standard error.

    Example:
        >>> found = abbe.report("smollm2", "book.txt", folder="smollm2-report")
        >>> [verdict.sentence for verdict in found.verdicts]
    """
    place, source = as_folder(folder), as_text(text)
    loaded = as_model(model, tokenizer, progress)
    settings = settings_for(
        loaded.context, lengths=_lengths(lengths, loaded.context), windows=windows, queries=queries, grid=grid,
        vectors=vectors, normalizer=None, temperatures=temperatures, seed=seed, level=level, resamples=resamples,
    )  # fmt: skip
    with held(place), watching(progress) as watch, evaluating(loaded.network):
        cut = windows_of(loaded, source, settings)
        run = measure_run(loaded, source, settings, place, watch, _OVERHEAD, cut)
        alternatives, sample = _look_closer(loaded, source, settings, cut, run, place, watch)
        found = make_report(run, alternatives, sample)
        if place is not None:
            write_json(place / MANIFEST, run.manifest, files=[TABLE, _ALTERNATIVES, _SAMPLE + JSON])
            write_json(place / _FINDINGS, found.as_json())
    return found


def make_report(run: Run, alternatives: pl.DataFrame | None = None, sample: Sample | None = None) -> Report:
    """What the measurements say; nothing is measured here."""
    table = Lookup(run)
    if alternatives is None:
        alternatives = pl.DataFrame(schema=ALTERNATIVES_SCHEMA)
    fragile = floors(table)
    found = verdicts(table, fragile, sample)
    learned = all(finding.topic != NOT_LEARNED for finding in found)
    return Report(
        run=run,
        numbers=key_numbers(table),
        verdicts=found,
        heads=head_verdicts(table),
        growth=growth(table),
        floors=fragile,
        alternatives=alternatives,
        advice=advice(table, fragile, alternatives, SPARSE, SHARPER, learned),
        sample=sample,
    )


def _lengths(given: int | Sequence[int] | None, context: int | None) -> int | Sequence[int] | None:
    if given is not None:
        return given
    return [length for length in LENGTHS if context is None or length <= context] or None


def _look_closer(
    model: LoadedModel,
    text: Text,
    settings: Settings,
    cut: Windows,
    run: Run,
    place: Path | None,
    watch: Watch,
) -> tuple[pl.DataFrame, Sample]:
    """Alternatives and a window to look at: measured once, then kept beside the run."""
    parts = Parts(place, run.manifest["identity"]["digest"], watch.announce)
    if (kept := _kept(parts)) is not None:
        return kept
    with tap(model) as open_tap:
        watch.expect(1 + alternatives_windows(cut))
        watch.step("one window to look at")
        sample = take_sample(model, text, open_tap, cut, settings)
        alternatives = try_alternatives(
            model, open_tap, cut, settings, on_window=lambda _: watch.step("other normalizers")
        )
    _keep(parts, alternatives, sample)
    return alternatives, sample


def _keep(parts: Parts, alternatives: pl.DataFrame, sample: Sample) -> None:
    """The sample comes last: it says that both are whole, and of which run."""
    if parts.folder is not None:
        write_whole(parts.folder / _ALTERNATIVES, parquet_bytes(alternatives))
        parts.keep_json(_SAMPLE, {"sample": sample_as_json(sample)}, files=(_ALTERNATIVES,), indent=None)


def _kept(parts: Parts) -> tuple[pl.DataFrame, Sample] | None:
    """What an earlier call left; None if it is not there, damaged, or of another run."""

    def read(path: Path) -> tuple[pl.DataFrame, Sample]:
        stored = read_json(path)
        content = checked(path, stored, parts.run, _SAMPLE)
        table = read_bytes(path.with_name(_ALTERNATIVES))
        check_file(path.with_name(_ALTERNATIVES), table, stored)
        return pl.read_parquet(io.BytesIO(table)), sample_from_json(content["sample"])

    return parts.read(_SAMPLE, JSON, read)
