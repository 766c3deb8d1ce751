"""A calibration of made-up numbers."""

from __future__ import annotations

import polars as pl
from inside import calibrate_result

from abbe.results import Estimate
from abbe.studies import Calibration


def made_up(tuned: bool) -> Calibration:
    """Two layers of one head each, with another number for every stage."""
    errors = {"error_before": [0.84, 0.56], "error_after": [0.04, 0.03], "error_tuned": [0.07, 0.05]}
    zeros = {"zeros_before": [0.83, 0.82], "zeros_after": [0.22, 0.16], "zeros_tuned": [0.23, 0.15]}
    places = {"layer": [0, 1], "name": ["a", "b"], "head": [0, 0], "spec": ["x", "x"], "energy": [1.0, 2.0]}
    heads = pl.DataFrame(places | errors | zeros, Calibration.frame().schema)
    if not tuned:
        heads = heads.with_columns(pl.lit(None, pl.Float64).alias(name) for name in ("error_tuned", "zeros_tuned"))
    interval = Estimate(18.321, 17.89, 18.752)
    stages = ("baseline", "swapped", "calibrated", "fine-tuned")[: 3 + tuned]
    losses = tuple(calibrate_result.StageLoss(stage, interval, interval, interval) for stage in stages)
    manifest = {"model": {"name": "made-up"}, "skipped": []}
    parameters = Calibration.frame("parameters").of([])
    return Calibration(
        spec="sparsemax", losses=losses, table=heads, parameters=parameters, findings=(), manifest=manifest
    )
