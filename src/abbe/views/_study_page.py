"""The offline page of a study with findings, charts and tables: capacity, calibration, experiments of the lab."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..words.finding import Finding
from ..words.manifest import for_others, part_of
from ..words.numbers import duration
from ._shared.data import both_themes
from ._shared.page import as_json, manifest_parts, numbers_of, render, script, vega
from ._shared.series import Spec
from ._shared.terminal import TextTable
from ._shared.theme import ThemeName

if TYPE_CHECKING:
    from ..results import Result

_SCRIPTS = ("page.js", "charts.js", "choose.js", "compare_start.js")


def _shown(charts: Mapping[ThemeName, Mapping[str, Spec]] | None) -> list[dict[str, Any]]:
    """Name, columns, and with several charts the heading of each: scripts draw a chart without its title."""
    drawn = next(iter(charts.values())) if charts else {}
    return [
        {
            "name": name,
            "columns": chart["columns"] if len(drawn) > 1 else 2,
            "title": chart["title"]["text"] if len(drawn) > 1 else "",
            "about": chart["title"]["subtitle"] if len(drawn) > 1 else [],
        }
        for name, chart in drawn.items()
    ]


def study_page(
    result: Result, question: str, about: Sequence[str], findings: Iterable[Finding], tables: Sequence[TextTable],
    charts: Mapping[ThemeName, Mapping[str, Spec]] | None = None,
) -> str:  # fmt: skip
    """The question as title, then findings, charts in both themes, tables, manifest."""
    manifest = for_others(result.manifest)
    return render(
        "study.html.jinja",
        scripts=[*([vega()] if charts else []), *map(script, _SCRIPTS)],
        study=result.study,
        question=question,
        about=about,
        took=duration(part_of(manifest, "seconds").get("total")),
        findings=[(finding, numbers_of(finding.numbers)) for finding in findings],
        charts_shown=_shown(charts),
        tables=tables,
        **manifest_parts(manifest),
        charts=as_json(both_themes(charts) if charts else {}),
    )
