"""The settings and the result of a comparison of normalizers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import polars as pl

from ..._arguments import between, is_whole, several, shown, whole
from ..._errors import AbbeError
from ...measures import USUAL_SIZE
from ...results import Result, as_csv, as_rows, as_text, read_content, tables_from
from ...runs.settings import Settings, plain_settings, window_settings
from ...words.finding import Finding, findings_from
from ...words.names import BASELINE, JUMPS
from .._shared.prompts import DECOYS, DEPTHS
from .._shared.truncation import COARSE, checked_grid
from .alternatives import Alternative

SUMMARY = "compare.json"
ALTERNATIVES = ("entmax:alpha=1.5", "sparsemax", "topk:k=32", "topp:p=0.9")
LENGTH = 512
NEEDLE_LENGTHS = (128, 256, 512, 1024)
MOST_PROMPTS = 100_000  # all are made before the first is read

SELECTIVITY = ("effective_tokens", "active", "zeros", "separability", "separable", "distance_per_token")
# Columns with an interval, in columns _low and _high.
MEASURED = (
    *("loss", "perplexity", "loss_change", "loss_rise"),
    *("effective_tokens", "active", "zeros", "separability", "separable", "separable_gain", "distance_per_token"),
    *("capacity", "capacity_ratio", "sensitivity", "sensitivity_own", "sensitivity_ratio"),
    *("needle_accuracy", "needle_gain", "needle_margin"),
)
PLAIN = ("temperature", "matched_heads", "sensitivity_theory", "time_ratio", "seconds", "extra_megabytes")
_COLUMNS = (*(f"{measure}{end}" for measure in MEASURED for end in ("", "_low", "_high")), *PLAIN)
SCHEMA: dict[str, Any] = {"normalizer": pl.String} | dict.fromkeys(_COLUMNS, pl.Float64) | {JUMPS: pl.Boolean}
NEEDLE_SCHEMA: dict[str, Any] = {
    "normalizer": pl.String, "kind": pl.String, "length": pl.Int32, "depth": pl.Float64, "prompts": pl.Int32,
    "accuracy": pl.Float64, "accuracy_low": pl.Float64, "accuracy_high": pl.Float64, "chance": pl.Float64,
    "gain": pl.Float64, "gain_low": pl.Float64, "gain_high": pl.Float64,
    "margin": pl.Float64, "margin_low": pl.Float64, "margin_high": pl.Float64,
}  # fmt: skip
JUDGEMENT_SCHEMA: dict[str, Any] = {"normalizer": pl.String} | dict.fromkeys(
    ("affordable", "lowers_loss", "separates", "needs_fewer", "retrieves", "helps"), pl.Boolean
)


@dataclass(frozen=True)
class CompareSettings:
    """Everything besides model and text that decides the numbers."""

    alternatives: tuple[Alternative, ...]
    length: int
    windows: int
    queries: int
    tau: float
    needle_lengths: tuple[int, ...]
    prompts: int  # of each kind, length and depth
    calibrate: bool
    seed: int
    level: float
    resamples: int
    grid: str = COARSE  # of the capacity search

    def __post_init__(self) -> None:
        checked_grid(self.grid)
        whole("prompts", self.prompts, least=1, most=MOST_PROMPTS)
        between("tau", self.tau, 0, 1, example=0.05)
        self.reading()  # checks the rest

    def reading(self) -> Settings:
        """How windows are read."""
        return window_settings(self.length, self.windows, self.queries, self.seed, self.level, self.resamples)

    def as_json(self) -> dict[str, Any]:
        files = {one.name: one.digest for one in self.alternatives if one.digest}
        return plain_settings(self) | ({"files": files} if files else {}) | {
            "alternatives": [one.name for one in self.alternatives],
            "size": USUAL_SIZE, "depths": list(DEPTHS), "capacity_over": BASELINE, "needle_words": "of the text",
            "needle_decoys": DECOYS,
        }  # fmt: skip


def needle_lengths_for(length: int, needle_lengths: int | Sequence[int] | None, context: int | None) -> tuple[int, ...]:
    """By default 128, 256, 512 and 1024 as far as the context goes, and `length` if it is longer."""
    if needle_lengths is None:
        usual = [n for n in NEEDLE_LENGTHS if context is None or n <= context]
        return (*usual, length) if length > max(usual, default=0) else tuple(usual)
    lengths = several("needle_lengths", needle_lengths)
    if not lengths or any(not is_whole(n) or n < 1 for n in lengths) or sorted(set(lengths)) != list(lengths):
        raise AbbeError(
            f"needle_lengths must be whole numbers in rising order, such as 128, 512; got {shown(list(lengths))}"
        )
    if context is not None and lengths[-1] > context:
        raise AbbeError(f"needle length {lengths[-1]} is above the model's context of {context} tokens")
    return lengths


@dataclass(frozen=True, eq=False, repr=False)
class Comparison(Result):
    """The result of `compare`.

    Attributes:
        table: a row for the baseline and for every alternative; `abbe.words.columns` explains the columns.
            Intervals are in columns with _low and _high; what could not be measured is null.
        needle: accuracy, gain over the baseline and margin by normalizer, kind of prompt, length and depth; null
            means all of them together.
        judgements: what each alternative does better, by the rule of the recommendation; `separates` is reported but
            does not count.
        recommendation: which one to take, or that none helps; with its rule and numbers.
        manifest: on what, how, how long, and what was skipped.
    """

    study: ClassVar[str] = "compare"
    page: ClassVar[str] = "compare.html"

    table: pl.DataFrame
    needle: pl.DataFrame
    judgements: pl.DataFrame
    recommendation: Finding
    manifest: Mapping[str, Any]

    def __repr__(self) -> str:
        model, alternatives = self.manifest["model"]["name"], len(self.table) - 1
        return f"Comparison({model}, {alternatives} alternatives: {self.recommendation.sentence})"

    def as_json(self) -> dict[str, Any]:
        return {
            "recommendation": asdict(self.recommendation),
            **as_rows({"table": self.table, "judgements": self.judgements, "needle": self.needle}),
            "manifest": dict(self.manifest),
        }

    def _files(self) -> dict[str, bytes | str]:
        return as_csv({"table": self.table, "needle": self.needle}) | {SUMMARY: as_text(self.as_json())}


def opened_comparison(folder: Path, manifest: Mapping[str, Any], stored: Mapping[str, Any]) -> Comparison:
    content = read_content(folder / SUMMARY, stored)
    tables = tables_from(content, {"table": SCHEMA, "needle": NEEDLE_SCHEMA, "judgements": JUDGEMENT_SCHEMA})
    (recommendation,) = findings_from([content["recommendation"]])
    return Comparison(**tables, recommendation=recommendation, manifest=manifest)
