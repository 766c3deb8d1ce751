"""The site is built without a network, has no broken link or anchor, and its pages fetch nothing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from doc_blocks import ROOT
from page_in_browser import needs_browser, opener
from site_pages import python_pages, reference_pages

import abbe

pytestmark = pytest.mark.slow  # the site is built
FETCHED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src", "audio": "src"}
NOWHERE = "http://127.0.0.1:9"
NO_NETWORK = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"), NOWHERE)


class Links(HTMLParser):
    """Anchors, links and what a page fetches."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if tag == "link" and given.get("rel") not in ("canonical", "prev", "next"):
            self.fetched.append(given.get("href", ""))
        if tag in FETCHED:
            self.fetched.append(given.get(FETCHED[tag], ""))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As `make docs` builds it, elsewhere; a warning of mkdocs (strict) is an error."""
    target = tmp_path_factory.mktemp("site").resolve()
    variables = os.environ | NO_NETWORK | {"NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-m", "mkdocs", "build", "--site-dir", str(target)]  # --quiet would hide warnings
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return target


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Links]:
    """All but the one that is shown for an address that does not exist: its links are absolute."""
    there = [path for path in site.rglob("*.html") if path.name != "404.html"]
    return {path: Links(path.read_text("utf-8")) for path in there}


def test_links_and_anchors_lead_somewhere(pages: dict[Path, Links]) -> None:
    broken = [(path.name, link) for path, page in pages.items() for link in page.links if not leads(path, link, pages)]
    assert broken == []
    assert sum(len(page.links) for page in pages.values()) > 5000
    path = next(path for path in pages if path.name == "theory.html")
    assert leads(path, "measures.html#separability", pages)
    assert not leads(path, "measures.html#separabilty", pages)
    assert not leads(path, "measure.html", pages)


def leads(path: Path, link: str, pages: dict[Path, Links]) -> bool:
    if re.match(r"https?:|mailto:|javascript:", link):
        return True
    place, _, anchor = target(path, link).partition("#")
    file = Path(place) / "index.html" if Path(place).is_dir() else Path(place)
    return file.is_file() and (not anchor or file not in pages or anchor in pages[file].anchors)


def target(path: Path, link: str) -> str:
    """The file that a link leads to, with the anchor in it."""
    file, mark, anchor = unquote(link).partition("#")
    return str((path.parent / file).resolve() if file else path) + mark + anchor


def test_pages_fetch_nothing(site: Path, pages: dict[Path, Links]) -> None:
    """No script, style, font, icon or picture of another host; neither do the style sheets."""
    foreign = re.compile(r"(https?:)?//")
    assert [(path.name, one) for path, page in pages.items() for one in page.fetched if foreign.match(one)] == []
    styles = "".join(path.read_text("utf-8") for path in site.rglob("*.css"))
    assert re.findall(r"(?:@import|url\()\s*[\"']?(?:https?:)?//[^)\"']+", styles) == []


def test_every_public_name_has_an_anchor(site: Path, pages: dict[Path, Links]) -> None:
    """So its docstring was found and rendered."""
    folder = site / "reference" / "python"
    anchors = pages[folder / "abbe.html"].anchors
    assert [name for name in abbe.__all__ if f"abbe.{name}" not in anchors] == []
    for package in python_pages.PACKAGES:
        names = re.findall(r"^::: (abbe\.\w+\.\w+)$", reference_pages()[f"reference/python/{package}.md"], re.MULTILINE)
        assert [name for name in names if name not in pages[folder / f"{package}.html"].anchors] == []


def test_formulas_are_typeset(site: Path) -> None:
    proofs = (site / "reference" / "proofs.html").read_text("utf-8")
    assert proofs.count("<math") > 100
    assert "arithmatex" not in proofs


def test_every_figure_has_a_dark_twin(site: Path, pages: dict[Path, Links]) -> None:
    figures = {Path(target(path, one)) for path, page in pages.items() for one in page.fetched if "#only-" in one}
    light = {path.name for path in figures if path.name.endswith(".svg#only-light")}
    assert {name.replace(".svg#only-light", "-dark.svg#only-dark") for name in light} == {
        path.name for path in figures if path.name.endswith("#only-dark")
    }
    assert len(light) > 20
    drawn = (site / "figures" / "separability-dark.svg").read_text("utf-8")
    assert "#ffffff" not in drawn
    assert "#56b4e9" in drawn


# -- In a browser, from the file system --------------------------------------------------------------------------------

# A search shows first what explains or does it.
FIRST = {
    "separability": "explanation/",
    "monitor": "how-to/training",
    "swap": "how-to/swapping",
    "lift": "how-to/lifting",
}


@needs_browser
def test_the_site_works_from_the_file_system(site: Path, pages: dict[Path, Links], browser: Any) -> None:
    """Search answers, no page asks a host for anything, and none is wider than a phone."""
    with opener(browser, site / "how-to" / "swapping.html") as open_page:
        seen = open_page()
        page = seen.page
        for words, first in FIRST.items():
            page.goto((site / "index.html").as_uri())
            page.click(".md-search__input")
            page.type(".md-search__input", words)
            found = page.wait_for_selector(".md-search-result__item > a", timeout=60_000)
            assert f"/{first}" in found.get_attribute("href"), words
        page.set_viewport_size({"width": 400, "height": 800})
        for path in pages:
            if path.parent.name != "figures":
                page.goto(path.as_uri())
                seen.fits()
        assert seen.messages == []
        assert not [url for url in seen.requests if url.startswith("http")]
