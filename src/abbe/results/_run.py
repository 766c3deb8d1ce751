"""A run: one tidy table of measurements, and a manifest that says on what, how, and what was skipped."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import polars as pl

from .._errors import AbbeError
from ..views import View
from ..words.frames import HEAD, HIGH, LAYER, LENGTH, LOW, Cell, column, frame
from ..words.manifest import model_name, part_of
from ..words.measures import about_lines, measure_words, usual_size
from ..words.numbers import interval, number
from ._result import Result, read_manifest

if TYPE_CHECKING:
    from ..views.charts import Spec
    from ..views.theme import ThemeName

TABLE = "heads.parquet"
RUN_COLUMNS = (
    column("model", str, "name of the model"),
    *(LAYER, HEAD, LENGTH),
    column("n", int, "size N of the selected set; null for measures of the whole row", label="N"),
    column("measure", str, "name of the measure"),
    column("value", float, "what was measured, on average over queries and windows", show=number),
    *(LOW, HIGH),
    column("limit", float, "proved bound of the value; null if there is none", show=number),
    column("control", float, "the same for random sets or for a uniform head; null if there is none", show=number),
)
_MAIN = (  # for a first look; the table holds all
    "effective_tokens", "entropy", "max_weight", "sink_mass", "previous_token", "induction", "top_mass",
    "separability", "distance_per_token", "selected_divergence", "sensitivity_worst_mean", "decay_exponent",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Run(Result, study="diagnose", json_file="", drawn=True):
    """What `diagnose` measured.

    Attributes:
        table: a polars table, a row for each model, layer, head, window length, set size n and measure, with the
            value, its interval (low, high), its limit and its control. Null in head, length or n means all of
            them.
        manifest: versions, seeds, hashes of model and text, settings, self-check error, times, memory, what was
            skipped and why.
    """

    files: ClassVar[Mapping[str, str]] = {"windows/": "a part per window: what an interrupted run resumes from"}

    table: pl.DataFrame = frame("a model, layer, head, window length, set size and measure", *RUN_COLUMNS, file=TABLE)
    manifest: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def __repr__(self) -> str:
        model, text, settings = (self.manifest[key] for key in ("model", "text", "settings"))
        return f"Run({model['name']} on {text['name']}, lengths {settings['lengths']}, {len(self.table)} rows)"

    @property
    def headroom(self) -> pl.DataFrame:
        """The rows that have a limit, with headroom = 1 - value/limit: 0 means that the limit is reached."""
        limited = self.table.filter(pl.col("limit").is_not_null())
        return limited.with_columns(headroom=1 - pl.col("value") / pl.col("limit"))

    def view(self) -> View:
        """All heads together, in numbers; the map of the heads and their growth as charts."""
        rows = self._all_heads()
        main = rows.filter(pl.col("measure").is_in(_MAIN))
        main = main.sort(pl.col("measure").cast(pl.Enum(_MAIN)), maintain_order=True)
        heads = self.table.select("layer", "head").drop_nulls().n_unique()
        note = f"All {heads} heads together, at the largest length. Every measure of every head: {TABLE} and the page."
        title, of_page = "All heads together, at the largest length", f"The table of every head is {TABLE}."
        first, terse = main if len(main) else rows, ("terminal", "card")
        error = part_of(self.manifest, "self_check").get("error")
        checked = [f"self-check error {error:.1e}"] if isinstance(error, float) else []
        model_and_text, *more = about_lines(self.table, self.manifest)
        return self._view(
            f"How do the heads of {model_name(self.manifest)} attend?",
            model_and_text,
            ", ".join([*more, *checked]),
            tables=[
                self._shown("Main measures", *_SHOWN, rows=first, missing="", note=note, on=terse),
                self._shown(title, *_SHOWN, _MEANING, rows=rows, missing="", note=of_page, on=("page",)),
            ],
        )

    def _charts(self, theme: ThemeName) -> dict[str, Spec]:
        from ..views.heads import growth_chart, map_chart  # with altair, of an extra

        return {"map": map_chart(self, theme), "growth": growth_chart(self, theme)}

    def _all_heads(self) -> pl.DataFrame:
        """The rows of all heads together, at the largest length and the usual set size."""
        rows = self.table.filter(pl.col("layer").is_null() & pl.col("value").is_finite())
        at_length = pl.col("length").is_null() | (pl.col("length") == pl.col("length").max())
        at_size = pl.col("n").is_null() | pl.col("n").eq_missing(pl.lit(usual_size(self.table), pl.Int32))
        return rows.filter(at_length & at_size)


SCHEMA: dict[str, Any] = Run.frame().schema


_LABEL: Cell = ("measure", lambda row: measure_words(row["measure"]).label)
_INTERVAL: Cell = ("interval", lambda row: interval(row["low"], row["high"]))
_MEANING: Cell = ("what it says", lambda row: measure_words(row["measure"]).meaning)
_SHOWN = (_LABEL, "n", "value", _INTERVAL, "limit", "control")


def open_run(folder: str | os.PathLike[str]) -> Run:
    """The table of heads that `diagnose` or `report` saved in a folder.

    Args:
        folder: of the run.

    Returns:
        The run.

    Raises:
        AbbeError: the folder holds no such run, or its table or manifest is damaged.

    Examples:
        >>> folder = abbe.diagnose(lengths=32, windows=2, queries=4, progress=False).save("run")
        >>> abbe.open_run(folder)
        Run(abbe-gpt2-5M on embedded sample, lengths [32], ... rows)
    """
    source = Path(folder).expanduser()
    manifest, stored = read_manifest(source)
    if manifest.get("study", Run.study) not in (Run.study, "report"):
        raise AbbeError(f"{source} is a folder of `abbe {manifest['study']}`: open it with `abbe.open`")
    return Run.opened(source, manifest, stored)
