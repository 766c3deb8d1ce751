"""A training run in the terminal, and the tables that page and notebook share with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.text import Text

from ...words.manifest import model_name
from ...words.numbers import number
from ...words.training import alert_place, alert_words
from .._shared.terminal import TextTable, draw, plain, skipped_lines
from .answer import about_line, alerts_of, answer_of, last_values

if TYPE_CHECKING:
    from ...results import Training

_MOST = 12  # alerts in the terminal


def watch_table(training: Training) -> RenderableType:
    """Is a training run healthy?

    One sentence, the latest alerts, and every measure over all heads at the last step, beside its limit. A high largest
    logit and a low entropy warn of attention that collapses.

    Args:
        training: from `abbe.open` of a folder that `abbe.Monitor` writes.

    Examples:
        >>> with abbe.Monitor(abbe.load("embedded").network, folder="run"):
        ...     pass
        >>> training = abbe.open("run")
        >>> from rich import print
        >>> print(abbe.views.watch_table(training))
        No step was read yet.
        ...
    """
    about = ", ".join([model_name(training.manifest), *about_line(training)])
    parts: list[RenderableType] = [
        Text(plain(answer_of(training).sentence), style="bold"), Text(plain(about), style="dim"),
    ]  # fmt: skip
    for table in (alert_table(training, _MOST), values_table(training)):
        if table.rows:
            parts += [draw(table), *([Text(table.note, style="dim")] if table.note else [])]
    return Group(*parts, *skipped_lines(training.manifest))


def alert_table(training: Training, most: int) -> TextTable:
    """The latest alerts, the newest first."""
    alerts = alerts_of(training)[::-1]
    rows = [
        (
            alert_words(alert["rule"]).event, f"{alert['step']:,}", alert_place(alert).removeprefix("head "),
            number(alert["value"], 3), number(alert["threshold"]),
        )
        for alert in alerts[:most]
    ]  # fmt: skip
    left = len(alerts) - len(rows)
    note = f"{left:,} earlier alerts: --json, or abbe.open(folder).alerts" if left else ""
    return TextTable("Alerts", ("alert", "step", "head", "value", "threshold"), rows, note)


def values_table(training: Training) -> TextTable:
    """Every measure over all heads at the last step that was read."""
    values = last_values(training)
    rows = [
        (
            f"{one.label} ({one.unit})" if one.unit and one.unit not in one.label else one.label,
            *(number(x, 3) for x in (one.least, one.mean, one.largest, one.limit)),
        )
        for one in values
    ]
    step = training.records[-1]["step"] if values else 0
    return TextTable(f"Over all heads, step {step:,}", ("measure", "least", "mean", "largest", "limit"), rows)
