"""A training run as one offline page: what happened, curves of all heads over steps, the map of heads, alerts."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..._files import write_whole
from ...words.manifest import for_others, model_name
from ...words.training import Quantity, alert_numbers, alert_place, alert_words, listed, watched_words
from .._shared.data import packed_json, packed_table, plain_value
from .._shared.drawings import save_drawings
from .._shared.page import render, script
from .answer import about_line, alerts_of, answer_of, checks_rules, key_numbers
from .charts import watch_chart
from .kept import Kept, kept_of
from .table import values_table

if TYPE_CHECKING:
    from ...results import Training

SCRIPTS = (
    "page.js", "numbers.js", "map_cells.js", "report_data.js", "watch/data.js", "watch/draw.js", "watch/curves.js",
    "watch/map.js", "watch/alerts.js", "watch/address.js", "watch/start.js",
)  # fmt: skip
_SIGNS = {"good": ("✓", "good"), "look": ("!", "to look at"), "bad": ("✕", "bad")}  # seen without colours, too
_LISTED = 400  # alerts in the list of the page


def watch_page(training: Training, reload: int | None = None) -> str:
    """The page of a training run."""
    manifest, answer, alerts = for_others(training.manifest), answer_of(training), alerts_of(training)
    kept = kept_of(training) if training.records else None
    sign, grade_words = _SIGNS[answer.grade]
    measures = [watched_words(manifest, name) for name in kept.measures] if kept else []
    page = render(
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
        skipped=[str(why) for why in manifest.get("skipped") or ()],
        manifest=json.dumps(manifest, indent=2, ensure_ascii=False, default=str),
        **_data(kept, measures, alerts, reload),
    )
    return page.encode("utf-8", "replace").decode("utf-8")  # half a character in some text would break the file


def write_watch_page(training: Training, path: Path, reload: int | None = None) -> None:
    """Write the page of a training run as a file that is never seen half written."""
    write_whole(path, watch_page(training, reload), durable=False)


def save_watch_figures(training: Training, folder: str | os.PathLike[str]) -> list[Path]:
    """Draw a training run as PNG and SVG, light and dark."""
    return save_drawings(folder, lambda theme: {"watch": watch_chart(training, theme)})


def _rules(manifest: dict[str, Any]) -> list[tuple[str, ...]]:
    """What raises each alert, what arms it again, and where the number is from."""
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
