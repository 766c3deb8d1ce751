"""A made-up report for tests in a browser, and what its page is compared with."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import made_up_report as made
import polars as pl
from page_in_browser import Seen

from abbe.studies import Report
from abbe.words.finding import Finding

CHARTS = ("sizes", "lengths", "growth", "gradient", "ball", "alternatives")
PRINTED = ("growth", "gradient", "alternatives")
EVIL = "<script>document.title='x'</script>\"' &amp; שלום \u202eabc 👩‍🔬"
PLACES = made.grid(3, 4)
TOKENS = [
    EVIL, "\n", "\r\n", "\t", " ", "", "very" * 200, " שלום", " עולם", "<b>", "&lt;", "👩‍🔬",
    "'", '"', "\\", "\u202e", "a\u0301",
]  # fmt: skip


def made_up() -> Report:
    """Hostile words, and one measure with every kind of value that is none."""
    heads = made.table(PLACES)
    odd = {(0, 0): None, (0, 1): math.nan, (0, 2): math.inf, (0, 3): -math.inf}
    at = (pl.col("measure") == "logit_range") & (pl.col("length") == 1024)
    for (layer, head), value in odd.items():
        here = at & (pl.col("layer") == layer) & (pl.col("head") == head)
        heads = heads.with_columns(
            pl.when(here).then(pl.lit(value, pl.Float64)).otherwise(pl.col("value")).alias("value")
        )
    evil = Finding(EVIL, EVIL, EVIL, {EVIL: EVIL}, ((2, 1),))
    manifest = made.MANIFEST | {"model": {"name": EVIL, "about": EVIL}, "text": {"name": EVIL + "long" * 60}}
    texts = [*TOKENS, *(f" {made.WORDS[i % len(made.WORDS)]}" for i in range(60))]
    sample = made.sample(PLACES, texts)
    return made.report(
        PLACES, table=heads, manifest=manifest, verdicts=(*made.VERDICTS, evil), advice=(evil,), sample=sample
    )


def value_of(report: Report, measure: str, layer: int, head: int, column: str = "value", **more: Any) -> Any:
    wanted = {"measure": measure, "layer": layer, "head": head, "length": 1024} | more
    rows = report.table
    for name, value in wanted.items():
        rows = rows.filter(pl.col(name).is_null() if value is None else pl.col(name) == value)
    (value,) = rows[column]
    return value


CHART_ROWS = """name => {
  const inner = window.abbe.charts.fill; // the rows that a chart is given, as the page would give them
  return new Promise((done) => {
    window.abbe.charts.fill = (chart, data) => { if (chart === name) done(data); return inner(chart, data); };
  });
}"""


def rows_given(seen: Seen, chart: str, act: Callable[[], None]) -> dict[str, list[dict[str, Any]]]:
    seen.page.evaluate(f"name => {{ window.given = ({CHART_ROWS})(name); }}", chart)
    act()
    given: dict[str, list[dict[str, Any]]] = seen.page.evaluate("window.given")
    return given
