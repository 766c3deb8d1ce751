"""reproduce: the experiments of arXiv 2508.17821 on any causal language model, and its statements judged.

Its protocol as settings of runs; the study; and the data of every figure from the tables of its runs. `Figure` says
which columns the data have.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import polars as pl

from ..._arguments import shown, whole, yes_or_no
from ..._errors import AbbeError
from ...bounds import change_bound_by_norm, spectral_norm_bound_paper, spectral_norm_supremum
from ...models import DeviceLike, DeviceMap, DtypeLike, Windows
from ...results import TABLE, Run
from ...runs.cost import estimate, plan_memory
from ...runs.executors import all_stages
from ...runs.inputs import FolderLike, ModelLike, Placed, Settings, TextLike, Vectors, windows_for
from ...runs.loss import next_token_losses
from ...runs.measuring import NO_QUERY, at_work, measure_runs
from ...runs.study import study
from ...runs.tables import LEVELS, READINGS, critical_name, rejecting_name
from ...words.names import FIGURES
from .._shared.swapped import best_seconds
from .claims import judge
from .result import DRIFT, Figure, Reproduction

SIZE = 5  # of figure 2a
STEPS = (1e-3, 1e-1, 10.0)  # eps of figure 4
LENGTHS = (32, 64, 128, 256, 512, 1024)
_SIZES_2B = (1, 2, 5, 10, 20, 50, 100)  # the paper: 1, 5, 10, 20, 100
_SIZES_2C = (
    *(1, 2, 3, 4, 5, 6, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256),
    *(320, 384, 448, 512),
)
_POWERS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
_SIZES_3 = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 80, 100)
_TEMPERATURES = (0.003, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
_VECTORS: tuple[Vectors, ...] = ("embedding", "value")  # the paper's, and what attention really adds up
_RUNS = "runs"
_OVERHEAD = 3.0  # time with these measures over time without
Runs = Mapping[str, Run]  # of one figure, by kind of vectors


@study(Reproduction, extra="all", named_by="quick")
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
    with at_work(Reproduction, model, text, folder, tokenizer, progress, Placed(device, dtype, device_map)) as job:
        loaded, place, watch = job.model, job.folder, job.watch
        if loaded.kind != "decoder":
            raise AbbeError(f"{loaded.name} is an {loaded.kind}: the paper's figures are for causal language models")
        quick = yes_or_no("quick", quick)
        windows = (2 if quick else 8) if windows is None else whole("windows", windows, least=1)
        queries = (16 if quick else 128) if queries is None else queries
        base = Settings(LENGTHS, windows, queries, (SIZE,), "embedding", seed=seed, resamples=100 if quick else 1000)  # type: ignore[arg-type]
        chosen = _named(figures)
        fitting = [length for length in LENGTHS if loaded.context is None or length <= loaded.context]
        cut = windows_for(loaded, job.text, fitting, windows, base.seed) if fitting else Windows([], {})
        longest = max((window.length for window in cut), default=loaded.context or 0)
        _plan(chosen, longest, base, quick)  # mistakes are reported before anything is written
        settings = {"windows": windows, "queries": base.queries, "seed": base.seed, "quick": quick}
        job.describe(settings)
        job.claim()
        if place is not None:
            chosen += [name for name in FIGURES if (place / _RUNS / f"{name}-embedding" / TABLE).is_file()]
        planned = _plan(chosen, longest, base, quick)
        left_out = []
        if (standing := loaded.plan) is not None and "4" in planned:
            del planned["4"]
            left_out = [
                f"figure 4: it is about softmax, and heads compute with others ({'; '.join(standing.as_lines())})"
            ]
            if not planned:
                raise AbbeError(f"nothing is left to measure: {left_out[0]}")
        of_figures = {name: cut.of_lengths(several[0].lengths) for name, several in planned.items()}
        lengths = [window.length for several in of_figures.values() for window in several]
        plan_memory(loaded, cut, watch.say, queries=base.queries)
        short = min(cut, key=lambda window: window.length)
        a_pass = best_seconds(partial(next_token_losses, loaded, short.tokens), 2, time.perf_counter)
        cost = estimate(loaded, lengths, short.length, a_pass, _OVERHEAD, queries=base.queries)
        watch.say(f"{loaded.name}: {cost}")
        watch.share(len(lengths))

        def measured(name: str) -> Runs:
            watch.part, several = f"figure {name}", planned[name]
            folders = [None if place is None else place / _RUNS / f"{name}-{one.vectors}" for one in several]
            runs = measure_runs(job, several, of_figures[name], folders)
            return {one.vectors: of_run.run for one, of_run in zip(several, runs, strict=True)}

        runs = dict(zip(planned, all_stages(partial(measured, name) for name in planned), strict=True))
        made = {name: _figure(name, of_figure) for name, of_figure in runs.items()}
        if "2a" in runs and "2b" in runs:
            made[DRIFT] = _drift(runs["2a"], runs["2b"])
        seconds = {name: _seconds(of_figure.values()) for name, of_figure in runs.items()}
        too_short = cut.of_lengths(set(LENGTHS) - {window.length for window in cut}).skipped
        again = [line for group in runs.values() for run in group.values() for line in run.manifest["measured_again"]]
        manifest = job.manifest(
            _of_all_runs(runs, settings, [*left_out, *too_short]), seconds={"total": sum(seconds.values())}, again=again
        )
        return Reproduction(manifest, made, judge(made), seconds)


def _named(figures: str | Sequence[str]) -> list[str]:
    if isinstance(figures, str):
        figures = FIGURES if figures == "all" else figures.split(",")
    if isinstance(figures, (bytes, Mapping)) or not isinstance(figures, Iterable):
        raise AbbeError(f"figures is {shown(figures)}, but must be some of {', '.join(FIGURES)}, or all")
    return [str(name).strip() for name in figures]


def _plan(figures: Sequence[str], context: int, base: Settings, quick: bool) -> dict[str, list[Settings]]:
    """Settings of the runs of these figures, in the paper's order: a run per kind of vectors."""
    unknown = [name for name in figures if name not in FIGURES]
    if unknown or not figures:
        raise AbbeError(f"there is no figure {', '.join(unknown) or 'named'}: choose from {', '.join(FIGURES)}, or all")
    lengths = tuple(length for length in LENGTHS if length <= context)
    if len(lengths) < 2:
        raise AbbeError(
            f"model and text have room for windows of {context} tokens: the figures need at least {LENGTHS[1]}"
        )
    longest = lengths[-1:]
    common = replace(base, lengths=lengths[::-2][::-1] if quick else lengths)  # always with the longest
    sizes = {
        name: tuple(n for n in several if n <= longest[0] // 2)
        for name, several in {"2b": _SIZES_2B, "2c": _POWERS if quick else _SIZES_2C, "3": _SIZES_3}.items()
    }
    settings = {
        "2a": replace(common, expected=True),
        # The same queries for every size, or sizes could not be compared.
        "2b": replace(common, lengths=longest, sizes=sizes["2b"], more_than=sizes["2b"][-1], expected=True),
        "2c": replace(common, sizes=sizes["2c"], readings=True),
        "3": replace(common, lengths=longest, sizes=sizes["3"], more_than=sizes["3"][-1]),
        "4": replace(common, lengths=longest, temperatures=_TEMPERATURES[:: 2 if quick else 1], steps=STEPS),
    }
    kinds = {"4": _VECTORS[:1]}  # it is about weights, not vectors
    return {
        name: [replace(settings[name], vectors=vectors) for vectors in kinds.get(name, _VECTORS)]
        for name in FIGURES
        if name in figures
    }


def _seconds(runs: Iterable[Run]) -> float:
    """Time of a figure: the whole call, or the sum over its windows if some were measured before."""
    times = [run.manifest["seconds"] for run in runs]
    measured = sum(sum(of_run["windows"].values()) for of_run in times)
    return round(max(float(max(of_run["total"] for of_run in times)), float(measured)), 3)


def _of_all_runs(runs: Mapping[str, Runs], settings: Mapping[str, Any], too_short: Sequence[str]) -> dict[str, Any]:
    """What all runs share, the settings of each, and everything that any of them skipped."""
    every = {f"{figure}-{vectors}": run for figure, group in runs.items() for vectors, run in group.items()}
    first = next(iter(every.values())).manifest
    of_runs = {name: run.manifest["settings"] for name, run in every.items()}
    lengths = sorted({length for of_run in of_runs.values() for length in of_run["lengths"]})
    skipped = dict.fromkeys(why for run in every.values() for why in run.manifest["skipped"] if NO_QUERY not in why)
    return {key: first[key] for key in ("layers", "self_check")} | {
        "settings": {"lengths": lengths, **settings, "queries": settings["queries"] or "all"},
        "runs": of_runs,
        "skipped": [*too_short, *skipped],
    }


# -- The data of the figures ------------------------------------------------------------------------------------------


def _figure(name: str, runs: Runs) -> Figure:
    """One figure of the paper from its runs."""
    if name == "4":
        return Figure(name, _gradient(runs["embedding"]), _about(runs))
    makers: dict[str, dict[str, Callable[[Run], pl.DataFrame]]] = {
        "2a": {"distance": partial(_distances, axis="length")},
        "2b": {"distance": partial(_distances, axis="n")},
        # Sets of at most half the keys: larger ones leave few queries.
        "2c": {"critical": _critical, "readings": _readings, "tests": _tests, "proportional": _in_proportion},
        "3": {"heads": _heads, "mean": partial(_series, measure="separability", axis="n")},
    }
    tables = {
        table: pl.concat([make(run).select(pl.lit(kind).alias("vectors"), pl.all()) for kind, run in runs.items()])
        for table, make in makers[name].items()
    }
    return Figure(name, tables, _about(runs))


def _drift(by_length: Runs, by_size: Runs) -> Figure:
    """How far the renormalised selected weights are from uniform; the vectors do not matter."""
    tables = {}
    for name, axis, runs in (("by_size", "n", by_size), ("by_length", "length", by_length)):
        run = runs["embedding"]
        sizes = pl.col("n") if axis == "n" else pl.lit(run.manifest["settings"]["sizes"][0])
        share = pl.when(sizes > 1).then(pl.col("value") / sizes.cast(pl.Float64).log())
        tables[name] = _series(run, "selected_divergence", axis).with_columns(share=share)
    about = _about(by_size)
    same = {key: about[key] for key in ("windows", "heads", "queries", "length")}
    return Figure(DRIFT, tables, same | {"size": _about(by_length)["size"]})


def _about(runs: Runs) -> dict[str, Any]:
    """Settings for captions; one length is `length`, several are `lengths`, and likewise for sizes."""
    run = runs["embedding"]
    settings = run.manifest["settings"]
    counts = Counter(window["length"] for window in run.manifest["windows"]).values()  # short texts have fewer
    about = {
        "vectors": list(runs),
        "queries": settings["queries"],
        "windows": min(counts) if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}",
        "heads": run.table.select("layer", "head").drop_nulls().n_unique(),
    }
    for name in ("length", "size"):
        values = settings[f"{name}s"]
        if name == "length" or not settings["steps"]:
            about |= {name: values[0]} if len(values) == 1 else {f"{name}s": values}
    return about | ({"steps": settings["steps"]} if settings["steps"] else {"more_than": settings["more_than"]})


def _of_all_heads(run: Run, measure: str) -> pl.DataFrame:
    return run.table.filter((pl.col("measure") == measure) & pl.col("head").is_null())


def _line(run: Run, measure: str, axis: str, name: str, column: str = "value") -> pl.DataFrame:
    """A column of a measure as one series; only the value itself has an interval."""
    ends = [pl.col(end) if column == "value" else pl.lit(None, pl.Float64).alias(end) for end in ("low", "high")]
    points = _of_all_heads(run, measure).select(
        axis, pl.lit(name).alias("series"), pl.col(column).alias("value"), *ends
    )
    return points.filter(pl.col("value").is_not_null()).sort(axis)


def _series(run: Run, measure: str, axis: str) -> pl.DataFrame:
    """A measure and its random control as two series."""
    return pl.concat([_line(run, measure, axis, "selected"), _line(run, measure, axis, "random", "control")])


def _distances(run: Run, axis: str) -> pl.DataFrame:
    proved = [_line(run, f"expected_distance_{end}", axis, f"expected {end}") for end in ("low", "high")]
    return pl.concat([_series(run, "distance", axis), _line(run, "distance", axis, "bound", "limit"), *proved])


def _tests(run: Run) -> pl.DataFrame:
    columns = [
        _of_all_heads(run, f"ks_{part}").select("length", "n", pl.col("value").alias(part))
        for part in ("statistic", "p_value")
    ]
    joined = columns[0].join(columns[1], on=["length", "n"], how="left").sort("length", "n")
    return joined.filter(2 * pl.col("n") <= pl.col("length"))


def _largest(run: Run) -> pl.DataFrame:
    return _tests(run).group_by("length").agg(largest_n=pl.col("n").max())


def _critical(run: Run) -> pl.DataFrame:
    by_level = []
    for level in LEVELS:
        rows = _of_all_heads(run, f"critical_n@{level:g}").select("length", "low", "high", critical_n="value")
        tried = [pl.when(pl.col("critical_n") <= pl.col("largest_n")).then(x) for x in ("critical_n", "low", "high")]
        sizes = _largest(run).join(rows, on="length", how="left")
        by_level.append(sizes.select("length", pl.lit(level).alias("level"), *tried, "largest_n"))
    return pl.concat(by_level).sort("length", "level")


def _readings(run: Run) -> pl.DataFrame:
    """Critical N under every reading, the default one first."""
    by_reading = []
    for level, (expected, test) in itertools.product(LEVELS, READINGS):
        rows = _largest(run)
        for name, measure in (("critical_n", critical_name), ("rejecting", rejecting_name)):
            values = _of_all_heads(run, measure(level, expected, test)).select("length", pl.col("value").alias(name))
            rows = rows.join(values, on="length", how="left")
        keys = {"level": pl.lit(level), "expected": pl.lit(expected), "test": pl.lit(test)}
        by_reading.append(rows.with_columns(**keys).select("length", *keys, "critical_n", "rejecting", "largest_n"))
    return pl.concat(by_reading).sort("length", "level", maintain_order=True)


def _in_proportion(run: Run) -> pl.DataFrame:
    rows = _of_all_heads(run, "distance").filter(8 * pl.col("n") == pl.col("length"))
    return rows.select("length", "n", "value", "low", "high").sort("length")


def _heads(run: Run) -> pl.DataFrame:
    single = pl.col("head").is_not_null() & (pl.col("measure") == "separability")
    return run.table.filter(single).select("layer", "head", "n", "value", "control").sort("layer", "head", "n")


def _gradient(run: Run) -> dict[str, pl.DataFrame]:
    rows: list[dict[str, Any]] = []
    ceilings: list[dict[str, Any]] = []
    settings = run.manifest["settings"]
    for t, step in itertools.product(settings["temperatures"], (None, *settings["steps"])):
        kind, directions = ("sensitivity", ("worst", "random")) if step is None else ("difference", ("random", "pair"))
        at = ("" if t == 1 else f"@T={t:g}") if step is None else f"@T={t:g},eps={step:g}"
        place = {"temperature": t, "step": step}
        for direction in directions:
            name = f"{kind}_{direction}_{{}}{at}"
            means = run.table.filter((pl.col("measure") == name.format("mean")) & pl.col("head").is_not_null())["value"]
            largest = _of_all_heads(run, name.format("max"))["value"][0]
            statistics = {"paper": means.max(), "mean": means.mean(), "max": largest}
            key = place | {"direction": direction}
            rows += [key | {"statistic": statistic, "value": value} for statistic, value in statistics.items()]
        true = spectral_norm_supremum(t) if step is None else change_bound_by_norm(step, t) / step
        ceilings.append(place | {"true": float(true), "paper": float(spectral_norm_bound_paper(t))})
    tables = {"sensitivity": rows, "ceilings": ceilings}
    return {
        name: pl.DataFrame(several, schema_overrides={"step": pl.Float64}).sort("temperature")
        for name, several in tables.items()
    }
