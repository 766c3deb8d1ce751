"""Normalizers in the terminal: all of them, or what some of them make of one row of logits."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.bar import Bar
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ..normalizers import NormalizerInfo, list_normalizers
from ..studies import NormalizerTrial
from ..views.text import new_table

_WIDTH = 20  # characters of a bar for weight 1
_LINE = 80  # columns of the narrowest terminal


def normalizers_table(infos: Sequence[NormalizerInfo]) -> RenderableType:
    """One line each: its name, what it does, and its parameters with their defaults, as many as fit."""
    width = max(len(info.name) for info in infos)
    lines = [Text.assemble((f"{info.name:{width}}", "bold"), _in_one_line(info, _LINE - width)) for info in infos]
    hint = f"{len(infos)} normalizers. All about one, and what it makes of a row: abbe normalizers NAME"
    return Group(*lines, Text(hint, style="dim"))


def _in_one_line(info: NormalizerInfo, room: int) -> str:
    """The first part of its meaning, then parameters; whether it learns, and for how many heads, is left out."""
    line = f"  {info.meaning.partition(';')[0]}"
    parameters = [option for option in info.parameters if option.name not in ("learn", "heads")]
    for number, option in enumerate(parameters):
        more = f"{', ' if number else ': '}{option.name}={_value(option.default)}"
        if len(line + more) > room - (5 if number < len(parameters) - 1 else 0):  # as long as ", ..."
            return line + (", ..." if number else "")
        line += more
    return line


def trials_table(trials: Sequence[NormalizerTrial]) -> RenderableType:
    """Per normalizer a bar for every weight, then zeros, row sum and Lipschitz constant."""
    return Group(*(part for trial in trials for part in (_heading(trial), _bars(trial), _footing(trial))))


def _heading(trial: NormalizerTrial) -> Text:
    (info,) = (info for info in list_normalizers() if info.name == trial.name)
    title = Text(trial.spec, style="bold").append(f"  {trial.meaning}", style="not bold")
    for option in info.parameters:
        value = _value(trial.parameters.get(option.name, option.default))
        title.append(f"\n{option.name} = {value}", style="not bold cyan")
        title.append(f"  {option.allowed}: {option.meaning}", style="not bold")
    without = "" if info.parameters else "no parameters; "
    return title.append(f"\n{without}paper {trial.paper}; example {info.example}", style="not bold dim")


def _bars(trial: NormalizerTrial) -> Table:
    table = new_table("logit", "weight")
    table.add_column("", no_wrap=True)
    longest = max(1.0, *trial.weights)  # without competition a weight can exceed 1
    for logit, weight in zip(trial.logits, trial.weights, strict=True):
        shown = "0" if weight == 0 else f"{weight:.4f}" if abs(weight) >= 5e-5 else f"{weight:.1e}"
        # Any weight above 0 is visible.
        eighths = max(round(8 * _WIDTH * weight / longest), 1 if weight > 0 else 0)
        table.add_row(f"{logit:g}", shown, Bar(8 * _WIDTH, 0, eighths, width=_WIDTH, color="cyan"))
    return table


def _footing(trial: NormalizerTrial) -> Text:
    zeros = "no weight is exactly 0" if trial.zeros == 0 else f"{trial.zeros} of {len(trial.weights)} are exactly 0"
    constant = f"{trial.lipschitz:.4g}" if math.isfinite(trial.lipschitz) else "none"
    jumps = "" if trial.continuous or constant == "none" else " between its jumps"
    steady = f"Lipschitz constant for {len(trial.weights)} keys: {constant}{jumps}"
    return Text(f"{zeros}; row sum {trial.row_sum:.6g}; {steady}\n")


def _value(value: object) -> str:
    """A value as it is written in a spec."""
    return str(value).lower() if value is None or isinstance(value, bool) else str(value).removesuffix(".0")
