"""Tables of an experiment with a name for every choice, as charts and tables show them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import polars as pl

from ...words.lab import CHOICE
from .words import normalizer_name, optimizer_name, temperature_name

if TYPE_CHECKING:
    from ...studies import Experiment

ENDED = ("train_loss", "start_loss", "diverged")  # how the training of a run ended


def with_names(experiment: Experiment) -> pl.DataFrame:
    """The summary with a column `name`: the normalizer, and of the other choices those in which rows differ."""
    rows = experiment.summary.to_dicts()
    temperatures, optimizers = ({row[part] for row in rows} for part in ("temperature", "optimizer"))

    def name(row: Mapping[str, Any]) -> str:
        parts = [normalizer_name(row)]
        if temperatures != {"1"}:
            parts += [temperature_name(row["temperature"])] if row["temperature"] != "1" else []
            parts += ["compensated"] if row["compensated"] else []
        return ", ".join([*parts, *([optimizer_name(row["optimizer"])] if len(optimizers) > 1 else [])])

    return experiment.summary.with_columns(pl.Series("name", [name(row) for row in rows], pl.String))


def named_table(experiment: Experiment) -> pl.DataFrame:
    """Every run of every seed, with the name of its choice and whether its rate is the best one."""
    named = with_names(experiment).select(*CHOICE, "name", "best_run")
    table = experiment.table.join(named, on=list(CHOICE), how="left", maintain_order="left")
    return table.with_columns(best=pl.col("run") == pl.col("best_run"))


def length_rows(experiment: Experiment) -> pl.DataFrame:
    """Accuracy by test length at the best rate of each choice: name, seed, length, accuracy."""
    named = with_names(experiment).select("name", pl.col("best_run").alias("run"))
    return named.join(experiment.lengths, on="run", how="inner", maintain_order="left_right").drop_nulls("accuracy")
