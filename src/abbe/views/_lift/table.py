"""A search in the terminal, and the tables of its page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.text import Text

from ...words.manifest import for_others, model_name, part_of, text_name
from ...words.numbers import MISSING, number, with_interval
from .._shared.terminal import bullets, new_table, plain, skipped_lines
from .._shared.text_table import TextTable
from .words import rise, share, short_spec

if TYPE_CHECKING:
    from ...studies import Lift

_MOST_PLANS = 12
_COST = range(6)  # columns of the first of two tables, so that both have room in 80 columns


def lift_table(result: Lift) -> RenderableType:
    """Readable from 80 columns on."""
    parts: list[RenderableType] = [Text(plain(lift_question(result)), style="bold")]
    judged = _judged(result)
    for places, title in ((_COST, judged.title), ([0, *range(len(_COST), len(judged.columns))], None)):
        columns = [judged.columns[place] for place in places]
        drawn = new_table(*columns[1:], first=columns[0], title=title, title_justify="left")
        for row in judged.rows:
            cells = (plain(row[place]).replace(" (", "\n(") for place in places)  # the interval below its number
            drawn.add_row(*map(Text, cells))
        parts.append(drawn)
    return Group(*parts, *bullets(result.findings), *skipped_lines(result.manifest))


def lift_question(result: Lift) -> str:
    goal = part_of(result.manifest, "settings").get("goal")
    wanted = {"sparse": "be made sparse", "loss": "get a lower loss", "retrieval": "find more pass keys"}.get(
        str(goal), ""
    )
    return f"Can {model_name(result.manifest)} {wanted} with another normalizer?"


def lift_tables(result: Lift) -> list[TextTable]:
    """What was judged, pass keys, the best plans, and the commands that repeat it."""
    keys = [_keys(result)] if result.keys.height else []
    return [_judged(result), *keys, _plans(result), _scan(result), _commands(result)]


def _judged(result: Lift) -> TextTable:
    retrieval = result.table["pass_keys"].is_not_null().any()
    more = ("pass keys",) if retrieval else ()
    columns = ("", "loss", "rise", "zeros", "active", "time", "lists", "sentences", *more, "sensitivity")
    rows = []
    for row in result.table.to_dicts():
        change = MISSING if row["rise"] is None else with_interval(row["rise"], row["rise_low"], row["rise_high"], rise)
        found = (share(row["pass_keys"]),) if retrieval else ()
        rows.append(
            (row["contender"], f"{row['loss']:.3f}", change, share(row["zeros"]), number(row["active"], 3),
             f"{row['time_ratio']:.2f}", share(row["lists"]), share(row["sentences"]), *found,
             number(row["sensitivity_ratio"], 2))
        )  # fmt: skip
    return TextTable("Judged once, on the last part of the text", columns, rows)


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
        (short_spec(row["plan"]), str(row["steps"]),
         MISSING if row["rise"] is None else with_interval(row["rise"], row["rise_low"], row["rise_high"], rise),
         share(row["zeros"]), number(row["gain"], 3))
        for row in ordered[:_MOST_PLANS]
    ]  # fmt: skip
    left = len(ordered) - len(rows)
    note = f"{left} more in plans.csv" if left > 0 else ""
    return TextTable(
        "Plans, on the part to choose on; the first was judged", ("plan", "steps", "rise", "zeros", "gain"), rows, note
    )


def _scan(result: Lift) -> TextTable:
    rows = [
        (row["layers"], short_spec(row["normalizer"]), rise(row["harm"]), share(row["zeros"]),
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
    given = f"--text {text}" if text.endswith(".txt") else ""
    again = " ".join(filter(None, [f"abbe lift {name}", given, *options]))
    use = f'abbe.swap(model, "file:{result.file.name if result.file else "plan.safetensors"}")'
    compare = f"abbe compare {name} --with file:plan.safetensors --seed 1"
    rows = [("the same again", again), ("use the plan (Python)", use), ("compare it on another text", compare)]
    return TextTable("To repeat it and to use it", ("what", "command"), rows)
