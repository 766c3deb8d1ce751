"""A comparison of normalizers for people: one offline page, a table in the terminal, and figures for papers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import polars as pl

from ...words.columns import Column
from ...words.manifest import for_others, model_name, part_of
from ...words.names import JUMPS
from ...words.numbers import many, number
from .._shared.data import both_themes
from .._shared.page import as_json, manifest_parts, numbers_of, render, script, vega
from .._shared.series import Spec
from .._shared.theme import THEMES, ThemeName
from .charts import pareto_chart
from .charts_needle import needle_chart
from .words import BETWEEN_JUMPS, BY_NAME, COLUMNS, IN_TABLE, PARTS, cell_text, interval, name_of, value_text

if TYPE_CHECKING:
    from ...studies import Comparison

SCRIPTS = ("page.js", "charts.js", "compare_setup.js", "report_sorting.js", "compare_start.js")
ALL = "all"


def compare_page(comparison: Comparison) -> str:
    manifest = for_others(comparison.manifest)
    finding, more = comparison.recommendation, [column for column in COLUMNS if column.name not in IN_TABLE]
    return render(
        "compare.html.jinja",
        scripts=[vega(), *map(script, SCRIPTS)],
        model=model_name(manifest),
        measured=measured_line(comparison),
        facts=facts(comparison),
        finding=finding,
        numbers=numbers_of(finding.numbers),
        parts=list(PARTS.values()),
        judgements=judgement_rows(comparison),
        columns=[BY_NAME[name].label for name in IN_TABLE],
        rows=[cells(row, [BY_NAME[name] for name in IN_TABLE]) for row in comparison.table.to_dicts()],
        between_jumps=jumps_remark(comparison),
        more_columns=[column.label for column in more],
        more_rows=[cells(row, more) for row in comparison.table.to_dicts()],
        needle=needle_rows(comparison.needle),
        given=1 + int(part_of(manifest, "settings").get("needle_decoys") or 0),
        chance=_chances(comparison.needle),
        glossary=[(column.label, column.name, _meaning(column.meaning, manifest)) for column in COLUMNS],
        **manifest_parts(manifest),
        charts=as_json(both_themes({theme: compare_charts(comparison, theme) for theme in THEMES})),
    )


def compare_charts(comparison: Comparison, theme: ThemeName) -> dict[str, Spec]:
    charts = {"pareto": pareto_chart(comparison, theme)}
    return charts | ({"needle": needle_chart(comparison, theme)} if comparison.needle.height else {})


def cells(row: Mapping[str, Any], columns: Sequence[Column]) -> tuple[str, list[tuple[str, str, str]]]:
    """The name of a normalizer and its cells: a number, its interval, and the value by which it is sorted."""
    return name_of(row["normalizer"]), [
        (cell_text(column, row), interval(column, row), "" if (value := row[column.name]) is None else str(value))
        for column in columns
    ]


def jumps_remark(comparison: Comparison) -> str:
    """Explains the mark at some sensitivities; empty if none is marked."""
    return BETWEEN_JUMPS if comparison.table[JUMPS].any() else ""


def judgement_rows(comparison: Comparison) -> list[tuple[str, list[bool]]]:
    """Per alternative, whether each part of the rule holds."""
    rows = comparison.judgements.to_dicts()
    return [(str(row["normalizer"]), [bool(row[name]) for name in PARTS]) for row in rows]


def needle_rows(needle: pl.DataFrame) -> list[dict[str, Any]]:
    """Per normalizer and kind, each length and all lengths together."""
    rows = needle.filter(pl.col("kind").is_not_null() & pl.col("depth").is_null()).to_dicts()
    columns = [BY_NAME[f"needle_{name}"] for name in ("accuracy", "gain", "margin")]
    shown = []
    for row in rows:
        name, measured = cells(row | {f"needle_{key}": value for key, value in row.items()}, columns)
        length = ALL if row["length"] is None else number(row["length"])
        shown.append({
            "name": name, "kind": row["kind"], "length": length, "prompts": number(row["prompts"]),
            "measured": measured, "chance": value_text(columns[0], row["chance"]),
        })  # fmt: skip
    return shown


def _chances(needle: pl.DataFrame) -> str:
    """Chance over all prompts."""
    whole = needle.filter(pl.col("kind").is_null())
    return value_text(BY_NAME["needle_accuracy"], whole["chance"][0]) if whole.height else ""


def _meaning(meaning: str, manifest: Mapping[str, Any]) -> str:
    tau = part_of(manifest, "settings").get("tau", 0.05)
    words = meaning.replace("{tau}", f"{100 * tau:g} % at most")
    return words[:1].upper() + words[1:] + "."


def measured_line(comparison: Comparison) -> str:
    """What was compared on what, in one line."""
    manifest = comparison.manifest
    windows, length = len(manifest.get("windows") or ()), part_of(manifest, "settings").get("length")
    parts = [f"{many(comparison.table.height - 1, 'alternative')} to the model's attention as it is"]
    if windows:
        parts.append(f"each on the same {windows} windows of {length:,} tokens")
    if name := part_of(manifest, "text").get("name"):
        parts.append(f"from “{name}”")
    return ", ".join(parts) + "."


def facts(comparison: Comparison) -> list[tuple[str, str]]:
    """Details that the manifest holds."""
    manifest = for_others(comparison.manifest)
    model, text, settings = (part_of(manifest, name) for name in ("model", "text", "settings"))
    error, seconds = part_of(manifest, "self_check").get("error"), part_of(manifest, "seconds").get("total")
    threads = part_of(manifest, "machine").get("threads")
    known = {
        "model": " · ".join(str(part) for part in (model.get("name"), model.get("about"), model.get("class")) if part),
        "text": f"{text.get('name', '')}, {text['characters']:,} characters" if text.get("characters") else "",
        "queries": f"{settings['queries']} per window" if settings.get("queries") else "",
        "capacity": _capacity_words(settings) if settings.get("tau") else "",
        "self-check": "" if error is None else f"softmax swapped in reproduces the model's output within {error:.1e} "
        "of its standard deviation",
        "intervals": f"{100 * settings['level']:g} %, by resampling the same windows in pairs; of needle gains "
        "exact, from the prompts on which two differ" if settings.get("level") else "",
        "took": "" if seconds is None else f"{seconds:.0f} s on {threads} threads",
        "made": manifest.get("made") or "",
    }  # fmt: skip
    return [(name, str(value)) for name, value in known.items() if value]


def _capacity_words(settings: Mapping[str, Any]) -> str:
    exact = settings.get("grid") == "exact"
    return f"loss rise of {100 * settings['tau']:g} %, on all windows" + ("" if exact else ", between powers of 2")
