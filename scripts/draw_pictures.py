"""draw_pictures: how a picture comes out of a finished run: a file of it, a page in a browser, or a stored table."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drawings import save

ROOT = Path(__file__).resolve().parents[1]
WIDTH = 1280
QUIET = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-dev-shm-usage"]
# What floats above the page would lie across a picture of one part of it.
PLAIN = """
nav { position: static !important; }
main section { padding-inline: 16px; }
.vega-embed summary { visibility: hidden; }
"""


@dataclass(frozen=True)
class Sources:
    """The folder of the run, and a browser for those that need one."""

    folder: Path
    browser: Callable[[], Any]


def file_of(path: str) -> Callable[[Sources, Path], None]:
    """A figure that the run itself drew."""

    def draw(sources: Sources, picture: Path) -> None:
        shutil.copyfile(sources.folder / path, picture)

    return draw


def screen(page: str, *, part: str = "", height: int = 1000) -> Callable[[Sources, Path], None]:
    """The first screen of a page in the light theme, or one part of it, cut off at this height."""

    def draw(sources: Sources, picture: Path) -> None:
        context = sources.browser().new_context(color_scheme="light", viewport={"width": WIDTH, "height": height})
        view = context.new_page()
        view.goto((sources.folder / page).resolve().as_uri())
        if part:
            view.add_style_tag(content=PLAIN)
        view.evaluate("document.fonts.ready")
        _wait_for_charts(view)
        if part:
            view.locator(part).first.screenshot(path=picture)
        else:
            view.screenshot(path=picture)
        context.close()

    return draw


def _wait_for_charts(view: Any) -> None:
    """Charts are drawn one by one after the page has loaded; those that it keeps for paper are not waited for."""
    shown = "[...document.querySelectorAll('.chart:not(.print)')].filter(chart => chart.offsetParent !== null)"
    view.wait_for_load_state("load")
    view.wait_for_function(f"{shown}.every(chart => chart.querySelector('svg'))", timeout=60_000)
    view.wait_for_timeout(300)  # the last one is laid out


@contextmanager
def browsing() -> Iterator[Callable[[], Any]]:
    """A browser that starts when it is first asked for."""
    started: list[Any] = []

    def browser() -> Any:
        if not started:
            from playwright.sync_api import sync_playwright

            play = sync_playwright().start()
            # The system's, or the one that `playwright install chromium` brings.
            started.extend([play, play.chromium.launch(executable_path=shutil.which("chromium"), args=QUIET)])
        return started[1]

    try:
        yield browser
    finally:
        for one in started[1:]:
            one.close()
        for one in started[:1]:
            one.stop()


def sparse_attention(_sources: Sources, picture: Path) -> None:
    """Chart of the stored lines of `make bench ARGS="--part sparse"`, which takes an hour."""
    measured = ROOT / "benchmarks" / "sparse_attention.jsonl"
    script = [sys.executable, str(ROOT / "benchmarks" / "figure.py"), str(measured), str(picture)]
    subprocess.run(script, check=True)


def curve_of_the_card(_sources: Sources, picture: Path) -> None:
    """Curve of the table of the model card, which holds every point of the training run."""
    from model_card import draw_curve

    card = (ROOT / "src" / "abbe" / "embedded" / "MODEL_CARD.md").read_text(encoding="utf-8")
    table = card[card.index("| step | training | validation |") :]
    rows = re.findall(r"^\| (\d+) \| ([\d.]+) \| ([\d.]+) \|$", table, re.MULTILINE)
    names = ("step", "training", "validation")
    draw_curve([dict(zip(names, map(float, row), strict=True)) for row in rows], picture)


def drawing(name: str) -> Callable[[Sources, Path], None]:
    """A diagram, or a chart of a formula."""
    return lambda _sources, picture: save(name, picture)
