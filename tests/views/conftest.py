"""One browser for all tests of pages that a worker runs: each opens pages in contexts of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    from report_in_browser import launched  # playwright is asked for only where a page is opened

    with launched() as started:
        yield started
