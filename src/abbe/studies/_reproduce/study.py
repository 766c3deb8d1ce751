"""reproduce: the experiments of arXiv 2508.17821 on any causal language model, and its statements judged."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

from ..._arguments import shown, whole, yes_or_no
from ..._errors import AbbeError
from ...models import DeviceLike, DeviceMap, DtypeLike, LoadedModel, Text, Windows, evaluating
from ...results import TABLE, Run
from ...runs.cost import Cost, estimate, plan_memory
from ...runs.executors import all_stages
from ...runs.folder import claim_folder
from ...runs.inputs import FolderLike, ModelLike, Placed, TextLike, load_inputs, windows_for
from ...runs.measuring import NO_QUERY, finished_manifest, manifest_facts, measure_runs
from ...runs.parts import Parts
from ...runs.settings import checked_seed, count_of_queries
from ...runs.study import study
from ...runs.watch import Watch, watching
from ...runs.window import check_tokens, run_model
from ...words.paper import DRIFT, FIGURES
from .claims import judge
from .figures import LENGTHS, Part, drift_figure, make_figure, plan
from .result import Reproduction, opened_reproduction

_RUNS = "runs"
_OVERHEAD = 3.0  # time with these measures over time without


@study(Reproduction, extra="all", named_by="quick", opened=opened_reproduction)
def reproduce(
    model: ModelLike = "embedded", text: TextLike | None = None, *,
    figures: str | Sequence[str] = ("2a", "2b", "2c", "3", "4"), windows: int | None = None,
    queries: int | str | None = None, seed: int = 0, quick: bool = False, folder: FolderLike | None = None,
    tokenizer: Any = None, device: DeviceLike | None = None, dtype: DtypeLike | None = None,
    device_map: DeviceMap | None = None, progress: bool = True,
) -> Reproduction:  # fmt: skip
    """Repeat the experiments of arXiv 2508.17821 on a model: figures, a page, and which of its statements hold.

    Repeat the paper's figures 2a, 2b, 2c, 3 and 4 on a model, and judge its statements.

    Args:
        model, text: as for `diagnose`.
        figures: which of "2a", "2b", "2c", "3", "4"; figures that the folder already holds are shown as well. 2a and
            2b together also give the drift to uniform.
        windows: of each length; 8, or 2 when quick.
        queries: how many per window, drawn from all over it, or "all"; 128, or 16 when quick.
        seed: random seed; the same seed gives the same numbers.
        quick: fewer windows, queries, lengths, sizes and temperatures: a first look, not a result.
        folder: keep the runs there, and the page `reproduce.html` (`abbe.reproduce` writes it); finished parts are not
            measured again.
        tokenizer, device, dtype, device_map, progress: as for `diagnose`.

    Returns:
        The data of the figures, and every statement with an answer by a written rule; high and low as for `diagnose`.

    Raises:
        AbbeError: an argument is wrong, the text is too short, or the self-check fails; one line says what to do.

    Commands:
        abbe reproduce
        abbe reproduce --quick --figure 3
        abbe reproduce smollm2 --text war_and_peace.txt --out smollm2-figures

    Examples:
        >>> reproduction = abbe.reproduce(figures="2b", quick=True, windows=1, queries=4, progress=False)
        >>> sorted({claim.answer for claim in reproduction.claims})
        [...]
        >>> sorted(reproduction.figures)
        ['2b']
    """
    place, source, loaded = load_inputs(model, text, folder, tokenizer, progress, Placed(device, dtype, device_map))
    if loaded.kind != "decoder":
        raise AbbeError(f"{loaded.name} is an {loaded.kind}: the paper's figures are for causal language models")
    quick = yes_or_no("quick", quick)
    windows = (2 if quick else 8) if windows is None else whole("windows", windows, least=1)
    chosen = _figures(figures)
    fitting = [length for length in LENGTHS if loaded.context is None or length <= loaded.context]
    cut = windows_for(loaded, source, fitting, windows, checked_seed(seed)) if fitting else Windows([], {})
    longest = max((window.length for window in cut), default=loaded.context or 0)
    queries = (16 if quick else 128) if queries is None else queries
    settings: dict[str, Any] = {
        "windows": windows, "queries": count_of_queries(queries), "seed": checked_seed(seed), "quick": quick,
    }  # fmt: skip
    plan(chosen, longest, **settings)  # mistakes are reported before anything is written
    with evaluating(loaded.network):
        parts = claim_folder(place, Reproduction.study, loaded, source, settings)
        if place is not None:
            measured = [name for name in FIGURES if (place / _RUNS / f"{name}-embedding" / TABLE).is_file()]
            chosen = [name for name in FIGURES if name in chosen or name in measured]
        planned = {name: list(some) for name, some in groupby(plan(chosen, longest, **settings), lambda p: p.figure)}
        of_figures = {name: cut.of_lengths(some[0].settings.lengths) for name, some in planned.items()}
        lengths = [window.length for some in of_figures.values() for window in some]
        with watching(progress, len(lengths)) as watch:
            plan_memory(loaded, lengths, len(check_tokens(loaded, cut)), watch.announce, queries=settings["queries"])
            watch.announce(f"{loaded.name}: {_cost(loaded, cut, lengths)}")
            stages = [
                partial(_measured, loaded, source, several, of_figures[name], place, watch)
                for name, several in planned.items()
            ]
            runs = dict(zip(planned, all_stages(stages), strict=True))
            return _judged(runs, manifest_facts(Reproduction.study, loaded, source, settings), cut, parts)


def _measured(
    model: LoadedModel, text: Text, parts: Sequence[Part], windows: Windows, place: Path | None, watch: Watch
) -> dict[str, Run]:
    """The runs of one figure, by kind of vectors."""
    watch.part = f"figure {parts[0].figure}"
    folders = [None if place is None else place / _RUNS / part.name for part in parts]
    runs = measure_runs(model, text, [part.settings for part in parts], folders, watch, windows)
    return {part.vectors: run for part, run in zip(parts, runs, strict=True)}


def _judged(
    runs: Mapping[str, Mapping[str, Run]], facts: Mapping[str, Any], cut: Windows, parts: Parts
) -> Reproduction:
    """The figures from all runs, and the paper's statements."""
    figures = {name: make_figure(name, of_figure) for name, of_figure in runs.items()}
    if "2a" in runs and "2b" in runs:
        figures[DRIFT] = drift_figure(runs["2a"], runs["2b"])
    seconds = {name: _seconds(of_figure.values()) for name, of_figure in runs.items()}
    too_short = cut.of_lengths(set(LENGTHS) - {window.length for window in cut}).skipped
    again = [line for group in runs.values() for run in group.values() for line in run.manifest["measured_again"]]
    manifest = finished_manifest(
        {**facts, **_of_all_runs(runs, facts["settings"], too_short)}, parts, {"total": sum(seconds.values())}, again
    )
    return Reproduction(manifest, figures, judge(figures), seconds)


def _seconds(runs: Iterable[Run]) -> float:
    """Of a figure: the whole call, or the sum over its windows if some were measured before."""
    times = [run.manifest["seconds"] for run in runs]
    measured = sum(sum(one["windows"].values()) for one in times)
    return round(max(float(max(one["total"] for one in times)), float(measured)), 3)


def _figures(figures: str | Sequence[str]) -> list[str]:
    if isinstance(figures, str):
        figures = FIGURES if figures == "all" else figures.split(",")
    if isinstance(figures, (bytes, Mapping)) or not isinstance(figures, Iterable):
        raise AbbeError(f"figures is {shown(figures)}, but must be some of {', '.join(FIGURES)}, or all")
    return [str(name).strip() for name in figures]


def _cost(model: LoadedModel, cut: Windows, lengths: Sequence[int]) -> Cost:
    """From the second of two forward passes on a short window."""
    window = next(window for window in cut if window.length == min(lengths))
    for _ in range(2):
        started = time.perf_counter()
        run_model(model, window.tokens)
        seconds = time.perf_counter() - started
    return estimate(model, lengths, window.length, seconds, _OVERHEAD, head=False)


def _of_all_runs(
    runs: Mapping[str, Mapping[str, Run]], settings: Mapping[str, Any], too_short: Sequence[str]
) -> dict[str, Any]:
    """What all runs share, the settings of each, and everything that any of them skipped."""
    every = {f"{figure}-{vectors}": run for figure, group in runs.items() for vectors, run in group.items()}
    first = next(iter(every.values())).manifest
    of_runs = {name: run.manifest["settings"] for name, run in every.items()}
    lengths = sorted({length for one in of_runs.values() for length in one["lengths"]})
    skipped = dict.fromkeys(why for run in every.values() for why in run.manifest["skipped"] if NO_QUERY not in why)
    return {key: first[key] for key in ("layers", "self_check")} | {
        "settings": {"lengths": lengths, **settings, "queries": settings["queries"] or "all"},
        "runs": of_runs,
        "skipped": [*too_short, *skipped],
    }
