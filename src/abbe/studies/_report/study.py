"""report: measure every head of a model over lengths, sizes and temperatures, and say what it means."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from ..._errors import AbbeError
from ...models import DeviceLike, DeviceMap, DtypeLike, Tap, Text, evaluating
from ...results import Run, opened_run, read_content, read_table
from ...runs.folder import RunFolder
from ...runs.inputs import FolderLike, ModelLike, Placed, TextLike, load_inputs
from ...runs.measuring import measure_run, windows_of
from ...runs.settings import REPORT_LENGTHS, settings_for
from ...runs.study import study
from ...runs.watch import watching
from .alternatives import ALTERNATIVES_SCHEMA, AlternativesReader, alternatives_windows
from .heads import growth, head_verdicts
from .result import ALTERNATIVES, SAMPLE, Report
from .rules import ADVICE, VERDICTS, Evidence, findings, key_numbers
from .sample import Sample, SampleReader, sample_window

_OVERHEAD = 2.0  # time with these measures over time without

Extras = tuple[pl.DataFrame, Sample | None]  # the table of alternatives and a window to look at


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


@study(Report, extra="all", opened=opened_report)
def report(
    model: ModelLike = "embedded", text: TextLike | None = None, *, lengths: int | Sequence[int] | None = None,
    windows: int = 8, queries: int | str = 64, sizes: int | Sequence[int] | None = None, vectors: str = "value",
    temperatures: float | Sequence[float] = (0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 1.0, 2.0), seed: int = 0,
    level: float = 0.95, resamples: int = 1000, folder: FolderLike | None = None, tokenizer: Any = None,
    device: DeviceLike | None = None, dtype: DtypeLike | None = None, device_map: DeviceMap | None = None,
    progress: bool = True,
) -> Report:  # fmt: skip
    """How selective every attention head is, where selection breaks down, and what to do about it: one offline page.

    Args:
        model, text: as for `diagnose`.
        lengths: window lengths in tokens; by default 64, 128, 256, 512 and 1024, as far as the model's context goes.
        windows: how many windows of each length; intervals come from resampling them.
        queries: how many queries per window, one from each of as many equal stretches, or "all".
        sizes: sizes N of the selected set; by default 1, 2, 5, 10, 20, 50 and 100.
        vectors: token vectors of the geometry: "value", "output", "hidden" or "embedding", as for `diagnose`.
        temperatures: T > 0 at which the sensitivity is measured.
        seed: random seed; the same seed gives the same numbers.
        level: coverage of the intervals, in (0, 1).
        resamples: number of bootstrap resamples, >= 1.
        folder: keep the run there, as `open_run` reads it, and the page `report.html` (`abbe.report` writes it);
            finished parts are not measured again.
        tokenizer, device, dtype, device_map, progress: as for `diagnose`.

    Returns:
        Five numbers, verdicts on the model and on every head, and advice, each with its rule. High separability and a
        high critical N mean that selected tokens are separable from the rest, many effective tokens and a high decay
        exponent that weight is spread, a high sensitivity that small changes of the logits move it.

    Raises:
        AbbeError: an argument is wrong, the text is too short, or the self-check fails; one line says what to do.

    Commands:
        abbe report
        abbe report smollm2 --text book.txt --open
        abbe report ./my-model --device auto --dtype bfloat16
        abbe report --each 'checkpoints/*' --text book.txt --engine ray --actors 2
        abbe report ./my-model --lengths 128,512,2048 --figures figures --json

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
    with watching(progress) as watch, evaluating(loaded.network):
        cut = windows_of(loaded, source, settings)
        readers: list[Any] = []  # of alternatives and sample, in the passes of the run

        def beside(open_tap: Tap, run_folder: RunFolder) -> list[Any]:
            windows, parts = alternatives_windows(cut), run_folder.parts
            readers.append(AlternativesReader(loaded, open_tap, windows, settings, parts))
            readers.append(SampleReader(loaded, open_tap, sample_window(cut), settings, parts=parts))
            return readers

        run = measure_run(loaded, source, settings, place, watch, _OVERHEAD, cut, beside, Report.study, save=False)
        given = {"given": {"text": _files_given(text)}}
        alternatives, sample = readers
        return make_report(Run(run.table, {**run.manifest, **given}), alternatives.table(), sample.sample(source))


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
