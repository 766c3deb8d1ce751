"""The report for people: one offline page that answers how selective a model is, head by head."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import polars as pl
from markupsafe import Markup

from ...words.finding import NOTICE, KeyNumber
from ...words.manifest import for_others, model_name, part_of, precision_of, without_folder
from ...words.measures import (
    MeasureWords,
    column_words,
    glossary,
    is_end,
    measure_words,
    measures_of,
    without_temperature,
)
from ...words.names import BASELINE
from ...words.numbers import interval, many, number, percent
from ...words.thresholds import FAINT, FRAGILE
from .._shared.data import both_themes, packed_json, packed_table, plain_rows
from .._shared.page import SIGNS, manifest_parts, numbers_of, render, script, vega
from .._shared.theme import THEMES
from .charts_table import shown_size
from .figures import chart_specifications

if TYPE_CHECKING:
    from ...studies import Report

SCRIPTS = (
    "page.js", "numbers.js", "charts.js", "map_cells.js", "report_data.js", "report_map.js", "report_head.js",
    "report_tokens.js", "report_heat.js", "report_steps.js", "report_sorting.js", "report_table.js",
    "report_address.js", "report_start.js",
)  # fmt: skip
KINDS = ("sharp", "selective", "fading", "blurred", "uniform", "sink", "not measured")


def report_page(report: Report) -> str:
    manifest = for_others(report.run.manifest)
    table = _for_page(report.run.table)
    measures = measures_of(table)
    sign, grade_words = SIGNS[report.answer.grade]
    return render(
        "report.html.jinja",
        scripts=[vega(), *(script(name) for name in SCRIPTS)],
        model=model_name(manifest),
        measured=measured(report),
        precision=precision_of(manifest),
        facts=facts(report),
        answer=report.answer,
        grade_sign=sign,
        grade_words=grade_words,
        steps=report.next_steps(manifest),
        numbers=[_card(number) for number in report.numbers],
        verdicts=[(finding, numbers_of(finding.numbers)) for finding in report.verdicts],
        advice=[(finding, numbers_of(finding.numbers)) for finding in report.advice],
        notice="" if report.learned else NOTICE,
        heads=report.heads,
        growth=_cells(report.growth),
        faint=number(FAINT),
        floors=_cells(report.floors),
        fragile=number(FRAGILE),
        alternatives=report.alternatives.height > 0,
        sample=report.sample is not None,
        **manifest_parts(manifest),
        glossary=glossary(measures),
        **_data(report, table, [_measure(words) for words in measures]),
    )


def _data(report: Report, table: pl.DataFrame, measures: list[dict[str, Any]]) -> dict[str, Markup]:
    """What the scripts read, compressed."""
    columns = report.alternatives.columns
    about = {
        "model": model_name(report.run.manifest),
        "causal": part_of(report.run.manifest, "model").get("kind") == "decoder",
        "measures": measures,
        "shown_size": shown_size(report.run),
        "kinds": KINDS,
        "layers": [str(name) for name in report.run.manifest.get("layers") or ()],
        "heads": [asdict(verdict) | {"numbers": numbers_of(verdict.numbers)} for verdict in report.heads],
        "alternatives": plain_rows(report.alternatives),
        "baseline": BASELINE,
        "columns": {name: column_words(name) for name in columns if not is_end(name, columns)},
    }
    charts = {theme: chart_specifications(report, theme) for theme in THEMES}
    for of_theme in charts.values():
        del of_theme["map"]  # the page has a map of buttons
    sample = None if report.sample is None else report.sample.as_json()
    return {
        "about_data": packed_json(about),
        "table_data": packed_table(table),
        "sample_data": packed_json(sample),
        "chart_data": packed_json(both_themes(charts)),
    }


def _measure(words: MeasureWords) -> dict[str, Any]:
    """With its family: on the page, a measure and its temperature are chosen separately."""
    family, temperature = without_temperature(words.name)
    return asdict(words) | {
        "family": family, "family_label": measure_words(family).label, "temperature": temperature,
    }  # fmt: skip


def _for_page(table: pl.DataFrame) -> pl.DataFrame:
    """Pages are passed on, so a model's name that is a path on this machine loses its folders."""
    names = {name: without_folder(name) for name in table["model"].unique() if name}
    return table.with_columns(pl.col("model").replace(names)) if names else table


def measured_line(report: Report) -> str:
    """What was measured on what, in one line."""
    return ", ".join(measured(report)) + "."


def measured(report: Report) -> list[str]:
    """The parts of that line, separate so that a page can isolate the writing direction of each."""
    manifest = report.run.manifest
    text, settings = part_of(manifest, "text"), part_of(manifest, "settings")
    places = report.run.table.select("layer", "head").drop_nulls().unique()
    lengths = sorted(report.run.table["length"].drop_nulls().unique())
    parts = [f"{many(places.height, 'head')} in {many(places['layer'].n_unique(), 'layer')}"]
    if lengths:
        parts.append(f"windows of {_listed(lengths)} tokens")
    if text.get("name"):
        parts.append(f"from “{text['name']}”")
    if settings.get("windows"):
        parts.append(_windows(manifest))
    return parts


def _windows(manifest: Mapping[str, Any]) -> str:
    """How many were measured: a short text holds fewer than requested."""
    windows, requested = manifest.get("windows"), part_of(manifest, "settings")["windows"]
    measured = windows if isinstance(windows, list) else []
    counts = list(Counter(window["length"] for window in measured).values()) or [requested]
    least, most = min(counts), max(counts)
    return f"{most} of each length" if least == most else f"{least} to {most} of each length"


def _listed(numbers: Sequence[int]) -> str:
    *first, last = [f"{number:,}" for number in numbers]
    return f"{', '.join(first)} and {last}" if first else last


def facts(report: Report) -> list[tuple[str, str]]:
    """Details that the manifest holds."""
    manifest = for_others(report.run.manifest)
    model, text, settings = (part_of(manifest, name) for name in ("model", "text", "settings"))
    characters, error = text.get("characters"), part_of(manifest, "self_check").get("error")
    details: dict[str, Any] = {
        "model": " · ".join(str(part) for part in (model.get("name"), model.get("about"), model.get("class")) if part),
        "text": text.get("name", "") if characters is None else f"{text.get('name', '')}, {characters:,} characters",
        "queries": f"{settings['queries']} per window" if settings.get("queries") else "",
        "token vectors": settings.get("vectors") or "",
        "normalizer": settings.get("normalizer") or "as in the model",
        "self-check": "" if error is None else f"the model's output was rebuilt within {error:.1e} of its "
        "standard deviation",
        "intervals": f"{settings['level']:.0%}, by resampling windows; few windows make them too narrow (of 95 %: 4 "
        "hold 87 %, 8 hold 93 % of the time)" if settings.get("level") else "",
        "made": manifest.get("made") or "",
    }  # fmt: skip
    return [(name, str(value)) for name, value in details.items() if value]


def _card(number: KeyNumber) -> dict[str, Any]:
    """A key number as the template shows it."""
    known = (("limit", number.limit), ("control", number.control))
    beside = [(name, beside_value(number, value)) for name, value in known if value is not None]
    ends = [beside_value(number, end) for end in (number.low, number.high) if end is not None]
    return {
        "name": number.name, "value": number.shown, "interval": " to ".join(ends), "beside": beside,
        "meaning": number.meaning,
    }  # fmt: skip


def beside_value(key: KeyNumber, value: float) -> str:
    """In the unit of the number."""
    return percent(value) if key.shown.endswith("%") else number(value, 3)


def _cells(table: pl.DataFrame) -> dict[str, list[Any]]:
    """Columns and rows of a table; a cell is a text, with its interval, and the value it is sorted by."""
    names = [name for name in table.columns if not is_end(name, table.columns)]
    rows = [[_cell(row, name) for name in names] for row in table.iter_rows(named=True)]
    return {"columns": [column_words(name) for name in names], "rows": rows}


def _cell(row: Mapping[str, Any], name: str) -> tuple[str, str]:
    value, around = row[name], interval(row.get(f"{name}_low"), row.get(f"{name}_high"))
    return number(value, 3) + (f" ({around})" if around else ""), "" if value is None else str(value)
