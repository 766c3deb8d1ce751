"""reproduce: the experiments of arXiv 2508.17821 on any causal language model, and what we add to them."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from ..._asked import shown, whole, yes_or_no
from ..._errors import AbbeError
from ..._held import held
from ...models import LoadedModel, Text, evaluating
from ...results import TABLE, Run
from ...words.paper import DRIFT, FIGURES
from .._engine.cost import Cost, estimate
from .._engine.folder import claim_folder
from .._engine.given import as_folder, as_model, as_text, windows_for
from .._engine.measuring import NO_QUERY, measure_run
from .._engine.settings import checked_seed, count_of_queries
from .._engine.watch import watching
from .._engine.window import run_model
from .claims import judge
from .plan import LENGTHS, Part, plan
from .result import Reproduction
from .tables import drift_figure, make_figure

_RUNS = "runs"
_OVERHEAD = 3.0  # time with these measures over time without
_SAME_IN_ALL = ("versions", "machine", "model", "text", "layers", "self_check", "made")


def reproduce(
    model: str | os.PathLike[str] | LoadedModel | nn.Module = "embedded",
    text: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | Text | None = None,
    *,
    figures: str | Sequence[str] = FIGURES,
    windows: int | None = None,
    queries: int | str | None = None,
    seed: int = 0,
    quick: bool = False,
    folder: str | os.PathLike[str] | None = None,
    tokenizer: Any = None,
    progress: bool = True,
) -> Reproduction:
    """Repeat the paper's figures 2a, 2b, 2c, 3 and 4 on a model, and judge its statements.

    Args:
        model, text, tokenizer, seed: as for `diagnose`.
        figures: which of "2a", "2b", "2c", "3", "4"; those that the folder holds already are shown, too. With 2a and
            2b comes the drift to uniform.
        windows: of each length; 8, or 2 when quick.
        queries: how many per window, drawn from all over it, or "all"; 128, or 16 when quick.
        quick: fewer windows, queries, lengths, sizes and temperatures: a look, not a result.
        folder: keep the runs there, and the page `reproduce.html` (`abbe.reproduce` writes it); what was measured
            before is not measured again.
        progress: show a bar on standard error.

    Example:
        >>> found = abbe.reproduce("smollm2", "war_and_peace.txt")
        >>> [(claim.topic, claim.answer) for claim in found.claims]
    """
    place, source = as_folder(folder), as_text(text)
    loaded = as_model(model, tokenizer, progress)
    if loaded.kind != "decoder":
        raise AbbeError(f"{loaded.name} is an {loaded.kind}: the paper's figures are of causal language models")
    quick = yes_or_no("quick", quick)
    windows = (2 if quick else 8) if windows is None else whole("windows", windows, least=1)
    chosen = _figures(figures)
    longest, too_short = _longest(loaded, source)
    asked: dict[str, Any] = {
        "windows": windows,
        "queries": _queries(queries, quick),
        "seed": checked_seed(seed),
        "quick": quick,
    }
    plan(chosen, longest, **asked)  # mistakes are reported before anything is written
    with held(place), evaluating(loaded.network):
        if place is not None:
            claim_folder(place, loaded, source, asked)
            chosen = [name for name in FIGURES if name in chosen or _measured_before(place, name)]
        found = _reproduced(loaded, source, plan(chosen, longest, **asked), asked, too_short, place, progress)
        if place is not None:
            found.save(place)
    return found


def _reproduced(
    loaded: LoadedModel,
    source: Text,
    parts: Sequence[Part],
    asked: dict[str, Any],
    too_short: list[str],
    place: Path | None,
    progress: bool,
) -> Reproduction:
    """Run after run, then the figures from all of them."""
    runs: dict[str, dict[str, Run]] = {}
    seconds: dict[str, float] = {}
    cut = windows_for(loaded, source, _lengths(parts), asked["windows"], asked["seed"])
    there = Counter(window.length for window in cut)
    lengths = [length for part in parts for length in part.settings.lengths for _ in range(there[length])]
    with watching(progress, len(lengths)) as watch:
        watch.announce(f"{loaded.name}: {_cost(loaded, source, lengths)}")
        for part in parts:
            started = time.perf_counter()
            watch.part = f"figure {part.figure}, {part.vectors} vectors"
            kept = None if place is None else place / _RUNS / part.name
            run = measure_run(loaded, source, part.settings, kept, watch)
            runs.setdefault(part.figure, {})[part.vectors] = run
            took = max(time.perf_counter() - started, sum(run.manifest["seconds"]["windows"].values()))  # if resumed
            seconds[part.figure] = round(seconds.get(part.figure, 0.0) + took, 3)
    made = {name: make_figure(name, of_figure) for name, of_figure in runs.items()}
    if "2a" in runs and "2b" in runs:
        made[DRIFT] = drift_figure(runs["2a"], runs["2b"])
    manifest = _manifest(runs, asked, too_short) | {"seconds": {"total": round(sum(seconds.values()), 3)}}
    return Reproduction(manifest, made, judge(made), seconds)


def _figures(given: str | Sequence[str]) -> list[str]:
    if isinstance(given, str):
        given = FIGURES if given == "all" else given.split(",")
    if isinstance(given, (bytes, Mapping)) or not isinstance(given, Iterable):
        raise AbbeError(f"figures is {shown(given)}, but must be some of {', '.join(FIGURES)}, or all")
    return [str(name).strip() for name in given]


def _longest(model: LoadedModel, text: Text) -> tuple[int, list[str]]:
    """The longest window that model and text have room for, and which lengths the text is too short for."""
    fitting = [length for length in LENGTHS if model.context is None or length <= model.context]
    if not fitting:
        return model.context or 0, []
    cut = windows_for(model, text, fitting, 1, 0)
    return max(window.length for window in cut), list(cut.skipped)


def _measured_before(folder: Path, figure: str) -> bool:
    return (folder / _RUNS / f"{figure}-embedding" / TABLE).is_file()


def _lengths(parts: Sequence[Part]) -> list[int]:
    return sorted({length for part in parts for length in part.settings.lengths})


def _cost(model: LoadedModel, text: Text, lengths: Sequence[int]) -> Cost:
    """From the second of two forward passes on a short window."""
    window = windows_for(model, text, [min(lengths)], 1, 0)[0]
    for _ in range(2):
        started = time.perf_counter()
        run_model(model, window.tokens)
        a_pass = time.perf_counter() - started
    return estimate(model, lengths, window.length, a_pass, _OVERHEAD)


def _queries(given: int | str | None, quick: bool) -> int | None:
    return count_of_queries(given if given is not None else 16 if quick else 128)


def _manifest(runs: dict[str, dict[str, Run]], asked: dict[str, Any], too_short: list[str]) -> dict[str, Any]:
    """What all runs share, the settings of each, and everything that any of them left out."""
    every = {f"{figure}-{vectors}": run for figure, group in runs.items() for vectors, run in group.items()}
    first = next(iter(every.values())).manifest
    of_runs = {name: run.manifest["settings"] for name, run in every.items()}
    lengths = sorted({length for one in of_runs.values() for length in one["lengths"]})
    skipped = dict.fromkeys(why for run in every.values() for why in run.manifest["skipped"] if NO_QUERY not in why)
    return {key: first[key] for key in _SAME_IN_ALL} | {
        "settings": {"lengths": lengths} | asked | {"queries": asked["queries"] or "all"},
        "runs": of_runs,
        "skipped": [*too_short, *skipped],
        "measured_again": [line for run in every.values() for line in run.manifest["measured_again"]],
    }
