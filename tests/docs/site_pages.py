"""The pages of the site that are made when it is built: their Markdown, as scripts/docs_site gives it to mkdocs."""

from __future__ import annotations

import re
import sys

from doc_blocks import ROOT

sys.path.insert(0, str(ROOT / "scripts"))

from docs_site import command_pages, docstrings, markdown, mathml, python_pages, registry_pages
from docs_site.hooks import TAKEN_OVER
from docs_site.reference import reference_pages

__all__ = [
    "command_pages",
    "docstrings",
    "generated",
    "markdown",
    "mathml",
    "python_pages",
    "reference_pages",
    "registry_pages",
    "slugs",
]


def generated(path: str) -> str | None:
    """The Markdown of a page that lies nowhere in docs/, by its path there."""
    if path in reference_pages():
        return reference_pages()[path]
    sources = {page: source for source, page in TAKEN_OVER.items()}
    return (ROOT / sources[path]).read_text(encoding="utf-8") if path in sources else None


def slugs(markdown: str) -> set[str]:
    """The anchors of the headings, as GitHub and mkdocs make them."""
    headings = re.findall(r"^#+ (.+)$", markdown, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", one).lower().strip().replace(" ", "-") for one in headings}
