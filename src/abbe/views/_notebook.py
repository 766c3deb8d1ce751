"""What a run and a report show in a notebook: charts as SVG, without a script, on a white card that suits any theme."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from ..words.finding import NOTICE, Finding, KeyNumber
from ..words.measures import measure_words
from ..words.numbers import MISSING, interval, number
from ._diagnosis import summary
from ._report.charts_growth import growth_chart
from ._report.charts_map import map_chart
from ._report.charts_table import about_lines, of_heads, shown_size
from ._shared.drawings import svg
from ._shared.theme import FONT, LIGHT

if TYPE_CHECKING:
    from ..results import Run
    from ..studies import Report

_CARD = (
    f"background:{LIGHT.background};color:{LIGHT.ink};font:14px/1.45 {FONT};border:1px solid {LIGHT.line};"
    "border-radius:6px;padding:12px 16px;max-width:760px;overflow-x:auto"
)
_CELL = f"padding:2px 14px 2px 0;border:0;border-bottom:1px solid {LIGHT.line};background:none;color:{LIGHT.ink}"
_MAIN = (  # what a first look needs; the table of the run holds all
    "effective_tokens", "entropy", "max_weight", "sink_mass", "previous_token", "induction", "top_mass",
    "separability", "distance_per_token", "selected_divergence", "sensitivity_worst_mean", "decay_exponent",
)  # fmt: skip


def run_html(run: Run) -> str:
    """What was measured on what, the map of the heads, their growth, the main measures, and what was skipped."""
    skipped = [escape(str(why)) for why in run.manifest.get("skipped") or ()]
    parts = [_about(run), _charts(run), _main_measures(run), _list("Skipped", skipped)]
    return card(parts)


def report_html(report: Report) -> str:
    """The answer, the numbers that matter, the verdicts, the advice, and the charts of all heads."""
    parts = [_answer(report), _about(report.run), _numbers(report.numbers)]
    notice = [] if report.learned or not report.advice else [f"<b>{escape(NOTICE)}</b>"]
    parts += [_list("Verdict", _sentences(report.verdicts)), _list("Advice", [*notice, *_sentences(report.advice)])]
    return card([*parts, _charts(report.run)])


def _answer(report: Report) -> str:
    answer = report.answer
    colour = {"good": LIGHT.good, "look": LIGHT.bad, "bad": LIGHT.alarm}[answer.grade]
    style = f"margin:0 0 8px;padding-left:10px;border-left:4px solid {colour};font-size:17px"
    return f'<p style="{style}" title="{escape(answer.rule)}"><b>{escape(answer.sentence)}</b></p>'


def card(parts: Iterable[str]) -> str:
    return f'<div style="{escape(_CARD)}">\n' + "\n".join(part for part in parts if part) + "\n</div>"


def _about(run: Run) -> str:
    """One line: what was measured on what."""
    heads = of_heads(run.table).select("layer", "head").unique().height
    name, *rest = about_lines(run)
    details = [f"{heads:,} {'head' if heads == 1 else 'heads'}", *rest, f"{len(run.table):,} rows"]
    error = (run.manifest.get("self_check") or {}).get("error")
    if isinstance(error, float):
        details.append(f"self-check error {error:.1e}")
    about = (run.manifest.get("model") or {}).get("about")
    if about:
        details.insert(0, str(about))
    return f'<p style="margin:0 0 8px"><b>{escape(name)}</b>: {escape(", ".join(details))}</p>'


def _charts(run: Run) -> str:
    return "\n".join(svg(chart) for chart in (map_chart(run, "light"), growth_chart(run, "light")))


def _main_measures(run: Run) -> str:
    """Means over heads at the longest length and the size that the charts show; of the main measures, if any is."""
    rows = summary(run.table, shown_size(run)).to_dicts()
    main = sorted((row for row in rows if row["measure"] in _MAIN), key=lambda row: _MAIN.index(row["measure"]))
    titles = ("mean over heads", "N", "value", "limit", "control")
    cells = [
        [measure_words(row["measure"]).label, *(number(row[name]) for name in ("n", "value", "limit", "control"))]
        for row in main or rows
    ]
    return table_of(titles, cells) if cells else ""


def _numbers(numbers: Sequence[KeyNumber]) -> str:
    cells = [[key.name, key.shown, interval(key.low, key.high, number) or MISSING, key.meaning] for key in numbers]
    return table_of(("number", "value", "interval", "meaning"), cells) if cells else ""


def table_of(titles: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    head = "".join(_cell("th", title) for title in titles)
    body = "".join(f'<tr style="background:none">{"".join(_cell("td", cell) for cell in row)}</tr>' for row in rows)
    return f'<table style="border-collapse:collapse;margin:8px 0;font-size:13px"><tr>{head}</tr>{body}</table>'


def _cell(kind: str, content: Any) -> str:
    return f'<{kind} style="{_CELL};text-align:left;vertical-align:top">{escape(str(content))}</{kind}>'


def finding_list(title: str, findings: Iterable[Finding]) -> str:
    return _list(title, _sentences(findings))


def _sentences(findings: Iterable[Finding]) -> list[str]:
    return [f'<span title="{escape(finding.rule)}">{escape(finding.sentence)}</span>' for finding in findings]


def _list(title: str, items: Sequence[str]) -> str:
    if not items:
        return ""
    return f"<p><b>{title}</b></p><ul>{''.join(f'<li>{item}</li>' for item in items)}</ul>"
