"""Measures in words: the registry of `abbe.measures`, for any name or column of a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from ..measures import GROUPS, USUAL_SIZE, list_measures, list_tests
from .numbers import sentence

__all__ = [
    "GROUPS",
    "MeasureWords",
    "column_words",
    "glossary",
    "is_end",
    "measure_words",
    "measures_of",
    "usual_size",
    "without_temperature",
]

_SENSITIVITY = GROUPS[-2]  # the last group is also that of unknown names
_INFO = {info.name: info for info in (*list_measures(), *list_tests())}
_COLUMNS = {
    "decay": "decay exponent", "uniform_from": "uniform from length", "random_from": "random from length",
    "weight": "largest weight", "faint_at": "faint from length", "half_until": "keys among which one can have half",
    "floor": "fragile below T", "lowest": "lowest T measured", "separable": "separable weight",
    "output_change": "change of the output", "active": "active tokens",
}  # fmt: skip


@dataclass(frozen=True)
class MeasureWords:
    """Words for a measure of the table."""

    name: str
    label: str
    group: str
    meaning: str
    unit: str
    limit: str
    control: str


def measure_words(name: str) -> MeasureWords:
    """Words for any measure of a run; an unknown name is its own label."""
    base, _, suffix = name.partition("@")
    info, more = _INFO.get(base), _suffix_words(base, suffix)
    if info is None:
        return MeasureWords(name, base.replace("_", " ") + more, GROUPS[-1], "", "", "", "")
    meaning = f"{sentence(info.meaning)}."
    return MeasureWords(name, info.label + more, info.group, meaning, info.unit, info.limit, info.control)


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
    temperatures = [part for part in parts if part.startswith("T=")]
    rest = ",".join(part for part in parts if part not in temperatures)
    if temperatures:
        return base + (f"@{rest}" if rest else ""), float(temperatures[0].removeprefix("T="))
    return name, 1.0 if measure_words(base).group == _SENSITIVITY else None


def measures_of(table: pl.DataFrame) -> list[MeasureWords]:
    """The measures of a run, by group, each group in the order of the table."""
    measures = map(measure_words, table["measure"].unique(maintain_order=True))
    return sorted(measures, key=lambda words: GROUPS.index(words.group))


def glossary(measures: list[MeasureWords]) -> list[tuple[str, list[tuple[str, MeasureWords]]]]:
    """By group: name in the table and words; all temperatures and levels of a measure share one entry."""
    bases = dict.fromkeys(words.name.partition("@")[0] for words in measures)
    known = [(base, measure_words(base)) for base in bases]
    entries = [(group, [(name, words) for name, words in known if words.group == group]) for group in GROUPS]
    return [(group, in_group) for group, in_group in entries if in_group]


def usual_size(table: pl.DataFrame) -> int | None:
    """The set size that represents all: 20, or the nearest one measured at the largest length."""
    sized = table.filter(pl.col("n").is_not_null() & pl.col("head").is_not_null() & pl.col("value").is_finite())
    sizes = sized.filter(pl.col("length") == pl.col("length").max())["n"].unique().to_list()
    return min(sizes, key=lambda size: (abs(size - USUAL_SIZE), size), default=None)


def column_words(name: str) -> str:
    return _COLUMNS.get(name, name.replace("_", " "))


def is_end(name: str, names: Sequence[str]) -> bool:
    """Whether a column holds one end of another column's interval."""
    return any(name.endswith(end) and name.removesuffix(end) in names for end in ("_low", "_high"))
