"""What the charts of a report read from its run: rows of a measure, a sample of heads, words on the settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from ...measures import USUAL_SIZE
from ...words.manifest import model_name, part_of, text_name
from ...words.measures import usual_size

if TYPE_CHECKING:
    from ...results import Run


FAINT_HEADS = 160  # more lines would add nothing
_LONGEST_NAME = 48
_NUMBERS = ("value", "low", "high", "limit", "control")


def lengths_of(run: Run) -> list[int]:
    return sorted(run.table["length"].drop_nulls().unique())


def shown_size(run: Run) -> int:
    return usual_size(run.table) or USUAL_SIZE


def rows_for(run: Run, measure: str, size: int | None = None) -> pl.DataFrame:
    """All rows of a measure, at one set size if it has any; non-finite numbers become null."""
    rows = run.table.filter((pl.col("measure") == measure) & pl.col("n").eq_missing(pl.lit(size, pl.Int32)))
    return finite(rows, *_NUMBERS)


def finite(table: pl.DataFrame, *columns: str) -> pl.DataFrame:
    return table.with_columns(pl.when(pl.col(name).is_finite()).then(pl.col(name)) for name in columns)


def of_heads(table: pl.DataFrame) -> pl.DataFrame:
    return table.filter(pl.col("head").is_not_null() & pl.col("layer").is_not_null())


def of_all_heads(table: pl.DataFrame) -> pl.DataFrame:
    return table.filter(pl.col("head").is_null() & pl.col("layer").is_null())


def numbers_in(table: pl.DataFrame, *columns: str) -> list[float]:
    """All finite numbers of these columns."""
    numbers = [table[name].cast(pl.Float64) for name in columns or _NUMBERS]
    together = pl.concat(numbers) if numbers else pl.Series([], dtype=pl.Float64)
    return together.filter(together.is_finite()).to_list()


def some_heads(table: pl.DataFrame) -> tuple[pl.DataFrame, str]:
    """The rows of at most `FAINT_HEADS` heads, evenly spaced, and their label."""
    places = of_heads(table).select("layer", "head").unique().sort("layer", "head")
    if places.height <= FAINT_HEADS:
        return of_heads(table), "single heads"
    kept = [round(i * (places.height - 1) / (FAINT_HEADS - 1)) for i in range(FAINT_HEADS)]
    label = f"single heads ({FAINT_HEADS} of {places.height:,})"
    return of_heads(table).join(places[kept], on=["layer", "head"], how="semi", maintain_order="left"), label


def interval_words(run: Run) -> str:
    """How the legend names intervals, if there are any."""
    level = part_of(run.manifest, "settings").get("level")
    if run.table["low"].is_null().all():
        return ""
    return f", with {100 * level:g} % interval" if isinstance(level, float) else ", with interval"


def about_lines(run: Run) -> list[str]:
    """Model and text, then windows and queries."""
    settings, lengths = part_of(run.manifest, "settings"), lengths_of(run)
    parts = []
    if lengths:
        tokens = str(lengths[0]) if len(lengths) == 1 else f"{lengths[0]} to {lengths[-1]}"
        windows = settings.get("windows")
        parts.append(f"{windows} windows of {tokens} tokens" if isinstance(windows, int) else f"L = {tokens} tokens")
    if isinstance(settings.get("queries"), (int, str)):
        parts.append(f"{settings['queries']} queries per window")
    if isinstance(settings.get("vectors"), str):
        parts.append(f"{settings['vectors']} vectors")
    on = _short(text_name(run.manifest))
    return [f"{_short(model_name(run.manifest))} on {on}", *([", ".join(parts)] if parts else [])]


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…"
