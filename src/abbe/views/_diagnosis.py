"""A diagnosis in the terminal: the mean over heads of every measure, beside its limit and its control."""

from __future__ import annotations

from rich.markup import escape
from rich.table import Table

from ..results import Run, summary
from ..words.measures import measure_words
from ..words.numbers import number


def diagnosis_table(run: Run) -> Table:
    """One line a measure, at the largest length and the middle set size."""
    model, settings = run.manifest["model"], run.manifest["settings"]
    heads = run.heads.select("layer", "head").drop_nulls().n_unique()
    title = f"{model['name']}: mean over {heads} heads, windows of {max(settings['lengths'])} tokens"
    caption = "\n".join(f"skipped: {why}" for why in run.manifest["skipped"])
    table = Table(title=escape(title), caption=escape(caption), caption_justify="left")
    for column in ("measure", "N", "value", "limit", "control", ""):
        table.add_column(column, justify="left" if column in ("measure", "") else "right")
    for row in summary(run.heads).iter_rows(named=True):
        cells = (number(row[column], missing="") for column in ("n", "value", "limit", "control"))
        table.add_row(row["measure"], *cells, measure_words(row["measure"]).meaning)
    return table
