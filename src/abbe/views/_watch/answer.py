"""What happened in a training run: one sentence, a few numbers, and the tables of terminal, page and notebook."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.text import Text

from ...words.manifest import model_name, part_of
from ...words.numbers import many, number, percent
from .._shared.terminal import TextTable, draw, plain, skipped_lines

if TYPE_CHECKING:
    from ...results import Event, Training

_NAMED = 3  # events that a sentence names
_HEADS = 4  # heads that an event names
_IN_TERMINAL = 12  # alerts


@dataclass(frozen=True)
class Answer:
    """Grade (good, look, bad) and sentence."""

    grade: str
    sentence: str


@dataclass(frozen=True)
class Last:
    """A measure over all heads at the last step that was read."""

    measure: str
    label: str
    unit: str
    least: float | None
    mean: float | None
    largest: float | None
    limit: float | None


def checks_rules(training: Training) -> bool:
    """Whether the monitor looks for alerts; older versions always did."""
    return part_of(training.manifest, "settings").get("alerts") is not False


def answer_of(training: Training) -> Answer:
    """Healthy so far, or which alerts came first; neither if no rule was checked."""
    if not training.records:
        return Answer("look", "No step was read yet.")
    events, steps = training.events(), many(training.records[-1]["step"], "step")
    if not events and not checks_rules(training):
        return Answer("look", f"No rule was checked in {steps}: the monitor ran with alerts=False.")
    if not events:
        return Answer("good", f"Healthy so far: no alert in {steps}.")
    by_rule: dict[str, list[Event]] = {}
    for event in events:
        by_rule.setdefault(event.alert["rule"], []).append(event)
    kinds = [_sentence_part(same) for same in by_rule.values()]
    more = f", and {many(len(kinds) - _NAMED, 'more kind')}" if len(kinds) > _NAMED else ""
    grade = "bad" if any(event.words.grave for event in events) else "look"
    return Answer(grade, f"{many(len(events), 'alert')}: {'; '.join(kinds[:_NAMED])}{more}.")


def _sentence_part(same: Sequence[Event]) -> str:
    """Where and when the alerts of one rule were raised."""
    name, step = same[0].words.event, f"{same[0].alert['step']:,}"
    heads = list(dict.fromkeys(event.where for event in same))
    if len(heads) == 1:
        again = f" (and {len(same) - 1} times again)" if len(same) > 1 else ""
        return f"{name} in {heads[0]} at step {step}{again}"
    named = ", ".join(head.removeprefix("head ") for head in heads[:_HEADS])
    return f"{name} in {len(heads)} heads from step {step} on ({named}{', …' if len(heads) > _HEADS else ''})"


def last_values(training: Training) -> list[Last]:
    """Every measure at the last step that was read."""
    if not training.records:
        return []
    record = training.records[-1]

    def last(measure: str, limits: Any) -> Last:
        quantity = training.quantity(measure)
        least, mean, largest = (record["model"].get(reduced(measure, how)) for how in ("min", "mean", "max"))
        limit = shared_by([x for heads in grid(limits, record["layout"]) for x in heads])
        return Last(measure, quantity.label, quantity.unit, least, mean, largest, limit)

    return [last(measure, parts.get("limit")) for measure, parts in record["heads"].items()]


def shared_by(limits: Sequence[float | None]) -> float | None:
    """The limit of all heads; None if they differ, since one limit says nothing about another head."""
    known = [x for x in limits if x is not None]
    # In a distributed run, layers read the same rows of different batches: limits within 1 % are equal.
    same = known and max(known) - min(known) <= 0.01 * max(known)
    return sum(known) / len(known) if same else None


def reduced(measure: str, how: str) -> str:
    """The name of a measure over all heads in a record."""
    return f"{measure.replace('@N=', '_')}_{how}"


def grid(content: Any, layout: Sequence[int]) -> list[list[float | None]]:
    """Numbers by layer and head; a record stores equal numbers as one."""
    layers = content if isinstance(content, list) else [content] * len(layout)
    return [x if isinstance(x, list) else [x] * heads for x, heads in zip(layers, layout, strict=True)]


def key_numbers(training: Training) -> list[tuple[str, str, str]]:
    """Name, value and remark."""
    if not training.records:
        return []
    record, last = training.records[-1], {value.measure: value for value in last_values(training)}
    every = part_of(training.manifest, "settings").get("every")
    cards = [("step", number(record["step"]), f"read every {number(every)}" if every else "")]
    if (loss := record.get("loss")) is not None:
        first = training.records[0].get("loss")
        cards.append(("loss", number(loss), "" if first is None else f"at first {number(first)}"))
    if (rate := record.get("learning_rate")) is not None:
        cards.append(("learning rate", number(rate, 3), ""))
    entropy, logit = last.get("entropy"), last.get("max_logit")
    if entropy is not None and entropy.mean is not None and entropy.limit:
        beside = f"mean over heads; lowest head {percent((entropy.least or 0) / entropy.limit)}"
        cards.append(("entropy, share of its ceiling", percent(entropy.mean / entropy.limit), beside))
    if logit is not None and logit.largest is not None:
        cards.append(("largest logit", number(logit.largest, 3), "of any head"))
    return cards


def about_line(training: Training) -> list[str]:
    """Heads, layers and steps that were read."""
    if not training.records:
        return []
    layout = training.records[-1]["layout"]
    first, last = training.records[0]["step"], training.records[-1]["step"]
    parts = [
        f"{many(sum(layout), 'head')} in {many(len(layout), 'layer')}",
        f"steps read: {len(training.records):,} ({first:,} to {last:,})",
    ]
    rows = part_of(training.manifest, "settings").get("rows")
    return [*parts, f"{number(rows)} query rows of every sequence"] if rows else parts


def watch_summary(training: Training) -> dict[str, Any]:
    """What `abbe watch --json` prints of a training run.

    Without the table of all heads, which `abbe.open(folder).table` has.

    Args:
        training: from `abbe.open` of a folder that `abbe.Monitor` writes.

    Returns:
        Sentence and grade ("good", "look" or "bad"), values at the last step, alerts, losses, the manifest.

    Examples:
        >>> with abbe.Monitor(abbe.load("embedded").network, folder="run"):
        ...     pass
        >>> training = abbe.open("run")
        >>> abbe.views.watch_summary(training)["grade"]
        'look'
    """
    steps = [record["step"] for record in training.records]
    answer = answer_of(training)
    return {
        "sentence": answer.sentence,
        "grade": answer.grade,
        "steps_read": len(steps),
        "last_step": steps[-1] if steps else None,
        "last_values": [asdict(value) for value in last_values(training)],
        "alerts": [dict(event.alert) for event in training.events()],
        "steps": [
            {name: record.get(name) for name in ("step", "loss", "loss_mean", "learning_rate", "seconds")}
            for record in training.records
        ],
        "manifest": dict(training.manifest),
    }


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
    sentence = Text(plain(answer_of(training).sentence), style="bold")
    parts: list[RenderableType] = [sentence, Text(plain(about), style="dim")]
    for table in (alert_table(training, _IN_TERMINAL), values_table(training)):
        if table.rows:
            parts += [draw(table), *([Text(table.note, style="dim")] if table.note else [])]
    return Group(*parts, *skipped_lines(training.manifest))


def alert_table(training: Training, most: int) -> TextTable:
    """The latest alerts, the newest first."""
    events = training.events()[::-1]
    rows = [
        (
            event.words.event,
            f"{event.alert['step']:,}",
            event.where.removeprefix("head "),
            number(event.alert["value"], 3),
            number(event.alert["threshold"]),
        )
        for event in events[:most]
    ]
    left = len(events) - len(rows)
    note = f"{left:,} earlier alerts: --json, or abbe.open(folder).alerts" if left else ""
    return TextTable("Alerts", ("alert", "step", "head", "value", "threshold"), rows, note)


def values_table(training: Training) -> TextTable:
    """Every measure over all heads at the last step that was read."""
    values = last_values(training)
    rows = [
        (
            f"{value.label} ({value.unit})" if value.unit and value.unit not in value.label else value.label,
            *(number(x, 3) for x in (value.least, value.mean, value.largest, value.limit)),
        )
        for value in values
    ]
    step = training.records[-1]["step"] if values else 0
    return TextTable(f"Over all heads, step {step:,}", ("measure", "least", "mean", "largest", "limit"), rows)
