"""The result of `diff`: every measure of every head on both sides, what changed in sentences, and its view."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from typing import Any, ClassVar

import polars as pl

from ...measures import enough_windows
from ...results import RUN_COLUMNS, Result
from ...views import TextTable, View
from ...words.finding import Fact, Finding
from ...words.frames import HIGH, LOW, Cell, column, frame
from ...words.manifest import text_name
from ...words.measures import measure_words, usual_size
from ...words.numbers import heads_of, interval, many, number, percent, sentence, with_interval

MAIN = (  # measures for a first look
    "effective_tokens", "max_weight", "separability", "top_mass", "sink_mass", "previous_token", "induction",
    "sensitivity_worst_mean",
)  # fmt: skip
LOSS = "loss"  # of the next token; in the rows of all heads together
DECAY = "decay_exponent"
CRITICAL_LEVEL = 0.01  # of the test behind critical N, as in the report
CRITICAL = f"critical_n@{CRITICAL_LEVEL:g}"
_CHANGED_HEADS = 3  # among the largest changes
_IN_TERMINAL, _ON_PAGE = 10, 60  # rows of a table
_MOST_HEADS = 400  # for which a page holds all main measures
_BARE = ("weight", "share", "exponent")  # units that the label already says
_signed, _two = partial(number, digits=3, signed=True), partial(number, digits=2)


@dataclass(frozen=True, eq=False, kw_only=True)
class Difference(Result, study="diff", json_file="findings.json", drawn=True):
    """The result of `diff`: the differences between the first and the last side.

    Attributes:
        table: a row for each layer, head, window length, set size n and measure: value on the first and on the last
            side (means over windows), their difference with its paired interval, the difference over the spread of the
            heads (`effect`), p value, q value, and whether it counts as changed. The largest changes come first. Rows
            of all heads together have null as layer and head.
        curves: rows of all sides, as `diagnose` gives them, with the number of the side: of all heads together, and
            of single heads for the main measures.
        findings: what changed, in sentences with their rules.
        manifest: as of every study; `models` are all sides.
    """

    files: ClassVar[Mapping[str, str]] = {
        "findings.json": "what changed, in sentences with their rules",
        "runs/": "a run folder per side: what an interrupted run resumes from",
        "losses/": "what an interrupted run resumes from",
    }

    table: pl.DataFrame = frame(
        "a layer, head, window length, set size and measure; the largest changes first",
        *RUN_COLUMNS[1:6],
        column("first", float, "value of the first model, mean over windows"),
        column("second", float, "value of the last model"),
        *(column("difference", float, "second minus first, on paired windows", show=_signed), LOW, HIGH),
        column("effect", float, "difference over the spread of the measure among the heads"),
        column("p_value", float, "of a paired t test over windows"),
        column("q_value", float, "of Benjamini and Hochberg, over all heads, measures, sizes and lengths", show=_two),
        column("changed", bool, "whether it counts as changed: beyond chance and beyond rounding"),
        file="differences.parquet",
    )
    curves: pl.DataFrame = frame(
        "a side and a row of `abbe diagnose`",
        *(column("side", int, "number of the model or checkpoint, from 0"), *RUN_COLUMNS),
        file="curves.parquet",
    )
    findings: tuple[Finding, ...] = field(repr=False)
    manifest: Mapping[str, Any] = field(repr=False)

    def __repr__(self) -> str:
        changed = self.changed.select("layer", "head").unique().height
        return f"Difference({self.names[0]} to {self.names[-1]}, {changed} of {self.heads} heads changed)"

    @property
    def names(self) -> list[str]:
        """Names of the sides, in order."""
        return [str(model["name"]) for model in self.manifest["models"]]

    @property
    def of_heads(self) -> pl.DataFrame:
        """The rows of single heads."""
        return self.table.filter(pl.col("head").is_not_null())

    @property
    def changed(self) -> pl.DataFrame:
        """The rows of single heads that count as changed, the largest first."""
        return self.of_heads.filter("changed")

    @property
    def heads(self) -> int:
        """Number of heads that were compared."""
        return self.of_heads.select("layer", "head").unique().height

    def view(self) -> View:
        """What changed; maps of the heads of both sides and of their difference; the largest changes.

        A small q value marks a change beyond chance. A high value is explained by its measure.
        """
        settings, names = self.manifest["settings"], self.names
        lengths = ", ".join(f"{length:,}" for length in settings["lengths"])
        between = f"; {many(len(names) - 2, 'checkpoint')} between them" if len(names) > 2 else ""
        return self._view(
            f"What changes from {names[0]} to {names[-1]}?",
            f"{many(self.heads, 'head')} on {text_name(self.manifest)}, {many(settings['windows'], 'window')} of "
            f"{lengths} tokens, the same for all{between}",
            f"intervals are paired over windows; a change counts at a q value of at most {1 - settings['level']:g} "
            "(Benjamini and Hochberg over all heads and measures)",
            heading="What changed",
            tables=self._tables(),
        )

    def _tables(self) -> list[TextTable]:
        """Changes, means and each head in full for the page; the first two in fewer columns for the terminal."""
        together = self.table.filter(pl.col("head").is_null()).unique("measure", keep="first", maintain_order=True)
        main = together.filter(pl.col("measure").is_in((*MAIN, LOSS, DECAY, CRITICAL)))
        changed = len(self.changed) > 0
        # One row per head and measure: the largest change over sizes and lengths.
        largest = (self.changed if changed else self.of_heads.filter(pl.col("difference") != 0)).unique(
            ["layer", "head", "measure"], keep="first", maintain_order=True
        )
        titles = ["Largest changes of single heads", "On average over all heads"]
        shown = [self._short(titles[0], largest.head(_IN_TERMINAL))] if changed else []
        shown += [self._short(titles[1], main), self._each_head()]
        titles[0] = titles[0] if changed else "Largest differences, none beyond chance"
        left = len(largest) - _ON_PAGE
        note = f"{left:,} more, and other set sizes: .table and --json hold all" if left > 0 and changed else ""
        return [*shown, self._full(titles[0], largest.head(_ON_PAGE), note), self._full(titles[1], together)]

    def _each_head(self) -> TextTable:
        """The main measures of every head, at the largest length and one set size."""
        order = (*MAIN, DECAY)
        size = usual_size(self.of_heads.with_columns(value=pl.col("first")))
        rows = self.of_heads.filter(
            pl.col("measure").is_in(order),
            pl.col("n").is_null() | (pl.col("n") == (size or 0)),
            pl.col("length").is_null() | (pl.col("length") == pl.col("length").max()),
        )
        places = rows.select("layer", "head").unique(maintain_order=True)  # the table has the largest changes first
        shown = places.head(_MOST_HEADS).with_row_index("place").join(rows, on=["layer", "head"])
        shown = shown.sort("place", pl.col("measure").cast(pl.Enum(order)))
        note = "Heads that change most come first; a click on a map also selects a head."
        if (left := len(places) - _MOST_HEADS) > 0:
            note += f" {left:,} more heads: .table and --json hold all."
        return self._full("One head", shown, note, choose="head")

    def _full(self, title: str, rows: pl.DataFrame, note: str = "", choose: str = "") -> TextTable:
        """All columns, for the page."""
        on, values = ("page",) if choose else ("page", "card"), ("difference", ("interval", _interval), "q_value")
        return self._rows(title, rows, (self.names[0], self.names[-1]), *values, note=note, choose=choose, on=on)

    def _short(self, title: str, rows: pl.DataFrame) -> TextTable:
        """A table for 80 columns: the interval stands below the change, and names are left out."""
        breaks, left = ("head", "("), ("measure",)
        return self._rows(title, rows, ("from", "to"), ("change", _change), on=("terminal",), breaks=breaks, left=left)

    def _rows(
        self, title: str, rows: pl.DataFrame, names: tuple[str, str], *more: str | Cell, **options: Any
    ) -> TextTable:
        """Measures with their values on both sides; those of all heads together have no place."""
        several = len(self.manifest["settings"]["lengths"]) > 1
        where: Cell = ("where", lambda row: f"layer {row['layer']}, head {row['head']}")
        measure: Cell = ("measure", lambda row: _label(row, at_length=several))
        sides = [replace(self.frame()[side], label=name) for side, name in zip(("first", "second"), names, strict=True)]
        place = [] if rows["head"].null_count() else [where]
        return self._shown(title, *place, measure, *sides, *more, rows=rows, missing="", **options)


# -- What changed, in sentences, each with its rule and its numbers ---------------------------------------------------


def findings(
    table: pl.DataFrame, names: Sequence[str], size: int | None, level: float, windows: int, left_out: Sequence[str]
) -> tuple[Finding, ...]:
    """How much changed, which layers, the largest changes, what changed on average, and what cannot be compared."""
    single, together = table.filter(pl.col("head").is_not_null()), table.filter(pl.col("head").is_null())
    found: list[Finding] = []
    if len(single):
        at_longest = together.filter(pl.col("length") == single["length"].max())
        found = [
            _how_much(single, names, level, windows),
            *(_over_windows("loss", "The loss", row, "paired over windows") for row in _of(at_longest, LOSS)),
            *_largest(single, level),
            *_layers(single, level),
            *_on_average(at_longest, size, level),
        ]
    rule = (
        "the decay exponent is fitted over all windows of all lengths, critical N over all heads at the largest length "
        "that has one; both sides are resampled by the same draws"
    )
    for row in (row for name in (DECAY, CRITICAL) for row in _of(together.sort("length"), name)[-1:]):
        at = "" if row["length"] is None else f" at {row['length']:,} tokens"
        found.append(_over_windows("over lengths", f"{sentence(_label(row))}{at}", row, rule))
    return (*found, *(Finding("not compared", line, f"{rule}; {_BY_INTERVAL}") for line in left_out))


_BY_INTERVAL = "changed if the interval of the difference does not contain 0"


def _of(table: pl.DataFrame, measure: str) -> list[dict[str, Any]]:
    return table.filter(pl.col("measure") == measure).to_dicts()


def _over_windows(topic: str, what: str, row: Mapping[str, Any], rule: str) -> Finding:
    """A number of the whole model, which has no q value."""
    how = "has no interval"
    if row["low"] is not None or row["difference"] == 0:
        how = "is the same within its interval" if (row["low"] or 0) <= 0 <= (row["high"] or 0) else "changes"
    return Finding(topic, f"{what} {how}: {_moved(row)}.", f"{rule}; {_BY_INTERVAL}", _facts(row))


def _rule(level: float) -> str:
    return (
        f"a measure of a head counts as changed at a q value of at most {1 - level:g} (paired t test over windows; "
        "Benjamini and Hochberg over all heads, measures, sizes and lengths), if it differs by more than rounding "
        "(1e-5 of its value, 1e-6 of the largest)"
    )


def _how_much(single: pl.DataFrame, names: Sequence[str], level: float, windows: int) -> Finding:
    heads = single.select("layer", "head").unique().height
    changed = single.filter("changed")
    places = changed.select("layer", "head").unique().sort("layer", "head").rows()
    count = len(places)
    facts: dict[str, Fact] = {
        "heads": heads, "changed heads": count, "rows": len(single), "changed rows": len(changed), "windows": windows,
    }  # fmt: skip
    if single["difference"].abs().max() == 0:
        words = f"{names[0]} and {names[-1]} are the same: all {len(single):,} numbers agree to the last bit"
    elif not count:
        words = (
            f"Nothing changed beyond chance and rounding: no head of {heads}, in "
            f"{many(single['measure'].n_unique(), 'measure')} on {many(windows, 'window')}"
        )
    else:
        words = (
            f"From {names[0]} to {names[-1]} {heads_of(count, heads, 'changes', 'change')} beyond chance: "
            f"{percent(len(changed) / len(single))} of {len(single):,} numbers"
        )
    if count and windows < enough_windows(level):
        words += f"; too few windows to be sure ({windows}): use at least {enough_windows(level)}"
    return Finding("what changed", f"{words}.", _rule(level), facts, tuple(places))


def _largest(single: pl.DataFrame, level: float) -> list[Finding]:
    """The largest change of each of a few heads, of a main measure if one changed."""
    changed = single.filter("changed").sort(pl.col("effect").abs(), descending=True, nulls_last=True)
    main = changed.filter(pl.col("measure").is_in(MAIN))
    rows = (main if len(main) else changed).unique(["layer", "head"], keep="first", maintain_order=True)
    rule = f"{_rule(level)}; ranked by difference over the standard deviation of the measure over heads"
    return [
        Finding("largest changes", f"Layer {place[0]}, head {place[1]}: {_named(row)}.", rule, _facts(row), (place,))
        for row in rows.head(_CHANGED_HEADS).to_dicts()
        for place in [(row["layer"], row["head"])]
    ]


def _layers(single: pl.DataFrame, level: float) -> list[Finding]:
    """Where the changed heads lie, if not everywhere."""
    every, touched = (rows["layer"].unique().sort().to_list() for rows in (single, single.filter("changed")))
    if not touched or touched == every:
        return []
    still = [layer for layer in every if layer not in touched]
    words = f"Heads change in {_spans(touched)}; {_spans(still)} {'stays' if len(still) == 1 else 'stay'} as before"
    return [Finding("layers", f"{words}.", _rule(level), {"layers with changes": len(touched), "layers": len(every)})]


def _spans(numbers: Sequence[int]) -> str:
    """ "layer 3", "layers 0-2 and 5"."""
    # Neighbours have the same difference to their place.
    runs = [[n for _, n in run] for _, run in groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0])]
    *before, last = [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]
    return f"layer{'' if len(numbers) == 1 else 's'} {', '.join(before)}{' and ' if before else ''}{last}"


def _on_average(together: pl.DataFrame, size: int | None, level: float) -> list[Finding]:
    """Main measures over all heads: what changed, and in one sentence what did not."""
    usual = together.filter(pl.col("n").is_null() | (pl.col("n") == (size or 0)))
    rows = [row for name in MAIN for row in _of(usual, name)[-1:]]
    topic, rule = "on average over heads", f"{_rule(level)}; for means over all heads, over all measures"
    moved = [Finding(topic, f"{sentence(_named(row))}.", rule, _facts(row)) for row in rows if row["changed"]]
    same = [_label(row) for row in rows if not row["changed"]]
    if moved and same:
        moved.append(Finding(topic, f"Not changed beyond chance: {', '.join(same)}.", rule))
    return moved


def _named(row: Mapping[str, Any]) -> str:
    return f"{_label(row)}, {_moved(row)}"


def _label(row: Mapping[str, Any], at_length: bool = False) -> str:
    size = "" if row["n"] is None else f", N = {row['n']}"
    length = f", L = {row['length']}" if at_length and row["length"] else ""
    return measure_words(row["measure"]).label + size + length


def _moved(row: Mapping[str, Any]) -> str:
    ends = _interval(row)
    unit = "nats" if row["measure"] == LOSS else measure_words(row["measure"]).unit
    values = f"from {number(row['first'], 3)} to {number(row['second'], 3)}"
    values += f" {unit}" if unit and unit not in _BARE else ""
    return f"{values} ({_signed(row['difference'])}{f', {ends}' if ends else ''})"


def _change(row: Mapping[str, Any]) -> str:
    return with_interval(row["difference"], row["low"], row["high"], _signed)


def _interval(row: Mapping[str, Any]) -> str:
    return interval(row["low"], row["high"], _signed)


def _facts(row: Mapping[str, Any]) -> dict[str, Fact]:
    facts = {name: row[name] for name in ("first", "second", "difference")}
    return facts | {"interval from": row["low"], "to": row["high"], "q value": row["q_value"], "length": row["length"]}
