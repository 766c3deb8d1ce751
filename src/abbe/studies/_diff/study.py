"""diff: two models, checkpoints of a training run, or runs that were measured before, head by head."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import torch
from torch import Tensor, nn

from ..._errors import AbbeError
from ..._locks import held
from ...models import DeviceLike, DeviceMap, DtypeLike, LoadedModel, Text, Windows, evaluating
from ...results import Run, open_run
from ...words.manifest import without_folder
from ...words.measures import usual_size
from .._engine.folder import RunFolder, claim_without_model
from .._engine.inputs import FolderLike, ModelLike, Placed, TextLike, as_folder, as_model, as_text, room_for
from .._engine.loss import check_causal, window_losses
from .._engine.measuring import finished_manifest, manifest_facts, measure_run, study_facts, window_places, windows_of
from .._engine.parts import Parts
from .._engine.settings import Settings, settings_for
from .._engine.tables import Record
from .._engine.watch import Watch, watching
from .findings import MAIN, findings, fitted_findings
from .fitted import fitted_rows
from .paired import difference_table
from .result import CURVE_SCHEMA, Difference
from .sources import check_alike, check_shapes, is_run, read_run, sources

LENGTH = 256
_RUNS = "runs"  # folder of the runs beside


def diff(
    model: ModelLike | Sequence[ModelLike], other: ModelLike | None = None, text: TextLike | None = None, *,
    lengths: int | Sequence[int] | None = None, windows: int = 8, queries: int | str = 64,
    sizes: int | Sequence[int] | None = None, vectors: str = "value", seed: int = 0, level: float = 0.95,
    resamples: int = 1000, folder: FolderLike | None = None, tokenizer: Any = None, device: DeviceLike | None = None,
    dtype: DtypeLike | None = None, device_map: DeviceMap | None = None, progress: bool = True,
) -> Difference:  # fmt: skip
    """Every measure of every head on two sides, on the same windows of text: what changed, and what did not.

    All sides need the same numbers of layers and heads, and the same tokens for a text.

    Args:
        model: the first side: a model as for `diagnose`, or the folder of a run of `diagnose` or `report`. A folder or
            a glob of checkpoints, or a list of models, stands for several sides: first and last are compared, and all
            of them give curves.
        other: the second side.
        text: as for `diagnose`; of runs that were measured before it is known.
        lengths: of windows in tokens; by default 256, or the model's context if less.
        windows: how many windows of each length; intervals come from resampling them.
        queries: how many queries per window, one from each of as many equal stretches, or "all".
        sizes: sizes N of the selected set; by default 1, 2, 5, 10, 20, 50 and 100.
        vectors: token vectors of the geometry: "value", "output", "hidden" or "embedding", as for `diagnose`.
        seed: of all that is drawn: the same seed gives the same numbers.
        level: of intervals; a change counts where its q value (Benjamini and Hochberg over all heads and measures) is
            at most 1 - level.
        resamples: of the bootstrap, >= 1.
        folder: keep the runs there; an interrupted study is resumed.
        tokenizer, device, dtype, device_map, progress: as for `diagnose`.

    Returns:
        A row for each head and measure with both values and their difference, the largest changes first. A small
        `q_value` says that a difference is beyond chance.

    Raises:
        AbbeError: an argument is wrong, the text is too short, or the self-check fails; one line says what to do.

    Examples:
        >>> half = abbe.load("embedded", dtype="bfloat16")
        >>> diff = abbe.diff("embedded", half, lengths=32, windows=2, queries=4, sizes=5, progress=False)
        >>> diff.heads, len(diff.names)
        (48, 2)
    """
    place, listed, placed = as_folder(folder), sources(model, other), Placed(device, dtype, device_map)
    runs = [is_run(one) for one in listed]
    if any(runs):
        if not all(runs):
            raise AbbeError("a run cannot be compared with a model: give two models, or two runs")
        if text is not None:
            raise AbbeError("runs were measured on a text already: leave the text out")
        return _of_runs([os.fspath(one) for one in listed], place)  # type: ignore[arg-type]
    source = as_text(text)
    # The first two at once, so that what does not fit is refused before anything is measured; others one by one.
    loaded = [as_model(one, tokenizer, progress, placed) for one in listed[:2]]
    context = room_for(loaded[0], source, LENGTH)
    settings = settings_for(
        context, lengths=min(LENGTH, context or LENGTH) if lengths is None else lengths, windows=windows,
        queries=queries, sizes=sizes, vectors=vectors, normalizer=None, temperatures=(1.0,), seed=seed, level=level,
        resamples=resamples,
    )  # fmt: skip
    with held(place), watching(progress) as watch:
        study = _Study(source, settings, place, watch, tokenizer, placed)
        result = study.run(loaded, listed[2:])
        if place is not None:
            result.save(place)
    return result


@dataclass(frozen=True)
class _Side:
    """One side, measured."""

    run: Run
    records: dict[int, list[Record]]
    losses: dict[int, Tensor]  # empty where the model does not predict the next token, or they were not measured


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
        names = _names([*loaded, *more])
        check_shapes(names[: len(loaded)], [_shape(model) for model in loaded])
        cut = [windows_of(model, self.text, self.settings) for model in loaded]
        _check_tokens(names[: len(loaded)], cut)
        facts = {
            "models": [[model.fingerprint, model.configuration] for model in loaded],
            "more": [_known(one) for one in more],
            "text": self.text.fingerprint,
        }
        parts = claim_without_model(self.place, Difference.study, facts, self.settings.as_json(), self.watch.announce)
        begun = study_facts(Difference.study, self.settings.as_json())
        sides, models = [], []
        for number, (model, name) in enumerate(zip([*loaded, *more], names, strict=True)):
            side = model if isinstance(model, LoadedModel) else as_model(model, self.tokenizer, placed=self.placed)
            if number >= len(loaded):
                check_shapes([names[0], name], [_shape(loaded[0]), _shape(side)])
                _check_tokens([names[0], name], [cut[0], windows_of(side, self.text, self.settings)])
            sides.append(self._measured(side, number, name, cut[0], parts))
            measured = manifest_facts(Difference.study, side, self.text, {})["model"]
            models.append({key: measured[key] for key in measured if key != "source"} | {"name": name})
        runs = [side.run for side in sides]
        manifest = begun | {
            "model": {"name": f"{names[0]} and {names[-1]}", "about": models[0]["about"]},
            "models": models,
            "text": runs[0].manifest["text"],
            "layers": runs[0].manifest["layers"],
            "self_check": {"error": max(run.manifest["self_check"]["error"] for run in runs)},
            "windows": window_places(cut[0]),
            "skipped": list(dict.fromkeys(why for run in runs for why in run.manifest["skipped"])),
        }
        again = [line for run in runs for line in run.manifest["measured_again"]]
        manifest = finished_manifest(manifest, parts, {"total": time.perf_counter() - started}, again)
        return _result(sides, self.settings, manifest)

    def _measured(self, model: LoadedModel, number: int, name: str, cut: Windows, parts: Parts) -> _Side:
        kept: list[RunFolder] = []

        def beside(_: Any, run: RunFolder) -> tuple[()]:
            kept.append(run)
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
            record = kept[0].record(window)
            assert record is not None, window
            records.setdefault(window.length, []).append(record)
        return _Side(run, records, losses)


def _losses(model: LoadedModel, cut: Windows, parts: Parts, name: str) -> dict[int, Tensor]:
    """Mean loss of the next token in every window, by length, kept in the folder."""
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
    """Of runs that were measured before; nothing is measured again."""
    started = time.perf_counter()
    read = [read_run(folder) for folder in folders]
    names = [Path(folder).name for folder in folders]
    names = names if len(set(names)) == len(names) else [str(Path(folder)) for folder in folders]
    manifests = [manifest for manifest, _ in read]
    check_shapes(names, [_recorded_shape(records) for _, records in read])
    check_alike(names, manifests)
    settings = _settings(manifests[0]["settings"])
    sides = [_Side(open_run(folder), records, {}) for folder, (_, records) in zip(folders, read, strict=True)]
    facts = {"models": [manifest["model"]["fingerprint"] for manifest in manifests]}
    facts |= {"text": manifests[0]["text"]["fingerprint"]}
    with held(place):
        parts = claim_without_model(place, Difference.study, facts, settings.as_json())
        models = [
            {key: value for key, value in manifest["model"].items() if key != "source"} | {"name": name}
            for manifest, name in zip(manifests, names, strict=True)
        ]
        manifest = study_facts(Difference.study, settings.as_json()) | {
            "model": {"name": f"{names[0]} and {names[-1]}", "about": models[0].get("about", "")},
            "models": models,
            **{key: manifests[0][key] for key in ("text", "layers", "windows")},
            "self_check": {"error": max(manifest["self_check"]["error"] for manifest in manifests)},
            "skipped": list(dict.fromkeys(why for manifest in manifests for why in manifest["skipped"])),
        }
        manifest = finished_manifest(manifest, parts, {"total": time.perf_counter() - started})
        result = _result(sides, settings, manifest)
        if place is not None:
            result.save(place)
    return result


def _result(sides: Sequence[_Side], settings: Settings, manifest: dict[str, Any]) -> Difference:
    losses = [sides[0].losses, sides[-1].losses] if sides[0].losses and sides[-1].losses else []
    names = [str(model["name"]) for model in manifest["models"]]
    fitted, left_out = fitted_rows(sides[0].records, sides[-1].records, names, settings)
    table = difference_table(sides[0].records, sides[-1].records, settings, losses, fitted)
    size = usual_size(sides[0].run.table)
    count = max(len(records) for records in sides[0].records.values())
    main = pl.col("head").is_null() | (
        pl.col("measure").is_in(MAIN) & (pl.col("n").is_null() | (pl.col("n") == (size or 0)))
    )
    curves = [
        side.run.table.filter(main).select(pl.lit(number, pl.Int32).alias("side"), *side.run.table.columns)
        for number, side in enumerate(sides)
    ]
    sentences = [*findings(table, names, size, settings.level, count), *fitted_findings(table, left_out)]
    return Difference(table, pl.concat(curves).cast(CURVE_SCHEMA), tuple(sentences), manifest)  # type: ignore[arg-type]


def _settings(stored: dict[str, Any]) -> Settings:
    """Of a run, from its manifest."""
    plain = {key: tuple(value) if isinstance(value, list) else value for key, value in stored.items()}
    return Settings(**(plain | {"queries": None if stored["queries"] == "all" else stored["queries"]}))


def _names(models: Sequence[ModelLike]) -> list[str]:
    """As they are shown: without folders of this machine; where two are the same, by dtype or number."""
    names = [_name(model) for model in models]
    if len(set(names)) == len(names):
        return names
    by_dtype = [f"{name} ({_dtype(model)})" for name, model in zip(names, models, strict=True)]
    if len(set(by_dtype)) == len(by_dtype):
        return by_dtype
    return [f"{name} ({number})" for number, name in enumerate(names, 1)]


def _name(model: ModelLike) -> str:
    if isinstance(model, nn.Module):
        return type(model).__name__
    name = model.name if isinstance(model, LoadedModel) else os.fspath(model)
    return Path(name).name if Path(name).exists() else without_folder(name)


def _dtype(model: ModelLike) -> str:
    network: Any = model.network if isinstance(model, LoadedModel) else model
    return str(getattr(network, "dtype", "")).removeprefix("torch.")


def _known(model: ModelLike) -> str:
    """What a folder remembers of a model that is not loaded yet: the run of each is checked again by its weights."""
    return model.fingerprint if isinstance(model, LoadedModel) else _name(model)


def _shape(model: LoadedModel) -> tuple[int, ...]:
    network: Any = model.network
    config = network.config.get_text_config()
    return tuple(getattr(config, what, 0) for what in ("num_hidden_layers", "num_attention_heads"))


def _recorded_shape(records: dict[int, list[Record]]) -> tuple[int, ...]:
    any_record = next(iter(records.values()))[0]
    return tuple(next(x for key, x in any_record.items() if key.endswith("/value")).shape[:2])


def _check_tokens(names: Sequence[str], cut: Sequence[Windows]) -> None:
    """Windows are compared in pairs: they must hold the same tokens."""
    first = [window.tokens.tolist() for window in cut[0]]
    for name, windows in zip(names[1:], cut[1:], strict=True):
        if [window.tokens.tolist() for window in windows] != first:
            raise AbbeError(
                f"{names[0]} and {name} cut the text into different tokens, so their windows cannot be paired: "
                "give models with one tokenizer"
            )
