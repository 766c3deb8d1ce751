"""A diagnosis in the terminal: the mean over heads of every measure, beside its limit and its control."""

from __future__ import annotations

from rich.markup import escape
from rich.table import Table

from ..measures import list_measures
from ..results import Run, summary


def diagnosis_table(run: Run) -> Table:
    """One line a measure, at the largest length and the middle set size."""
    meanings = {info.name: info.meaning for info in list_measures()}
    model, settings = run.manifest["model"], run.manifest["settings"]
    heads = run.heads.select("layer", "head").drop_nulls().n_unique()
    title = f"{model['name']}: mean over {heads} heads, windows of {max(settings['lengths'])} tokens"
    caption = "\n".join(f"skipped: {why}" for why in run.manifest["skipped"])
    table = Table(title=escape(title), caption=escape(caption), caption_justify="left")
    for column in ("measure", "N", "value", "limit", "control", ""):
        table.add_column(column, justify="left" if column in ("measure", "") else "right")
    for row in summary(run.heads).iter_rows(named=True):
        cells = (_shown(row[column]) for column in ("n", "value", "limit", "control"))
        table.add_row(row["measure"], *cells, meanings.get(row["measure"].partition("@")[0], ""))
    return table


def _shown(number: float | None) -> str:
    if number is None:
        return ""
    return str(number) if isinstance(number, int) else f"{number:.4g}"
