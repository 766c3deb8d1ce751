"""A training run as one offline page: what happened, curves of all heads over steps, the map of heads, alerts."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..._files import write_whole
from ...words.manifest import for_others, model_name
from ...words.training import Quantity, alert_numbers, alert_place, alert_words, listed, watched_words
from .._shared.data import packed_json, packed_table, plain_value
from .._shared.page import SIGNS, manifest_parts, render, script
from .answer import about_line, alerts_of, answer_of, checks_rules, key_numbers
from .kept import Kept, kept_of
from .table import values_table

if TYPE_CHECKING:
    from ...results import Training

SCRIPTS = (
    "page.js", "numbers.js", "map_cells.js", "report_data.js", "watch/data.js", "watch/draw.js", "watch/curves.js",
    "watch/map.js", "watch/alerts.js", "watch/address.js", "watch/start.js",
)  # fmt: skip
_LISTED = 400  # alerts in the list of the page


def watch_page(training: Training, reload: int | None = None) -> str:
    manifest, answer, alerts = for_others(training.manifest), answer_of(training), alerts_of(training)
    kept = kept_of(training) if training.records else None
    sign, grade_words = SIGNS[answer.grade]
    measures = [watched_words(manifest, name) for name in kept.measures] if kept else []
    return render(
        "watch.html.jinja",
        scripts=[script(name) for name in SCRIPTS] if kept else [script("page.js")],
        model=model_name(manifest),
        about=about_line(training),
        answer=answer,
        grade_sign=sign,
        grade_words=grade_words,
        numbers=key_numbers(training),
        kept=kept,
        measures=measures,
        rules=_rules(manifest),
        checked=checks_rules(training),
        values=values_table(training),
        alerts=[_alert(place, alert) for place, alert in enumerate(alerts)][-_LISTED:][::-1],
        unlisted=max(0, len(alerts) - _LISTED),
        reload=reload,
        **manifest_parts(manifest),
        **_data(kept, measures, alerts, reload),
    )


def write_watch_page(training: Training, path: Path, reload: int | None = None) -> None:
    """Write the page of a training run; a reader never sees a half-written file.

    Args:
        training: from `abbe.open` of a folder that `abbe.Monitor` writes.
        path: of the file.
        reload: seconds between reloads of an open page, >= 1; None: never.

    Examples:
        >>> from pathlib import Path
        >>> with abbe.Monitor(abbe.load("embedded").network, folder="run"):
        ...     pass
        >>> training = abbe.open("run")
        >>> abbe.views.write_watch_page(training, Path("run.html"), reload=5)
        >>> Path("run.html").read_text("utf-8")[:15]
        '<!doctype html>'
    """
    write_whole(path, watch_page(training, reload), durable=False)


def _rules(manifest: dict[str, Any]) -> list[tuple[str, ...]]:
    """What raises each alert, what re-arms it, and the source of its number."""
    parts = ("fires", "again", "source")
    return [
        (alert_words(str(rule.get("name"))).event, *(str(rule.get(part) or "") for part in parts))
        for rule in listed(manifest, "rules")
    ]


def _alert(place: int, alert: dict[str, Any]) -> dict[str, Any]:
    words = alert_words(alert["rule"])
    return {
        "place": place, "step": alert["step"], "event": words.event, "measure": words.measure,
        "layer": alert.get("layer"), "head": alert.get("head"), "where": alert_place(alert),
        "numbers": alert_numbers(alert),
    }  # fmt: skip


def _data(
    kept: Kept | None, measures: list[Quantity], alerts: list[dict[str, Any]], reload: int | None
) -> dict[str, Any]:
    """What the scripts read, compressed."""
    if kept is None:
        return {"about_data": "", "table_data": "", "model_data": ""}
    shown = [{name: plain_value(value) for name, value in _alert(i, one).items()} for i, one in enumerate(alerts)]
    about = {
        "steps": kept.steps,
        "places": [{"layer": layer, "head": head} for layer, head in kept.places],
        "measures": [asdict(words) for words in measures],
        "alerts": shown,
        "read": kept.read,
        "reload": reload,
    }
    return {
        "about_data": packed_json(about),
        "table_data": packed_table(kept.heads),
        "model_data": packed_table(kept.model),
    }
