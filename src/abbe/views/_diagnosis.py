"""A diagnosis in the terminal: the mean over heads of every measure, beside its limit and its control."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl
from rich.markup import escape
from rich.table import Table

from ..words.measures import measure_words
from ..words.numbers import number

if TYPE_CHECKING:
    from ..results import Run


def diagnosis_table(run: Run) -> Table:
    """How do the heads attend, on average?

    One line per measure at the largest length and the middle set size, beside its limit and control; the last column
    says what a high and a low value mean.

    Args:
        run: from `abbe.diagnose`.

    Examples:
        >>> run = abbe.diagnose(lengths=32, windows=2, queries=4, progress=False)
        >>> from rich import print
        >>> print(abbe.views.diagnosis_table(run))
        abbe-gpt2-5M: mean over 48 heads, windows of 32 tokens
        ...
    """
    model, settings = run.manifest["model"], run.manifest["settings"]
    heads = run.table.select("layer", "head").drop_nulls().n_unique()
    title = f"{model['name']}: mean over {heads} heads, windows of {max(settings['lengths'])} tokens"
    caption = "\n".join(f"skipped: {why}" for why in run.manifest["skipped"])
    table = Table(title=escape(title), caption=escape(caption), caption_justify="left")
    for column in ("measure", "N", "value", "limit", "control", ""):
        table.add_column(column, justify="left" if column in ("measure", "") else "right")
    for row in summary(run.table).iter_rows(named=True):
        cells = (number(row[column], missing="") for column in ("n", "value", "limit", "control"))
        table.add_row(row["measure"], *cells, measure_words(row["measure"]).meaning)
    return table


def summary(heads: pl.DataFrame, size: int | None = None) -> pl.DataFrame:
    """Mean over all heads at the largest length, for measures without a set size and for one size."""
    of_heads = heads.filter(pl.col("head").is_not_null() & pl.col("value").is_finite())
    longest = of_heads.filter(pl.col("length").is_null() | (pl.col("length") == pl.col("length").max()))
    sizes = sorted(longest["n"].drop_nulls().unique())
    if size is None and sizes:
        size = sizes[len(sizes) // 2]
    chosen = longest.filter(pl.col("n").is_null() | pl.col("n").eq_missing(pl.lit(size, pl.Int32)))  # no size: nulls
    means = [pl.col(name).mean() for name in ("value", "limit", "control")]
    return chosen.group_by("measure", "length", "n", maintain_order=True).agg(*means, heads=pl.len())
