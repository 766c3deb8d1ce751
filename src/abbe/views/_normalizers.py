"""Normalizers in the terminal: all of them, or what some of them make of one row of logits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ..normalizers import NormalizerInfo
from ._shared.terminal import new_table

if TYPE_CHECKING:
    from ..studies import NormalizerTrial

_EIGHTHS = " ▏▎▍▌▋▊▉"
_WIDTH = 20  # characters of a bar for weight 1


def normalizers_table(infos: Sequence[NormalizerInfo]) -> RenderableType:
    """Which normalizers are there, and what do they take?

    One entry each: what high and low parameters mean, defaults and ranges, the paper, and a spec to try.

    Args:
        infos: from `abbe.list_normalizers`.

    Examples:
        >>> from rich import print
        >>> print(abbe.views.normalizers_table(abbe.list_normalizers()[:1]))
        normalizer ...
        1 normalizers. See what they do: abbe normalizers softmax entmax:alpha=1.5
    """
    table = new_table(show_lines=True)
    table.add_column("normalizer", no_wrap=True)
    table.add_column("meaning, parameters with defaults, paper, example", overflow="fold")
    for info in infos:
        table.add_row(Text(info.name, style="bold"), _about(info))
    return Group(table, Text(f"{len(infos)} normalizers. See what they do: abbe normalizers softmax entmax:alpha=1.5"))


def _about(info: NormalizerInfo) -> Text:
    about = Text(info.meaning)
    for option in info.parameters:
        about.append(f"\n{option.name}={_value(option.default)}", style="cyan").append(f"  {option.allowed}: ")
        about.append(option.meaning)
    return about.append(f"\npaper {info.paper}; example {info.example}", style="dim")


def trials_table(trials: Sequence[NormalizerTrial]) -> RenderableType:
    """What do normalizers make of one row of logits?

    Per normalizer a bar for every weight, then zeros, row sum and Lipschitz constant. A large constant means that a
    small change of the logits can move the weights a lot.

    Args:
        trials: from `abbe.studies.try_normalizers`.

    Examples:
        >>> trials = abbe.studies.try_normalizers(["sparsemax"], [3, 2, 1])
        >>> from rich import print
        >>> print(abbe.views.trials_table(trials))
        sparsemax ...
        2 of 3 are exactly 0; row sum 1; ...
    """
    return Group(*(part for trial in trials for part in (_heading(trial), _bars(trial), _footing(trial))))


def _heading(trial: NormalizerTrial) -> Text:
    parameters = ", ".join(f"{name} = {_value(value)}" for name, value in trial.parameters.items())
    title = Text(trial.spec, style="bold").append(f"  {trial.meaning}", style="not bold")
    return title.append(f"\nparameters: {parameters or 'none'}; paper: {trial.paper}", style="not bold dim")


def _bars(trial: NormalizerTrial) -> Table:
    table = new_table("logit", "weight")
    table.add_column("", no_wrap=True)
    longest = max(1.0, *trial.weights)  # without competition a weight can exceed 1
    for logit, weight in zip(trial.logits, trial.weights, strict=True):
        shown = "0" if weight == 0 else f"{weight:.4f}" if abs(weight) >= 5e-5 else f"{weight:.1e}"
        table.add_row(f"{logit:g}", shown, Text(bar(weight / longest), style="cyan"))
    return table


def _footing(trial: NormalizerTrial) -> Text:
    zeros = "no weight is exactly 0" if trial.zeros == 0 else f"{trial.zeros} of {len(trial.weights)} are exactly 0"
    constant = f"{trial.lipschitz:.4g}" if math.isfinite(trial.lipschitz) else "none"
    jumps = "" if trial.continuous or constant == "none" else " between its jumps"
    steady = f"Lipschitz constant for {len(trial.weights)} keys: {constant}{jumps}"
    return Text(f"{zeros}; row sum {trial.row_sum:.6g}; {steady}\n")


def bar(share: float) -> str:
    """A bar to an eighth of a character; any share above 0 is visible."""
    eighths = round(8 * _WIDTH * max(0.0, min(share, 1.0)))
    if share > 0:
        eighths = max(eighths, 1)
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


def _value(value: object) -> str:
    """As it is written in a spec."""
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)
