"""The page of a report in a real browser: how the tests open it, and what they see."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import made_up_report as made
import polars as pl
import pytest

from abbe.studies import Report
from abbe.words.finding import Finding

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = shutil.which("chromium")
without_chromium = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
QUIET = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-dev-shm-usage"]
WIDE, PHONE = {"width": 1280, "height": 900}, {"width": 360, "height": 740}
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


@contextmanager
def launched() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        found = started.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        yield found
        found.close()


class Seen:
    """A page in its own context, and everything it said and asked for."""

    def __init__(
        self, browser: Any, file: Path, scheme: str = "light", viewport: dict[str, int] = WIDE, link: str = "",
        **more: Any,
    ) -> None:  # fmt: skip
        self.file = file
        self.context = browser.new_context(color_scheme=scheme, viewport=viewport, **more)
        self.page = self.context.new_page()
        self.told: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda message: self.told.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.told.append(f"error: {error}"))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(file.as_uri() + link)

    def ready(self) -> Seen:
        self.page.locator("html[data-ready]").wait_for(state="attached")
        return self

    def drawn(self, theme: str, names: tuple[str, ...] = CHARTS) -> Seen:
        """Wait until the charts are drawn in the theme; a timeout is a failure."""
        for name in names:
            self.page.locator(f".chart:not(.print)[data-chart={name}][data-drawn={theme}] svg.marks").wait_for()
        return self

    def printed(self, names: tuple[str, ...] = PRINTED) -> Seen:
        for name in names:
            self.page.locator(f".chart.print[data-chart={name}][data-drawn=light] svg.marks").wait_for(state="attached")
        return self

    def quiet(self) -> None:
        """Nothing was said, and nothing was asked for but the file (and what it made itself)."""
        assert self.told == []
        asked = [url.partition("#")[0] for url in self.asked if not url.startswith("blob:")]
        assert asked == [self.file.as_uri()]

    def choose(self, label: str, value: str, place: str = "#heads") -> None:
        self.page.locator(place).get_by_label(label, exact=True).select_option(value)

    def text(self, place: str) -> str:
        return str(self.page.locator(place).inner_text())

    def cell(self, layer: int, head: int) -> Any:
        return self.page.locator(f"#map button[data-layer='{layer}'][data-head='{head}']")

    def marks(self, chart: str, kind: str = "symbol") -> int:
        return int(self.page.locator(f".chart:not(.print)[data-chart={chart}] .mark-{kind}.role-mark path").count())

    def colour(self, place: Any, what: str = "backgroundColor") -> str:
        return str(place.evaluate(f"e => getComputedStyle(e).{what}"))


Opened = Callable[..., Seen]


@contextmanager
def opener(browser: Any, file: Path) -> Iterator[Opened]:
    """Opens the file, or another one, as often as a test needs it."""
    contexts = []

    def open_page(
        scheme: str = "light", viewport: dict[str, int] = WIDE, other: Path | None = None, **more: Any
    ) -> Seen:
        seen = Seen(browser, other or file, scheme, viewport, **more)
        contexts.append(seen.context)
        return seen

    yield open_page
    for context in contexts:
        context.close()


def value_of(found: Report, measure: str, layer: int, head: int, column: str = "value", **more: Any) -> Any:
    wanted = {"measure": measure, "layer": layer, "head": head, "length": 1024} | more
    rows = found.run.table
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
