"""diff: two models, checkpoints of a training run, or finished runs, head by head."""

from __future__ import annotations

import glob
import os
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import torch
from torch import Tensor, nn

from ..._errors import AbbeError
from ...models import (
    DeviceLike,
    DeviceMap,
    DtypeLike,
    LoadedModel,
    Loss,
    Tokens,
    Windows,
    evaluating,
    shape_of,
    swap,
)
from ...results import MANIFEST, Run, open_run, read_manifest
from ...runs.executors import all_stages
from ...runs.inputs import (
    FolderLike,
    ModelLike,
    Placed,
    Settings,
    TextLike,
    TokensLike,
    as_folder,
    as_model,
    as_text,
    settings_for,
)
from ...runs.loss import check_causal, window_losses
from ...runs.measuring import Job, finished_manifest, measure_runs, study_facts
from ...runs.parts import Parts, claim_folder
from ...runs.study import study
from ...runs.tables import Record
from ...runs.watch import watching
from ...words.manifest import without_folder
from ...words.measures import usual_size
from .differences import difference_table, fitted_rows
from .result import MAIN, Difference, findings

LENGTH = 256
_RUNS = "runs"  # folder with one run per side
_CONFIG = "config.json"
_NUMBER = re.compile(r"(\d+)")
_SHAPE = "{} layers of {}"
_OTHER_SHAPE = "{0} has {2} heads, {1} has {3}: diff compares head by head, so give models of the same shape"
_OTHER_TOKENS = (
    "{0} and {1} cut the text into different tokens, so their windows cannot be paired: give models with the same "
    "tokenizer"
)
_OTHER_TEXT = "{0} and {1} were measured on different texts: measure both on the same one"
_OTHER_SETTINGS = "{} and {} were measured with different settings ({}): measure both with the same ones"
_OTHER_WINDOWS = "{0} and {1} have different windows, since their tokenizers differ"


@study(Difference, named_by="other")
def diff(
    model: ModelLike | Sequence[ModelLike] = "embedded", other: ModelLike | None = None,
    text: TextLike | None = None, *, tokens: TokensLike | None = None,
    with_a: str | None = None, with_b: str | None = None, lengths: int | Sequence[int] | None = None,
    windows: int = 8, queries: int | str = 64, sizes: int | Sequence[int] | None = None, vectors: str = "value",
    seed: int = 0, level: float = 0.95, resamples: int = 1000, folder: FolderLike | None = None,
    tokenizer: Any = None, loss: Loss | None = None, device: DeviceLike | None = None,
    dtype: DtypeLike | None = None, device_map: DeviceMap | None = None, progress: bool = True,
) -> Difference:  # fmt: skip
    """Two models, or checkpoints, head by head on the same text: what changed beyond chance, and what did not.

    All sides need the same numbers of layers and heads, and the same tokens for a text.

    Args:
        model: the first side: a model as for `diagnose`, or the folder of a run of `diagnose` or `report`. A folder or
            a glob of checkpoints, or a list of models, stands for several sides: first and last are compared, and all
            of them give curves.
        other: the second side; the model itself if it is left out and one of the next two is given.
        text, tokens: as for `diagnose`; leave them out for finished runs, which have theirs.
        with_a: normalizers to swap into the first side, as for `swap`: a spec, "PATTERN=SPEC; PATTERN=SPEC", or
            "file:PATH".
        with_b: normalizers to swap into the last side.
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
        tokenizer, loss, device, dtype, device_map, progress: as for `diagnose`.

    Returns:
        A row for each head and measure with both values and their difference, the largest changes first. A small
        `q_value` means that a difference is beyond chance.

    Raises:
        AbbeError: an argument is wrong, the text is too short, or the self-check fails; one line says what to do.

    Commands:
        abbe diff smollm2 ./sharper --text book.txt --open
        abbe diff smollm2 --with-b entmax:alpha=1.5 --text book.txt
        abbe diff ./run-with-checkpoints --windows 12 --lengths 128
        abbe diff abbe-report-first abbe-report-second --json

    Examples:
        >>> half = abbe.load("embedded", dtype="bfloat16")
        >>> diff = abbe.diff("embedded", half, lengths=32, windows=2, queries=4, sizes=5, progress=False)
        >>> diff.heads, len(diff.names)
        (48, 2)
    """
    swaps = [with_a, with_b]
    other = model if other is None and any(swaps) and _is_single(model) else other  # type: ignore[assignment]
    place, sides, placed = as_folder(folder), _sides(model, other), Placed(device, dtype, device_map)
    runs = [_is_run(side) for side in sides]
    if any(runs):
        if not all(runs):
            raise AbbeError("a run cannot be compared with a model: give two models, or two runs")
        if text is not None or tokens is not None:
            raise AbbeError("runs were measured on a text already: leave the text out")
        if any(swaps):
            raise AbbeError("runs were measured already, so nothing can be swapped in: name the models themselves")
        return _of_runs([Path(side) for side in sides], place)  # type: ignore[arg-type]
    source = as_text(text, tokens)
    by_ids = isinstance(source, Tokens)
    # The first two are loaded together, so that a misfit is refused before anything is measured; others one by one.
    loaded = [as_model(side, tokenizer, progress, placed, by_ids, loss) for side in sides[:2]]
    with watching(progress) as watch:

        def job_of(side: LoadedModel) -> Job:
            return Job(Difference.study, side, source, None, watch)

        first, started = job_of(loaded[0]), time.perf_counter()
        context = first.room(LENGTH)
        settings = settings_for(
            context, lengths=min(LENGTH, context or LENGTH) if lengths is None else lengths, windows=windows,
            queries=queries, sizes=sizes, vectors=vectors, temperatures=(1.0,), seed=seed, level=level,
            resamples=resamples,
        )  # fmt: skip
        models: list[ModelLike] = [*loaded, *sides[2:]]
        rules = dict(zip((0, len(models) - 1), swaps, strict=True))
        names, cut = _names(models, rules), first.windows(settings)

        def swapped(number: int, model: LoadedModel) -> AbstractContextManager[object]:
            what = rules.get(number)
            return nullcontext() if what is None else swap(model, what)

        def fitting(number: int) -> Job:
            """A model that has the shape and the tokens of the first."""
            given = models[number]
            job = job_of(
                given if isinstance(given, LoadedModel) else as_model(given, tokenizer, False, placed, by_ids, loss)
            )
            both = names[0], names[number]
            shapes = [shape_of(one.model.network, one.model.kind) for one in (first, job)]
            _check_same(both, [_SHAPE.format(shape.layers, shape.heads) for shape in shapes], _OTHER_SHAPE)
            cuts = cut, job.windows(settings)
            _check_same(both, [[window.tokens.tolist() for window in windows] for windows in cuts], _OTHER_TOKENS)
            return job

        fitting(1)
        identities = []
        for number, one in enumerate(loaded):
            with swapped(number, one):
                identities.append([one.fingerprint, one.configuration])
        facts = {
            "models": identities,
            # Not loaded yet: their runs check the weights.
            "more": [one.fingerprint if isinstance(one, LoadedModel) else _name(one) for one in sides[2:]],
            "text": source.fingerprint,
        }
        parts = claim_folder(place, Difference.study, facts, settings.as_json(), watch.announce)

        def measured(number: int) -> _Side:
            job = fitting(number) if number > 1 else job_of(loaded[number])
            of_side = None if place is None else place / _RUNS / str(number)
            if of_side is not None:
                of_side.parent.mkdir(parents=True, exist_ok=True)
            watch.part = names[number]
            with evaluating(job.model.network), swapped(number, job.model):
                ((run, records),) = measure_runs(job, [settings], cut, [of_side])
                return _Side(run, records, _losses(job.model, cut, parts, f"losses/{number}"))

        measured_sides = all_stages(partial(measured, number) for number in range(len(names)))
        again = [line for side in measured_sides for line in side.run.manifest["measured_again"]]
        return _result(measured_sides, names, settings, parts, started, again)


@dataclass(frozen=True)
class _Side:
    """One side, measured; `losses` are empty if the model does not predict the next token, or for finished runs."""

    run: Run
    records: Mapping[int, Sequence[Record]]
    losses: Mapping[int, Tensor]


def _losses(model: LoadedModel, cut: Windows, parts: Parts, name: str) -> dict[int, Tensor]:
    """Mean next-token loss of every window, by length, kept in the folder."""
    try:
        check_causal(model, "a loss")
    except AbbeError:
        return {}
    stored = parts.get_or_make(name, lambda: {"losses": window_losses(model, cut).tolist()})
    by_length: dict[int, list[float]] = {}
    for window, loss in zip(cut, stored["losses"], strict=True):
        by_length.setdefault(window.length, []).append(loss)
    return {length: torch.tensor(losses, dtype=torch.float64) for length, losses in by_length.items()}


def _result(
    sides: Sequence[_Side], names: Sequence[str], settings: Settings, parts: Parts, started: float,
    again: Sequence[str] = (),
) -> Difference:  # fmt: skip
    first, last = sides[0], sides[-1]
    fitted, left_out = fitted_rows(first.records, last.records, names, settings)
    losses = [first.losses, last.losses] if first.losses and last.losses else []
    table = difference_table(first.records, last.records, settings, losses, fitted)
    size = usual_size(first.run.table)
    usual = pl.col("n").is_null() | (pl.col("n") == (size or 0))
    rows = pl.col("head").is_null() | (pl.col("measure").is_in(MAIN) & usual)
    curves = [
        side.run.table.filter(rows).select(pl.lit(number, pl.Int32).alias("side"), *side.run.table.columns)
        for number, side in enumerate(sides)
    ]
    windows = max(len(records) for records in first.records.values())
    sentences = findings(table, names, size, settings.level, windows, left_out)
    manifests = [side.run.manifest for side in sides]
    models = [
        {key: value for key, value in manifest["model"].items() if key != "source"} | {"name": name}
        for manifest, name in zip(manifests, names, strict=True)
    ]
    facts = study_facts(Difference.study, settings.as_json()) | {
        "model": {"name": f"{names[0]} and {names[-1]}", "about": models[0].get("about", "")},
        "models": models,
        **{key: manifests[0][key] for key in ("text", "layers", "windows")},
        "self_check": {"error": max(manifest["self_check"]["error"] for manifest in manifests)},
        "skipped": list(dict.fromkeys(why for manifest in manifests for why in manifest["skipped"])),
    }
    manifest = finished_manifest(facts, parts, {"total": time.perf_counter() - started}, again)
    schema: Any = Difference.frame("curves").schema
    return Difference(table=table, curves=pl.concat(curves).cast(schema), findings=sentences, manifest=manifest)


# -- Sides: models, folders of checkpoints, or folders of finished runs -----------------------------------------------


def _is_single(model: object) -> bool:
    return not isinstance(model, (list, tuple)) and len(_expanded(model)) == 1  # type: ignore[arg-type]


def _sides(model: ModelLike | Sequence[ModelLike], other: ModelLike | None) -> list[ModelLike]:
    """All sides in order; a folder or a glob of checkpoints stands for all of them, sorted by number."""
    models: list[Any] = [*model] if isinstance(model, (list, tuple)) else [model]
    models += [] if other is None else [other]
    sides = [side for given in models for side in _expanded(given)]
    if len(sides) < 2:
        raise AbbeError("there is only one model: name another one, or a folder or a glob of several checkpoints")
    return sides


def _expanded(model: ModelLike) -> Sequence[ModelLike]:
    if not isinstance(model, (str, os.PathLike)):
        return [model]
    path = Path(model).expanduser()
    if any(sign in os.fspath(model) for sign in "*?["):
        paths: Iterable[Path] = map(Path, glob.glob(str(path)))
        problem = f"{os.fspath(model)} matches no folder of a model or of a run"
    elif path.is_dir() and not _is_side(path):
        paths = path.iterdir()
        problem = f"{path} is neither a model nor a run, and holds no checkpoints (folders with a {_CONFIG})"
    else:
        return [model]
    if not (sides := sorted(filter(_is_side, paths), key=_natural_order)):
        raise AbbeError(problem)
    return sides


def _is_side(path: Path) -> bool:
    return path.is_dir() and ((path / _CONFIG).is_file() or _is_run(path))


def _is_run(model: object) -> bool:
    """Whether it is the folder of a run, not of a model."""
    if not isinstance(model, (str, os.PathLike)):
        return False
    path = Path(model).expanduser()
    return (path / MANIFEST).is_file() and not (path / _CONFIG).is_file()


def _natural_order(path: Path) -> list[Any]:
    """checkpoint-500 before checkpoint-1000."""
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in _NUMBER.split(path.name)]


def _of_runs(paths: Sequence[Path], place: Path | None) -> Difference:
    """The difference of finished runs: nothing is measured."""
    started = time.perf_counter()
    names = [path.name for path in paths]
    names = names if len(set(names)) == len(names) else [str(path) for path in paths]
    sides = [_read_run(path.expanduser()) for path in paths]
    manifests = [side.run.manifest for side in sides]
    records = [next(iter(side.records.values()))[0] for side in sides]
    shapes = [next(x for key, x in one.items() if key.endswith("/value")).shape for one in records]
    _check_same(names, [_SHAPE.format(*shape) for shape in shapes], _OTHER_SHAPE)
    # They are compared window by window: text, settings and windows must be the same.
    _check_same(names, [manifest["text"]["fingerprint"] for manifest in manifests], _OTHER_TEXT)
    known = [{key: one["settings"].get(key) for key in manifests[0]["settings"]} for one in manifests]
    different = ", ".join(key for key in known[0] if any(one[key] != known[0][key] for one in known))
    _check_same(names, known, _OTHER_SETTINGS.format("{}", "{}", different))
    _check_same(names, [manifest["windows"] for manifest in manifests], _OTHER_WINDOWS)
    settings = Settings.from_json(known[0])
    facts = {
        "models": [manifest["model"]["fingerprint"] for manifest in manifests],
        "text": manifests[0]["text"]["fingerprint"],
    }
    parts = claim_folder(place, Difference.study, facts, settings.as_json())
    return _result(sides, names, settings, parts, started)


def _read_run(path: Path) -> _Side:
    manifest, _ = read_manifest(path)
    if (kind := manifest.get("study", Run.study)) not in (Run.study, "report"):
        raise AbbeError(f"{path} is a folder of `abbe {kind}`: diff takes folders of diagnose and report")
    parts = Parts(path, (manifest.get("identity") or {}).get("digest", ""))
    if not isinstance(manifest.get("windows"), list):
        raise AbbeError(f"{path} was written by an older version of abbe, without its windows: measure it again")
    records: dict[int, list[Record]] = {}
    for window in manifest["windows"]:
        name = f"windows/{window['length']}-{window['index']}"
        stored = parts.tensors(name)
        if stored is None:
            why = parts.measured_again[0].partition(";")[0] if parts.measured_again else f"it has no {name}"
            raise AbbeError(f"{path} lacks some of its windows ({why}): name the folder in which it was measured")
        records.setdefault(int(window["length"]), []).append(stored[0])
    return _Side(open_run(path), records, {})


def _check_same(names: Sequence[str], values: Sequence[Any], misfit: str) -> None:
    """Refuse a side whose value is not that of the first; `misfit` says it with their names and values."""
    for name, value in zip(names[1:], values[1:], strict=True):
        if value != values[0]:
            raise AbbeError(misfit.format(names[0], name, values[0], value))


def _names(models: Sequence[ModelLike], rules: Mapping[int, str | None]) -> list[str]:
    """Names to show, without folders of this machine; duplicates get their dtype or a number.

    `rules` are what is swapped in, by the number of the side.
    """
    names = [_name(model) + (f" with {what}" if (what := rules.get(i)) else "") for i, model in enumerate(models)]
    networks: list[Any] = [model.network if isinstance(model, LoadedModel) else model for model in models]
    dtypes = [str(getattr(network, "dtype", "")).removeprefix("torch.") for network in networks]
    with_dtypes = [f"{name} ({dtype})" for name, dtype in zip(names, dtypes, strict=True)]
    numbered = [f"{name} ({number})" for number, name in enumerate(names, 1)]
    return next(several for several in (names, with_dtypes, numbered) if len(set(several)) == len(several))


def _name(model: ModelLike) -> str:
    if isinstance(model, nn.Module):
        return type(model).__name__
    name = model.name if isinstance(model, LoadedModel) else os.fspath(model)
    return Path(name).name if Path(name).exists() else without_folder(name)
