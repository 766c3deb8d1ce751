"""The result of a comparison of normalizers: its tables, and what people see of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import polars as pl

from ...measures import enough_windows
from ...results import Result
from ...views import TextTable, View
from ...words.finding import Fact, Finding, findings_from
from ...words.frames import Cell, Column, column, frame
from ...words.manifest import model_name, part_of
from ...words.names import BASELINE, JUMPS
from ...words.numbers import MISSING, interval, many, number, percent, sentence, with_interval

_measured = partial(column, interval=True)
_COLUMNS = (
    _measured("loss", float, "high means that the next token is predicted badly, low that it is predicted well",
              label="loss (nats)"),
    _measured("perplexity", float, "exp of the loss: among how many tokens the model hesitates; low is good"),
    _measured("loss_change", float, "above 0 means worse than the baseline, on the same windows",
              label="change of the loss (nats)", signed=True),
    _measured("loss_rise", float, "the same as a share of the baseline's loss", label="change of the loss", share=True,
              signed=True),
    _measured("effective_tokens", float, "high means that many keys share the weight, low (1) that one has it"),
    _measured("active", float, "keys with a weight above 0; low means that attention is sparse", label="active tokens"),
    _measured("zeros", float, "share of the visible keys whose weight is exactly 0; high means sparse",
              label="exact zeros", share=True),
    _measured("separability", float, "high (1) means that a ball holds the 20 selected tokens and no other; exact "
              "zeros tie, and ties count", label="separability of 20"),
    _measured("separable", float, "share of the weight on tokens that the output separates from all unselected ones; "
              "ties do not count", label="separable weight", share=True),
    _measured("separable_gain", float, "above 0 means more than the baseline", label="gain in separable weight",
              share=True, signed=True),
    _measured("distance_per_token", float, "high means that an unselected token lies far from the sum of the 20 "
              "selected, low that it lies near"),
    _measured("capacity", float, "how many of the largest weights per query are enough: without the others the loss "
              "rises by at most tau, 5 % by default; low means that few tokens carry the model",
              label="capacity (tokens)"),
    _measured("capacity_ratio", float, "below 1 means that fewer tokens are enough than with the baseline",
              label="capacity over baseline"),
    _measured("sensitivity", float, "how far weights move with logits in the worst direction, each head at the "
              "temperature at which it is as selective as the baseline; high means fragile",
              label="sensitivity at equal selectivity"),
    _measured("sensitivity_own", float, "of the unchanged model, on the same heads",
              label="sensitivity of the baseline"),
    _measured("sensitivity_ratio", float, "below 1 means calmer than softmax that is as selective",
              label="sensitivity over baseline"),
    _measured("needle_accuracy", float, "share of the prompts whose answer is right; the needle test lists the share "
              "by chance", share=True),
    _measured("needle_gain", float, "needle accuracy minus that of the baseline on the same prompts; above 0 means "
              "that more are found. No interval where both are right on the same prompts", share=True, signed=True),
    _measured("needle_margin", float, "logit of the right answer minus that of the best wrong one; above 0 is right",
              label="needle margin (logits)", signed=True),
    column("temperature", float, "geometric mean over the heads that can be matched; high means that the normalizer "
           "must be softened", label="temperature for equal selectivity"),
    column("matched_heads", float, "share of the swapped heads that can be made as selective as the baseline",
           label="heads matched", share=True),
    column("sensitivity_theory", float, "Lipschitz constant at which a margin of 1 gives one key of the window a "
           "weight of 0.9", label="sensitivity, proved"),
    column("time_ratio", float, "of a forward pass; high means slow", label="time over baseline"),
    column("seconds", float, "the best of several passes of one window", label="seconds per pass"),
    column("extra_megabytes", float, "of the tensors of a forward pass, beyond the baseline",
           label="extra memory (MB)", signed=True),
)  # fmt: skip
_NORMALIZER = column("normalizer", str, "baseline, a spec, patterns with specs, or a file")
_PARTS = (  # of the rule
    column("affordable", bool, "whether its loss is at most 1 % worse", label="loss not 1 % worse"),
    column("lowers_loss", bool, "whether its loss is lower", label="lowers the loss"),
    column("separates", bool, "whether more of its weight is separable; not a reason to recommend it",
           label="more separable weight"),
    column("needs_fewer", bool, "whether its capacity is smaller", label="smaller capacity"),
    column("retrieves", bool, "whether it finds more needles", label="finds more needles"),
    column("helps", bool, "whether it is affordable and one of the other three holds"),
)  # fmt: skip

# In the terminal three tables with room for intervals in 80 columns; on the page all numbers, five columns at most.
_IN_TERMINAL = {
    "Loss and time": ("loss", "loss_rise", "time_ratio"),
    "Sparsity": ("active", "separable", "capacity"),
    "Sensitivity and needles": ("sensitivity_ratio", "needle_accuracy", "needle_gain"),
}
_ON_PAGE = {
    "Loss": ("loss", "perplexity", "loss_change", "loss_rise"),
    "Sparsity": ("active", "capacity", "capacity_ratio", "effective_tokens", "zeros"),
    "Separability": ("separable", "separable_gain", "separability", "distance_per_token"),
    "Sensitivity": ("sensitivity_ratio", "sensitivity", "sensitivity_own", "sensitivity_theory"),
    "Equal selectivity, time and memory": ("temperature", "matched_heads", "time_ratio", "seconds", "extra_megabytes"),
    "Needles": ("needle_accuracy", "needle_gain", "needle_margin"),
}
# Relative to the baseline, whose own values are 0 or 1 by definition: an interval would look measured.
_RELATIVE = ("loss_change", "loss_rise", "separable_gain", "capacity_ratio", "sensitivity_ratio", "needle_gain")
_TERSE = ("terminal", "card")
_NAME = 20  # letters that a column of a terminal has room for
_MARK, _MARKED = "†", ("sensitivity", "sensitivity_ratio")
_BETWEEN_JUMPS = (
    f"{_MARK} excludes jumps: weights change abruptly when a key enters or leaves the selection, so the true "
    "sensitivity is higher."
)
_SWAPPED = (
    "Every normalizer was swapped into the trained model, into all layers and heads unless its name says which. The "
    "model was not retrained: a normalizer used from the start of training may do better."
)
_PROMPTS = (
    "Prompts with one right answer, made from words of the text: a list of keys and values in which one key is asked "
    "for, and the user's text with sentences that each give a key its word, of which one is asked for. The answer is "
    "right if the right word gets a larger logit than all other candidates. A model that copies any of the words given "
    "in the text, whatever the key, is right in 1 of {given} prompts of the second kind, more often only where a "
    "prompt was too short for {given} of them. All normalizers answer the same prompts: a gain over the baseline "
    "counts only those that one of the two gets right and the other wrong. A small model may fail with every "
    "normalizer."
)


@dataclass(frozen=True, eq=False, kw_only=True)
class Comparison(Result, study="compare", drawn=True):
    """The result of `compare`.

    Attributes:
        table: a row for the baseline and for every alternative. Intervals are in columns with _low and _high; what
            could not be measured is null.
        needle: accuracy, gain over the baseline and margin by normalizer, kind of prompt, length and depth; null
            means all of them together.
        judgements: what each alternative does better, by the rule of the recommendation; `separates` is reported but
            does not count.
        recommendation: which one to take, or that none helps; with its rule and numbers.
        manifest: on what, how, how long, and what was skipped.
    """

    files: ClassVar[Mapping[str, str]] = {
        "parts/": "what an interrupted run resumes from",
        "calibrated/": "the runs of `abbe calibrate` behind --calibrate",
    }
    table: pl.DataFrame = frame(
        "the baseline, and every alternative", _NORMALIZER, *_COLUMNS,
        column(JUMPS, bool, "whether its weights jump somewhere: its sensitivities are then those between the jumps"),
    )  # fmt: skip
    needle: pl.DataFrame = frame(
        "a normalizer, kind of prompt, length and depth; null means all of them together",
        column("normalizer", str, "as in the table"), column("kind", str, "key-value or needle"),
        column("length", int, "tokens of the prompt"),
        column("depth", float, "place of the answer, from 0 (begin) to 1 (end)"), column("prompts", int, "how many"),
        _measured("accuracy", float, "share of right answers, with Wilson's interval", share=True),
        column("chance", float, "accuracy of guessing among the candidates", show=partial(percent, digits=2)),
        _measured("gain", float, "accuracy minus the baseline's on the same prompts", label="gain over baseline",
                  share=True, signed=True),
        _measured("margin", float, "logit of the right answer minus that of the best wrong one",
                  label="margin (logits)", signed=True),
    )  # fmt: skip
    judgements: pl.DataFrame = frame(
        "an alternative, judged by the rule of the recommendation",
        column("normalizer", str, "as in the table", label="alternative"),
        *_PARTS,
    )
    recommendation: Finding
    manifest: Mapping[str, Any]

    @classmethod
    def of(cls, table: pl.DataFrame, needle: pl.DataFrame, manifest: Mapping[str, Any]) -> Comparison:
        """What the measurements say, by the rule; nothing is measured here.

        Args:
            table: the columns of `Comparison.table`, the baseline and the alternatives.
            needle: those of `Comparison.needle`; may be empty.
            manifest: with its windows, and the level of the intervals in its settings.
        """
        judged, recommendation = _judge(table, len(manifest["windows"]), manifest["settings"]["level"])
        tables = {"table": table, "needle": needle, "judgements": cls.frame("judgements").of(judged)}
        return cls(**tables, recommendation=recommendation, manifest=manifest)

    def __repr__(self) -> str:
        name, alternatives = self.manifest["model"]["name"], self.table.height - 1
        return f"Comparison({name}, {alternatives} alternatives: {self.recommendation.sentence})"

    def _content(self) -> dict[str, Any]:
        return {"recommendation": asdict(self.recommendation)}

    @classmethod
    def _from_content(cls, content: Mapping[str, Any], folder: Path) -> dict[str, Any]:
        return {"recommendation": findings_from([content["recommendation"]])[0]}

    def view(self) -> View:
        return self._view(
            f"Would another normalizer help {model_name(self.manifest)}?",
            self._measured_on(),
            heading="The answer",
            findings=[self.recommendation],
            tables=[
                *self._judged(),
                *(self._numbers(*one, on=_TERSE, breaks=("(",)) for one in _IN_TERMINAL.items()),
                *(self._numbers(*one, on=("page",)) for one in _ON_PAGE.items()),
                *self._needles(),
                self._glossary(),
            ],
        )

    def _measured_on(self) -> str:
        windows, length = len(self.manifest.get("windows") or ()), part_of(self.manifest, "settings").get("length")
        parts = [f"{many(self.table.height - 1, 'alternative')} to the model's attention as it is"]
        if windows:
            parts.append(f"each on the same {windows} windows of {length:,} tokens")
        if name := part_of(self.manifest, "text").get("name"):
            parts.append(f"from “{name}”")
        return ", ".join(parts) + "."

    def _judged(self) -> list[TextTable]:
        """Which parts of the rule hold: a list in the terminal, which has no room for their columns."""

        def holds(row: Mapping[str, Any]) -> str:
            return ", ".join(part.label for part in _PARTS if row[part.name]) or MISSING

        parts, title = [part.name for part in _PARTS], "By the rule"
        return [
            self._shown(title, "normalizer", ("holds", holds), table="judgements", on=_TERSE, left=("holds",)),
            self._shown(title, "normalizer", *parts, table="judgements", note=_SWAPPED, on=("page",)),
        ]

    def _numbers(self, title: str, names: Sequence[str], **options: Any) -> TextTable:
        table = self._shown(title, _NAMED, *(_cell(self.frame()[name]) for name in names), **options)
        notes = [_BETWEEN_JUMPS] if any(_MARK in cell for row in table.rows for cell in row[1:]) else []
        notes += [self._intervals()] if names[0] == "loss" else []
        # A terminal has no room for long names and labels unless they are wrapped.
        fitting = table.columns if max(len(row[0]) for row in table.rows) <= _NAME else table.columns[1:]
        whole = tuple(label for label in fitting if len(label) <= _NAME)
        return replace(table, note=" ".join(notes), whole=whole)

    def _intervals(self) -> str:
        settings = part_of(self.manifest, "settings")
        between = "" if settings.get("grid") == "exact" else ", between powers of 2"
        return (
            f"In brackets: intervals of nominal {percent(settings.get('level', 0.95), 4)}, by resampling the same "
            "windows in pairs; of needle gains exact, from the prompts on which two differ. Capacity: at a rise of the "
            f"loss of {percent(settings.get('tau', 0.05), 3)}, on all windows{between}."
        )

    def _needles(self) -> list[TextTable]:
        """Right answers by kind of prompt; and by length, one normalizer at a time."""
        of_kinds = self.needle.filter(pl.col("kind").is_not_null() & pl.col("depth").is_null())
        note = _PROMPTS.format(given=1 + int(part_of(self.manifest, "settings").get("needle_decoys") or 0))
        answers = [_cell(self.frame("needle")[name]) for name in ("accuracy", "gain", "margin")]
        whole = pl.col("length").is_null()

        def table(title: str, rows: pl.DataFrame, *more: str, **options: Any) -> TextTable:
            columns: list[str | Cell] = [_NAMED, "kind", *more, "prompts"]
            return self._shown(title, *columns, *answers, "chance", table="needle", rows=rows, on=("page",), **options)

        return [
            table("Needle test", of_kinds.filter(whole), note=note),
            table("Needle test by length", of_kinds.filter(~whole), "length", choose="normalizer"),
        ]

    def _glossary(self) -> TextTable:
        rows = [[each.label, each.name, f"{sentence(each.meaning)}."] for each in _COLUMNS]
        columns = ("number", "column", "high means, low means")
        return TextTable("Glossary", columns, rows, on=("page",), left=columns)


def name_of(normalizer: str) -> str:
    """Name of a normalizer in tables and tooltips."""
    return f"{BASELINE} (softmax)" if normalizer == BASELINE else normalizer


_NAMED: Cell = ("normalizer", lambda row: name_of(row["normalizer"]))


def _cell(each: Column) -> Cell:
    return each.label, partial(cell_text, each)


def cell_text(each: Column, row: Mapping[str, Any]) -> str:
    """ "3.21 (3.1 to 3.3)": a number of a normalizer and its interval, marked if it leaves out jumps."""
    value = row[each.name]
    if value is None:
        return MISSING
    mark = f" {_MARK}" if row.get(JUMPS) and each.name in _MARKED else ""
    low, high = (row.get(f"{each.name}{end}") for end in ("_low", "_high"))
    # The baseline has no interval against itself, and none around its exact zeros ("0 to 0 %").
    if row["normalizer"] == BASELINE and (each.name in _RELATIVE or low == high):
        low = None
    ends = interval(low, high, partial(_text, each))
    return _text(each, value) + mark + (f" ({ends})" if ends else "")


def _text(each: Column, value: float) -> str:
    size = 100 * value if each.share else value
    digits = 3 if abs(size) >= 1 else 2
    return percent(value, digits, signed=each.signed) if each.share else number(value, digits, signed=each.signed)


# -- The rule: what an alternative must do better, and what it may cost -----------------------------------------------
# More separable weight does not count: cutting off the tail raises it by construction, even on random logits.

_ALLOWED = 0.01  # relative rise of the loss
_WORTH = 0.01  # of separable weight: nobody would notice a smaller gain
_FEWER = 0.95  # of the baseline's capacity: on the coarse grid a smaller gain may be interpolation error
_USUAL = 0.95
# How often a nominal 95 % interval from this many windows contains the true mean, in simulations: for skewed numbers
# (log-normal, sigma 0.5) and for normal ones. The table of docs/explanation/intervals.md.
_COVERAGE = {2: (0.49, 0.49), 3: (0.72, 0.75), 4: (0.84, 0.87), 5: (0.89, 0.92), 6: (0.91, 0.92), 8: (0.90, 0.93)}
_REASONS = {
    "lowers_loss": "lowers the loss",
    "needs_fewer": "has a smaller capacity",
    "retrieves": "finds more needles",
}


def _covered(windows: int) -> str:
    low, high = _COVERAGE[windows]
    return interval(low, high, percent) if low < high else percent(low)


def _rule(level: float) -> str:
    """The rule for intervals of this level."""
    why = f"the whole range of fewer contains the median in less than {percent(level, 4)} of cases"
    if level == _USUAL:
        why = (
            f"in simulations an interval of nominal {percent(level, 4)} contained the true value in {_covered(8)} of "
            f"cases from 8 windows and {_covered(6)} from 6, but in {_covered(4)} from 4 and {_covered(2)} from 2"
        )
    return (
        "An alternative helps if the upper end of the interval of its relative rise of the loss is at most "
        f"{percent(_ALLOWED)}, and at least one of these holds: the interval of its change of the loss lies below 0; "
        f"the interval of its capacity over that of the baseline lies below {_FEWER}; the interval of its gain in "
        "needle accuracy lies above 0. The one with most of the three is recommended, among equals the one of least "
        "loss. If none helps, the one with the fewest active tokens is named, among those whose loss is allowed and "
        "whose active tokens are fewer than the baseline's, interval below interval. More separable weight does not "
        f"count: it rises whenever small weights are cut off. All intervals are of nominal {percent(level, 4)}. "
        f"Nothing is recommended from fewer than {enough_windows(level)} windows: {why}. Intervals are over paired "
        "windows; that of the gain is exact over paired prompts, but treats them as independent, although all are made "
        "from one text. A number without an interval proves nothing."
    )


def _judge(table: pl.DataFrame, windows: int, level: float) -> tuple[list[dict[str, Any]], Finding]:
    """What each alternative in a comparison's table does better, and which one to take."""
    rows, enough = table.to_dicts(), windows >= enough_windows(level)
    baseline = next(row for row in rows if row["normalizer"] == BASELINE)
    others = [row for row in rows if row["normalizer"] != BASELINE]
    judged = [_judgement(row, enough) for row in others]
    pairs = list(zip(others, judged, strict=True))
    sentence, numbers = _answer(baseline, pairs) if enough else _too_few(windows, level, others)
    return judged, Finding("recommendation", sentence, _rule(level), numbers)


def _judgement(row: _Row, enough: bool) -> dict[str, Any]:
    """Each part of the rule alone; none holds without an interval, and nothing helps from too few windows."""
    parts: dict[str, Any] = {
        "normalizer": row["normalizer"],
        "affordable": _below(row["loss_rise_high"], _ALLOWED) or row["loss_rise_high"] == _ALLOWED,
        "lowers_loss": _below(row["loss_change_high"], 0.0),
        "separates": _below(_WORTH, row["separable_gain_low"]),
        "needs_fewer": _below(row["capacity_ratio_high"], _FEWER),
        "retrieves": _below(0.0, row["needle_gain_low"]),
    }
    return parts | {"helps": enough and parts["affordable"] and any(parts[name] for name in _REASONS)}


def _below(low: float | None, high: float | None) -> bool:
    return low is not None and high is not None and low < high


_Row = Mapping[str, Any]
_Answer = tuple[str, dict[str, Fact]]  # a sentence and its numbers
_TOLD = ("loss_change", "loss_rise", "capacity_ratio", "needle_gain")


def _answer(baseline: _Row, pairs: list[tuple[dict[str, Any], dict[str, Any]]]) -> _Answer:
    helpful = [(row, judged) for row, judged in pairs if judged["helps"]]
    if helpful:
        return _take(*min(helpful, key=lambda pair: (-sum(pair[1][name] for name in _REASONS), pair[0]["loss"])))
    cheap = [row for row, judged in pairs if judged["affordable"]]
    sparser = [row for row in cheap if _below(row["active_high"], baseline["active_low"])]
    if sparser:
        return _sparser(min(sparser, key=lambda row: (row["active"], row["loss"])), baseline)
    why = "none of the cheap ones gains anything" if cheap else "they cost too much"
    return f"None of these helps this model: {why}.", _rises([row for row, _ in pairs])


def _too_few(windows: int, level: float, others: list[dict[str, Any]]) -> _Answer:
    nominal = percent(level, 4)
    why = f"the whole range of {windows} windows contains the median in less than {nominal} of cases"
    if windows < 2:
        why = "a single window gives no intervals"
    elif level == _USUAL:
        contained = f"contains the true value in {_covered(windows)} of cases"
        why = f"from {windows} windows an interval of nominal {nominal} {contained}"
    return f"Too few windows to judge: {why}; take at least {enough_windows(level)}.", _rises(others)


def _take(row: _Row, judged: _Row) -> _Answer:
    reasons = [words for name, words in _REASONS.items() if judged[name]]
    listed = " and ".join(filter(None, [", ".join(reasons[:-1]), reasons[-1]]))
    change = with_interval(row["loss_rise"], row["loss_rise_low"], row["loss_rise_high"], _rise)
    words = f"{row['normalizer']} helps this model: it {listed}, and its loss changes by {change}."
    return words, _numbers(row, *_TOLD)


def _sparser(row: _Row, baseline: _Row) -> _Answer:
    sentence = (
        f"{row['normalizer']} is sparser at little cost ({_count(row['active'])} active tokens instead of "
        f"{_count(baseline['active'])}, loss {_rise(row['loss_rise'])}), but nothing here shows that it helps."
    )
    return sentence, _numbers(row, "active", *_TOLD)


def _count(tokens: float) -> str:
    return f"{tokens:.0f}" if tokens >= 10 else f"{tokens:.1f}"


def _rises(others: list[dict[str, Any]]) -> dict[str, Fact]:
    return {f"{row['normalizer']}: {key}": fact for row in others for key, fact in _numbers(row, "loss_rise").items()}


def _rise(share: float) -> str:
    return f"{100 * share:+.1f} %"


def _numbers(row: _Row, *names: str) -> dict[str, Fact]:
    ends = {"": "", "_low": ", from", "_high": ", to"}
    return {name.replace("_", " ") + words: row[name + end] for name in names for end, words in ends.items()}
