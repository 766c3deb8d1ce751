"""What happened in a training run: one sentence and a few numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from ...words.manifest import part_of
from ...words.numbers import many, number, percent
from ...words.training import alert_place, alert_words, watched_words

if TYPE_CHECKING:
    from ...results import Training

_NAMED = 3  # events that a sentence names
_HEADS = 4  # heads that an event names


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


def alerts_of(training: Training) -> list[dict[str, Any]]:
    """All alerts in the order of their steps; not from the table, which is slow for a long run."""
    return [dict(alert) for record in training.records for alert in record["alerts"]]


def checks_rules(training: Training) -> bool:
    """Whether the monitor looks for alerts; older versions always did."""
    return part_of(training.manifest, "settings").get("alerts") is not False


def answer_of(training: Training) -> Answer:
    """Healthy so far, or which alerts came first; neither if no rule was checked."""
    alerts = alerts_of(training)
    if not training.records:
        return Answer("look", "No step was read yet.")
    steps = many(training.records[-1]["step"], "step")
    if not alerts and not checks_rules(training):
        return Answer("look", f"No rule was checked in {steps}: the monitor ran with alerts=False.")
    if not alerts:
        return Answer("good", f"Healthy so far: no alert in {steps}.")
    by_rule: dict[str, list[dict[str, Any]]] = {}
    for alert in alerts:
        by_rule.setdefault(alert["rule"], []).append(alert)
    events = [_event(rule, same) for rule, same in by_rule.items()]
    more = f", and {many(len(events) - _NAMED, 'more kind')}" if len(events) > _NAMED else ""
    grave = any(alert_words(rule).grave for rule in by_rule)
    return Answer("bad" if grave else "look", f"{many(len(alerts), 'alert')}: {'; '.join(events[:_NAMED])}{more}.")


def _event(rule: str, same: Sequence[Mapping[str, Any]]) -> str:
    event, step = alert_words(rule).event, f"{same[0]['step']:,}"
    places = list(dict.fromkeys(alert_place(alert) for alert in same))
    if len(places) == 1:
        again = f" (and {len(same) - 1} times again)" if len(same) > 1 else ""
        return f"{event} in {places[0]} at step {step}{again}"
    named = ", ".join(place.removeprefix("head ") for place in places[:_HEADS])
    return f"{event} in {len(places)} heads from step {step} on ({named}{', …' if len(places) > _HEADS else ''})"


def last_values(training: Training) -> list[Last]:
    """Every measure at the last step that was read."""
    if not training.records:
        return []
    record = training.records[-1]
    return [_last(training, name, parts) for name, parts in record["heads"].items()]


def _last(training: Training, name: str, parts: Mapping[str, Any]) -> Last:
    record, words = training.records[-1], watched_words(training.manifest, name)
    least, mean, largest = (record["model"].get(reduced(name, how)) for how in ("min", "mean", "max"))
    limit = shared_by([x for heads in grid(parts.get("limit"), record["layout"]) for x in heads])
    return Last(name, words.label, words.unit, least, mean, largest, limit)


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
    record, last = training.records[-1], {one.measure: one for one in last_values(training)}
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
    return {
        "sentence": answer_of(training).sentence,
        "grade": answer_of(training).grade,
        "steps_read": len(steps),
        "last_step": steps[-1] if steps else None,
        "last_values": [asdict(one) for one in last_values(training)],
        "alerts": alerts_of(training),
        "steps": [
            {name: record.get(name) for name in ("step", "loss", "loss_mean", "learning_rate", "seconds")}
            for record in training.records
        ],
        "manifest": dict(training.manifest),
    }
