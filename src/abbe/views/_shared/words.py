"""The words of the report's page for measures, columns and numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from ...measures import list_measures

DISPERSION, SELECTION, DISTANCE, SEPARABILITY, SENSITIVITY, TEST = (
    "Dispersion of the weights", "Weight of the selected set", "Distance from the rest", "Separability",
    "Sensitivity", "Test against random sets",
)  # fmt: skip
GROUPS = (DISPERSION, SELECTION, DISTANCE, SEPARABILITY, SENSITIVITY, TEST)
_THEOREM, _RANDOM, _LOGITS = "Theorem 1", "random set", "tight, from the range of the logits"

# group, name for people, limit, control
_KNOWN: dict[str, tuple[str, str, str, str]] = {
    "entropy": (DISPERSION, "entropy", "ln n", ""),
    "entropy_floor": (DISPERSION, "entropy, provable floor", "", ""),
    "effective_tokens": (DISPERSION, "effective tokens", "n", ""),
    "effective_tokens_floor": (DISPERSION, "effective tokens, provable floor", "", ""),
    "max_weight": (DISPERSION, "largest weight", _LOGITS, "1/n"),
    "logit_range": (DISPERSION, "range of the logits", "2 scale ‖q‖ max ‖k‖", ""),
    "sink_mass": (DISPERSION, "weight on the first key", "that of the largest weight", "1/n"),
    "learned_sink_mass": (DISPERSION, "weight on a learned sink", "", ""),
    "decay_exponent": (DISPERSION, "decay exponent", "", "1, a uniform head"),
    "top_mass": (SELECTION, "weight of the selected set", _LOGITS, "N/n"),
    "selected_divergence": (SELECTION, "imbalance within the selected set", "", _RANDOM),
    "distance": (DISTANCE, "distance", _THEOREM, _RANDOM),
    "distance_per_token": (DISTANCE, "distance per token", _THEOREM, _RANDOM),
    "net_distance": (DISTANCE, "net distance", _THEOREM, _RANDOM),
    "expected_distance_low": (DISTANCE, "expected distance of random sets, from", "", ""),
    "expected_distance_high": (DISTANCE, "expected distance of random sets, to", "", ""),
    "expected_net_distance": (DISTANCE, "expected net distance of random sets", "", ""),
    "separability": (SEPARABILITY, "separability", "", _RANDOM),
    "recall": (SEPARABILITY, "recall", "", _RANDOM),
    "precision": (SEPARABILITY, "precision", "", _RANDOM),
    "f_score": (SEPARABILITY, "F score", "", _RANDOM),
    "ks_statistic": (TEST, "Kolmogorov-Smirnov statistic", "", ""),
    "ks_p_value": (TEST, "Kolmogorov-Smirnov p value", "", ""),
    "critical_n": (TEST, "critical N", "", ""),
    "rejecting": (TEST, "tests that reject at every N", "", ""),
}
_OF_TESTS = {
    "ks_statistic": ("high means that the heads' distances differ from those of random sets, low that they agree", ""),
    "ks_p_value": ("high means that the difference from random sets may be chance, low that it is not", "probability"),
    "critical_n": (
        "high means that even large selected sets differ from random ones, low that only small ones do; "
        "none means that all sizes measured differ",
        "tokens",
    ),
    "rejecting": ("high means that most tests tell selected from random sets at every size, low that few do", "share"),
}
_DIRECTIONS = {
    "sensitivity_worst": "sensitivity, worst direction", "sensitivity_random": "sensitivity, random direction",
    "difference_random": "difference, random step", "difference_pair": "difference, second key past the first",
}  # fmt: skip
_PARTS = {"mean": "mean", "p95": "95 % of rows below", "max": "largest row"}
_INFO = {info.name: info for info in list_measures()}
_COLUMNS = {
    "decay": "decay exponent", "uniform_from": "uniform from length", "random_from": "random from length",
    "weight": "largest weight", "faint_at": "faint from length", "half_until": "keys among which one can have half",
    "floor": "fragile below T", "lowest": "lowest T measured", "told_apart": "weight told apart",
    "output_change": "change of the output", "active": "active tokens",
}  # fmt: skip


@dataclass(frozen=True)
class MeasureWords:
    """How a person reads a measure of the table."""

    name: str
    label: str
    group: str
    meaning: str
    unit: str
    limit: str
    control: str


def measure_words(name: str) -> MeasureWords:
    """Words for any measure of a run; a name that is not known stands for itself."""
    base, _, suffix = name.partition("@")
    group, label, limit, control = _known(base)
    meaning, unit = _OF_TESTS.get(base, ("", ""))
    if base in _INFO:
        meaning, unit = _INFO[base].meaning, _INFO[base].unit
    label += _suffix_words(base, suffix)
    return MeasureWords(name, label, group, _sentence(meaning), unit, limit, control)


def without_temperature(name: str) -> tuple[str, float | None]:
    """The name of a measure without its temperature, and that: 1 where a measure of the sensitivity names none."""
    base, _, suffix = name.partition("@")
    parts = suffix.split(",") if suffix else []
    warm = [part for part in parts if part.startswith("T=")]
    rest = ",".join(part for part in parts if part not in warm)
    if warm:
        return base + (f"@{rest}" if rest else ""), float(warm[0].removeprefix("T="))
    return name, 1.0 if _known(base)[0] == SENSITIVITY else None


def _known(base: str) -> tuple[str, str, str, str]:
    if base in _KNOWN:
        return _KNOWN[base]
    if base.endswith("_cosine") and base.removesuffix("_cosine") in _KNOWN:
        group, label, limit, control = _KNOWN[base.removesuffix("_cosine")]
        return group, f"{label} by angle", limit, control
    direction, _, part = base.rpartition("_")
    if direction in _DIRECTIONS and part in _PARTS:
        limit = "Lipschitz constant, 1/(2T)" if direction.startswith("sensitivity") else "tight, tanh"
        return SENSITIVITY, f"{_DIRECTIONS[direction]}: {_PARTS[part]}", limit, ""
    return TEST, base.replace("_", " "), "", ""


def _suffix_words(base: str, suffix: str) -> str:
    if not suffix:
        return ""
    if base == "critical_n":
        return f" at level {suffix}"
    return ", " + ", ".join(part.replace("=", " = ").replace("eps", "step") for part in suffix.split(","))


def _sentence(words: str) -> str:
    return words[:1].upper() + words[1:] + "." if words else ""


def measures_of(table: pl.DataFrame) -> list[MeasureWords]:
    """Those of a run, group by group, each group in the order of the table."""
    found = [measure_words(name) for name in table["measure"].unique(maintain_order=True)]
    return sorted(found, key=lambda words: GROUPS.index(words.group))


def glossary(measures: list[MeasureWords]) -> list[tuple[str, list[tuple[str, MeasureWords]]]]:
    """By group: the name in the table and its words; temperatures and levels of one measure stand together."""
    once: dict[str, MeasureWords] = {}
    for words in measures:
        base = words.name.partition("@")[0]
        once.setdefault(base, measure_words(base))
    entries = [(group, [(name, words) for name, words in once.items() if words.group == group]) for group in GROUPS]
    return [(group, found) for group, found in entries if found]


def column_words(name: str) -> str:
    return _COLUMNS.get(name, name.replace("_", " "))


def is_end(name: str, names: Sequence[str]) -> bool:
    """Whether a column holds one end of another column's interval."""
    return any(name.endswith(end) and name.removesuffix(end) in names for end in ("_low", "_high"))


def shown(value: Any, digits: int = 4) -> str:
    """As a person reads it: few digits, a dash for what is not there, NaN and infinities by their signs."""
    if value is None:
        return "–"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if not isinstance(value, float):
        return str(value)
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "∞" if value > 0 else "-∞"
    if abs(value) < 1e9 and (abs(value) >= 1000 or value.is_integer()):
        return f"{value:,.0f}"
    return f"{value:.{digits}g}"


def interval(low: float | None, high: float | None) -> str:
    """From one end to the other; empty if there is none."""
    return "" if low is None or high is None else f"{shown(low, 3)} to {shown(high, 3)}"
