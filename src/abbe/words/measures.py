"""A table of measures in words: the registry of `abbe.measures` for its names, and on what it was measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import polars as pl

from ..measures import GROUPS, USUAL_SIZE, MeasureInfo, list_measures, list_tests
from .manifest import model_name, part_of, text_name
from .numbers import sentence

_LONGEST_NAME = 48
_SENSITIVITY = GROUPS[-2]  # the last group is also that of unknown names
_INFO = {info.name: info for info in (*list_measures(), *list_tests())}


def measure_words(name: str) -> MeasureInfo:
    """Words for any measure of a run, with its meaning as a sentence; an unknown name is its own label."""
    base, _, suffix = name.partition("@")
    info = _INFO.get(base, MeasureInfo(base, "", "", False, base.replace("_", " "), GROUPS[-1]))
    meaning = info.meaning and f"{sentence(info.meaning)}."
    return replace(info, name=name, label=info.label + _suffix_words(base, suffix), meaning=meaning)


def _suffix_words(base: str, suffix: str) -> str:
    if not suffix:
        return ""
    if base == "critical_n":
        return f" at level {suffix}"
    return ", " + ", ".join(part.replace("=", " = ").replace("eps", "step") for part in suffix.split(","))


def without_temperature(name: str) -> tuple[str, float | None]:
    """The name of a measure without its temperature, and the temperature: 1 for a sensitivity that names none."""
    base, _, suffix = name.partition("@")
    parts = suffix.split(",") if suffix else []
    rest = ",".join(part for part in parts if not part.startswith("T="))
    for part in parts:
        if part.startswith("T="):
            return base + (f"@{rest}" if rest else ""), float(part.removeprefix("T="))
    return name, 1.0 if measure_words(base).group == _SENSITIVITY else None


def measures_of(table: pl.DataFrame) -> list[MeasureInfo]:
    """The measures of a run, by group, each group in the order of the table."""
    measures = map(measure_words, table["measure"].unique(maintain_order=True))
    return sorted(measures, key=lambda words: GROUPS.index(words.group))


def glossary(table: pl.DataFrame) -> list[tuple[str, list[MeasureInfo]]]:
    """The measures of a run by group; all temperatures and levels of a measure share one entry."""
    names = dict.fromkeys(words.name.partition("@")[0] for words in measures_of(table))
    known = [measure_words(name) for name in names]
    return [(group, entries) for group in GROUPS if (entries := [words for words in known if words.group == group])]


def usual_size(table: pl.DataFrame) -> int | None:
    """The set size that represents all: 20, or the nearest one measured at the largest length."""
    sized = table.filter(pl.col("n").is_not_null() & pl.col("head").is_not_null() & pl.col("value").is_finite())
    sizes = sized.filter(pl.col("length") == pl.col("length").max())["n"].unique().to_list()
    return min(sizes, key=lambda size: (abs(size - USUAL_SIZE), size), default=None)


def lengths_in(table: pl.DataFrame) -> list[int]:
    return sorted(table["length"].drop_nulls().unique())


def about_lines(table: pl.DataFrame, manifest: Mapping[str, Any]) -> list[str]:
    """Model and text, then windows and queries."""
    settings, lengths = part_of(manifest, "settings"), lengths_in(table)
    parts = []
    if lengths:
        tokens = str(lengths[0]) if len(lengths) == 1 else f"{lengths[0]} to {lengths[-1]}"
        windows = settings.get("windows")
        parts.append(f"{windows} windows of {tokens} tokens" if isinstance(windows, int) else f"L = {tokens} tokens")
    if isinstance(settings.get("queries"), (int, str)):
        parts.append(f"{settings['queries']} queries per window")
    if isinstance(settings.get("vectors"), str):
        parts.append(f"{settings['vectors']} vectors")
    names = (model_name(manifest), text_name(manifest))
    short = [name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…" for name in names]
    return [" on ".join(short), *([", ".join(parts)] if parts else [])]
