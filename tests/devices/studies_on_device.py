"""Checks of the studies of a model on a device."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import tiny_runs
import torch
from device_checks import Checks, same
from device_models import Model, compared, model, on_both, same_tables, word_model

import abbe

checks = Checks()


def diagnosed(family: str, **options: Any) -> None:
    given = {"lengths": [16, 40]} | tiny_runs.QUICK | {"windows": 2} | options

    def work(made: Model) -> pl.DataFrame:
        table = abbe.diagnose(made, tiny_runs.TEXT, **given).table
        # Of two tokens with one embedding, the last digit of a cosine decides which is nearer to a set of one of them.
        return (
            table.filter(~pl.col("measure").str.ends_with("_cosine")) if given.get("vectors") == "embedding" else table
        )

    same_tables(*on_both(work, lambda device: model(family, device)))


for _family in tiny_runs.BUILDERS:
    checks.add(f"diagnose {_family}", _family)(diagnosed)
for _vectors in ("embedding", "hidden", "output"):
    checks.add(f"diagnose {_vectors}s")(lambda vectors=_vectors: diagnosed("llama", vectors=vectors))
checks.add("diagnose as entmax")(lambda: diagnosed("llama", normalizer="entmax:alpha=1.5", temperatures=(0.5, 1.0)))


@checks.add("diagnose in bfloat16", torch.bfloat16)
@checks.add("diagnose in float16", torch.float16)
def half_diagnosis(dtype: torch.dtype) -> None:
    def work(made: Model) -> pl.DataFrame:
        return abbe.diagnose(made, tiny_runs.TEXT, **({"lengths": [24]} | tiny_runs.QUICK | {"windows": 2})).table

    result, wanted = on_both(work, lambda device: model("llama", device, dtype))
    # Later layers are given states that torch's attention kernel of the CPU rounds otherwise.
    same_tables(*(table.filter(pl.col("layer") == 0) for table in (result, wanted)))
    known = "measure", "layer", "head", "n", pl.col("value").is_null()
    same_tables(*(table.select(known) for table in (result, wanted)))


@checks.add("report")
def reported() -> None:
    def work(made: Model) -> Any:
        with tempfile.TemporaryDirectory() as folder:
            report = abbe.report(
                made, tiny_runs.TEXT, **(tiny_runs.QUICK | {"lengths": [16, 40], "temperatures": (0.1, 1.0)}),
                folder=Path(folder) / "run",
            )  # fmt: skip
            assert len(report.to_html()) > 10_000
            return report

    result, wanted = on_both(work, lambda device: model("llama", device))
    same_tables(result.run.table, wanted.run.table)
    same_tables(result.alternatives, wanted.alternatives)
    same_tables(result.growth, wanted.growth)
    assert result.sample.tokens == wanted.sample.tokens
    result_rows, wanted_rows = (
        [(row.layer, row.head, row.query) for row in one.sample.rows] for one in (result, wanted)
    )
    assert result_rows == wanted_rows


TABLES: dict[str, tuple[Callable[[Model], pl.DataFrame], Callable[[str], Model]]] = {
    "reproduce": (
        lambda made: abbe.reproduce(made, tiny_runs.TEXT, windows=2, queries=6, progress=False).table,
        lambda device: model(device=device),
    ),
    "capacity": (
        lambda made: (
            abbe.capacity(
                made, tiny_runs.TEXT, lengths=[16, 32], windows=2, queries=8, resamples=50, progress=False
            ).table
        ),
        lambda device: model("llama", device),
    ),
    "compare": (lambda made: compared(made, ["sparsemax", "topk:k=2"]), word_model),
    "compare a normalizer that learns": (lambda made: compared(made, ["entmax:alpha=1.5,learn=true"]), word_model),
}
for _name in TABLES:
    checks.add(_name, *TABLES[_name])(lambda work, make: same_tables(*on_both(work, make)))


@checks.add("calibrate")
def calibrated() -> None:
    def work(made: Model) -> Any:
        with tempfile.TemporaryDirectory() as folder:
            calibration = abbe.calibrate(
                made, tiny_runs.TEXT, normalizer="entmax:alpha=1.5", windows=3, held_out=2, length=32, queries=8,
                steps=2, finetune=2, resamples=50, progress=False, folder=Path(folder) / "run",
            )  # fmt: skip
            with abbe.swap(made, f"file:{calibration.file}") as swap:
                fitted = [parameter.detach().clone() for parameter in swap.parameters()]
            return calibration.table, fitted

    (table, fitted), (wanted, wanted_fit) = on_both(work)
    # Steps of Adam go by the signs of gradients, and raw parameters are of the order of 1.
    same_tables(table, wanted, 1e-3)
    same(fitted, wanted_fit, 1e-3)


@checks.add("a calibration is resumed")
def resumed_tuning() -> None:
    """Fine-tuning that ends after its last steps were kept goes on from there."""

    def work(made: Model) -> Any:
        with tempfile.TemporaryDirectory() as folder:
            options: dict[str, Any] = {
                "normalizer": "sparsemax", "windows": 3, "held_out": 2, "length": 32, "queries": 8, "steps": 1,
                "finetune": 6, "resamples": 50, "progress": False, "folder": Path(folder) / "run",
            }  # fmt: skip
            first = abbe.calibrate(made, tiny_runs.TEXT, **options).table
            again = abbe.calibrate(made, tiny_runs.TEXT, **options).table
            assert first.select(pl.exclude("^seconds.*$")).equals(again.select(pl.exclude("^seconds.*$")))
            return first

    result, wanted = on_both(work)
    same_tables(result, wanted, 1e-3)
