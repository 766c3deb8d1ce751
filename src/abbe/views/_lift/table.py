"""A search in the terminal, the tables of its page, and short names of plans and normalizers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.text import Text

from ...words.manifest import for_others, model_name, part_of, text_name
from ...words.numbers import MISSING, interval, number, percent, with_interval
from .._shared.terminal import TextTable, bullets, draw, note_lines, plain, skipped_lines

if TYPE_CHECKING:
    from ...studies import Lift

GAINS = {"sparse": "weights of exactly 0", "loss": "fall of the loss", "retrieval": "log-probability of pass keys"}
MIXED = "mixed"
_MOST_PLANS = 12
_GAINS = "in brackets: change over the baseline and its interval, over the same windows or prompts in pairs"
_LOSSES, _LISTS = "zeros", "lists"  # columns that start a new table, so that each fits into 80 columns


def lift_table(result: Lift) -> RenderableType:
    """Can the model reach the goal with another normalizer?

    The contenders that were judged, then the findings. A rise of the loss above 0 is a cost; high shares of zeros and
    of found answers are gains.

    Args:
        result: from `abbe.lift`.

    Examples:
        >>> small = {"length": 64, "windows": 2, "queries": 4, "steps": 0, "prompts": 1, "progress": False}
        >>> result = abbe.lift("embedded", normalizers="topk:k=16", **small)
        >>> from rich import print
        >>> print(abbe.views.lift_table(result))
        Can abbe-gpt2-5M be made sparse with another normalizer?
        ...
    """
    parts: list[RenderableType] = [Text(plain(lift_question(result)), style="bold")]
    judged = _judged(result)
    lists = judged.columns.index(_LISTS)
    losses = judged.columns.index(_LOSSES)
    starts = [1, *([losses] if losses > 3 else []), lists, len(judged.columns)]  # four columns of losses fill a table
    for start, end in pairwise(starts):
        part = _part(judged, judged.title if start == 1 else "", [0, *range(start, end)])
        parts.append(draw(part, "("))  # the interval below its number
    return Group(*parts, *note_lines(judged), *bullets(result.findings), *skipped_lines(result.manifest))


def lift_question(result: Lift) -> str:
    goal = part_of(result.manifest, "settings").get("goal")
    wanted = {"sparse": "be made sparse", "loss": "get a lower loss", "retrieval": "find more pass keys"}.get(
        str(goal), ""
    )
    return f"Can {model_name(result.manifest)} {wanted} with another normalizer?"


def lift_tables(result: Lift) -> list[TextTable]:
    """What was judged, pass keys, the best plans, and the commands that repeat it."""
    keys = [_keys(result)] if result.keys.height else []
    return [*_on_page(_judged(result)), *keys, _plans(result), _scan(result), _commands(result)]


def _on_page(judged: TextTable) -> list[TextTable]:
    """As one table, or as two if losses of two lengths leave no room for the rest."""
    losses, lists = judged.columns.index(_LOSSES), judged.columns.index(_LISTS)
    if losses <= 3:
        return [judged]
    first, second = range(lists), [0, *range(lists, len(judged.columns))]
    return [
        _part(judged, judged.title, first),
        _part(judged, "What the same contenders find", second, judged.note),
    ]


def _part(table: TextTable, title: str, places: Sequence[int], note: str = "") -> TextTable:
    rows = [[row[place] for place in places] for row in table.rows]
    return TextTable(title, [table.columns[place] for place in places], rows, note)


def _judged(result: Lift) -> TextTable:
    retrieval, long = (result.table[name].is_not_null().any() for name in ("pass_keys", "longer_loss"))
    more = ("pass keys",) if retrieval else ()
    columns = ("", *_loss_columns(result, long), "zeros", "active", "time", "lists", "sentences", *more, "sensitivity")
    rows = []
    for row in result.table.to_dicts():
        longer = (f"{row['longer_loss']:.3f}", _changed(row, "longer_rise", rise)) if long else ()
        keys = (_with_gain(row, "pass_keys", "key_gain"),) if retrieval else ()
        rows.append(
            (row["contender"], f"{row['loss']:.3f}", _changed(row, "rise", rise), *longer, share(row["zeros"]),
             number(row["active"], 3), f"{row['time_ratio']:.2f}", _with_gain(row, "lists", "lists_gain"),
             _with_gain(row, "sentences", "sentences_gain"), *keys, number(row["sensitivity_ratio"], 2))
        )  # fmt: skip
    return TextTable("Judged once, on the last part of the text", columns, rows, _GAINS)


def _loss_columns(result: Lift, long: bool) -> tuple[str, ...]:
    if not long:
        return "loss", "rise"
    lengths = result.manifest.get("loss_lengths") or ()
    return tuple(f"{name}, {length:,}" for length in (*lengths[:1], *lengths[-1:]) for name in ("loss", "rise"))


def _changed(row: Mapping[str, Any], name: str, show: Callable[[float | None], str]) -> str:
    """A change over the baseline with its interval."""
    if row[name] is None:
        return MISSING
    return with_interval(row[name], row[f"{name}_low"], row[f"{name}_high"], show)


def _with_gain(row: Mapping[str, Any], column: str, gain: str) -> str:
    """ "28 % (+12 %: +6 to +14 %)": a share, its gain over the baseline and the gain's interval, if any."""
    if row[gain] is None:
        return share(row[column])
    ends = interval(row[f"{gain}_low"], row[f"{gain}_high"], _points)
    return f"{share(row[column])} ({_points(row[gain])}{f': {ends}' if ends else ''})"


def _points(gain: float) -> str:
    return f"{100 * gain:+z.0f} %"


def _keys(result: Lift) -> TextTable:
    rows = [
        (row["contender"], f"{row['length']:,}", f"{row['depth']:g}",
         f"{round(row['right'] * row['prompts'])} of {row['prompts']}", number(row["log_probability"], 3))
        for row in result.keys.to_dicts()
    ]  # fmt: skip
    return TextTable("Pass keys by length and depth", ("", "length", "depth", "found", "log-probability"), rows)


def _plans(result: Lift) -> TextTable:
    ordered = sorted(result.plans.to_dicts(), key=lambda row: (not row["chosen"], -row["steps"], -(row["gain"] or 0.0)))
    rows = [
        (row["plan"], str(row["steps"]), _changed(row, "rise", rise), _changed(row, "control_rise", rise),
         share(row["zeros"]), number(row["gain"], 3))
        for row in ordered[:_MOST_PLANS]
    ]  # fmt: skip
    left = len(ordered) - len(rows)
    note = f"{left} more in plans.csv" if left > 0 else ""
    columns = ("plan", "steps", "rise", "over softmax tuned the same way", "zeros", "gain")
    return TextTable("Plans, on the validation text; the first was tested", columns, rows, note)


def _scan(result: Lift) -> TextTable:
    rows = [
        (row["layers"], row["normalizer"], rise(row["harm"]), share(row["zeros"]),
         f"{number(row['effective_tokens'], 3)} of {number(row['effective_tokens_baseline'], 3)}",
         number(row["sensitivity_ratio"], 2))
        for row in result.scan.to_dicts()
    ]  # fmt: skip
    columns = ("layers", "normalizer", "rise", "zeros", "effective tokens", "sensitivity")
    return TextTable("Each group of layers alone", columns, rows)


def _commands(result: Lift) -> TextTable:
    settings, model = part_of(result.manifest, "settings"), part_of(for_others(result.manifest), "model")
    name = model.get("source") or model.get("name") or "MODEL"
    text = text_name(result.manifest)
    options = [f"--goal {settings.get('goal')}", f"--max-loss {100 * float(settings.get('max_loss') or 0):g}%"]
    options += [f"--steps {settings.get('steps')}", f"--seed {settings.get('seed')}", "--budget none"]
    text_option = f"--text {text}" if text.endswith(".txt") else ""
    again = " ".join(filter(None, [f"abbe lift {name}", text_option, *options]))
    use = f'abbe.swap(model, "file:{result.file.name if result.file else "plan.safetensors"}")'
    compare = f"abbe compare {name} --with file:plan.safetensors --seed 1"
    rows = [("run it again", again), ("use the plan (Python)", use), ("compare it on another text", compare)]
    return TextTable("How to repeat and use it", ("what", "command"), rows)


def kind_of(plan: str) -> str:
    """The only normalizer of a plan, or "mixed"."""
    specs = {part.partition("=")[2] for part in plan.split("; ")}
    return specs.pop() if len(specs) == 1 else MIXED


def rise(share: float | None) -> str:
    return MISSING if share is None else f"{100 * share:+z.2f} %"


def share(value: float | None) -> str:
    return MISSING if value is None else percent(value)
