"""The reference: every page that is made from the code, by its path below docs/."""

from __future__ import annotations

from functools import cache

from .command_pages import command_pages
from .python_pages import python_pages
from .registry_pages import registry_pages

FOLDER = "reference"


@cache
def reference_pages() -> dict[str, str]:
    pages = registry_pages() | command_pages() | python_pages()
    return {f"{FOLDER}/{path}": text for path, text in pages.items()}
