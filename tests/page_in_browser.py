"""A page in a real browser, from disk: how every test opens it, and what it sees."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium")
needs_browser = pytest.mark.skipif(
    CHROMIUM is None or importlib.util.find_spec("playwright") is None, reason="chromium or playwright is not installed"
)
QUIET = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-dev-shm-usage"]
WIDE, PHONE = {"width": 1280, "height": 900}, {"width": 360, "height": 740}


@contextmanager
def launched() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        yield browser
        browser.close()


class Seen:
    """A page in its own context, with all its messages and requests."""

    def __init__(
        self, browser: Any, file: Path, scheme: str = "light", viewport: dict[str, int] = WIDE, link: str = "",
        **more: Any,
    ) -> None:  # fmt: skip
        self.file = file
        self.context = browser.new_context(color_scheme=scheme, viewport=viewport, **more)
        self.page = self.context.new_page()
        self.messages: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.messages.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.messages.append(f"error: {error}"))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(file.as_uri() + link)

    def ready(self) -> Seen:
        self.page.locator("html[data-ready]").wait_for(state="attached")
        return self

    def drawn(self, theme: str, charts: Sequence[str] = ()) -> Seen:
        """Wait until these charts, or all, are drawn in the theme; a timeout is a failure."""
        for name in charts or self.charts():
            self.page.locator(f".chart:not(.print)[data-chart='{name}'][data-drawn={theme}] svg.marks").wait_for()
        return self

    def printed(self, charts: Sequence[str] = ()) -> Seen:
        """Wait until these charts, or all, are drawn for paper, where every theme is light."""
        for name in charts or self.charts(".chart.print"):
            drawing = self.page.locator(f".chart.print[data-chart='{name}'][data-drawn=light] svg.marks")
            drawing.wait_for(state="attached")
        return self

    def charts(self, place: str = ".chart:not(.print)") -> list[str]:
        names: list[str] = self.page.locator(place).evaluate_all("all => all.map(e => e.dataset.chart)")
        assert names  # else there would be nothing to wait for
        return names

    def quiet(self) -> None:
        """No message, and no request but for the file (and what it made itself)."""
        assert self.messages == []
        requests = [url.partition("#")[0] for url in self.requests if not url.startswith("blob:")]
        assert requests == [self.file.as_uri()]

    def fits(self) -> None:
        """Nothing is wider than the screen."""
        wide = self.page.evaluate("() => Math.max(document.documentElement.scrollWidth, document.body.scrollWidth)")
        assert wide <= self.page.viewport_size["width"]

    def open_details(self) -> None:
        for details in self.page.locator("details:not(.vega-embed details)").all():
            details.locator("summary").click()

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

    def ground(self) -> str:
        return self.colour(self.page.locator("body"))


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
