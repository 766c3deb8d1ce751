"""A reproduction of the paper for people: one offline page, and static figures for papers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import polars as pl

from ...words.manifest import for_others, model_name, part_of
from ...words.numbers import duration, number, percent
from ...words.paper import DRIFT, FIGURES, PAPER_SECONDS
from .._shared.page import as_json, manifest_parts, numbers_of, render, script, vega
from .._shared.theme import THEMES
from .figures import specification
from .words import WORDS, settings_line

if TYPE_CHECKING:
    from ...studies import Figure, Reproduction

ANSWERS = {"holds": ("✓", "good"), "does not hold": ("✗", "bad"), "cannot be judged": ("?", "soft")}
READINGS_NOTE = "In brackets: the share of the tests that reject at every N. The number is that of the middle test."
_SHOWN_ROWS = 200  # longer tables stay in the run folder


def reproduction_page(reproduction: Reproduction) -> str:
    manifest = reproduction.manifest
    shown = ordered(reproduction)
    return render(
        "reproduce.html.jinja",
        scripts=[vega(), script("page.js"), script("charts.js")],
        model=model_name(manifest),
        facts=facts(reproduction),
        count=reproduction.answer,
        claims=[(claim, *ANSWERS[claim.answer], numbers_of(claim.numbers)) for claim in reproduction.claims],
        figures=[(figure, WORDS[figure.name], settings_line(figure), _tables(figure)) for figure in shown],
        readings=readings_rows(reproduction),
        readings_note=READINGS_NOTE,
        times=times(reproduction),
        total=duration(part_of(manifest, "seconds").get("total")),
        **manifest_parts(for_others(manifest)),
        charts=as_json({figure.name: _both_themes(figure) for figure in shown}),
    )


def ordered(reproduction: Reproduction) -> list[Figure]:
    """In the paper's order, ours last."""
    return [reproduction.figures[name] for name in (*FIGURES, DRIFT) if name in reproduction.figures]


def _both_themes(figure: Figure) -> dict[str, Any]:
    """The chart in both themes, with shared data only once."""
    charts: dict[str, Any] = {theme: dict(specification(figure, theme)) for theme in THEMES}
    data = [charts[theme].pop("datasets") for theme in THEMES]
    return charts | {"datasets": data[0] | data[1]}


def facts(reproduction: Reproduction) -> list[tuple[str, str]]:
    """What was measured on what, from the manifest."""
    manifest = for_others(reproduction.manifest)
    model, text, settings = (part_of(manifest, name) for name in ("model", "text", "settings"))
    heads = next((f.about["heads"] for f in reproduction.figures.values() if f.about.get("heads")), None)
    details = [
        ("model", _joined(model.get("name"), model.get("about"))),
        ("text", _joined(text.get("name"), _counted(text.get("characters"), "characters"))),
        ("heads", "" if heads is None else str(heads)),
        ("windows", _windows(settings, manifest.get("windows"))),
    ]
    error = part_of(manifest, "self_check").get("error")
    if error is not None:
        details.append(("self-check", f"the model's output was rebuilt within {error:.1e} of its standard deviation"))
    return [(name, value) for name, value in details if value]


def _joined(*parts: Any) -> str:
    return ", ".join(str(part) for part in parts if part)


def _counted(number: Any, what: str) -> str:
    return f"{number:,} {what}" if isinstance(number, int) else ""


def _windows(settings: Mapping[str, Any], windows: Any) -> str:
    number = settings.get("windows", len(windows) if isinstance(windows, list) else None)
    lengths = settings.get("lengths") or ()
    tokens = f"{', '.join(str(length) for length in lengths)} tokens" if lengths else ""
    return _joined(tokens, "" if number is None else f"{number} of each length" if tokens else str(number))


def readings_rows(reproduction: Reproduction) -> tuple[int, list[str], list[list[str]]] | None:
    """Critical N under every reading at the longest length, for token embeddings: length, levels, and a row each."""
    figure = reproduction.figures.get("2c")
    table = None if figure is None else figure.tables.get("readings")
    if table is None or not table.height:
        return None
    chosen = table.filter((pl.col("vectors") == "embedding") & (pl.col("length") == pl.col("length").max()))
    levels = sorted(chosen["level"].unique().to_list())
    rows: dict[tuple[str, str], list[str]] = {}
    for row in chosen.sort("level", maintain_order=True).iter_rows(named=True):
        rows.setdefault((row["expected"], row["test"]), []).append(_critical(row))
    shown = [[*reading, *cells] for reading, cells in rows.items()]
    return int(chosen["length"][0]), [f"{level:g}" for level in levels], shown


def _critical(row: Mapping[str, Any]) -> str:
    """ "12", "none up to 512"; for many tests, in brackets the share that rejects at every size."""
    if row["rejecting"] is None:
        return "not tested"
    critical = f"none up to {row['largest_n']}" if row["critical_n"] is None else number(row["critical_n"])
    return critical if row["test"] == "head means" else f"{critical} ({percent(row['rejecting'])})"


def times(reproduction: Reproduction) -> list[tuple[str, str, str]]:
    """Per figure of the paper: its name, our time, the paper's."""
    return [
        (WORDS[name].name, duration(reproduction.seconds.get(name)), duration(PAPER_SECONDS[name]))
        for name in FIGURES
        if name in reproduction.seconds
    ]


def _tables(figure: Figure) -> list[tuple[list[str], list[list[str]]]]:
    """The tables behind a figure that are short enough to read."""
    return [_table(table) for table in figure.tables.values() if 0 < table.height <= _SHOWN_ROWS]


def _table(table: pl.DataFrame) -> tuple[list[str], list[list[str]]]:
    return [name.replace("_", " ") for name in table.columns], [[number(v) for v in row] for row in table.iter_rows()]
