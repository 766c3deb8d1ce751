"""report: measure every head of a model over lengths, sizes and temperatures, and say what it means."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from ..._errors import AbbeError
from ..._locks import held
from ...models import DeviceLike, DeviceMap, DtypeLike, LoadedModel, Tap, Text, Windows, evaluating, tap
from ...results import Run, opened_run, read_content, read_manifest, read_table
from .._engine.folder import RunFolder
from .._engine.inputs import FolderLike, ModelLike, Placed, TextLike, load_inputs
from .._engine.measuring import measure_run, windows_of
from .._engine.parts import JSON, Parts
from .._engine.passes import PassReader, read_window
from .._engine.settings import REPORT_LENGTHS, REPORT_TEMPERATURES, Settings, settings_for
from .._engine.sharing.board import Board, Unit
from .._engine.sharing.calls import shareable
from .._engine.sharing.crew import independently, is_shared, leave_to_merge, share, unit_in
from .._engine.sharing.runs import merged_run
from .._engine.watch import watching
from .._engine.window import check_model, check_tokens
from .alternatives import ALTERNATIVES_SCHEMA, AlternativesReader, alternatives_windows, kept_alternatives
from .heads import growth, head_verdicts
from .result import ALTERNATIVES, SAMPLE, Report
from .rules import ADVICE, VERDICTS, Evidence, findings, key_numbers
from .sample import Sample, SampleReader, sample_window

_OVERHEAD = 2.0  # time with these measures over time without
_SAMPLE = "sample/window"  # part of a shared folder

Extras = tuple[pl.DataFrame, Sample | None]  # the table of alternatives and a window to look at


@shareable
def report(
    model: ModelLike = "embedded", text: TextLike | None = None, *, lengths: int | Sequence[int] | None = None,
    windows: int = 8, queries: int | str = 64, sizes: int | Sequence[int] | None = None, vectors: str = "value",
    temperatures: float | Sequence[float] = REPORT_TEMPERATURES, seed: int = 0, level: float = 0.95,
    resamples: int = 1000, folder: FolderLike | None = None, tokenizer: Any = None, device: DeviceLike | None = None,
    dtype: DtypeLike | None = None, device_map: DeviceMap | None = None, progress: bool = True,
) -> Report:  # fmt: skip
    """How selective is every head of this model, at which length does selection break down, and what can be done?

    Args:
        model, text: as for `diagnose`.
        lengths: window lengths in tokens; by default 64, 128, 256, 512 and 1024, as far as the model's context goes.
        windows: how many windows of each length; intervals come from resampling them.
        queries: how many queries per window, one from each of as many equal stretches, or "all".
        sizes: sizes N of the selected set; by default 1, 2, 5, 10, 20, 50 and 100.
        vectors: token vectors of the geometry: "value", "output", "hidden" or "embedding", as for `diagnose`.
        temperatures: T > 0 at which the sensitivity is measured.
        seed: random seed; the same seed gives the same numbers.
        level: of the intervals, in (0, 1).
        resamples: of the bootstrap, >= 1.
        folder: keep the run there, as `open_run` reads it, and the page `report.html` (`abbe.report` writes it);
            finished parts are not measured again.
        tokenizer, device, dtype, device_map, progress: as for `diagnose`.

    Returns:
        Five numbers, verdicts on the model and on every head, and advice, each with its rule. High separability and a
        high critical N mean that selected tokens are separable from the rest, many effective tokens and a high decay
        exponent that weight is spread, a high sensitivity that small changes of the logits move it.

    Raises:
        AbbeError: an argument is wrong, the text is too short, or the self-check fails; one line says what to do.

    Examples:
        >>> report = abbe.report("embedded", lengths=32, windows=2, queries=4, folder="report", progress=False)
        >>> [number.name for number in report.numbers]
        ['effective tokens', 'separability of 20 tokens', 'critical N', 'decay exponent', 'worst sensitivity']
        >>> report.verdicts[0].sentence
        '...'
    """
    place, source, loaded = load_inputs(model, text, folder, tokenizer, progress, Placed(device, dtype, device_map))
    settings = settings_for(
        loaded.context, lengths=_lengths(lengths, loaded.context), windows=windows, queries=queries, sizes=sizes,
        vectors=vectors, normalizer=None, temperatures=temperatures, seed=seed, level=level, resamples=resamples,
    )  # fmt: skip
    with held(place), watching(progress) as watch, evaluating(loaded.network):
        cut = windows_of(loaded, source, settings)
        closer = _CloserLook(loaded, source, settings, cut)
        with independently():
            run = measure_run(loaded, source, settings, place, watch, _OVERHEAD, cut, closer.readers, Report.study)
        with independently():
            closer.share_sample()
        leave_to_merge()
        given = {"given": {"text": _files_given(text)}}
        return _finished(Run(run.table, {**run.manifest, **given}), closer.skipped, *closer.extras(), place)


def merged_report(folder: Path, board: Board, say: Callable[[str], object]) -> Report | None:
    """From the parts of workers, without the model; None if it is needed."""
    with held(folder):
        merged = merged_run(folder, board, Report.study, say)
        if merged is None or merged.kept.finished:
            return None
        parts = merged.kept.parts
        alternatives = kept_alternatives(parts, alternatives_windows(merged.cut), merged.settings)
        sample = _kept_sample(parts)
        if parts.measured_again:
            return None
        failure = None if sample is not None else board.failure(Unit(_SAMPLE, ()))
        return _finished(merged.run, [] if failure is None else [str(failure)], alternatives, sample, folder)


def _finished(
    run: Run, skipped: Sequence[str], alternatives: pl.DataFrame, sample: Sample | None, folder: Path | None
) -> Report:
    if skipped:
        run = Run(run.table, {**run.manifest, "skipped": [*run.manifest["skipped"], *skipped]})
    result = make_report(run, alternatives, sample)
    if folder is not None:
        result.save(folder)
        result.to_html(folder / result.page)
    return result


def make_report(run: Run, alternatives: pl.DataFrame | None = None, sample: Sample | None = None) -> Report:
    """What the measurements say; nothing is measured here."""
    if alternatives is None:
        alternatives = pl.DataFrame(schema=ALTERNATIVES_SCHEMA)
    evidence = Evidence(run, alternatives, sample)
    return Report(
        run=run,
        numbers=key_numbers(evidence),
        verdicts=findings(evidence, VERDICTS),
        heads=head_verdicts(evidence.heads),
        growth=growth(evidence.table),
        floors=evidence.floors,
        alternatives=alternatives,
        advice=findings(evidence, ADVICE),
        sample=sample,
    )


def _files_given(text: TextLike | None) -> list[str] | None:
    """The files as the user named them, for the commands of the report; None for a text in memory."""
    if text is None:
        return []
    named = [text] if isinstance(text, str | os.PathLike) else [] if isinstance(text, Text) else list(text)
    files = [os.fspath(file) for file in named]
    return files if files and all(file == "-" or os.path.isfile(os.path.expanduser(file)) for file in files) else None


def _lengths(lengths: int | Sequence[int] | None, context: int | None) -> int | Sequence[int] | None:
    if lengths is not None:
        return lengths
    return [length for length in REPORT_LENGTHS if context is None or length <= context] or None


class _CloserLook:
    """Reads alternatives and sample in the passes of the run, and keeps them beside it."""

    def __init__(self, model: LoadedModel, text: Text, settings: Settings, cut: Windows) -> None:
        self._model, self._text, self._settings, self._cut = model, text, settings, cut
        self._before: Extras | None = None
        self._parts = Parts(None, "")
        self.skipped: list[str] = []

    def readers(self, open_tap: Tap, kept: RunFolder) -> Sequence[PassReader]:
        """Empty where an earlier call has kept both."""
        self._before = _kept(kept)
        if self._before is not None:
            return ()
        windows = alternatives_windows(self._cut)
        self._alternatives = AlternativesReader(self._model, open_tap, windows, self._settings, kept.parts)
        self._parts = kept.parts
        if is_shared():  # then the sample is a separate part: a worker may stop before its window is complete
            return (self._alternatives,)
        self._sample = self._sample_reader(open_tap)
        return self._alternatives, self._sample

    def share_sample(self) -> None:
        """In a shared folder: one of the workers keeps the sample."""
        if self._before is None and self._parts.folder is not None:
            unit = unit_in(self._parts.folder, _SAMPLE, [self._parts.folder / f"{_SAMPLE}{JSON}"])
            self.skipped = list(map(str, share([unit], lambda _: self._keep_sample(), needed=False).values()))

    def extras(self) -> Extras:
        if self._before is not None:
            return self._before
        sample = _kept_sample(self._parts) if is_shared() else self._sample.sample(self._text)
        return self._alternatives.table(), sample

    def _sample_reader(self, open_tap: Tap) -> SampleReader:
        return SampleReader(self._model, open_tap, sample_window(self._cut), self._settings)

    def _keep_sample(self) -> None:
        """From a separate pass, which gives the same numbers."""
        with tap(self._model) as open_tap:
            check_model(self._model, open_tap, check_tokens(self._model, self._cut))  # names the layers
            reader = self._sample_reader(open_tap)
            read_window(self._model, reader.chosen, [reader])
        self._parts.keep_json(_SAMPLE, reader.sample(self._text).as_json())


def _kept_sample(parts: Parts) -> Sample | None:
    stored = parts.json(_SAMPLE)
    return None if stored is None else Sample.from_json(stored)


def _kept(kept: RunFolder) -> Extras | None:
    """From an earlier call; None if they are missing, damaged, or the run is unfinished."""
    if kept.path is None or not kept.finished:
        return None
    try:
        return _read_extras(kept.path, read_manifest(kept.path)[1])
    except AbbeError as error:
        kept.parts.again(str(error))
        return None


def _read_extras(folder: Path, stored: Mapping[str, Any]) -> Extras:
    """Of a finished report; `stored` is its manifest with the checksums."""
    content = read_content(folder / SAMPLE, stored)
    try:
        sample = None if content["sample"] is None else Sample.from_json(content["sample"])
    except (KeyError, TypeError, ValueError, IndexError):
        raise AbbeError(f"{folder / SAMPLE} is damaged: it is incomplete") from None
    return read_table(folder / ALTERNATIVES, stored, ALTERNATIVES_SCHEMA), sample


def opened_report(folder: Path, manifest: Mapping[str, Any], stored: Mapping[str, Any]) -> Report:
    return make_report(opened_run(folder, manifest, stored), *_read_extras(folder, stored))
